"""Random event sequences: whatever happens, the books add up and every call ends exactly once."""

from __future__ import annotations

import random

import pytest
from core_world import ByKey, Cycle, HoldAll, Seats, World, policy
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from dispatcher.core import events as ev
from dispatcher.core import invariants
from dispatcher.core.coordinator import Limits
from dispatcher.core.errors import InvariantError
from dispatcher.core.ports import Assignment, Defer
from dispatcher.core.types import (
    CallId,
    EngineGauges,
    InstanceId,
    LengthEstimate,
    Outcome,
    Slo,
    WorkflowId,
)

INSTANCES = ("i", "j", "k")
MODELS = (frozenset({"m"}), frozenset({"m", "n"}), frozenset({"n"}))


class PlanByLength:
    def plan(self, held, free_seats, fleet, now_s):
        places = [i for i, free in free_seats.items() for _ in range(free + 1)]
        able = sorted(held, key=lambda call: call.length.expected_tokens)
        return [
            Assignment(c.spec.call_id, p)
            for c, p in zip(able, places, strict=False)
            if c.spec.model in fleet.instances[p].spec.models
        ]


class StealOldest:
    def steal(self, instance, fleet, now_s):
        for other in fleet.instances.values():
            for call in other.queue or ():
                if other is not instance and call.spec.model in instance.spec.models:
                    return call.spec.call_id
        return None


class PreemptNewest:
    def preempt(self, fleet, now_s):
        return [list(i.in_flight)[-1] for i in fleet.instances.values() if len(i.in_flight) > 1]


class Reluctant(Seats):
    """Sends nothing in the first half of every second."""

    def admit(self, call, seat, instance, now_s):
        if now_s % 1.0 < 0.5:
            return Defer(until_s=now_s - now_s % 1.0 + 0.5)
        return super().admit(call, seat, instance, now_s)


def policies():
    by_length = ByKey(key=lambda call: (call.length.expected_tokens,), priority=True)
    return [
        policy("early"),
        policy("late", routing=Cycle(late=True), ordering=by_length),
        policy("holding", routing=HoldAll(most=1)),
        policy("planned", routing=Cycle(late=True), planner=PlanByLength()),
        policy("stealing", stealing=StealOldest(), ordering=by_length),
        policy("preempting", preemption=PreemptNewest(), tick_s=1.0),
        policy("reluctant", admission=Reluctant()),
    ]


