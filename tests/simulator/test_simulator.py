"""The simulator: what is played is possible, repeatable, and what the engine model says."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from simulated_work import fleet_of, stepped, work

from dispatcher import catalog
from dispatcher.core.coordinator import Limits
from dispatcher.core.errors import ConfigurationError, UnknownNameError
from dispatcher.core.types import Outcome
from dispatcher.engine_model import EngineModel, EngineRequest
from dispatcher.simulator import Fault, FaultKind, simulate
from dispatcher.simulator.checks import check_played
from dispatcher.traces import TraceCall, TraceWorkflow


def lone(call: TraceCall) -> list[TraceWorkflow]:
    return [TraceWorkflow("w", "app", 1.0, (call,))]


@pytest.mark.parametrize("policy", catalog.policy_entries())
@pytest.mark.parametrize("streaming", [False, True])
def test_what_is_played_is_possible(policy: str, streaming: bool) -> None:
    trace, fleet = work(60, streaming=streaming), fleet_of()
    played = simulate(trace, fleet, policy=policy).played
    assert check_played(trace, played, fleet) == []
    assert all(workflow.ok for workflow in played.workflows)
    assert len(played.calls) == 300


def test_the_same_seed_gives_the_same_result() -> None:
    trace, fleet = work(40), fleet_of()
    first, second = (simulate(trace, fleet, policy="hexgen-flow", seed=3) for _ in range(2))
    assert asdict(first) == asdict(second)


def test_a_call_alone_takes_what_the_engine_model_says() -> None:
    (engine,) = fleet_of("A100")
    call = TraceCall("c", "s", 5000, 200, streaming=True)
    played = simulate(lone(call), [engine], policy="vllm").played.calls[0]

    model, now_s, first_s = EngineModel(engine.config), 1.0, 0.0
    request = EngineRequest("c", prompt_tokens=5000, output_tokens=200, arrival_s=1.0)
    model.add(request)
    while model.has_work:
        now_s += model.step(now_s).duration_s
        first_s = first_s or (now_s if request.generated else 0.0)
    assert played.ended_s == pytest.approx(now_s, rel=1e-9)
    assert played.first_token_s == pytest.approx(first_s, rel=1e-9)
    assert played.queue_s == 0.0


def test_a_call_that_comes_into_a_run_joins_at_the_end_of_its_iteration() -> None:
    """Cut runs against an engine that is stepped one iteration after the other."""
    (engine,) = fleet_of("A100", seats=8)
    trace = [
        TraceWorkflow(f"w{n}", "app", 0.317 * n, (TraceCall("c", "s", 700 + n, 90 + 7 * n),))
        for n in range(6)
    ]
    played = simulate(trace, [engine], policy="vllm").played

    ended: dict[str, float] = {}
    for now_s, result in stepped(engine.config, trace):
        ended |= {request.request_id: now_s for request in result.finished}
    assert {c.workflow_id: c.ended_s for c in played.calls} == pytest.approx(ended, rel=1e-9)


def test_prefixes_hit_the_cache_where_it_is_on() -> None:
    trace = work(30)
    on, off = (
        simulate(trace, fleet_of("A100", enable_prefix_caching=c), policy="vllm").played
        for c in (True, False)
    )
    assert sum(call.cached_tokens for call in on.calls) > 0
    assert on.instances["a100-0"].prefix_hits_tokens > 0
    assert sum(call.cached_tokens for call in off.calls) == 0
    assert on.makespan_s < off.makespan_s


def test_a_dead_engine_loses_nothing_that_nobody_has_seen() -> None:
    trace, fleet = work(60), fleet_of()
    faults = [
        Fault(5.0, "a100-0", FaultKind.DOWN),
        Fault(15.0, "a100-0", FaultKind.UP),
        Fault(6.0, "l40-2", FaultKind.SLOW, 3.0),
    ]
    played = simulate(trace, fleet, policy="hexgen-flow", faults=faults).played
    assert check_played(trace, played, fleet) == []
    assert all(workflow.ok for workflow in played.workflows)
    assert any(call.attempts > 1 for call in played.calls)
    away = [c for c in played.calls if c.instance == "a100-0" and 5.0 < c.ended_s < 15.0]
    assert away == []
    assert any(c.instance == "a100-0" and c.ended_s > 15.0 for c in played.calls)


def test_a_stream_that_was_seen_fails_with_its_engine() -> None:
    call = TraceCall("c", "s", 100, 1000, streaming=True)
    faults = [Fault(2.0, "a100-0", FaultKind.DOWN)]
    played = simulate(lone(call), fleet_of("A100", "L40"), policy="vllm", faults=faults).played
    assert [c.outcome for c in played.calls] == [Outcome.ENGINE_ERROR]
    assert not played.workflows[0].ok


def test_a_slow_engine_takes_as_much_longer() -> None:
    call = TraceCall("c", "s", 100, 200)
    usual, slow = (
        simulate(
            lone(call),
            fleet_of("A100"),
            policy="vllm",
            faults=[Fault(0.0, "a100-0", FaultKind.SLOW, factor)],
        ).played.makespan_s
        for factor in (1.0, 2.5)
    )
    assert slow == pytest.approx(2.5 * usual, rel=1e-9)


def test_what_comes_after_a_call_that_failed_is_not_sent() -> None:
    trace = work(30, rate_per_s=50.0)
    played = simulate(
        trace, fleet_of("L40", seats=1), policy="vllm", limits=Limits(max_calls=3)
    ).played
    assert check_played(trace, played) == []
    failed = [workflow for workflow in played.workflows if not workflow.ok]
    assert failed
    assert {c.outcome for c in played.calls} == {Outcome.OK, Outcome.REJECTED}


def test_seats_are_found_where_none_are_given() -> None:
    trace, fleet = work(60), fleet_of("A100", "L40", seats=None)
    played = simulate(trace, fleet, policy="least-backlog").played
    assert check_played(trace, played, fleet) == []
    assert all(instance.seats > 1 for instance in played.instances.values())


def test_experience_goes_on_where_it_ended() -> None:
    trace, fleet = work(40), fleet_of()
    first = simulate(trace, fleet, policy="vllm")
    again = simulate(trace, fleet, policy="vllm", learned=first.learned)
    assert again.learned.predictors["lengths"] != first.learned.predictors["lengths"]
    cold = simulate(trace[:1], fleet, policy="hexgen-flow").learned
    warm = simulate(trace[:1], fleet, policy="hexgen-flow", learned=first.learned).learned
    assert len(str(warm.workflows)) > len(str(cold.workflows))


def test_utilisation_and_busy_time_are_bounded_by_the_makespan() -> None:
    played = simulate(work(60), fleet_of(), policy="hexgen-flow").played
    last_s = max(call.ended_s for call in played.calls)
    for instance in played.instances.values():
        assert 0.0 < instance.busy_s <= last_s * (1 + 1e-9)
        assert 0.0 < instance.seat_s <= instance.seats * last_s * (1 + 1e-9)


def test_the_way_to_an_engine_takes_time() -> None:
    (engine,) = fleet_of("A100")
    call = TraceCall("c", "s", 100, 20)
    near = simulate(lone(call), [engine], policy="vllm").played.makespan_s
    far = simulate(lone(call), [replace(engine, overhead_s=0.25)], policy="vllm").played.makespan_s
    assert far == pytest.approx(near + 0.25)


def test_bad_fleets_and_policies_are_named() -> None:
    with pytest.raises(ConfigurationError, match="engines"):
        simulate(work(1), [], policy="vllm")
    with pytest.raises(ConfigurationError, match="id of its own"):
        simulate(work(1), fleet_of("A100") * 2, policy="vllm")
    with pytest.raises(UnknownNameError, match="nobody"):
        simulate(work(1), fleet_of(), policy="nobody")
