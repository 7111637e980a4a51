"""What ended calls and workflows are judged by, in hand-checked numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dispatcher.core.types import CallClass, CallId, InstanceId, Outcome, Slo, WorkflowId
from dispatcher.core.workflow_types import CallRecord, Placement, WorkflowRecord
from dispatcher.gateway.attainment import _WORKFLOWS_MAX, Attainment, Verdict, call_met
from dispatcher.gateway.class_metrics import ClassMetrics

CHAT = Slo(ttft_s=2.0, tpot_s=0.1)
ENDED_BADLY = [Outcome.ENGINE_ERROR, Outcome.REJECTED]
CLIENTS_DOING = [Outcome.CANCELLED, Outcome.CLIENT_ERROR]


def placement(workflow: str = "w", slo_s: float = 20.0, started_s: float = 100.0) -> Placement:
    return Placement(WorkflowId(workflow), "default", "s", 0, started_s, started_s + slo_s)


def record(
    call_class: CallClass,
    *,
    took_s: float = 10.0,
    ttft_s: float | None = None,
    lag_s: float | None = None,
    slo: Slo = Slo(),  # noqa: B008 - frozen
    outcome: Outcome = Outcome.OK,
    at: Placement | None = None,
    arrived_s: float = 100.0,
) -> CallRecord:
    """A call of 200 prompt tokens and 50 output tokens: 300 at most, by the paper's weights."""
    return CallRecord(
        call_id=CallId("c"),
        placement=at or placement(),
        tenant="t",
        model="m",
        outcome=outcome,
        instance_id=InstanceId("e"),
        arrived_s=arrived_s,
        dispatched_s=arrived_s,
        first_token_s=None if ttft_s is None else arrived_s + ttft_s,
        ended_s=arrived_s + took_s,
        prompt_tokens=200,
        cached_tokens=0,
        output_tokens=50,
        attempts=1,
        predicted_output_tokens=50.0,
        predicted_compute_s=None,
        urgency_s=None,
        budget=None,
        call_class=call_class,
        slo=slo,
        streaming=ttft_s is not None,
        token_lag_s=lag_s,
    )


def ended(
    workflow: str = "w", *, took_s: float, slo_s: float = 20.0, outcome: Outcome = Outcome.OK
) -> WorkflowRecord:
    return WorkflowRecord(
        WorkflowId(workflow), "default", "t", 100.0, 100.0 + took_s, 100.0 + slo_s, 2, 2, outcome
    )


@pytest.mark.parametrize(
    ("call", "met", "gain", "good_tokens"),
    [
        (record(CallClass.THROUGHPUT, took_s=10.0), True, 300.0, 50),
        (record(CallClass.THROUGHPUT, took_s=40.0), False, 150.0, 0),
        # the SLO runs from the first call of the workflow
        (record(CallClass.THROUGHPUT, took_s=10.0, arrived_s=130.0), False, 150.0, 0),
        (record(CallClass.LATENCY, slo=CHAT, ttft_s=1.0, lag_s=-0.5), True, 300.0, 50),
        # one pause made some token late, and cost no more than its moment
        (record(CallClass.LATENCY, slo=CHAT, took_s=6.0, ttft_s=1.0, lag_s=0.1), False, 300.0, 0),
        (record(CallClass.LATENCY, slo=Slo(ttft_s=2.0), ttft_s=4.0), False, 200.0, 0),
        (record(CallClass.LATENCY, slo=Slo(ttft_s=4.0), ttft_s=4.0), True, 300.0, 50),
        # read along, but nothing was said of a pace: its end decides
        (record(CallClass.LATENCY, ttft_s=1.0, took_s=40.0), False, 150.0, 0),
        (record(CallClass.BEST_EFFORT, took_s=4000.0), None, 300.0, 50),
    ],
)
def test_a_call_is_judged_by_its_class(
    call: CallRecord, met: bool | None, gain: float, good_tokens: int
) -> None:
    verdict = Attainment().call_ended(call)
    assert verdict is not None
    assert (verdict.met, verdict.good_tokens) == (met, good_tokens)
    assert verdict.gain == pytest.approx(gain)
    assert call_met(call) is met


@pytest.mark.parametrize("outcome", ENDED_BADLY)
def test_what_failed_has_missed_what_it_was_promised(outcome: Outcome) -> None:
    quick = record(CallClass.LATENCY, slo=CHAT, ttft_s=0.1, lag_s=-1.0, outcome=outcome)
    assert Attainment().call_ended(quick) == Verdict(CallClass.LATENCY, met=False)
    unpromised = record(CallClass.BEST_EFFORT, outcome=outcome)
    assert Attainment().call_ended(unpromised) == Verdict(CallClass.BEST_EFFORT, met=None)


@pytest.mark.parametrize("outcome", CLIENTS_DOING)
def test_what_its_client_gave_up_or_got_wrong_is_not_judged(outcome: Outcome) -> None:
    call = record(CallClass.THROUGHPUT, outcome=outcome, took_s=1.0)
    assert Attainment().call_ended(call) is None
    assert call_met(call) is None
    attainment = Attainment()
    attainment.call_ended(record(CallClass.COLLECTIVE))
    assert attainment.workflow_ended(ended(took_s=5.0, outcome=outcome)) is None


