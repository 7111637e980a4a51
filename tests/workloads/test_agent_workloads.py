"""Agents: contexts that grow by what was said and found, and the time this took."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from statistics import fmean, median, pvariance

import pytest

from dispatcher.simulator.workloads import Poisson, Workload, make_trace
from dispatcher.simulator.workloads.agents import CODING_AGENT, TOOL_AGENT, CodingAgent
from dispatcher.traces import TraceWorkflow


@cache
def trace_of(workload: Workload, count: int = 1500) -> list[TraceWorkflow]:
    return make_trace(workload, Poisson(), rate_per_s=1.0, seed=0, count=count)


def test_dialogues_are_as_long_as_the_recorded_ones() -> None:
    numbers = [len(workflow.calls) for workflow in trace_of(TOOL_AGENT)]
    assert fmean(numbers) == pytest.approx(14.15, abs=0.5)
    assert pvariance(numbers) == pytest.approx(36.4, abs=4.0)
    assert min(numbers) >= 4
    assert max(numbers) <= 30


def test_dialogue_lengths_are_the_recorded_ones() -> None:
    calls = [call for workflow in trace_of(TOOL_AGENT) for call in workflow.calls]
    assert fmean(call.output_tokens for call in calls) == pytest.approx(67.4, rel=0.05)
    assert median(call.output_tokens for call in calls) == pytest.approx(45, rel=0.08)
    last = [workflow.calls[-1].prompt_tokens for workflow in trace_of(TOOL_AGENT)]
    assert fmean(last) == pytest.approx(3883, rel=0.12)


def test_half_the_calls_of_a_dialogue_follow_a_tool() -> None:
    later = [call for workflow in trace_of(TOOL_AGENT) for call in workflow.calls[1:]]
    assert fmean(call.tool is not None for call in later) == pytest.approx(0.5, abs=0.03)
    tools = [call.gap_s for call in later if call.tool is not None]
    users = [call.gap_s for call in later if call.tool is None]
    assert median(tools) == pytest.approx(0.3, rel=0.2)
    assert sorted(tools)[int(0.9 * len(tools))] == pytest.approx(13.6, rel=0.2)
    assert median(users) == pytest.approx(8.0, rel=0.1)


@pytest.mark.parametrize("workload", [TOOL_AGENT, CODING_AGENT], ids=lambda w: w.name)
def test_calls_go_on_from_all_that_was_said(workload: Workload) -> None:
    for workflow in trace_of(workload)[:300]:
        for earlier, later in pairwise(workflow.calls):
            assert later.parents == (earlier.call_id,)
            said = earlier.prompt_tokens + earlier.output_tokens
            assert earlier.prefix[-1].end_tokens == said
            if earlier.prefix[-1].content == later.prefix[-1].content:
                assert later.prompt_tokens >= said
        assert not any(call.streaming for call in workflow.calls)


def test_turns_of_coding_agents_are_the_recorded_ones() -> None:
    trace = trace_of(CODING_AGENT)
    numbers = [len(workflow.calls) for workflow in trace]
    assert fmean(numbers) == pytest.approx(6.73, rel=0.2)
    for most, share in ((1, 0.501), (3, 0.723), (17, 0.902)):
        assert fmean(number <= most for number in numbers) == pytest.approx(share, abs=0.04)
    calls = [call for workflow in trace for call in workflow.calls]
    assert median(call.output_tokens for call in calls) == pytest.approx(215, rel=0.08)
    gaps = [call.gap_s for call in calls if call.tool]
    assert median(gaps) == pytest.approx(9.0, rel=0.1)
    assert max(gaps) <= 900.0
    assert median(call.prompt_tokens for call in calls) == pytest.approx(80_000, rel=0.15)


def test_contexts_stay_within_the_window_and_some_are_compacted() -> None:
    compacted = 0
    for workflow in trace_of(CODING_AGENT):
        assert all(c.prompt_tokens + c.output_tokens <= 131_072 for c in workflow.calls)
        compacted += len({call.prefix[-1].content for call in workflow.calls}) > 1
    assert 0 < compacted < 400


def test_small_engines_get_the_same_turns_with_shorter_lengths() -> None:
    small = trace_of(CodingAgent(max_context_tokens=2048), 100)
    for as_is, shrunk in zip(trace_of(CODING_AGENT, 100), small, strict=True):
        assert [call.gap_s for call in shrunk.calls] == [call.gap_s for call in as_is.calls]
        assert all(c.prompt_tokens + c.output_tokens <= 2048 for c in shrunk.calls)


def test_several_turns_of_a_session_have_the_user_between_them() -> None:
    trace = trace_of(CodingAgent(user_turns=3), 100)
    for workflow in trace:
        assert sum(call.tool is None for call in workflow.calls) == 3
    users = [c.gap_s for w in trace for c in w.calls[1:] if c.tool is None]
    assert median(users) == pytest.approx(131, rel=0.5)


@pytest.mark.parametrize("wrong", [{"user_turns": 0}, {"window_tokens": 1000}])
def test_agents_that_cannot_be_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="out of range"):
        CodingAgent(**wrong)
