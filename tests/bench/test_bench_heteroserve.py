"""HeteroServe's experiments, in short: every claim is measured, from the plays it names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest
from paper_documents import check_drawn, claims_by_id, document_of, shorten

from dispatcher.bench.claims import Experiment
from dispatcher.bench.papers.heteroserve import EXPERIMENT, experiments, play, results
from dispatcher.bench.papers.heteroserve.cases import (
    PAPER_TOKENS_PER_S,
    SLO_TTFT_S,
    Case,
    Contender,
    prefill_tokens_per_s,
    saturation_per_s,
    work_of,
)
from dispatcher.bench.papers.heteroserve.decisions import decision_times
from dispatcher.bench.papers.heteroserve.results import linear_fit
from dispatcher.core.types import Outcome
from dispatcher.traces import Played, PlayedCall, PlayedInstance, TraceCall, TraceWorkflow

MAIN = experiments.MAIN
COUNT = 24
"""Requests of a play."""
FEWER = {
    "LOAD_CASES": 6,
    "MIX_CASES": 2,
    "BIMODAL_CASES": 2,
    "SCALING_CASES": 2,
    "VARIANT_CASES": 1,
}
"""Of each experiment's cases."""


@pytest.fixture(scope="module")
def document() -> Iterator[dict[str, object]]:
    with pytest.MonkeyPatch.context() as patch:
        each = ("MAIN", "ABLATION", "BIMODAL", "SATURATED", "PAPER_RATES")
        shorten(patch, experiments, partial(replace, count=COUNT), each=each, first_of=FEWER)
        patch.setattr(play, "WARM_UP_COUNT", 24)
        patch.setattr(
            results, "decision_times", lambda one, devices: decision_times(one, devices, count=50)
        )
        yield document_of(EXPERIMENT, seeds=(0, 1))


def test_every_claim_of_the_evaluation_has_a_measurement(document) -> None:
    claims = claims_by_id(document)
    assert {"throughput-uniform", "attainment", "attainment-uniform", "ttft-uniform"} <= set(claims)
    for name in ("throughput", "attainment", "ttft"):
        assert {f"latency-aware-{name}", f"floor-latency-aware-{name}"} <= claims.keys()
    for name in ("oracle", "capacity"):
        assert {f"throughput-{name}", f"attainment-{name}"} <= claims.keys()
    assert {"ablation-full", "ablation-feedback", "ablation-bins", "ablation-memory"} <= set(claims)
    assert {"load-to-150", "load-200", "load-200-uniform", "bimodal"} <= claims.keys()
    assert {"floor-bimodal-uniform", "floor-bimodal-latency-aware"} <= claims.keys()
    assert {"bins", "scaling", "decision", "bimodal-throughput"} <= claims.keys()
    for claim in claims.values():
        assert claim["note"], claim["id"]
        assert claim["measured"] is not None, claim["id"]


def test_ratios_are_those_of_the_plays(document) -> None:
    plays = {(one["case"], one["contender"]): one for one in document["plays"]}
    case = replace(MAIN, count=COUNT)
    ours, uniform = (
        plays[case.key, one.label] for one in (experiments.HETEROSERVE, experiments.UNIFORM)
    )
    by_seed = [one["by_seed"]["tokens_per_s"] for one in (ours, uniform)]
    paired = [a / b for a, b in zip(*by_seed, strict=True)]
    claim = claims_by_id(document)["throughput-uniform"]
    assert claim["measured"] == pytest.approx(sum(paired) / len(paired), rel=1e-3)
    assert claim["spread"] == pytest.approx(abs(paired[0] - paired[1]) / 2**0.5, rel=1e-2)
    less = claims_by_id(document)["attainment-uniform"]
    assert less["measured"] == pytest.approx(ours["attainment"] - uniform["attainment"], abs=1e-3)


def test_floors_follow_from_their_measurements(document) -> None:
    for claim in document["claims"]:
        if claim["id"].startswith("floor-latency-aware"):
            lower = claim["id"].endswith("ttft")
            assert claim["claimed"] == (1.01 if lower else 0.99)
            measured = claim["measured"]
            assert claim["met"] is (measured <= 1.01 if lower else measured >= 0.99)


def test_the_file_says_how_it_was_measured(document) -> None:
    setting = document["setting"]
    assert setting["slo_ttft_s"] == 0.5
    assert setting["fleet"]["engines"] == {"H100:tp1": 2, "A100-80G:tp1": 4, "L40S:tp1": 2}
    assert setting["load_1_per_s"]["prompts 512, answers 256"] == pytest.approx(23.1, rel=0.02)
    # the paper's proportions of the kinds, at about 0.7 of its rates
    for gpu, paper in setting["paper_prefill_tokens_per_s"].items():
        assert setting["prefill_tokens_per_s"][gpu] / paper == pytest.approx(0.69, abs=0.02)


def test_pictures_are_drawn_from_the_document_alone(document, tmp_path) -> None:
    check_drawn(EXPERIMENT, document, tmp_path, 5)


def test_it_is_measured_from_the_paper_s_seeds() -> None:
    assert isinstance(EXPERIMENT, Experiment)
    assert EXPERIMENT.seeds == (0, 1, 2, 3, 4)
    assert (MAIN.count, MAIN.load, MAIN.devices) == (10_000, 1.0, 8)


