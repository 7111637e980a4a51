"""LLMSched's applications take as long, alone, as its section III says, and correlate so."""

from __future__ import annotations

from functools import cache
from random import Random
from statistics import correlation, fmean, median

import pytest

from dispatcher.core.workflow_types import StageKind
from dispatcher.simulator.workloads import Poisson, make_trace
from dispatcher.simulator.workloads.llmsched import (
    ALONE_S_PER_TOKEN,
    APPLICATIONS,
    CANDIDATES,
    LLMSCHED_MIXES,
    MERGES,
    MOST_ITERATIONS,
    MOST_THOUGHTS,
    MOST_TOOLS,
    planned_parents,
)
from dispatcher.traces import TraceWorkflow
from workflows.declarations import check_stages

COUNT = 1_500


@cache
def jobs(name: str) -> list[TraceWorkflow]:
    return make_trace(APPLICATIONS[name], Poisson(), rate_per_s=1.0, seed=3, count=COUNT)


def alone_s(job: TraceWorkflow) -> float:
    """One call after another, as the paper measured."""
    return sum(call.output_tokens * ALONE_S_PER_TOKEN + call.gap_s for call in job.calls)


def stage_tokens(job: TraceWorkflow, stage: str) -> list[int]:
    """Output of all calls of a stage, in order."""
    return [call.output_tokens for call in job.calls if call.stage == stage]


@pytest.mark.parametrize(
    ("name", "least_s", "most_s", "mean_s"),
    [
        ("sequence-sorting", 10.0, 300.0, (45.0, 80.0)),
        ("code-generation", 1.3, 80.0, (9.0, 16.0)),
        ("task-automation", 1.0, 160.0, (11.0, 18.0)),
    ],
)
def test_durations_alone_are_the_paper_s(
    name: str, least_s: float, most_s: float, mean_s: tuple[float, float]
) -> None:
    """Published: 10 to 300 s, 2 to 50 s, 1 to 116 s; tails of laws go a little further."""
    times = sorted(map(alone_s, jobs(name)))
    assert least_s <= times[0] <= 2.5 * max(least_s, 1.3)
    assert times[-1] <= most_s
    assert times[-1] / times[0] > 10.0
    assert mean_s[0] <= fmean(times) <= mean_s[1]
    # hardly any beyond what was published
    published = {"sequence-sorting": 300.0, "code-generation": 50.0, "task-automation": 116.0}
    assert sum(time > published[name] for time in times) < 0.02 * COUNT


def test_stages_of_sorting_correlate() -> None:
    """Fig. 5a: 0.7 between the split and a sort."""
    split = [max(stage_tokens(job, "split")) for job in jobs("sequence-sorting")]
    sort = [max(stage_tokens(job, "sort-1")) for job in jobs("sequence-sorting")]
    assert correlation(split, sort) == pytest.approx(0.75, abs=0.12)


def test_versions_of_code_correlate() -> None:
    """Fig. 5b: nearly 0.9 between one version and the next; not executed is 0."""
    versions = [[*stage_tokens(job, "code"), 0, 0][:3] for job in jobs("code-generation")]
    _, second, third = zip(*versions, strict=True)
    assert correlation(second, third) == pytest.approx(0.88, abs=0.08)


def test_structures_are_as_published() -> None:
    for job in jobs("sequence-sorting")[:20]:
        widths = {s: len(stage_tokens(job, s)) for s in ("split", "sort-1", "sort-2")}
        assert widths == {"split": 1, "sort-1": CANDIDATES, "sort-2": CANDIDATES}
        assert len(stage_tokens(job, "merge")) == len(stage_tokens(job, "correct")) == MERGES
    # tests, code, execution; then reflection, code, execution: 3 to 15 stages
    chains = {3 * len(stage_tokens(job, "code")) for job in jobs("code-generation")}
    assert chains == {3 * (n + 1) for n in range(MOST_ITERATIONS + 1)}
    thoughts = {len(job.calls) for job in jobs("web-search")}
    assert thoughts == set(range(2, MOST_THOUGHTS + 1))
    assert {len(job.calls) for job in jobs("llm-compiler")} == {2, 4}


def test_a_plan_s_length_tells_how_much_follows() -> None:
    """The plan of task automation, and what comes after it."""
    plans = [job.calls[0].output_tokens for job in jobs("task-automation")]
    rest = [
        sum(c.output_tokens for c in job.calls[1:]) + sum(c.gap_s for c in job.calls)
        for job in jobs("task-automation")
    ]
    assert correlation(plans, rest) > 0.3
    assert all(2 <= len(job.calls) <= MOST_TOOLS + 2 for job in jobs("task-automation"))
    assert median(len(job.calls) for job in jobs("task-automation")) <= 3


def test_tools_wait_for_earlier_tools() -> None:
    assert planned_parents("single", 1, Random(0)) == [()]
    assert planned_parents("chain", 3, Random(0)) == [(), (0,), (1,)]
    graph = planned_parents("graph", 6, Random(0))
    assert len(graph) == 6
    assert graph[:2] == [(), ()]
    assert all(parents and max(parents) < n for n, parents in enumerate(graph) if n > 1)


@pytest.mark.parametrize("name", APPLICATIONS)
def test_declared_stages_are_those_that_come(name: str) -> None:
    stages = APPLICATIONS[name].stages
    check_stages(stages)
    known = {stage.name for stage in stages if stage.kind is StageKind.LLM}
    known |= {candidate for stage in stages for candidate in stage.candidates}
    seen = {call.stage for job in jobs(name) for call in job.calls}
    assert seen == known


def test_mixes_have_their_applications_alike() -> None:
    for mix, count in zip(LLMSCHED_MIXES, (6, 2, 2, 2), strict=True):
        trace = make_trace(mix, Poisson(), rate_per_s=1.0, seed=0, count=1_200)
        names = [job.application for job in trace]
        assert len(set(names)) == count
        for name in set(names):
            assert names.count(name) / len(names) == pytest.approx(1 / count, abs=0.05)
