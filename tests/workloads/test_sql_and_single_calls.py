"""MAC-SQL, chat, code and reasoning: structure and lengths of what they were fitted on."""

from __future__ import annotations

from statistics import fmean

import pytest

from dispatcher.core.types import CallClass
from dispatcher.simulator.workloads import WORKLOADS, Poisson, make_trace
from dispatcher.traces import TraceCall, TraceWorkflow

COUNT = 4000


def trace_of(name: str) -> list[TraceWorkflow]:
    return make_trace(WORKLOADS[name], Poisson(), rate_per_s=1.0, seed=0, count=COUNT)


@pytest.fixture(scope="module")
def queries() -> list[TraceWorkflow]:
    return trace_of("mac-sql")


def stages(workflow: TraceWorkflow) -> list[str]:
    return [call.stage for call in workflow.calls]


def test_a_query_is_pruned_answered_and_refined_in_a_chain(queries: list[TraceWorkflow]) -> None:
    for workflow in queries:
        of = stages(workflow)
        selectors, refiners = of.count("selector"), of.count("refiner")
        assert of == [*["selector"] * selectors, "decomposer", *["refiner"] * refiners]
        assert selectors <= 1
        assert refiners <= 3
        calls = workflow.calls
        assert [call.parents for call in calls] == [(), *((c.call_id,) for c in calls[:-1])]


def test_mac_sql_calls_are_as_frequent_as_in_trace_4(queries: list[TraceWorkflow]) -> None:
    selected = fmean("selector" in stages(workflow) for workflow in queries)
    refined = fmean("refiner" in stages(workflow) for workflow in queries)
    assert selected == pytest.approx(0.46, abs=0.025)
    assert refined == pytest.approx(0.26, abs=0.025)
    assert fmean(len(w.calls) for w in queries) == pytest.approx(1.75, abs=0.05)


def test_mac_sql_lengths_are_those_of_trace_4(queries: list[TraceWorkflow]) -> None:
    of = {
        stage: [call for workflow in queries for call in workflow.calls if call.stage == stage]
        for stage in ("selector", "decomposer", "refiner")
    }
    outputs = sorted(call.output_tokens for call in of["decomposer"])
    for probability, recorded in ((0.1, 30), (0.5, 153), (0.9, 257)):
        assert outputs[int(probability * len(outputs))] == pytest.approx(recorded, rel=0.12)
    assert all(2328 <= call.prompt_tokens <= 3360 for call in of["selector"])
    assert all(1220 <= call.prompt_tokens <= 3112 for call in of["decomposer"])
    assert fmean(call.output_tokens for call in of["refiner"]) == pytest.approx(490, rel=0.05)
    assert all(call.tool == "execute-sql" for call in of["refiner"])


def test_queries_on_a_small_database_share_all_but_the_question(
    queries: list[TraceWorkflow],
) -> None:
    alone = [w.calls[0] for w in queries if stages(w) == ["decomposer"]]
    assert all(call.prompt_tokens - call.prefix[-1].end_tokens <= 60 for call in alone)
    assert len({call.prefix[-1].content for call in alone}) == 4


# Medians, 95th percentiles and means of the published traces.
@pytest.mark.parametrize(
    ("name", "prompts", "outputs"),
    [
        ("chat", (1033, 4086, 1243), (134, 460, 217)),
        ("code", (1460, 7315, 2028), (13, 85, 27)),
        ("reasoning", (84, 6876, 1213), (1223, 6993, 1992)),
    ],
)
def test_single_calls_are_as_long_as_the_recorded_ones(
    name: str, prompts: tuple[int, int, int], outputs: tuple[int, int, int]
) -> None:
    calls = [workflow.calls[0] for workflow in trace_of(name)]

    def near(drawn: list[int], median: int, high: int, mean: int) -> None:
        # Shares of 4,000 draws have a standard error below 0.008.
        assert fmean(tokens < median for tokens in drawn) == pytest.approx(0.5, abs=0.04)
        assert fmean(tokens > high for tokens in drawn) == pytest.approx(0.05, abs=0.015)
        assert fmean(drawn) == pytest.approx(mean, rel=0.2)

    near([call.prompt_tokens for call in calls], *prompts)
    near([call.output_tokens for call in calls], *outputs)


@pytest.mark.parametrize(
    ("name", "call_class"),
    [
        ("chat", CallClass.LATENCY),
        ("code", CallClass.LATENCY),
        ("reasoning", CallClass.THROUGHPUT),
    ],
)
def test_single_calls_stream(name: str, call_class: CallClass) -> None:
    def of(call: TraceCall) -> tuple[bool, CallClass]:
        return call.streaming, call.call_class

    trace = trace_of(name)[:50]
    assert {of(call) for workflow in trace for call in workflow.calls} == {(True, call_class)}
    assert all(len(workflow.calls) == 1 for workflow in trace)
