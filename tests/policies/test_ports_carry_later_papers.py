"""The ports carry what later policies need: each drives the coordinator through one of them."""

from __future__ import annotations

import random

import pytest
from core_world import FlatTracker, World
from later_papers import (
    RESERVE,
    DensityOrdering,
    FromTheLongest,
    KnownQueues,
    ReserveAdmission,
    StopTheLeastDense,
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


def deadline(seconds):
    return {"slo": Slo(end_to_end_s=seconds)}


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


def preempting():
    ordering = DensityOrdering()
    return dense(preemption=StopTheLeastDense(ordering), tick_s=0.1)


def planning():
    return planned(random.Random(0))[0]


def stealing():
    ordering = KnownQueues()
    return policy(ordering=ordering, stealing=FromTheLongest(ordering))


@pytest.mark.parametrize("make", [preempting, planning, stealing])
@pytest.mark.parametrize("check", POLICY_CHECKS.values(), ids=POLICY_CHECKS)
def test_the_kit_judges_them_like_any_other(make, check):
    check(make)
