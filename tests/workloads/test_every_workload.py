"""What holds for every workload of the table, and how mixes and scaling keep it."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from statistics import fmean

import pytest

import dispatcher.simulator.workloads as package
from dispatcher.simulator.workloads import (
    ARRIVALS,
    WORKLOADS,
    Gamma,
    Part,
    Poisson,
    Workload,
    make_trace,
    mixed,
    scaled,
)
from dispatcher.traces import TraceCall, TraceWorkflow

every = pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS.keys())


def short(workload: Workload, *, seed: int = 0, count: int = 40) -> list[TraceWorkflow]:
    return make_trace(workload, Poisson(), rate_per_s=1.0, seed=seed, count=count)


def test_the_table_has_what_is_promised() -> None:
    assert {
        *("chess-1", "chess-2", "chess-3", "mac-sql", "chat", "code", "tool-agent"),
        *("coding-agent", "reasoning", "two-tenants", "two-tenants-mixed"),
    } <= set(WORKLOADS)
    for name, workload in WORKLOADS.items():
        assert workload.name == name
        assert workload.summary
        assert "\n" not in workload.summary


@every
def test_same_seed_same_trace(workload: Workload) -> None:
    assert short(workload) == short(workload) != short(workload, seed=1)


@every
def test_the_nth_workflow_is_the_same_whenever_it_comes(workload: Workload) -> None:
    def without_arrivals(trace: list[TraceWorkflow]) -> list[object]:
        return [(workflow.workflow_id, workflow.tenant, workflow.calls) for workflow in trace]

    bursty = make_trace(workload, Gamma(3.0), rate_per_s=0.2, seed=0, count=20)
    assert without_arrivals(bursty) == without_arrivals(short(workload))[:20]
    assert [w.arrival_s for w in bursty] != [w.arrival_s for w in short(workload, count=20)]


@every
def test_workflows_are_legal_and_ask_for_no_slo(workload: Workload) -> None:
    trace = short(workload)
    assert len({workflow.workflow_id for workflow in trace}) == len(trace)
    assert [w.arrival_s for w in trace] == sorted(w.arrival_s for w in trace)
    for workflow in trace:
        assert workflow.slo_s is None
        for call in workflow.calls:
            assert call.slo_ttft_s is call.slo_tpot_s is None
            assert call.gap_s < 3700.0
            assert call.tool is None or call.parents


@every
def test_only_whole_templates_are_shared_between_workflows(workload: Workload) -> None:
    """Whatever two workflows share by name ends at the same token in both, or is a session."""
    seen: dict[str, tuple[str, int]] = {}
    for workflow in short(workload):
        for call in workflow.calls:
            for content, end_tokens in call.prefix:
                owner, end_before = seen.setdefault(content, (workflow.workflow_id, end_tokens))
                if owner != workflow.workflow_id and content not in AGENT_STEPS:
                    assert end_tokens == end_before, content


AGENT_STEPS = {"chess/information-retriever", "chess/unit-tester"}


def test_a_trace_by_duration_ends_there() -> None:
    trace = make_trace(WORKLOADS["chat"], Poisson(), rate_per_s=5.0, seed=0, duration_s=100.0)
    assert len(trace) == pytest.approx(500, abs=100)
    assert trace[-1].arrival_s <= 100.0


@every
def test_scaling_multiplies_lengths_and_keeps_the_rest(workload: Workload) -> None:
    trace = short(workload, count=15)
    for before, after in zip(trace, scaled(trace, prompt=0.25, output=0.5), strict=True):
        assert (after.workflow_id, after.arrival_s) == (before.workflow_id, before.arrival_s)
        for old, new in zip(before.calls, after.calls, strict=True):
            assert new.prompt_tokens == max(1, int(old.prompt_tokens * 0.25))
            assert new.output_tokens == max(1, int(old.output_tokens * 0.5))
            assert (new.stage, new.parents, new.gap_s) == (old.stage, old.parents, old.gap_s)
            ends = {part.content: part.end_tokens for part in old.prefix}
            for content, end_tokens in new.prefix:
                if ends[content] <= old.prompt_tokens:
                    assert end_tokens == int(ends[content] * 0.25)
                else:
                    assert end_tokens > new.prompt_tokens * 0.99


@every
@pytest.mark.parametrize("most", [2, 17, 2048])
def test_every_call_fits_the_context_asked_for(workload: Workload, most: int) -> None:
    for workflow in scaled(short(workload, count=15), max_context_tokens=most):
        for call in workflow.calls:
            assert call.prompt_tokens + call.output_tokens <= most


def test_a_workflow_that_fits_is_left_alone() -> None:
    trace = short(WORKLOADS["chess-1"])
    assert scaled(trace, max_context_tokens=20_000) == trace
    (shrunk,) = scaled(trace[:1], max_context_tokens=2048)
    longest = max(call.prompt_tokens + call.output_tokens for call in shrunk.calls)
    assert 2040 <= longest <= 2048


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"prompt": 0.0}, "prompt must be above 0"),
        ({"output": float("nan")}, "output must be above 0"),
        ({"max_context_tokens": 1}, "at least 2"),
    ],
)
def test_scales_that_make_no_sense_are_refused(asked: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        scaled([], **asked)


def test_a_mix_draws_by_weight_and_names_tenants() -> None:
    mix = mixed(
        "mix",
        [Part(WORKLOADS["chat"], weight=3, tenant="a"), Part(WORKLOADS["mac-sql"], tenant="b")],
    )
    trace = short(mix, count=1000)
    assert mix.tenants == ("a", "b")
    assert {(w.tenant, w.application) for w in trace} == {("a", "chat"), ("b", "mac-sql")}
    assert fmean(w.tenant == "a" for w in trace) == pytest.approx(0.75, abs=0.05)


def test_a_mix_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="expected parts"):
        mixed("none", [])
    with pytest.raises(ValueError, match="weights above 0"):
        mixed("none", [Part(WORKLOADS["chat"], weight=0.0)])


def modules() -> Iterator[str]:
    yield package.__name__
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        yield module.name


@pytest.mark.parametrize("name", list(modules()))
def test_examples_in_docstrings_hold(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_a_number_alone_makes_a_workflow() -> None:
    workflow = WORKLOADS["code"].workflow(5, 12.5, Random(1))
    assert (workflow.workflow_id, workflow.arrival_s) == ("code-5", 12.5)
    assert isinstance(workflow.calls[0], TraceCall)


def test_the_documented_workloads_are_those_of_the_table() -> None:
    text = (Path(__file__).parents[2] / "docs" / "workloads.md").read_text(encoding="utf-8")
    for name, workload in WORKLOADS.items():
        assert f"| `{name}` | {workload.summary} |" in text
    for name in ARRIVALS:
        assert f"`{name}`" in text
