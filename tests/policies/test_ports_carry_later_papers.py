"""The ports carry what later policies need: each drives the coordinator through one of them."""

from __future__ import annotations

import random

import pytest
from core_world import FlatTracker, World
from later_papers import (
    RESERVE,
    DensityOrdering,
    FromTheLongest,
    GroupOrdering,
    KnownQueues,
    ReserveAdmission,
    StopTheLeastDense,
    TokenCounters,
    VtcOrdering,
    planned,
    policy,
)
from later_reservations import Reservations, ReturningFirst
from policy_kit import POLICY_CHECKS

from dispatcher.core import events as ev
from dispatcher.core.commands import Dispatch, Preempt
from dispatcher.core.ports import TrackerUpdate
from dispatcher.core.types import InstanceId, Outcome, Slo


def run_to_the_end(world, after_s=1.0):
    """End what is out, oldest first, until nothing is; the calls in the order in which they ran."""
    ran = []
    while world.out:
        call_id = world.in_flight()[0]
        ran.append(call_id)
        world.end(call_id, after_s=after_s)
    return ran


# --- VTC ---


def vtc():
    counters = TokenCounters()
    return policy(ordering=VtcOrdering(counters)), counters


def test_vtc_serves_the_least_served_client():
    fair, counters = vtc()
    world = World(fair, observers=(counters,))
    world.up("i", seats=1)
    for call_id in ("a1", "a2", "a3", "b1"):
        world.arrive(call_id, workflow=call_id[0])
    assert run_to_the_end(world) == ["a1", "b1", "a2", "a3"]
    # 100 prompt tokens and 50 output tokens a call; b came in at a's level of 100
    assert counters.served == {"a": 3 * 200.0, "b": 100.0 + 200.0}


def test_vtc_counts_over_the_fleet_and_selects_at_each_instance():
    fair, counters = vtc()
    world = World(fair, observers=(counters,))
    world.up("x", seats=1)
    world.up("y", seats=1)
    world.arrive("a1", workflow="a", pinned_to=InstanceId("x"))
    world.arrive("running", workflow="r", pinned_to=InstanceId("y"))
    world.arrive("a2", workflow="a", pinned_to=InstanceId("y"))
    world.arrive("b1", workflow="b", pinned_to=InstanceId("y"))
    world.post(ev.Progress(world.attempt_of("a1"), 400))
    assert world.sent(world.end("running")) == [("b1", "y")]


def test_vtc_charges_before_the_next_seat_of_the_same_event():
    fair, counters = vtc()
    world = World(fair, observers=(counters,))
    world.up("i", seats=2)
    world.arrive("wide", workflow="w", seats=2)
    for call_id in ("a1", "a2", "b1"):
        world.arrive(call_id, workflow=call_id[0])
    assert world.sent(world.end("wide")) == [("a1", "i"), ("b1", "i")]


def test_vtc_does_not_charge_for_a_call_that_never_ran():
    fair, counters = vtc()
    world = World(fair, observers=(counters,))
    world.up("i", seats=1)
    world.arrive("a1", workflow="a")
    world.arrive("b1", workflow="b")
    before = counters.of("b")
    world.post(ev.CallCancelled("b1"))
    assert counters.of("b") == before


def test_counters_are_warm_when_vtc_is_switched_in():
    fair, counters = vtc()
    world = World(policy(), observers=(counters,))
    world.up("i", seats=1)
    for call_id in ("a1", "a2", "b1"):
        world.arrive(call_id, workflow=call_id[0])
    world.post(ev.Progress(world.attempt_of("a1"), 40))
    world.post(ev.PolicySwitched(fair))
    assert world.sent(world.end("a1")) == [("b1", "i")]


# --- QLM ---


def deadline(seconds):
    return {"slo": Slo(end_to_end_s=seconds)}


def test_groups_keep_their_order_while_nobody_would_be_late():
    world = World(policy(ordering=GroupOrdering()))
    world.up("i", seats=1)
    world.arrive("running")
    world.arrive("relaxed", **deadline(90.0))
    world.arrive("pressing", **deadline(50.0))
    assert run_to_the_end(world) == ["running", "relaxed", "pressing"]


