"""The predictor that knows every length of its trace."""

from __future__ import annotations

import pytest
from simulated_work import fleet_of, work

from dispatcher.core.types import CallId, CallSpec, WorkflowId
from dispatcher.simulator import simulate
from dispatcher.simulator.oracle import Oracle


def spec_of(workflow: str, call: str) -> CallSpec:
    return CallSpec(CallId(f"{workflow}/{call}"), WorkflowId(workflow), "m", 10)


def test_every_quantile_is_the_true_length() -> None:
    trace = work(3)
    oracle = Oracle(trace)
    for workflow in trace:
        for call in workflow.calls:
            estimate = oracle.predict(spec_of(workflow.workflow_id, call.call_id))
            assert estimate.expected_tokens == call.output_tokens
            assert {estimate.quantile_tokens(q) for q in (0.01, 0.5, 0.95, 0.999)} == {
                call.output_tokens
            }
            half = estimate.longer_than(call.output_tokens // 2)
            assert half.quantile_tokens(0.95) == call.output_tokens


def test_it_learns_nothing_and_knows_no_other_trace() -> None:
    oracle = Oracle(work(1))
    known = spec_of("w0", "plan")
    before = oracle.predict(known)
    oracle.learn(known, 5)
    assert oracle.predict(known) == before
    with pytest.raises(KeyError):
        oracle.predict(spec_of("w1", "plan"))


def test_a_simulation_schedules_with_it() -> None:
    """Which the ordering by urgency shows: it looks at lengths, and the truth is not the guess."""
    trace, fleet = work(40), fleet_of(seats=2)
    told = simulate(trace, fleet, policy="hexgen-flow", lengths=Oracle(trace)).played
    guessed = simulate(trace, fleet, policy="hexgen-flow").played
    assert all(workflow.ok for workflow in told.workflows)
    assert [c.ended_s for c in told.calls] != [c.ended_s for c in guessed.calls]
