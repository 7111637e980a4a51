"""CHESS queries: as many calls, as long, and after one another as the paper and its record say."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from statistics import fmean, median, pvariance

import pytest

from dispatcher.simulator.workloads.arrivals import Poisson
from dispatcher.simulator.workloads.base import make_trace
from dispatcher.simulator.workloads.chess import CHESS_1, CHESS_2, CHESS_3, PAPER_STAGES, Chess
from dispatcher.traces import TraceCall, TraceWorkflow

COUNT = 2000


@cache
def trace_of(workload: Chess) -> list[TraceWorkflow]:
    return make_trace(workload, Poisson(), rate_per_s=0.5, seed=0, count=COUNT)


def calls(trace: Iterable[TraceWorkflow], stage: str) -> list[TraceCall]:
    return [call for workflow in trace for call in workflow.calls if call.stage == stage]


# The standard error of the mean is at most 0.09, that of the variance 0.4.
@pytest.mark.parametrize(
    ("workload", "mean", "variance"),
    [(CHESS_1, 19.4, 12.1), (CHESS_2, 20.7, 14.7), (CHESS_3, 21.1, 16.3)],
    ids=lambda value: value.name if isinstance(value, Chess) else None,
)
def test_calls_per_query_are_the_papers(workload: Chess, mean: float, variance: float) -> None:
    numbers = [len(workflow.calls) for workflow in trace_of(workload)]
    assert fmean(numbers) == pytest.approx(mean, abs=0.2)
    assert pvariance(numbers) == pytest.approx(variance, abs=1.0)


# Of the recorded queries on `financial`: means over 85 to 452 calls.
@pytest.mark.parametrize(
    ("stage", "prompt_tokens", "output_tokens"),
    [
        ("information-retriever", 306.25, 7.5),
        ("extract-keywords", 662.7, 40.5),
        ("generate-candidate", 10039.3, 596.0),
        ("revise", 5956.2, 154.6),
        ("unit-tester", 274.67, 4.67),
        ("generate-unit-test", 1020.8, 92.4),
        ("evaluate", 898.6, 28.5),
    ],
)
def test_lengths_by_stage_are_the_records(
    stage: str, prompt_tokens: float, output_tokens: float
) -> None:
    drawn = calls(trace_of(CHESS_1), stage)
    assert fmean(call.prompt_tokens for call in drawn) == pytest.approx(prompt_tokens, rel=0.03)
    assert fmean(call.output_tokens for call in drawn) == pytest.approx(output_tokens, rel=0.12)


def test_the_middle_revision_is_short_though_some_run_into_their_limit() -> None:
    outputs = [call.output_tokens for call in calls(trace_of(CHESS_1), "revise")]
    assert median(outputs) == pytest.approx(85, abs=6)
    assert fmean(output > 900 for output in outputs) == pytest.approx(0.06, abs=0.01)
    assert fmean(output < 25 for output in outputs) == pytest.approx(0.13, abs=0.015)


def stages(workflow: TraceWorkflow) -> list[str]:
    return [call.stage for call in workflow.calls]


@pytest.mark.parametrize("workload", [CHESS_1, CHESS_2, CHESS_3], ids=lambda w: w.name)
def test_stages_follow_one_another_and_widths_are_legal(workload: Chess) -> None:
    for workflow in trace_of(workload)[:500]:
        of = stages(workflow)
        revisions, evaluations = of.count("revise"), of.count("evaluate")
        keywords, tests = of.count("extract-keywords"), of.count("generate-unit-test")
        assert 0 <= revisions <= 10
        assert keywords in {0, 1}
        assert (tests, evaluations) == (0, 0) or (tests == 1 and 2 <= evaluations <= 8)
        assert of == [
            "information-retriever",
            *["extract-keywords"] * keywords,
            *["information-retriever"] * 3,
            *["generate-candidate"] * 2,
            *["revise"] * revisions,
            "unit-tester",
            *["generate-unit-test"] * tests,
            "unit-tester",
            *["evaluate"] * evaluations,
            "unit-tester",
        ]
        assert set(of) <= set(PAPER_STAGES)


def test_only_candidates_and_evaluations_run_side_by_side() -> None:
    for workflow in trace_of(CHESS_3)[:300]:
        before: list[TraceCall] = []
        group: list[TraceCall] = []
        for call in workflow.calls:
            wide = call.stage in {"generate-candidate", "evaluate"}
            if not (wide and group and group[-1].stage == call.stage):
                before, group = group, []
            assert call.parents == tuple(parent.call_id for parent in before)
            group.append(call)


def test_every_number_of_revisions_from_none_to_ten_occurs() -> None:
    numbers = {stages(workflow).count("revise") for workflow in trace_of(CHESS_3)}
    assert numbers == set(range(11))


def test_prompts_share_templates_with_all_and_schemas_within_the_query() -> None:
    one, other = trace_of(CHESS_1)[:2]
    contents = [
        {part.content for call in workflow.calls for part in call.prefix}
        for workflow in (one, other)
    ]
    assert {"chess/candidate-one", "chess/unit-tester"} <= contents[0] & contents[1]
    assert not any(c.startswith("chess-1-") for c in contents[0] & contents[1])
    evaluations = calls([one], "evaluate")
    assert len({call.prefix[-1].content for call in evaluations}) == 1
    assert all(0 < c.prompt_tokens - c.prefix[-1].end_tokens < 100 for c in evaluations)


def test_trace_3_has_queries_on_both_databases() -> None:
    prompts = [workflow.calls[5].prompt_tokens for workflow in trace_of(CHESS_3)]
    firsts = [p for p in prompts if p > 11000]
    assert fmean(p < 13000 for p in firsts) == pytest.approx(0.5, abs=0.05)


def test_tools_take_little_time_and_texts_to_sql_do_not_stream() -> None:
    drawn = [call for workflow in trace_of(CHESS_1) for call in workflow.calls]
    assert not any(call.streaming for call in drawn)
    assert all(workflow.slo_s is None for workflow in trace_of(CHESS_1))
    assert all((call.tool is None) == (call.gap_s == 0.0) for call in drawn)
    assert median(call.gap_s for call in drawn if call.tool == "execute-sql") == pytest.approx(
        0.05, rel=0.1
    )


def test_a_mean_that_no_revisions_have_is_refused() -> None:
    with pytest.raises(ValueError, match="no 10 trials"):
        Chess(
            name="x", summary="", databases=CHESS_1.databases, calls_mean=26.0, calls_variance=12.0
        )
