"""Augmented requests have the tools, rounds and contexts that were published."""

from __future__ import annotations

from statistics import fmean, pstdev

import pytest

from dispatcher.simulator.workloads import Poisson, Workload, make_trace
from dispatcher.simulator.workloads.augserve import (
    MERGE,
    MOST_CONTEXT_TOKENS,
    TASKS,
    TOOLBENCH,
    Arrival,
    AugmentedTask,
    Round,
    request,
)
from dispatcher.traces import TraceWorkflow

TABLE_1 = {
    # mean and deviation: seconds of a tool, calls of it, tokens of context then
    "arithmetic": ((9e-5, 6e-5), (3.75, 1.3), (1422, 738)),
    "knowledge-qa": ((0.69, 0.17), (2.52, 1.73), (1846, 428)),
    "virtual-environment": ((0.09, 0.014), (28.18, 15.2), (2185, 115)),
    "chatbot": ((28.6, 15.6), (4.45, 1.96), (753, 703)),
    "image": ((20.03, 7.8), (6.91, 3.93), (1247, 792)),
    "speech": ((17.24, 7.6), (6.91, 3.93), (1251, 792)),
}


def drawn(workload: Workload, count: int = 3000) -> list[TraceWorkflow]:
    return make_trace(workload, Poisson(), rate_per_s=1.0, seed=0, count=count)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_tasks_have_the_moments_of_the_table(task: AugmentedTask) -> None:
    trace = drawn(task)
    gaps = [call.gap_s for workflow in trace for call in workflow.calls[1:]]
    stops = [len(workflow.calls) - 1.0 for workflow in trace]
    contexts = [
        float(call.prompt_tokens + call.output_tokens)
        for workflow in trace
        for call in workflow.calls[:-1]
    ]
    for values, (mean, deviation) in zip((gaps, stops, contexts), TABLE_1[task.name], strict=True):
        assert fmean(values) == pytest.approx(mean, rel=0.05)
        assert pstdev(values) == pytest.approx(deviation, rel=0.12)


def test_merge_has_as_much_of_each_task() -> None:
    applications = [workflow.application for workflow in drawn(MERGE)]
    for task in TASKS:
        assert applications.count(task.name) == pytest.approx(500, abs=70)


def test_questions_of_toolbench_have_the_calls_of_its_release() -> None:
    trace = drawn(TOOLBENCH)
    stops = [len(workflow.calls) - 1 for workflow in trace]
    assert fmean(stops) == pytest.approx(2.94, rel=0.06)
    gaps = sorted(call.gap_s for workflow in trace for call in workflow.calls[1:])
    assert gaps[len(gaps) // 2] == pytest.approx(0.6, rel=0.2)
    assert gaps[len(gaps) * 9 // 10] == pytest.approx(1.8, rel=0.2)
    tools = {call.tool for workflow in trace for call in workflow.calls[1:]}
    assert len(tools) == 49


@pytest.mark.parametrize("workload", [MERGE, TOOLBENCH], ids=lambda one: one.name)
def test_each_call_goes_on_from_all_before_it(workload: Workload) -> None:
    for workflow in drawn(workload, 200):
        first, *others = workflow.calls
        assert first.tool is None and first.gap_s == 0.0
        before = first
        for call in others:
            assert call.parents == (before.call_id,)
            assert call.tool is not None
            assert call.prompt_tokens > before.prompt_tokens + before.output_tokens
            (known,) = before.prefix
            assert known.end_tokens == before.prompt_tokens + before.output_tokens
            assert call.prefix[0].content == known.content
            before = call
        assert before.prompt_tokens + before.output_tokens <= MOST_CONTEXT_TOKENS
        assert all(call.streaming for call in workflow.calls)


def test_a_request_is_a_chain_of_rounds() -> None:
    rounds = [Round(20, "search", 0.5, 100), Round(30, "search", 0.7, 1)]
    made = request(Arrival("w", "app", 3.0), 200, rounds, 40)
    assert [(call.prompt_tokens, call.output_tokens) for call in made.calls] == [
        (200, 20),
        (320, 30),
        (351, 40),
    ]
    assert [(call.gap_s, call.tool) for call in made.calls] == [
        (0.0, None),
        (0.5, "search"),
        (0.7, "search"),
    ]