def test_groups_are_reordered_when_one_would_be_late():
    world = World(policy(ordering=GroupOrdering()))
    world.up("i", seats=1)
    world.arrive("running")
    for number in range(5):
        world.arrive(f"relaxed-{number}", **deadline(90.0))
    for number in range(2):
        # 5.5 s are ahead of them
        world.arrive(f"pressing-{number}", **deadline(4.0))
    assert run_to_the_end(world)[:4] == ["running", "pressing-0", "pressing-1", "relaxed-0"]


def test_time_alone_reorders_groups_on_the_policys_tick():
    world = World(policy(ordering=GroupOrdering(), tick_s=1.0))
    world.up("i", seats=1)
    world.arrive("running")
    world.arrive("relaxed", **deadline(90.0))
    world.arrive("pressing", **deadline(15.0))
    world.post(ev.Tick(), after_s=14.5)
    assert world.sent(world.end("running")) == [("pressing", "i")]


# --- Tempo ---


def dense(**parts):
    return policy(ordering=DensityOrdering(), admission=ReserveAdmission(), **parts)


def test_density_counts_siblings_wherever_they_are():
    world = World(dense())
    world.up("i", seats=2)
    world.up("elsewhere", seats=1)
    world.arrive("running", pinned_to=InstanceId("i"))
    world.arrive("running too", pinned_to=InstanceId("i"))
    world.arrive("sibling", workflow="w", pinned_to=InstanceId("elsewhere"))
    world.arrive("alone", pinned_to=InstanceId("i"))
    world.arrive("one of two", workflow="w", pinned_to=InstanceId("i"))
    assert world.sent(world.end("running")) == [("one of two", "i")]


def test_a_seat_of_the_reserve_serves_who_has_waited_long():
    world = World(dense())
    world.up("i", seats=2)
    world.arrive("plain")
    world.arrive("reserve")
    seats = {a.call.call_id: a.seat for a in world.coordinator.attempts.values()}
    assert seats == {"plain": "", "reserve": RESERVE}
    world.arrive("old and thin", prompt_tokens=1)
    world.now_s += 31.0
    world.arrive("dense", prompt_tokens=4_000)
    assert world.sent(world.end("reserve")) == [("old and thin", "i")]
    assert world.sent(world.end("plain")) == [("dense", "i")]


def test_densities_move_with_time_on_the_policys_tick():
    world = World(dense(tick_s=1.0))
    world.up("i", seats=2)
    world.arrive("running")
    world.arrive("running too")
    world.arrive("soon lost", prompt_tokens=500, **deadline(3.0))
    world.arrive("in time", prompt_tokens=300, **deadline(60.0))
    world.post(ev.Tick(), after_s=20.0)
    assert world.sent(world.end("running")) == [("in time", "i")]


def test_preemption_stops_an_attempt_and_the_call_goes_on_later():
    ordering = DensityOrdering()
    world = World(
        policy(ordering=ordering, preemption=StopTheLeastDense(ordering), tick_s=1.0),
    )
    world.up("i", seats=1)
    world.arrive("thin", prompt_tokens=10)
    thin = world.attempt_of("thin")
    world.post(ev.Progress(thin, 20))
    world.arrive("dense", prompt_tokens=4_000)
    assert Preempt(thin) in world.post(ev.Tick(), after_s=1.0)
    assert Preempt(thin) not in world.post(ev.Tick(), after_s=1.0), "asked for once"
    stopped = world.end("thin", Outcome.PREEMPTED, output_tokens=20, resumable=True)
    assert world.sent(stopped) == [("dense", "i")]
    (again,) = [c for c in world.end("dense", after_s=1.0) if isinstance(c, Dispatch)]
    assert (again.call_id, again.generated_tokens) == ("thin", 20)
    world.end("thin")
    assert world.ended == {"dense": Outcome.OK, "thin": Outcome.OK}


# --- LLMSched ---


