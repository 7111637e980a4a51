"""Tempo's mix has the lengths, structures and shares that the paper gives."""

from __future__ import annotations

from collections import Counter
from statistics import fmean, median, pstdev

import pytest

from dispatcher.bench.report import percentile
from dispatcher.core.types import CallClass
from dispatcher.simulator.workloads import Poisson, make_trace
from dispatcher.simulator.workloads.tempo import CHATBOT, LONG, Lengths, tempo_mix
from dispatcher.traces import TraceWorkflow

TABLE_2 = {
    # mean, deviation, median, P95
    (CHATBOT.name, "prompt"): (93, 244, 27, 391),
    (CHATBOT.name, "output"): (318, 313, 225, 1024),
    (LONG.name, "prompt"): (76, 100, 49, 229),
    (LONG.name, "output"): (482, 236, 422, 1024),
}


def drawn(lengths: Lengths, count: int = 4000, **weights: float) -> list[TraceWorkflow]:
    mix = tempo_mix(lengths, **weights)
    return make_trace(mix, Poisson(), rate_per_s=1.0, seed=0, count=count)


@pytest.mark.parametrize("lengths", [CHATBOT, LONG], ids=lambda found: found.name)
def test_single_calls_have_the_lengths_of_the_table(lengths: Lengths) -> None:
    calls = [w.calls[0] for w in drawn(lengths, 12_000, collective=0.0)]
    for kind in ("prompt", "output"):
        values = [float(getattr(call, f"{kind}_tokens")) for call in calls]
        mean, deviation, middle, p95 = TABLE_2[lengths.name, kind]
        assert fmean(values) == pytest.approx(mean, rel=0.08)
        assert pstdev(values) == pytest.approx(deviation, rel=0.1)
        assert median(values) == pytest.approx(middle, rel=0.08)
        assert percentile(values, 0.95) == pytest.approx(p95, rel=0.08)


def test_thoughts_have_the_sums_of_the_table() -> None:
    trace = drawn(CHATBOT, latency=0.0, throughput=0.0)
    thoughts = [w for w in trace if w.application == "tempo-thoughts"]
    outputs = [sum(call.output_tokens for call in w.calls) for w in thoughts]
    prompts = [sum(call.prompt_tokens for call in w.calls) for w in thoughts]
    assert fmean(outputs) == pytest.approx(4458, rel=0.04)
    assert pstdev(outputs) == pytest.approx(1176, rel=0.08)
    assert fmean(prompts) == pytest.approx(1300, rel=0.06)


def test_structures() -> None:
    trace = drawn(CHATBOT, latency=0.0, throughput=0.0)
    by_application = {w.application: w for w in trace}
    thoughts = by_application["tempo-thoughts"]
    assert Counter(call.stage for call in thoughts.calls) == {
        "thoughts-1": 3,
        "value-1": 1,
        "thoughts-2": 9,
        "value-2": 1,
    }
    assert {call.parents for call in thoughts.calls if call.stage == "thoughts-2"} == {("value-1",)}
    coding = [w for w in trace if w.application == "tempo-coding"]
    counts = [len(w.calls) for w in coding]
    assert (min(counts), max(counts)) == (8, 20)
    assert fmean(counts) == pytest.approx(14, rel=0.03)
    assert all(len(call.parents) == (n > 0) for w in coding for n, call in enumerate(w.calls))


def test_shares_and_classes() -> None:
    counted = Counter(w.calls[0].call_class for w in drawn(CHATBOT, best_effort=1.0))
    assert counted[CallClass.LATENCY] == pytest.approx(2000, rel=0.06)
    for other in (CallClass.THROUGHPUT, CallClass.COLLECTIVE, CallClass.BEST_EFFORT):
        assert counted[other] == pytest.approx(667, rel=0.12)
    for workflow in drawn(CHATBOT, 200, best_effort=1.0):
        for call in workflow.calls:
            assert call.streaming == (call.call_class is CallClass.LATENCY)


def test_a_mix_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="expected parts"):
        tempo_mix(latency=0.0, throughput=0.0, collective=0.0)
