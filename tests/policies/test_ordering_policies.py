"""In which order calls come up, and when their engines should start them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_fakes import FakeFleet, fake_call, fake_fleet, fake_instance

from dispatcher.core.ports import Admit, Defer
from dispatcher.core.types import PLAIN_SEAT
from policies.fcfs import Fcfs
from policies.seats import SeatAdmission
from policies.urgency import Urgency

FAST = fake_instance("fast", slowness=1.0)
SLOW = fake_instance("slow", slowness=3.0)
FLEET = fake_fleet(FAST, SLOW)


def drained(ordering, calls, instance=FAST, now_s=0.0):
    queue = ordering.queue(instance, FLEET)
    for call in calls:
        queue.push(call, now_s)
    names = []
    while len(queue):
        call = queue.select(PLAIN_SEAT, now_s)
        names.append(call.spec.call_id)
        queue.remove(call.spec.call_id)
    return names


# --- FCFS ---


def test_fcfs_is_by_arrival():
    calls = [fake_call(name, n) for n, name in enumerate("abc")]
    assert drained(Fcfs(), reversed(calls)) == list("abc")


def test_fcfs_heeds_the_clients_priority_first():
    calls = [
        fake_call("plain", 1),
        fake_call("low", 2, client_priority=3),
        fake_call("high", 3, client_priority=-3),
    ]
    assert drained(Fcfs(), calls) == ["high", "plain", "low"]


def test_fcfs_gives_engines_no_priority():
    assert Fcfs().latest_start_s(fake_call("c"), FAST, FLEET, 0.0) is None


# --- urgency ---


def eq7_s(call, instance, now_s):
    """U as printed: t_comp - (t_SLO - tau), tau counted from when the budget was granted."""
    tau_s = now_s - call.budget.granted_s
    return FLEET.compute_s(call, instance) - (call.budget.stage_budget_s - tau_s)


CALLS = st.lists(
    st.tuples(st.floats(0.0, 50.0), st.floats(-30.0, 60.0), st.floats(1.0, 900.0)),
    min_size=1,
    max_size=12,
)


@given(CALLS, st.sampled_from([FAST, SLOW]), st.floats(50.0, 500.0))
def test_the_static_order_is_the_papers_scan(figures, instance, now_s):
    """Eq. 8, recomputed from Eq. 7 over all waiting calls at every step, gives the same order."""
    calls = [
        fake_call(f"c{n}", n, arrived_s=a, stage_deadline_s=a + slo, output_tokens=tokens)
        for n, (a, slo, tokens) in enumerate(figures)
    ]
    order = drained(Urgency(), calls, instance, now_s)
    waiting = {call.spec.call_id: call for call in calls}
    for name in order:
        most = max(eq7_s(call, instance, now_s) for call in waiting.values())
        assert eq7_s(waiting.pop(name), instance, now_s) == pytest.approx(most, abs=1e-9)


def test_the_latest_start_is_the_stage_deadline_less_the_calls_time_there():
    call = fake_call("c", stage_deadline_s=10.0, prompt_tokens=200, output_tokens=95.0)
    assert Urgency().latest_start_s(call, FAST, FLEET, 0.0) == pytest.approx(8.0)
    assert Urgency().latest_start_s(call, SLOW, FLEET, 0.0) == pytest.approx(4.0)
    assert Urgency().key(call, None, FLEET, 0.0)[0] == pytest.approx(6.0), "held: the mean"


def test_a_client_cannot_break_a_deadline_by_its_priority():
    calls = [
        fake_call("pressing", 1, stage_deadline_s=5.0, client_priority=9),
        fake_call("relaxed", 2, stage_deadline_s=50.0, client_priority=-9),
    ]
    assert drained(Urgency(), calls) == ["pressing", "relaxed"]


def test_between_equal_calls_the_clients_priority_decides_then_arrival():
    calls = [
        fake_call("first", 1),
        fake_call("second", 2),
        fake_call("keen", 3, client_priority=-1),
    ]
    assert drained(Urgency(), calls) == ["keen", "first", "second"]


def test_a_stage_that_ended_re_orders_what_waits():
    queue = Urgency().queue(FAST, FLEET)
    one, two = (
        fake_call("one", 1, stage_deadline_s=20.0),
        fake_call("two", 2, stage_deadline_s=30.0),
    )
    for call in (one, two):
        queue.push(call, 0.0)
    two.budget = fake_call("tight", stage_deadline_s=5.0).budget
    queue.refresh(two, 1.0)
    assert queue.select(PLAIN_SEAT, 1.0) is two


def test_scope_workflow_orders_by_the_workflows_laxity():
    calls = [
        # its stage has ample time, its workflow has not: 30 - 28 = 2 s
        fake_call("long way", 1, stage_deadline_s=25.0, deadline_s=30.0, remaining_work_s=28.0),
        fake_call("nearly there", 2, stage_deadline_s=8.0, deadline_s=30.0, remaining_work_s=3.0),
    ]
    assert drained(Urgency(), calls) == ["nearly there", "long way"]
    by_workflow = Urgency(scope="workflow")
    assert drained(by_workflow, calls) == ["long way", "nearly there"]
    assert by_workflow.latest_start_s(calls[0], SLOW, FLEET, 0.0) == pytest.approx(2.0)


def test_doomed_calls_come_last_where_asked():
    calls = [
        fake_call("lost", 1, stage_deadline_s=1.0),
        fake_call("in time", 2, stage_deadline_s=40.0),
        fake_call("lost too", 3, stage_deadline_s=0.5),
    ]
    assert drained(Urgency(), calls, now_s=10.0) == ["lost too", "lost", "in time"]
    shed = Urgency(shed_doomed=True)
    assert drained(shed, calls, now_s=10.0) == ["in time", "lost too", "lost"]
    assert [shed.key(call, FAST, FLEET, 10.0)[0] for call in calls] == [1.0, 0.0, 1.0]


def test_a_call_is_doomed_from_the_moment_its_latest_start_has_passed():
    ordering = Urgency(scope="workflow", shed_doomed=True)
    queue = ordering.queue(FAST, FLEET)
    early = fake_call("early", 1, deadline_s=10.0, remaining_work_s=0.0)
    late = fake_call("late", 2, deadline_s=20.0, remaining_work_s=0.0)
    for call in (early, late):
        queue.push(call, 0.0)
    assert queue.select(PLAIN_SEAT, 10.0) is early
    assert queue.select(PLAIN_SEAT, 10.001) is late
    assert queue.select(PLAIN_SEAT, 21.0) is early, "both are lost: the older claim"


@given(CALLS, st.floats(-100.0, 600.0))
def test_the_doomed_last_queue_is_the_order_of_its_keys(figures, now_s):
    ordering = Urgency(shed_doomed=True)
    calls = [
        fake_call(f"c{n}", n, arrived_s=a, stage_deadline_s=a + slo, output_tokens=tokens)
        for n, (a, slo, tokens) in enumerate(figures)
    ]
    by_key = sorted(
        calls, key=lambda call: (*ordering.key(call, FAST, FLEET, now_s), call.sequence)
    )
    assert drained(ordering, calls, FAST, now_s) == [call.spec.call_id for call in by_key]


# --- seats ---


def test_a_call_of_several_sequences_waits_for_as_many_seats():
    admission, instance = SeatAdmission(), fake_instance("i", seats=4)
    instance.start(fake_call("running", seats=2))
    verdicts = [
        admission.admit(fake_call("c", seats=seats), PLAIN_SEAT, instance, 0.0)
        for seats in (1, 2, 3, 9)
    ]
    assert verdicts == [Admit(), Admit(), Defer(), Defer()]


def test_a_call_larger_than_the_instance_goes_when_it_is_empty():
    admission, instance = SeatAdmission(), fake_instance("i", seats=2)
    large = fake_call("large", seats=5)
    assert admission.admit(large, PLAIN_SEAT, instance, 0.0) == Admit()
    instance.start(fake_call("small"))
    assert admission.admit(large, PLAIN_SEAT, instance, 0.0) == Defer()


def test_a_full_instance_has_no_seat_even_after_its_seats_shrank():
    admission, instance = SeatAdmission(), fake_instance("i", seats=3)
    for n in range(3):
        instance.start(fake_call(f"c{n}"))
    assert not admission.open_seats(instance, 0.0)
    instance.seats = 1
    assert not admission.open_seats(instance, 0.0)


def test_the_fakes_are_what_the_arithmetic_above_says():
    call = fake_call("c", prompt_tokens=200, output_tokens=95.0)
    assert isinstance(FLEET, FakeFleet)
    assert FLEET.compute_s(call, FAST) == pytest.approx(2.0)
    assert FLEET.compute_s(call, SLOW) == pytest.approx(6.0)
