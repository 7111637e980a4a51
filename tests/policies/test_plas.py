"""Least attained service: what a program has had, and what that makes of its calls."""

from __future__ import annotations

import random

import pytest
from core_world import World
from policy_fakes import fake_call, fake_fleet, fake_instance, taken_in_order

from dispatcher import catalog
from dispatcher.core import events as ev
from dispatcher.core.types import AttemptId, InstanceId, Outcome, Usage
from dispatcher.registry import PolicyServices
from policies import attained_service
from policies.attained_service import AttainedService, Program
from policies.plas import Plas


class Had:
    """What programs have had, as a test says."""

    def __init__(self, **programs):
        self.programs = programs

    def of(self, workflow_id):
        return self.programs.get(workflow_id, Program())


def ordering(had, **params):
    return Plas(had, **params), fake_fleet(fake_instance("here"))


def call(name, sequence, workflow, **fields):
    return fake_call(name, sequence, workflow=workflow, **fields)


# --- levels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "level"), [(0, 0), (399, 0), (400, 1), (1_000, 2), (400_000, 1_000)]
)
def test_a_level_is_four_hundred_tokens_of_the_program(tokens, level):
    plas, fleet = ordering(Had(w=Program(tokens, served_s=1e9)))
    assert plas.key(call("c", 1, "w"), None, fleet, 0.0) == (level, 0.0)


def test_levels_may_be_of_another_width():
    plas, fleet = ordering(Had(w=Program(1_000, served_s=1e9)), level_tokens=100.0)
    assert plas.key(call("c", 1, "w"), None, fleet, 0.0)[0] == 10.0


def test_in_a_level_by_priority_and_arrival():
    had = Had(a=Program(10, 1e9), b=Program(390, 1e9), c=Program(400, 1e9))
    plas, fleet = ordering(had)
    queue = plas.queue(None, fleet)
    calls = [
        call("c1", 1, "c"),
        call("b1", 2, "b"),
        call("a1", 3, "a"),
        call("keen", 4, "b", client_priority=-1),
    ]
    for one in calls:
        queue.push(one, 0.0)
    assert taken_in_order(queue) == ["keen", "b1", "a1", "c1"]


def test_a_program_that_has_been_served_since_is_passed_by():
    had = Had(a=Program(0, 1.0), b=Program(500, 1e9))
    plas, fleet = ordering(had)
    queue = plas.queue(None, fleet)
    first, second = call("a1", 1, "a"), call("b1", 2, "b")
    queue.push(first, 0.0)
    queue.push(second, 0.0)
    assert queue.select("", 0.0) is first
    had.programs["a"] = Program(900, 1e9)
    assert queue.select("", 0.0) is second
    had.programs["b"] = Program(1_300, 1e9)
    assert queue.select("", 0.0) is first


# --- promotion ------------------------------------------------------------------------------------


def test_a_program_that_has_waited_ten_times_what_it_was_served_is_promoted():
    plas, fleet = ordering(Had(w=Program(4_000, served_s=3.0, waited_s=10.0)))
    waiting = call("c", 1, "w", arrived_s=100.0)
    assert plas.key(waiting, None, fleet, 119.9)[0] == 10.0
    assert plas.key(waiting, None, fleet, 120.0)[0] == 0.0
    never, _ = ordering(plas.attained, promote_ratio=None)
    assert never.key(waiting, None, fleet, 1e6)[0] == 10.0


def test_promotion_is_found_on_ticks():
    plas, fleet = ordering(Had(had=Program(4_000, served_s=3.0), new=Program(0, 1e9)))
    queue = plas.queue(None, fleet)
    patient, fresh = call("patient", 1, "had"), call("fresh", 2, "new")
    queue.push(patient, 0.0)
    queue.push(fresh, 0.0)
    assert queue.select("", 31.0) is fresh
    while queue.rescore(31.0, 512):
        pass
    assert queue.select("", 31.0) is patient


def test_a_program_that_is_being_served_is_not_promoted_for_having_waited():
    world, _, _ = plas_world(seats=2)
    world.arrive("a1", "a")
    world.arrive("other", "other")
    world.post(ev.Progress(world.attempt_of("a1"), 2_000), after_s=20.0)
    world.arrive("a2", "a")
    world.arrive("b1", "b")
    assert world.sent(world.end("other")) == [("b1", "i")]


# --- many calls of one program --------------------------------------------------------------------