def test_collective_calls_are_judged_together_when_their_workflow_ends() -> None:
    attainment = Attainment()
    assert attainment.call_ended(record(CallClass.COLLECTIVE, took_s=5.0)) is None
    assert attainment.call_ended(record(CallClass.COLLECTIVE, took_s=8.0)) is None
    streamed = record(CallClass.LATENCY, slo=CHAT, ttft_s=1.0, lag_s=-0.5)
    assert attainment.call_ended(streamed) is not None
    lost = record(CallClass.COLLECTIVE, outcome=Outcome.ENGINE_ERROR)
    assert attainment.call_ended(lost) is None
    verdict = attainment.workflow_ended(ended(took_s=40.0))
    assert verdict == Verdict(CallClass.COLLECTIVE, met=False, gain=300.0, output_tokens=100)
    assert verdict.good_tokens == 0
    # nothing of it is left
    assert attainment.workflow_ended(ended(took_s=5.0)) is None


def test_a_workflow_that_kept_its_slo_is_worth_all_its_tokens() -> None:
    attainment = Attainment()
    for _ in range(3):
        attainment.call_ended(record(CallClass.COLLECTIVE))
    verdict = attainment.workflow_ended(ended(took_s=20.0))
    assert verdict == Verdict(CallClass.COLLECTIVE, met=True, gain=900.0, output_tokens=150)


@pytest.mark.parametrize("outcome", ENDED_BADLY)
def test_a_workflow_that_failed_is_worth_nothing(outcome: Outcome) -> None:
    attainment = Attainment()
    attainment.call_ended(record(CallClass.COLLECTIVE))
    verdict = attainment.workflow_ended(ended(took_s=5.0, outcome=outcome))
    assert verdict == Verdict(CallClass.COLLECTIVE, met=False)


def test_a_workflow_without_collective_calls_is_none_of_their_class() -> None:
    attainment = Attainment()
    attainment.call_ended(record(CallClass.THROUGHPUT))
    assert attainment.workflow_ended(ended(took_s=5.0)) is None


def test_memory_is_bounded_though_workflows_never_end() -> None:
    attainment = Attainment()
    call = record(CallClass.COLLECTIVE)
    for n in range(_WORKFLOWS_MAX + 10):
        attainment.call_ended(replace(call, placement=placement(f"w{n}")))
    assert len(attainment._open) == _WORKFLOWS_MAX
    assert attainment.workflow_ended(ended("w0", took_s=1.0)) is None
    assert attainment.workflow_ended(ended(f"w{_WORKFLOWS_MAX}", took_s=1.0)) is not None


def shown(registry: CollectorRegistry) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *(sample.labels[k] for k in ("class", "outcome") if k in sample.labels)): (
            sample.value
        )
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
        if "le" not in sample.labels
    }


CALLS = st.builds(
    record,
    st.sampled_from(CallClass),
    took_s=st.floats(0.1, 100),
    ttft_s=st.none() | st.floats(0.01, 0.1),
    lag_s=st.none() | st.floats(-5, 5),
    slo=st.sampled_from([Slo(), CHAT, Slo(ttft_s=0.05)]),
    outcome=st.sampled_from([o for o in Outcome if o is not Outcome.PREEMPTED]),
)


@given(st.lists(CALLS, max_size=20))
def test_what_is_shown_adds_up(calls: list[CallRecord]) -> None:
    registry = CollectorRegistry()
    metrics = ClassMetrics(registry)
    for call in calls:
        metrics.call_ended(call)
    metrics.workflow_ended(ended(took_s=30.0))
    values = shown(registry)
    for each in CallClass:
        own = [call for call in calls if call.call_class is each]
        took = values["headway_class_request_duration_seconds_count", each.value]
        assert took == len(own)
        judged = sum(values["headway_slo_total", each.value, o] for o in ("met", "missed"))
        assert judged <= (1 if each is CallClass.COLLECTIVE else len(own))
        gain = values["headway_service_gain_total", each.value]
        good = values["headway_goodput_tokens_total", each.value]
        assert 0.0 <= good * 2 <= gain + good * 1e-9 + 1e-9 <= 300.0 * len(own) + 1e-6
        late = values["headway_token_lag_seconds_sum", each.value]
        assert late >= 0.0
    assert values["headway_slo_total", "best-effort", "missed"] == 0.0


def test_all_classes_are_shown_before_anything_has_happened() -> None:
    registry = CollectorRegistry()
    ClassMetrics(registry)
    values = shown(registry)
    for each in CallClass:
        for outcome in ("met", "missed"):
            assert values["headway_slo_total", each.value, outcome] == 0.0
        assert values["headway_service_gain_total", each.value] == 0.0
        assert values["headway_goodput_tokens_total", each.value] == 0.0


def test_tokens_of_several_sequences_are_due_side_by_side():
    # 50 tokens of one sequence are due within 2 + 4.9 s, 25 of each of two within 2 + 2.4 s
    one = record(CallClass.LATENCY, took_s=5.5, ttft_s=1.0, slo=CHAT)
    assert call_met(one) is True
    assert call_met(replace(one, sequences=2)) is False
