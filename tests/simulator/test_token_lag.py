"""How far streams fall behind their timelines: runs of iterations against single steps."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from simulated_work import fleet_of, stepped, work

from dispatcher.core.types import CallClass
from dispatcher.simulator import Fault, FaultKind, SimulatedEngine, simulate
from dispatcher.traces import PlayedCall, TraceCall, TraceWorkflow


def streams(
    count: int, *, ttft_s: float | None = 0.3, tpot_s: float | None = 0.0125, gap_s: float = 0.11
) -> list[TraceWorkflow]:
    """Their time per token lies about where the engine's does: some keep up, some do not."""
    return [
        TraceWorkflow(
            f"w{n}",
            "chat",
            gap_s * n,
            (
                TraceCall(
                    "c",
                    "answer",
                    200 + 397 * (n % 7),
                    20 + 61 * (n % 5),
                    streaming=True,
                    call_class=CallClass.LATENCY,
                    slo_ttft_s=ttft_s,
                    slo_tpot_s=tpot_s,
                ),
            ),
        )
        for n in range(count)
    ]


def lags_of(engine: SimulatedEngine, trace: list[TraceWorkflow]) -> dict[str, float]:
    """Worst lag of each stream, of an engine that is stepped one iteration after the other."""
    calls = {workflow.workflow_id: workflow.calls[0] for workflow in trace}
    arrivals = {workflow.workflow_id: workflow.arrival_s for workflow in trace}
    worst: dict[str, float] = {}
    for now_s, result in stepped(engine.config, trace):
        for request in result.emitted:
            name = request.request_id
            due_s = (
                arrivals[name]
                + (calls[name].slo_ttft_s or 0.0)
                + (request.generated - 1) * (calls[name].slo_tpot_s or 0.0)
            )
            worst[name] = max(worst.get(name, float("-inf")), now_s - due_s)
    return worst


def lags(calls: list[PlayedCall]) -> dict[str, float | None]:
    return {call.workflow_id: call.token_lag_s for call in calls}


@pytest.mark.parametrize("kv_blocks", [None, 150])
def test_glided_iterations_say_what_single_steps_say(kv_blocks: int | None) -> None:
    """With few KV blocks the engine preempts: the same streams stand still for a while."""
    launch = {} if kv_blocks is None else {"num_blocks": kv_blocks}
    (engine,) = fleet_of("A100", seats=24, enable_prefix_caching=False, **launch)
    trace = streams(24)
    played = simulate(trace, [engine], policy="vllm").played
    if kv_blocks is not None:
        assert played.instances["a100-0"].preemptions > 0
    found = lags(list(played.calls))
    assert found == pytest.approx(lags_of(engine, trace), abs=1e-9)
    signs = {lag > 0.0 for lag in found.values() if lag is not None}
    assert signs == {True, False}


def test_waiting_for_a_seat_is_part_of_the_lag() -> None:
    (engine,) = fleet_of("A100", seats=1)
    trace = streams(2, gap_s=0.0)
    first, second = simulate(trace, [engine], policy="vllm").played.calls
    assert second.queue_s is not None and second.queue_s > 0.2
    assert second.token_lag_s == pytest.approx(
        max(
            second.first_token_s - second.sent_s - 0.3,  # type: ignore[operator]
            second.ended_s - second.sent_s - 0.3 - 0.0125 * (second.output_tokens - 1),
        ),
        abs=1e-9,
    )
    assert first.token_lag_s is not None and first.token_lag_s < second.token_lag_s


def test_a_slower_engine_shows_in_the_tokens_after_it() -> None:
    (engine,) = fleet_of("A100")
    trace = streams(1)
    calm = simulate(trace, [engine], policy="vllm").played.calls[0]
    at_s = (calm.first_token_s or 0.0) + 0.02
    slow = Fault(at_s, "a100-0", FaultKind.SLOW, factor=4.0)
    slowed = simulate(trace, [engine], policy="vllm", faults=[slow]).played.calls[0]
    assert slowed.first_token_s == calm.first_token_s
    assert slowed.token_lag_s == pytest.approx(
        slowed.ended_s - 0.3 - 0.0125 * (slowed.output_tokens - 1), abs=1e-9
    )


@pytest.mark.parametrize(
    ("ttft_s", "tpot_s", "streaming"), [(None, 0.1, True), (0.3, None, True), (0.3, 0.1, False)]
)
def test_without_a_timeline_there_is_no_lag(
    ttft_s: float | None, tpot_s: float | None, streaming: bool
) -> None:
    trace = [
        replace(w, calls=(replace(w.calls[0], streaming=streaming),))
        for w in streams(3, ttft_s=ttft_s, tpot_s=tpot_s)
    ]
    played = simulate(trace, fleet_of("A100"), policy="vllm").played
    assert [call.token_lag_s for call in played.calls] == [None] * 3


def test_what_is_not_over_by_the_end_is_left_out() -> None:
    trace, fleet = work(60), fleet_of()
    whole = simulate(trace, fleet, policy="hexgen-flow").played
    until_s = 0.5 * whole.makespan_s
    cut = simulate(trace, fleet, policy="hexgen-flow", until_s=until_s).played
    assert 0 < len(cut.workflows) < len(whole.workflows)
    over = [w for w in whole.workflows if w.ended_s <= until_s]
    assert [asdict(w) for w in cut.workflows] == [asdict(w) for w in over]
    assert [asdict(c) for c in cut.calls] == [
        asdict(c) for c in whole.calls if c.ended_s <= until_s
    ]