class AnyTraffic(RuleBasedStateMachine):
    @initialize(at=st.integers(0, 6))
    def begin(self, at):
        self.world = World(policies()[at], limits=Limits(max_calls=12, max_wait_s=9.0))
        self.world.tracker.rebudget_on_end = True
        self.calls = 0
        for name, models in zip(INSTANCES, MODELS, strict=True):
            self.world.up(name, seats=2, models=models)

    @rule(
        workflow=st.integers(0, 4),
        model=st.sampled_from("mn"),
        seats=st.sampled_from([1, 1, 1, 2, 3]),
        slo_s=st.sampled_from([0.5, 5.0, 50.0]),
        times=st.integers(1, 4),
        late=st.booleans(),
    )
    def arrive(self, workflow, model, seats, slo_s, times, late):
        for _ in range(times):
            self.calls += 1
            self.world.arrive(
                f"c{self.calls}",
                workflow=f"w{workflow}",
                model=model,
                seats=seats,
                slo=Slo(end_to_end_s=slo_s),
                reject_late=late,
            )

    @precondition(lambda self: self.world.out)
    @rule(
        at=st.integers(0, 99),
        outcome=st.sampled_from(
            [Outcome.OK, Outcome.OK, Outcome.OK, Outcome.CLIENT_ERROR, Outcome.ENGINE_ERROR]
        ),
        retryable=st.booleans(),
        after_s=st.sampled_from([0.0, 0.1, 2.0]),
    )
    def attempt_ends(self, at, outcome, retryable, after_s):
        attempt = list(self.world.out)[at % len(self.world.out)]
        if attempt in self.world.to_stop:
            outcome = Outcome.PREEMPTED if retryable else Outcome.CANCELLED
        self.world.end_attempt(attempt, outcome, after_s, retryable=retryable)

    @precondition(lambda self: self.world.out)
    @rule(at=st.integers(0, 99), tokens=st.integers(1, 300))
    def tokens_come(self, at, tokens):
        attempt = list(self.world.out)[at % len(self.world.out)]
        self.world.post(ev.FirstToken(attempt))
        self.world.post(ev.Progress(attempt, tokens))

    @precondition(lambda self: self.world.waiting_clients)
    @rule(at=st.integers(0, 99))
    def client_goes(self, at):
        calls = sorted(self.world.waiting_clients)
        self.world.post(ev.CallCancelled(calls[at % len(calls)]))

    @precondition(lambda self: self.world.waiting_clients)
    @rule(at=st.integers(0, 99), tokens=st.floats(1, 500))
    def estimate_comes(self, at, tokens):
        calls = sorted(self.world.waiting_clients)
        self.world.post(ev.EstimateReady(calls[at % len(calls)], LengthEstimate(tokens)))

    @rule(workflow=st.integers(0, 4))
    def workflow_is_cancelled(self, workflow):
        self.world.post(ev.WorkflowCancelled(WorkflowId(f"w{workflow}")))

    @rule(
        name=st.sampled_from(INSTANCES),
        change=st.sampled_from(["down", "up", "drain", "gone"]),
        seats=st.sampled_from([1, 2, None]),
    )
    def fleet_changes(self, name, change, seats):
        world, instance = self.world, InstanceId(name)
        if change == "up" or instance not in world.coordinator.fleet.instances:
            world.up(name, seats=seats, models=MODELS[INSTANCES.index(name)])
        elif change == "down":
            world.post(ev.InstanceDown(instance))
        else:
            world.post(ev.InstanceDraining(instance, remove=change == "gone"))

    @rule(name=st.sampled_from(INSTANCES), waiting=st.integers(0, 2))
    def scrape(self, name, waiting):
        if InstanceId(name) in self.world.coordinator.fleet.instances:
            gauges = EngineGauges(running=2, waiting=waiting)
            self.world.post(ev.InstanceObserved(InstanceId(name), gauges), after_s=1.5)

    @rule(at=st.integers(0, 6))
    def policy_switch(self, at):
        self.world.post(ev.PolicySwitched(policies()[at]))

    @rule(after_s=st.sampled_from([0.0, 0.3, 1.0, 10.0]))
    def time_passes(self, after_s):
        self.world.post(ev.Tick(), after_s)

    def teardown(self):
        """Let everything finish: nothing may be left behind."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.post(ev.PolicySwitched(policies()[0]))
        for name, models in zip(INSTANCES, MODELS, strict=True):
            world.up(name, seats=2, models=models)
        for _ in range(200):
            world.post(ev.Tick(), after_s=0.25)
            for attempt in list(world.out):
                stop = attempt in world.to_stop
                world.end_attempt(attempt, Outcome.CANCELLED if stop else Outcome.OK)
        assert world.waiting_clients == set()
        assert len(world.ended) == self.calls
        coordinator = world.coordinator
        assert not coordinator.take_defects()
        assert not (coordinator.calls or coordinator.attempts or len(coordinator.placing))
        for instance in coordinator.fleet:
            assert (instance.seats_in_use, instance.in_flight_tokens, instance.queued) == (0, 0, 0)
            assert coordinator.fleet.backlog_s(instance) == 0.0


AnyTraffic.TestCase.settings = settings(
    max_examples=200,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestAnyTraffic = AnyTraffic.TestCase


def test_the_same_events_give_the_same_commands():
    def run():
        rng, world, log = random.Random(7), World(policies()[1]), []
        for name, models in zip(INSTANCES, MODELS, strict=True):
            world.up(name, seats=2, models=models)
        for n in range(300):
            log += world.arrive(f"c{n}", model=rng.choice("mn"))
            if world.out and rng.random() < 0.7:
                log += world.end(rng.choice(world.in_flight()), after_s=rng.random())
        return [repr(command) for command in log]

    assert run() == run()


# --- the checker itself can fail ---


def broken_books():
    def stray_call(world):
        del world.coordinator.placing._patience[CallId("b")]

    def lost_load(world):
        world.coordinator.fleet.get(InstanceId("i")).queued_output_tokens += 5.0

    def wrong_seats(world):
        world.coordinator.fleet.get(InstanceId("i")).seats_in_use = 0

    def idle_seat(world):
        object.__setattr__(world.coordinator.fleet.get(InstanceId("i")).spec, "seats", 9)

    def unknown_attempt(world):
        world.coordinator._attempts.live.clear()

    return [stray_call, lost_load, wrong_seats, idle_seat, unknown_attempt]


@pytest.mark.parametrize("breakage", broken_books(), ids=lambda b: b.__name__)
def test_broken_books_are_found(breakage):
    world = World()
    world.up("i", seats=1)
    world.arrive("a")
    world.arrive("b")
    breakage(world)
    with pytest.raises(InvariantError):
        invariants.check(world.coordinator)
