"""Tempo's experiments, in short: every claim is measured, from the plays it names."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest
from paper_documents import check_drawn, claims_by_id, document_of, shorten

from dispatcher.bench.papers import PAPERS
from dispatcher.bench.papers.tempo import experiments, play
from dispatcher.bench.papers.tempo.cases import (
    Case,
    Contender,
    capacity_tokens_per_s,
    stages_of,
    with_slos,
)
from dispatcher.bench.papers.tempo.scoring import Request, deadline_s, requests_of, score
from dispatcher.core.types import CallClass, Outcome
from dispatcher.simulator import simulate
from dispatcher.simulator.workloads import Poisson, make_trace
from dispatcher.simulator.workloads.tempo import tempo_mix
from dispatcher.traces import Played, PlayedCall, PlayedWorkflow, TraceCall, TraceWorkflow

SHORT_S = 60.0
FEWER = {
    "HOUR_CASES": 2,
    "LOAD_CASES": 2,
    "BATCH_CASES": 2,
    "SCALE_CASES": 1,
    "MIX_CASES": 1,
    "BURST_CASES": 1,
}
"""Of each experiment's cases."""


@pytest.fixture(scope="module")
def document() -> Iterator[dict[str, object]]:
    with pytest.MonkeyPatch.context() as patch:
        each = ("MAIN", "HOUR", "HOUR_LONG")
        shorten(patch, experiments, partial(replace, span_s=SHORT_S), each=each, first_of=FEWER)
        patch.setattr(play, "WARM_UP_S", 60.0)
        yield document_of(PAPERS["tempo"](), seeds=(0,))


def test_every_claim_of_the_evaluation_has_a_measurement(document) -> None:
    claims = claims_by_id(document)
    assert {"gain-vllm", "decay-tempo", "decay-vllm", "goodput-vllm"} <= claims.keys()
    assert {"throughput-sarathi", "oracle-goodput", "oracle-gain", "load-best"} <= claims.keys()
    assert {"floor-goodput", "floor-gain"} <= claims.keys()
    assert {"penalty", "slo-scale", "mix", "bursts"} <= claims.keys()
    for part in ("graphs", "lengths"):
        assert {f"without-{part}-goodput", f"without-{part}-gain"} <= claims.keys()
    assert sum(name.startswith("class-") for name in claims) == 9
    for claim in claims.values():
        assert claim["note"], claim["id"]
        # in so short a time vLLM is overrun nowhere
        assert claim["measured"] is not None or claim["id"].startswith("floor-"), claim["id"]


def test_ratios_are_those_of_the_plays(document) -> None:
    plays = {(play["case"], play["contender"]): play for play in document["plays"]}
    ratios = [
        plays[case.key, "tempo"]["goodput_per_s"] / plays[case.key, "vllm"]["goodput_per_s"]
        for case in experiments.BATCH_CASES
    ]
    claim = claims_by_id(document)["goodput-vllm"]
    assert claim["measured"] == pytest.approx([min(ratios), max(ratios)], abs=2e-3)


def test_the_file_says_how_it_was_measured(document) -> None:
    setting = document["setting"]
    assert setting["slo"] == {"ttft_s": 2.0, "tpot_s": 0.1, "ttlt_s": 20.0, "per_stage_s": 20.0}
    assert setting["mix"] == [3.0, 1.0, 1.0, 0.0]
    assert "played under vllm" in setting["warm_up"]
    assert setting["load_1_tokens_per_s"]["8b, 16"] == pytest.approx(1434, rel=0.02)


def test_pictures_are_drawn_from_the_document_alone(document, tmp_path) -> None:
    check_drawn(PAPERS["tempo"](), document, tmp_path, 5)


def test_load_one_is_what_the_engine_makes_with_every_seat_busy() -> None:
    case = Case(load=2.0, span_s=400.0)
    found = play.figures_of((case, Contender("vllm", "vllm"), 0, ()))
    assert found["output_tokens_per_s"] == pytest.approx(capacity_tokens_per_s(case), rel=0.08)
    assert found["output_tokens_per_s"] < capacity_tokens_per_s(case)


def test_the_same_seed_gives_the_same_figures() -> None:
    task = (Case(span_s=60.0), Contender("oracle", "hexgen-flow", lengths="oracle"), 1, (2.0,))
    assert play.figures_of(task) == play.figures_of(task)


def test_sarathi_fcfs_is_what_vllm_does() -> None:
    case = Case(span_s=120.0)
    first, second = (
        play.figures_of((case, contender, 0, ()))
        for contender in (experiments.VLLM, experiments.SARATHI)
    )
    assert first == second


