"""AugServe's experiments, in short: every claim is measured, from the plays it names."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
from paper_documents import check_drawn, claims_by_id, document_of

from dispatcher.bench.over_seeds import Measured
from dispatcher.bench.papers import PAPERS
from dispatcher.bench.papers.augserve import claims, experiments, play
from dispatcher.bench.papers.augserve.cases import (
    H800,
    Abilities,
    Case,
    Contender,
    engine_of,
    iteration_s,
    usual_gaps_s,
)
from dispatcher.bench.papers.augserve.engine_control import ContextControl
from dispatcher.bench.papers.augserve.scoring import Request, requests_of, score
from dispatcher.core.types import AttemptId, Outcome
from dispatcher.simulator import Attempt, EnginePlayer
from dispatcher.simulator.kernel import Kernel
from dispatcher.simulator.workloads.augserve import Arrival, Round, request
from dispatcher.traces import Played, PlayedCall, PlayedWorkflow, TraceWorkflow

SHORT_S = 20.0
OF_OVERRUN = ("floor-", "loose-", "tail-", "tpot-")


def _short(case: Case) -> Case:
    if case.count is not None:
        return replace(case, count=8)
    return replace(case, span_s=SHORT_S)


@pytest.fixture(scope="module")
def document() -> Iterator[dict[str, object]]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("ABLATION", "MERGE_MATCH", "TOOLBENCH_MATCH"):
            patch.setattr(experiments, name, _short(getattr(experiments, name)))
        ablation, toolbench = experiments.ABLATION, experiments.TOOLBENCH_MATCH
        kept = (experiments.MERGE_MATCH, ablation)
        for name, cases in (
            ("MERGE_CASES", kept),
            ("TOOLBENCH_CASES", (toolbench,)),
            ("W1_CASES", (*kept, toolbench)),
            ("NO_HOST_CASES", kept),
            ("PART_CASES", (ablation, toolbench)),
        ):
            patch.setattr(experiments, name, cases)
        for name, every in (("W2_CASES", 2), ("W3_CASES", 2), ("SMALL_CASES", 1)):
            cases = getattr(experiments, name)[::every]
            patch.setattr(experiments, name, tuple(map(_short, cases)))
        patch.setattr(play, "WARM_UP_S", 20.0)
        yield document_of(PAPERS["augserve"](), seeds=(0, 1))


def test_every_claim_of_the_evaluation_has_a_measurement(document) -> None:
    found = claims_by_id(document)
    for under in ("vllm", "infercept"):
        assert {f"goodput-all-{under}", f"goodput-merge-{under}"} <= found.keys()
        assert {f"goodput-toolbench-{under}", f"floor-{under}"} <= found.keys()
        assert {f"ttft-{under}", f"normalised-{under}", f"bursts-{under}"} <= found.keys()
        assert {f"loose-{under}", f"tail-{under}", f"tpot-{under}"} <= found.keys()
        assert {f"small-{under}", f"ablation-batching-{under}"} <= found.keys()
    for workload in ("merge", "toolbench"):
        assert {f"count-{workload}", f"engine-{workload}"} <= found.keys()
        assert {f"queueing-{workload}", f"predicting-{workload}"} <= found.keys()
    assert "ablation-scheduling" in found
    for claim in found.values():
        assert claim["note"], claim["id"]
        # in so short a time vLLM is overrun nowhere
        of_overrun = claim["id"].startswith((*OF_OVERRUN, "goodput-all", "goodput-merge"))
        assert claim["measured"] is not None or of_overrun, claim["id"]


def test_ratios_are_means_over_seeds_of_plays_of_the_same_requests(document) -> None:
    case = experiments.ABLATION
    pairs = [
        [
            play.figures_of((case, contender, seed))["goodput_per_s"]
            for contender in (experiments.AUGSERVE, experiments.BATCHING)
        ]
        for seed in (0, 1)
    ]
    claim = claims_by_id(document)["ablation-scheduling"]
    expected = sum(ours / theirs for ours, theirs in pairs) / 2
    assert claim["measured"] == pytest.approx(expected, abs=1e-3)


def test_the_file_says_how_it_was_measured(document) -> None:
    setting = document["setting"]
    assert setting["slo"]["ttft_s"] == 1.0
    assert setting["slo"]["token_s"]["13B on H800, merge"] == pytest.approx(0.271, abs=0.003)
    assert setting["slo"]["strict_token_s"]["13B on H800, merge"] == pytest.approx(0.107, abs=0.003)
    assert setting["contenders"]["vllm"]["prefix_cache"] is False
    assert setting["contenders"]["augserve, engine for tools"]["token_limit"] is True
    assert "played under vllm" in setting["warm_up"]


def test_pictures_are_drawn_from_the_document_alone(document, tmp_path) -> None:
    check_drawn(PAPERS["augserve"](), document, tmp_path, 3)


@pytest.mark.parametrize(
    "contender", [experiments.VLLM, experiments.AUGSERVE, experiments.AUGSERVE_ENGINE]
)
def test_the_same_seed_gives_the_same_figures(contender: Contender) -> None:
    task = (Case("toolbench", 2.5, span_s=30.0), contender, 1)
    assert play.figures_of(task) == play.figures_of(task)


def test_a_floor_that_is_missed_says_where_and_what_could_be_reached() -> None:
    class Known:
        def measured(self, case: Case, contender: Contender, of: str) -> Measured:
            assert (contender, of) == (experiments.INFERCEPT, "of_all")
            return Measured([0.8])

    found = [
        (Case("merge", 2.0), Measured([1.2, 1.4])),
        (Case("merge", 3.0), Measured([2.2, 2.4])),
    ]
    told = claims._below(Known(), experiments.INFERCEPT, 1.5, found)  # type: ignore[arg-type]
    assert told.startswith("below in 1 (merge 2/s: 1.30 of at most 1.25), in the others at least")
    assert "2.30" in told
    assert claims._below(Known(), experiments.INFERCEPT, 1.0, found) == "in all"  # type: ignore[arg-type]


# --- what a request was worth ---------------------------------------------------------------------


def _workflow() -> TraceWorkflow:
    """Two calls of 11 and 21 tokens, ten seconds of a tool between them; arrives at 5 s."""
    return request(Arrival("w", "app", 5.0), 100, [Round(11, "search", 10.0, 50)], 21)


def _played(workflow: TraceWorkflow, *, first_s: float, ended_s: float) -> Played:
    """The first call waits until a second before its first token, and takes one for the rest."""
    sent = (workflow.arrival_s, first_s + 1.0 + 10.0)
    ends = (first_s + 1.0, ended_s)
    calls = [
        PlayedCall(
            "w",
            call.call_id,
            call.stage,
            "engine",
            Outcome.OK,
            sent_s=sent[number],
            ended_s=ends[number],
            prompt_tokens=call.prompt_tokens,
            output_tokens=call.output_tokens,
            first_token_s=first_s if number == 0 else sent[1] + 0.5,
            queue_s=0.25,
        )
        for number, call in enumerate(workflow.calls)
    ]
    over = PlayedWorkflow("w", "app", "default", workflow.arrival_s, ended_s, None, ok=True)
    return Played([over], calls, ended_s)


def test_tools_time_counts_for_nothing() -> None:
    workflow = _workflow()
    (found,) = requests_of([workflow], _played(workflow, first_s=5.5, ended_s=18.0))
    assert found.ttft_s == pytest.approx(0.5)
    assert found.served_s == pytest.approx(18.0 - 5.0 - 10.0)
    assert found.normalised_s == pytest.approx(3.0 / 32)
    assert found.queue_s == pytest.approx(0.5)
    assert found.decoded == 30
    assert found.met(0.1) and not found.met(0.09)
    assert found.met(0.09, 5.0)


def test_a_late_first_token_is_a_miss_however_fast_the_rest() -> None:
    workflow = _workflow()
    (found,) = requests_of([workflow], _played(workflow, first_s=6.5, ended_s=18.0))
    assert not found.met(10.0)
    assert found.met(10.0, 5.0)


def test_who_is_not_over_is_not_met_and_waits_on() -> None:
    (found,) = requests_of([_workflow()], Played([], [], 0.0))
    assert (found.ttft_s, found.ended_s, found.normalised_s) == (None, math.inf, math.inf)
    assert not found.met(math.inf)
    figures = score([found], 0.1, 20.0, strict_token_s=0.1)
    assert figures["ttft_s"]["mean"] == pytest.approx(15.0)
    assert (figures["goodput_per_s"], figures["of_all"]) == (0.0, 0.0)
    assert figures["attainment"] is None


def test_figures_are_of_the_span_and_by_task() -> None:
    requests = [
        Request("a", 0.0, 0.5, 10.0, 0.05, 2.0, 0.5, 1.0, 20),
        Request("a", 1.0, 3.0, 12.0, 0.05, 4.0, 1.0, 1.0, 20),
        Request("b", 2.0, 0.5, 15.0, 0.30, 6.0, 3.0, 2.0, 20),
        Request("b", 3.0, 0.5, 25.0, 0.05, 8.0, 0.0, 1.0, 20),
    ]
    found = score(requests, 0.1, 20.0, strict_token_s=0.01)
    assert (found["arrived"], found["done"]) == (4, 3)
    assert found["goodput_per_s"] == pytest.approx(1 / 20.0)
    assert found["goodput_loose_per_s"] == pytest.approx(3 / 20.0)
    assert found["goodput_strict_per_s"] == 0.0
    assert found["attainment"] == pytest.approx(1 / 3)
    assert found["of_all"] == pytest.approx(1 / 4)
    assert found["queue_share"] == pytest.approx(4.5 / 12.0)
    assert found["tpot_s"] == pytest.approx(4.0 / 60)
    assert found["ttft_met"] == pytest.approx(3 / 4)
    assert found["tasks"]["a"]["of_all"] == pytest.approx(1 / 2)
    assert found["tasks"]["b"]["goodput_per_s"] == 0.0


# --- engines --------------------------------------------------------------------------------------


def test_an_iteration_is_that_of_a_full_engine() -> None:
    full, alone = (iteration_s(H800, "merge", full=full) for full in (True, False))
    # weights in both; 53,674 tokens of KV at 819,200 bytes in the first
    assert full - alone == pytest.approx(53_674 * 819_200 / 2.68e12, rel=0.05)


def test_an_engine_for_tools_does_what_wastes_least() -> None:
    abilities = Abilities(host_memory=True, for_tools=True, token_limit=True)
    engine = engine_of(H800, "merge", abilities)
    assert engine.control is not None
    kernel = Kernel()
    ended: list[Attempt] = []
    player = EnginePlayer(engine.config, kernel, on_first_token=lambda _: None, on_end=ended.append)
    control = engine.control(player)
    assert isinstance(control, ContextControl)
    quick, slow = (control.wasted(1000.0, usual_gaps_s(H800, "merge")[tool]) for tool in TOOLS)
    assert quick.preserve < quick.discard
    assert slow.discard < slow.preserve
    attempt, other = (
        Attempt(
            AttemptId(number),
            prompt_tokens=1000,
            output_tokens=output_tokens,
            arrival_s=0.0,
            priority=0,
            block_hashes=hashes,
            streaming=True,
            session=f"w{number}",
        )
        for number, output_tokens, hashes in ((1, 30, range(1, 17)), (2, 900, ()))
    )
    player.add(attempt)
    player.add(other)
    kernel.run(until=lambda: bool(ended))
    assert ended == [attempt]
    control.ended(attempt, TOOLS[0], kernel.now_s)
    assert player.model.preserved_blocks == 16
    assert player.release("w1")
    control.ended(attempt, TOOLS[1], kernel.now_s)
    assert player.model.residency(attempt.block_hashes).resident == 0


TOOLS = ("calculator", "human")


def test_the_limit_of_an_iteration_follows_free_memory() -> None:
    abilities = Abilities(host_memory=True, for_tools=True, token_limit=True)
    engine = engine_of(H800, "merge", abilities)
    assert engine.config.max_num_batched_tokens == 2560
    player = EnginePlayer(
        engine.config, Kernel(), on_first_token=lambda _: None, on_end=lambda _: None
    )
    control = engine.control(player)
    control.tick(0.0)
    assert player.model.token_limit == 2560
    kv_tokens = engine.config.kv_capacity_tokens
    lengths = [3800] * 13 + [kv_tokens - 13 * 3800 - 2000]
    for number, prompt_tokens in enumerate(lengths):
        player.model.add(
            Attempt(
                AttemptId(number),
                prompt_tokens=prompt_tokens,
                output_tokens=290,
                arrival_s=0.0,
                priority=0,
                block_hashes=(),
                streaming=True,
            )
        )
    while player.model.step(0.0).prefill_tokens:
        pass
    free = (1.0 - player.model.kv_usage) * kv_tokens
    assert 512 < free < 2560
    control.tick(1.0)
    assert player.model.token_limit == int(free)