# --- cases --------------------------------------------------------------------------------------


def test_what_a_case_promises_every_contender_meets() -> None:
    case = Case(count=50)
    trace = case.trace(1)
    assert trace == case.trace(1) != case.trace(2)
    assert all(one.calls[0].slo_ttft_s == SLO_TTFT_S for one in trace)
    seen = [play.play(case, Contender(name, name), 1)[0] for name in ("vllm", "least-backlog")]
    assert seen == [trace, trace]


def test_the_same_seed_gives_the_same_figures() -> None:
    task = (Case(count=60), experiments.HETEROSERVE, 1)
    assert play.figures_of(task) == play.figures_of(task)


def test_load_one_is_what_the_fleet_can_serve() -> None:
    """Of a fleet that is given twice as much, and always finds the engine with least to do."""
    case = Case(load=2.0, count=1_500)
    found = play.figures_of((case, Contender("least", "least-backlog"), 0))
    work = work_of(case.workload)
    served = found["steady_tokens_per_s"] / (work.prompt_tokens + work.output_tokens)
    assert served == pytest.approx(saturation_per_s(case), rel=0.15)


def test_at_the_paper_s_rates_prefill_takes_what_its_table_says() -> None:
    own, faster = Case(), Case(rates="paper")
    for engine in faster.engines():
        paper = PAPER_TOKENS_PER_S[engine.spec.gpu or ""]
        # attention and the host's work come on top of what the table counts
        assert 0.93 * paper < prefill_tokens_per_s(engine) < paper
        assert engine.spec.profile is not None
        assert 1.0 / engine.spec.profile.prefill_s_per_token == pytest.approx(paper, rel=1e-6)
    assert saturation_per_s(faster) > saturation_per_s(own)


def test_fleets_keep_their_proportions() -> None:
    for devices in (4, 8, 32):
        case = Case(devices=devices)
        assert case.fleet.counted() == {
            "H100:tp1": devices // 4,
            "A100-80G:tp1": devices // 2,
            "L40S:tp1": devices // 4,
        }
        assert case.rate_per_s / devices == pytest.approx(Case().rate_per_s / 8)


# --- arithmetic ---------------------------------------------------------------------------------


def _call(number: int, instance: str, prompt: int, first_s: float, ended_s: float) -> PlayedCall:
    return PlayedCall(
        f"w-{number}",
        "c0",
        "answer",
        instance,
        Outcome.OK,
        sent_s=float(number),
        ended_s=ended_s,
        prompt_tokens=prompt,
        output_tokens=10,
        first_token_s=first_s,
    )


def test_figures_are_of_all_requests() -> None:
    trace = [
        TraceWorkflow(f"w-{n}", "app", float(n), (TraceCall("c0", "answer", prompt, 10),))
        for n, prompt in enumerate((100, 300, 3000))
    ]
    calls = [
        _call(0, "h100-0", 100, 0.5, 1.5),
        _call(1, "l40s-0", 300, 1.6, 10.0),
        _call(2, "l40s-1", 3000, 2.4, 6.0),
    ]
    idle = PlayedInstance(busy_s=2.0, seat_s=0.0, seats=1)
    played = Played([], calls, 10.0, dict.fromkeys(("h100-0", "l40s-0", "l40s-1"), idle))
    found = play.score(trace, played)
    assert found["tokens_per_s"] == pytest.approx((3400 + 30) / 10.0)
    # before the last arrival, at 2 s, the first alone had ended
    assert found["steady_tokens_per_s"] == pytest.approx(110 / 2.0)
    assert found["attainment"] == pytest.approx(2 / 3)  # 0.5 s is in time, 0.6 s is not
    assert found["ttft_p50_s"] == pytest.approx(0.5)
    assert [one["requests"] for one in found["bins"]] == [1, 1, 0, 1]
    assert found["bins"][1]["attainment"] == 0.0
    assert found["devices"]["l40s"] == pytest.approx({"requests": 2 / 3, "busy": 0.2})
    less = play.score(trace, replace(played, calls=calls[:2]))
    assert (less["failed"], less["attainment"]) == (1, pytest.approx(1 / 3))


def test_a_line_explains_what_lies_on_it() -> None:
    slope, share = linear_fit([(4.0, 40.0), (8.0, 80.0), (16.0, 160.0)])
    assert (slope, share) == (pytest.approx(10.0), pytest.approx(1.0))
    slope, share = linear_fit([(1.0, 1.0), (2.0, 3.0), (3.0, 2.0)])
    assert (slope, share) == (pytest.approx(0.5), pytest.approx(0.25))
    assert linear_fit([(1.0, 5.0), (2.0, 5.0)]) == (0.0, 1.0)


def test_decisions_are_timed_once_an_arrival_and_fill_the_fleet() -> None:
    found = decision_times(Contender("vllm", "vllm"), 8, count=300)
    assert (found.devices, found.decisions) == (8, 300)
    assert 0.0 < found.routing_p50_us <= found.p50_us <= found.p99_us
    # Little's law: load 0.9 keeps a couple of hundred calls in flight
    assert found.in_flight > 50