def test_slos_are_the_paper_s() -> None:
    mix = tempo_mix(best_effort=1.0)
    trace = with_slos(make_trace(mix, Poisson(), rate_per_s=1.0, seed=0, count=300), 1.5)
    for workflow in trace:
        call = workflow.calls[0]
        ttft_tpot = (call.slo_ttft_s, call.slo_tpot_s)
        if call.call_class is CallClass.LATENCY:
            assert (ttft_tpot, workflow.slo_s) == ((3.0, pytest.approx(0.15)), None)
        else:
            assert ttft_tpot == (None, None)
        if call.call_class is CallClass.THROUGHPUT:
            assert workflow.slo_s == 30.0
        if call.call_class is CallClass.BEST_EFFORT:
            assert workflow.slo_s is None and math.isinf(deadline_s(workflow))
        if workflow.application == "tempo-thoughts":
            assert (stages_of(workflow), workflow.slo_s) == (4, 120.0)
        if workflow.application == "tempo-coding":
            assert workflow.slo_s == 30.0 * len(workflow.calls)


def _played(
    workflow: TraceWorkflow, ended_s: float, first_s: float | None, lag_s: float | None
) -> Played:
    calls = [
        PlayedCall(
            workflow.workflow_id,
            call.call_id,
            call.stage,
            "engine",
            Outcome.OK,
            sent_s=workflow.arrival_s,
            ended_s=ended_s,
            prompt_tokens=call.prompt_tokens,
            output_tokens=call.output_tokens,
            first_token_s=first_s,
            token_lag_s=lag_s,
        )
        for call in workflow.calls
    ]
    over = PlayedWorkflow(
        workflow.workflow_id, "app", "default", workflow.arrival_s, ended_s, workflow.slo_s, ok=True
    )
    return Played([over], calls, ended_s)


def _request(call_class: CallClass, ended_s: float, **told: float | None) -> Request:
    """Of 100 prompt and 11 output tokens, arrived at 5 s."""
    streaming = call_class is CallClass.LATENCY
    call = TraceCall("c", "s", 100, 11, call_class=call_class, streaming=streaming)
    (workflow,) = with_slos([TraceWorkflow("w", "app", 5.0, (call,))])
    played = _played(workflow, ended_s, told.get("first_s"), told.get("lag_s"))
    (found,) = requests_of([workflow], played)
    return found


def test_a_whole_answer_is_worth_less_the_later_it_is() -> None:
    in_time, late = (_request(CallClass.THROUGHPUT, end) for end in (24.0, 45.0))
    assert (in_time.met, in_time.gain, in_time.deadline_s) == (True, 122.0, 25.0)
    assert (late.met, late.gain, late.latency_s) == (False, 61.0, 40.0)


def test_a_stream_is_judged_by_its_timeline() -> None:
    good = _request(CallClass.LATENCY, 7.5, first_s=6.5, lag_s=-0.5)
    assert (good.met, good.gain, good.ttft_s) == (True, 122.0, 1.5)
    assert good.tpot_s == pytest.approx(0.1)
    assert good.deadline_s == pytest.approx(8.0)
    stood_still = _request(CallClass.LATENCY, 8.0, first_s=6.5, lag_s=0.2)
    assert stood_still.met is False
    assert 100.0 < stood_still.gain <= 122.0


def test_what_was_promised_nothing_cannot_be_late() -> None:
    found = _request(CallClass.BEST_EFFORT, 9999.0)
    assert (found.met, found.gain) == (None, 122.0)


def test_figures_are_of_the_span_alone() -> None:
    """Requests whose deadlines lie beyond it are not judged; what ends after it gains nothing."""
    case = Case(span_s=120.0)
    trace = case.trace(0)
    played = simulate(trace, case.fleet.engines(), policy="vllm").played
    whole = requests_of(trace, played)
    found = score(whole, played.calls, case.span_s)
    assert played.makespan_s > case.span_s
    done = [one for one in whole if one.ended_s <= 120.0]
    assert found["done"] == len(done) < len(whole)
    assert found["gain_per_s"] == pytest.approx(sum(one.gain for one in done) / 120.0, rel=1e-6)
    assert sum(found["gain_over_time"]) * 60.0 == pytest.approx(
        sum(one.gain for one in done), rel=1e-6
    )
    judged = [one for one in whole if one.deadline_s <= 120.0]
    assert found["attainment"] == pytest.approx(sum(bool(one.met) for one in judged) / len(judged))
    cut = play.figures_of((case, Contender("vllm", "vllm"), 0, ()))
    for figure in ("done", "goodput_per_s", "gain_per_s", "attainment"):
        assert cut[figure] == found[figure]
