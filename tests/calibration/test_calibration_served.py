"""Times fitted to the calls of a trace: the engine that served them is found again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dispatcher.calibration.fit import TooFewSamplesError
from dispatcher.calibration.served import ServedCall, ServedTimes, fit_served
from dispatcher.core.types import InstanceId, InstanceSpec
from dispatcher.engine_model import EngineConfig, Measured
from dispatcher.simulator import SimulatedEngine, simulate
from dispatcher.simulator.workloads import ARRIVALS, WORKLOADS, make_trace, scaled
from dispatcher.traces import Played, TraceWorkflow

TRUTH = Measured(
    base_s=0.004,
    per_running_s=4e-4,
    per_kv_token_s=1e-7,
    per_prompt_token_s=6e-5,
    per_prompt_s=0.003,
    per_score_pair_s=1e-8,
)
REQUEST_S = 0.01


def engine_of(timing: Measured, request_s: float) -> SimulatedEngine:
    config = EngineConfig(timing, num_blocks=1024, max_model_len=2048, max_num_seqs=4)
    spec = InstanceSpec(InstanceId("a"), models=frozenset({"m"}), max_model_len=2048, seats=4)
    return SimulatedEngine(spec, config, overhead_s=request_s)


def trace_of(seed: int, count: int = 12) -> list[TraceWorkflow]:
    trace = make_trace(
        WORKLOADS["chess-1"], ARRIVALS["poisson"], rate_per_s=0.8, seed=seed, count=count
    )
    return scaled(trace, prompt=0.1, output=0.25, max_context_tokens=1900)


def played_on(engine: SimulatedEngine, trace: list[TraceWorkflow]) -> Played:
    return simulate(trace, [engine], policy="hexgen-flow").played


def served_in(trace: list[TraceWorkflow], *, slower: float = 1.0) -> list[ServedCall]:
    calls = {(w.workflow_id, call.call_id): call for w in trace for call in w.calls}
    return [
        ServedCall(
            calls[one.workflow_id, one.call_id],
            one.sent_s + (one.queue_s or 0.0),
            slower * (one.ended_s - one.sent_s - (one.queue_s or 0.0)),
        )
        for one in played_on(engine_of(TRUTH, REQUEST_S), trace).calls
    ]


@pytest.fixture(scope="module")
def fitted() -> ServedTimes:
    config = engine_of(Measured(1.0), 0.0).config
    return fit_served([served_in(trace_of(1)), [], served_in(trace_of(2))], config)


def test_every_call_takes_as_long_as_it_took(fitted: ServedTimes) -> None:
    assert fitted.calls == sum(len(w.calls) for seed in (1, 2) for w in trace_of(seed))
    assert abs(fitted.bias) < 0.005
    assert fitted.relative_rms < 0.05


def test_another_trace_is_foretold(fitted: ServedTimes) -> None:
    real = played_on(engine_of(TRUTH, REQUEST_S), trace_of(3, 20))
    foretold = played_on(engine_of(fitted.timing, fitted.request_s), trace_of(3, 20))
    assert foretold.makespan_s == pytest.approx(real.makespan_s, rel=0.02)
    pairs = zip(real.workflows, foretold.workflows, strict=True)
    latencies = sorted((one.latency_s, two.latency_s) for one, two in pairs)
    mean_s = [sum(times) / len(times) for times in zip(*latencies, strict=True)]
    assert mean_s[1] == pytest.approx(mean_s[0], rel=0.02)


def test_hiccups_count_as_time_that_was_taken() -> None:
    calls = served_in(trace_of(1))
    held_up = [
        replace(one, taken_s=one.taken_s * 3) if number % 10 == 0 else one
        for number, one in enumerate(calls)
    ]
    config = engine_of(Measured(1.0), 0.0).config
    assert abs(fit_served([held_up], config).bias) < 0.03


def test_too_few_calls_are_no_measurement() -> None:
    config = engine_of(Measured(1.0), 0.0).config
    with pytest.raises(TooFewSamplesError, match="10 calls were served"):
        fit_served([served_in(trace_of(1))[:10]], config)
