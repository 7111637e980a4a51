"""Times alone against hand-computed ones, and scales that were kept."""

import math

import pytest

from dispatcher.bench.fleets import FleetError, fleet_named
from dispatcher.bench.slo import (
    SCALES,
    alone_on,
    alone_times,
    attainment,
    ratios,
    scale_at,
    with_slo,
)
from dispatcher.core.gpu_profiles import CostProfile
from dispatcher.core.types import InstanceId, InstanceSpec
from dispatcher.engine_model import EngineConfig, Linear
from dispatcher.simulator import SimulatedEngine, simulate
from dispatcher.traces import PlayedWorkflow, PrefixPart, TraceCall, TraceWorkflow

#: 1 ms per prompt token beside the newest one, 20 ms per iteration
PROFILE = CostProfile(1e-3, 0.02, 0.02, 0.0, 0.0)


def engine(*, factor=1.0, overhead_s=0.0, max_model_len=4096):
    config = EngineConfig(
        timing=Linear(PROFILE.time_scale(factor)),
        num_blocks=1024,
        max_model_len=max_model_len,
        max_num_seqs=8,
    )
    spec = InstanceSpec(
        instance_id=InstanceId("e"), models=frozenset({"model"}), max_model_len=max_model_len
    )
    return SimulatedEngine(spec, config, overhead_s)


def call(name, *parents, prompt=100, output=5, gap_s=0.0, prefix=()):
    return TraceCall(name, "s", prompt, output, parents=parents, gap_s=gap_s, prefix=prefix)


def workflow(*calls, name="w", tenant="default"):
    return TraceWorkflow(name, "app", 3.0, calls, tenant=tenant)


CALL_S = 0.099 + 5 * 0.02
"""Of a call of 100 prompt and 5 output tokens: prefill with the first token, four more."""


def test_one_call_alone_takes_its_prefill_and_its_tokens():
    assert alone_on(workflow(call("a")), engine()) == pytest.approx(CALL_S)
    assert alone_on(workflow(call("a")), engine(factor=2.0)) == pytest.approx(CALL_S / 2)
    assert alone_on(workflow(call("a")), engine(overhead_s=0.5)) == pytest.approx(CALL_S + 0.5)


def test_the_critical_path_counts():
    # a, then b and c side by side (c is longer), then d after both and a gap
    one = workflow(
        call("a"),
        call("b", "a"),
        call("c", "a", output=10, gap_s=0.3),
        call("d", "b", "c", gap_s=1.0),
    )
    assert alone_on(one, engine()) == pytest.approx(3 * CALL_S + 5 * 0.02 + 0.3 + 1.0)


def test_a_gap_before_the_first_call_counts():
    assert alone_on(workflow(call("a", gap_s=2.0)), engine()) == pytest.approx(2.0 + CALL_S)


def test_a_call_finds_what_earlier_calls_of_its_workflow_left():
    shared = (PrefixPart("text", 64),)
    one = workflow(call("a", prefix=shared), call("b", "a", prefix=shared))
    assert alone_on(one, engine()) == pytest.approx(2 * CALL_S - 0.064)
    # and nothing of another workflow
    both = [alone_on(one, engine()), alone_on(one, engine())]
    assert both[0] == both[1]


def test_a_workflow_alone_in_a_simulation_takes_its_time_alone():
    fleet = fleet_named("L40,A100", seats=8)
    one = workflow(call("a"), call("b", "a", prompt=900), call("c", "b", output=200))
    alone_s = alone_times([one], fleet)["w"]
    played = simulate([one], fleet.engines(), policy="wb-fcfs", params={"alpha": 1.0}).played
    assert {done.instance for done in played.calls} == {"a100-0"}
    assert played.workflows[0].latency_s == pytest.approx(alone_s)


def test_the_fastest_kind_of_engine_decides():
    one = workflow(call("a", output=300))
    slow, fast, both = (
        alone_times([one], fleet_named(text))["w"] for text in ("A6000", "H100", "A6000x3,H100")
    )
    assert both == fast < slow


def test_a_prompt_that_fits_nowhere_is_told():
    assert alone_on(workflow(call("a", prompt=600)), engine(max_model_len=600)) == math.inf
    with pytest.raises(FleetError, match="workflow w has a prompt that is longer"):
        alone_times([workflow(call("a", prompt=400_000))], fleet_named("A100"))


def test_slos_are_times_alone_times_the_scale_of_the_tenant():
    trace = [workflow(call("a"), name="x", tenant="tight"), workflow(call("a"), name="y")]
    found = with_slo(trace, {"x": 2.0, "y": 3.0}, 5.0, {"tight": 1.5})
    assert [one.slo_s for one in found] == [3.0, 15.0]


def done(name, latency_s, *, ok=True):
    return PlayedWorkflow(name, "app", "default", 1.0, 1.0 + latency_s, None, ok)


def test_ratios_are_of_latency_to_time_alone_and_infinite_where_it_failed():
    found = ratios(
        [done("x", 9.0), done("y", 2.0), done("z", 1.0, ok=False)], {"x": 3, "y": 1, "z": 1}
    )
    assert found == [2.0, 3.0, math.inf]


def test_the_scale_at_95_is_the_least_that_95_percent_attain():
    found = [float(number) for number in range(1, 21)]
    assert scale_at(found) == 19.0
    assert attainment(found, 19.0) == 0.95
    assert attainment(found, 18.999) < 0.95
    assert scale_at([*found, 21.0]) == 20.0  # 95 % of 21 are more than 19
    assert scale_at([1.0] * 9 + [math.inf]) == math.inf
    assert math.isnan(scale_at([]))
    assert math.isnan(attainment([], 1.0))


def test_scales_ascend_from_1():
    assert SCALES[0] == 1.0
    assert list(SCALES) == sorted(set(SCALES))
    assert {float(scale) for scale in range(1, 21)} < set(SCALES)