class SlowStages(FlatTracker):
    """Stages do not end with every call."""

    stage_ended = False

    def call_ended(self, call_id, result, now_s):
        super().call_ended(call_id, result, now_s)
        return TrackerUpdate(stage_ended=self.stage_ended)


def test_a_plan_is_kept_until_a_stage_ends_so_that_a_coin_is_tossed_once():
    chosen, planner = planned(random.Random(1))
    world = World(chosen, tracker=SlowStages())
    world.up("x", seats=1)
    world.up("y", seats=1)
    for number in range(6):
        world.arrive(f"c{number}")
    tosses = len(planner.tosses)
    # one plan for the four that are held, whatever frees
    world.end("c0", after_s=1.0)
    world.end("c1", after_s=1.0)
    assert len(planner.tosses) == tosses + 1
    world.tracker.stage_ended = True
    run_to_the_end(world)
    assert len(planner.tosses) > tosses + 1
    assert len(world.ended) == 6


def test_an_assignment_waits_for_its_instance_beside_an_idle_one():
    chosen, planner = planned(random.Random(1))
    planner.only = InstanceId("x")
    world = World(chosen, tracker=SlowStages())
    world.up("x", seats=1)
    world.up("y", seats=1)
    world.arrive("first")
    world.arrive("second")
    assert (world.where("first"), world.where("second")) == ("x", None)
    assert world.sent(world.end("first")) == [("second", "x")]


# --- stealing ---


def test_an_idle_instance_steals_what_fits():
    ordering = KnownQueues()
    world = World(policy(ordering=ordering, stealing=FromTheLongest(ordering)))
    world.up("x", seats=1, models=frozenset({"m", "other"}))
    world.arrive("running")
    world.arrive("not for y", model="other")
    world.arrive("for y")
    assert world.sent(world.up("y", seats=1)) == [("for y", "y")]
    assert world.sent(world.end("running")) == [("not for y", "x")]
    world.arrive("for y too", pinned_to=InstanceId("x"))


def test_without_the_port_nothing_is_stolen():
    world = World(policy(ordering=KnownQueues()))
    world.up("x", seats=1)
    world.arrive("running")
    world.arrive("waiting")
    assert world.sent(world.up("y", seats=1)) == []


# --- AugServe ---


def reserving(ttl_s=8.0):
    reservations = Reservations(capacity_tokens=400, ttl_s=ttl_s)
    chosen = policy(ordering=ReturningFirst(reservations), admission=reservations)
    world = World(chosen, observers=(reservations,))
    world.up("i", seats=8)
    return world


def test_room_is_kept_for_a_session_that_is_away():
    world = reserving()
    world.arrive("turn 1", workflow="s", prompt_tokens=200)
    world.end("turn 1")
    world.arrive("stranger", prompt_tokens=300)
    assert world.where("stranger") is None
    assert world.wake_s == pytest.approx(world.now_s + 8.0)
    commands = world.post(ev.Tick(), after_s=8.0)
    assert world.sent(commands) == [("stranger", "i")]


def test_the_session_comes_back_to_its_room_past_those_who_wait_for_it():
    world = reserving()
    world.arrive("turn 1", workflow="s", prompt_tokens=200)
    world.end("turn 1")
    world.arrive("stranger", prompt_tokens=300)
    assert world.sent(world.arrive("turn 2", workflow="s", prompt_tokens=210)) == [("turn 2", "i")]
    assert world.where("stranger") is None


# --- and they conform ---


def counting():
    return vtc()[0]


def grouping():
    return policy(ordering=GroupOrdering())


def preempting():
    ordering = DensityOrdering()
    return dense(preemption=StopTheLeastDense(ordering), tick_s=0.1)


def planning():
    return planned(random.Random(0))[0]


def stealing():
    ordering = KnownQueues()
    return policy(ordering=ordering, stealing=FromTheLongest(ordering))


@pytest.mark.parametrize("make", [counting, grouping, preempting, planning, stealing])
@pytest.mark.parametrize("check", POLICY_CHECKS.values(), ids=POLICY_CHECKS)
def test_the_kit_judges_them_like_any_other(make, check):
    check(make)