def test_however_many_calls_a_program_has_its_level_is_looked_at_once():
    looked = []

    class Watched(Had):
        def of(self, workflow_id):
            looked.append(workflow_id)
            return super().of(workflow_id)

    had = Watched(wide=Program(0, 1e9), other=Program(500, 1e9))
    plas, fleet = ordering(had)
    queue = plas.queue(None, fleet)
    for number in range(500):
        queue.push(call(f"wide{number}", number, "wide"), 0.0)
    queue.push(call("other", 500, "other"), 0.0)
    assert len(queue) == len(list(queue)) == 501
    had.programs["wide"] = Program(900, 1e9)
    looked.clear()
    assert queue.select("", 0.0).spec.call_id == "other"
    assert len(looked) <= 4


def test_a_program_goes_on_with_its_next_call_wherever_one_is_taken_out():
    plas, fleet = ordering(Had(a=Program(0, 1e9), b=Program(500, 1e9)))
    queue = plas.queue(None, fleet)
    for number, (name, workflow) in enumerate([("a1", "a"), ("b1", "b"), ("a2", "a"), ("a3", "a")]):
        queue.push(call(name, number, workflow), 0.0)
    queue.remove("a2")
    assert taken_in_order(queue) == ["a1", "a3", "b1"]
    with pytest.raises(KeyError):
        queue.remove("a1")


# --- what programs have had -----------------------------------------------------------------------


def plas_world(policy="plas", seats=1):
    services = PolicyServices(random.Random(0))
    world = World(catalog.build_policy(policy, {}, services), observers=catalog.observers(services))
    world.up("i", seats=seats)
    return world, services.observer(AttainedService), services


def test_service_is_kept_from_call_to_call_and_counts_while_it_comes():
    world, attained, _ = plas_world()
    world.arrive("a1", "a")
    world.arrive("a2", "a")
    attempt = world.attempt_of("a1")
    world.post(ev.Progress(attempt, 30), after_s=2.0)
    running = attained.of("a")
    assert (running.tokens, running.served_s, running.waited_s) == (30.0, 0.0, 0.0)
    assert running.served_by_s(world.now_s + 5.0) == 7.0
    world.post(ev.Progress(attempt, 20))
    assert attained.of("a").tokens == 30.0
    world.end("a1", after_s=1.0, usage=Usage(100, 28))
    second = attained.of("a")
    assert (second.tokens, second.served_s, second.waited_s) == (28.0, 3.0, 3.0)
    assert second.served_by_s(world.now_s + 5.0) == 8.0
    world.end("a2", after_s=1.0, usage=None, output_tokens=12)
    assert attained.of("a") == Program(40.0, served_s=4.0, waited_s=3.0)


@pytest.mark.parametrize(
    ("outcome", "fields", "kept"),
    [
        (Outcome.ENGINE_ERROR, {"retryable": True}, 0.0),
        (Outcome.PREEMPTED, {"resumable": False}, 0.0),
        (Outcome.PREEMPTED, {"resumable": True, "output_tokens": 50}, 50.0),
        (Outcome.ENGINE_ERROR, {"retryable": False}, 40.0),
    ],
)
def test_lost_service_is_taken_back(outcome, fields, kept):
    world, attained, _ = plas_world()
    world.arrive("a1", "a")
    world.post(ev.Progress(world.attempt_of("a1"), 40))
    world.end("a1", outcome, after_s=1.0, **fields)
    assert attained.of("a").tokens == kept


def test_the_program_that_has_had_least_goes_next():
    world, _, _ = plas_world()
    world.arrive("a1", "a")
    world.arrive("a2", "a")
    world.arrive("b1", "b")
    assert world.sent(world.end("a1", usage=Usage(100, 2_000), after_s=5.0)) == [("b1", "i")]


def test_service_is_counted_under_other_policies_too():
    world, attained, services = plas_world("vllm")
    world.arrive("a1", "a")
    world.arrive("a2", "a")
    world.arrive("b1", "b")
    world.post(ev.Progress(world.attempt_of("a1"), 900))
    world.post(ev.PolicySwitched(catalog.build_policy("plas", {}, services)))
    assert attained.of("a").tokens == 900.0
    assert world.sent(world.end("a1", usage=Usage(100, 900), after_s=5.0)) == [("b1", "i")]


def test_programs_are_forgotten_in_order_of_their_last_call(monkeypatch):
    monkeypatch.setattr(attained_service, "KEPT", 3)
    attained = AttainedService()
    fleet = fake_fleet(fake_instance("here"))
    for number, name in enumerate(["a", "b", "c", "a", "d"]):
        one = fake_call(f"call{number}", number, workflow=name)
        attained.observe(ev.Dispatched(one, AttemptId(number), InstanceId("here")), fleet, 1.0)
        ended = ev.AttemptEnded(AttemptId(number), Outcome.OK, Usage(1, 10))
        attained.observe(ended, fleet, 2.0)
    assert len(attained) == 3
    assert [attained.of(name).tokens for name in "abcd"] == [20.0, 0.0, 10.0, 10.0]
