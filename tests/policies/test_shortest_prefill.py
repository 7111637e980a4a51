"""Shortest prefill first: the late come last, and nobody waits for ever."""

from __future__ import annotations

import random

import pytest
from core_world import World
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_fakes import PREFILL_S_PER_TOKEN, fake_call, fake_fleet, fake_instance

from dispatcher import catalog
from dispatcher.core import events as ev
from dispatcher.core.coordinator import Limits
from dispatcher.core.types import CallId, Slo
from dispatcher.registry import PolicyServices
from policies.shortest_prefill import ShortestPrefill

INSTANCE = fake_instance("i")
FLEET = fake_fleet(INSTANCE)


def queue_of(**params):
    return ShortestPrefill(**params).queue(INSTANCE, FLEET)


def call(name, tokens=200, arrived_s=0.0, sequence=1, **spec):
    return fake_call(name, sequence, arrived_s=arrived_s, prompt_tokens=tokens, **spec)


def drain(queue, now_s):
    out = []
    while len(queue):
        out.append(queue.select("", now_s).spec.call_id)
        queue.remove(out[-1])
    return out


def test_the_shortest_goes_first_until_it_is_late():
    queue = queue_of()
    queue.push(call("long", tokens=600), 0.0)
    queue.push(call("short", tokens=100), 0.0)
    assert queue.select("", 0.0).spec.call_id == "short"
    # K = 0.5 - t_pre: 0.2 s for the long one, 0.45 s for the short one
    assert queue.select("", 0.3).spec.call_id == "short"
    assert drain(queue, 0.46) == ["long", "short"]


def test_the_late_come_after_those_that_can_be_in_time():
    queue = queue_of()
    queue.push(call("late", tokens=10, arrived_s=-1.0), 0.0)
    queue.push(call("in time", tokens=900), 0.0)
    assert drain(queue, 0.0) == ["in time", "late"]


def test_a_calls_own_slo_counts():
    queue = queue_of()
    queue.push(call("patient", tokens=100, slo=Slo(ttft_s=9.0)), 0.0)
    queue.push(call("other", tokens=50), 0.0)
    assert drain(queue, 5.0) == ["patient", "other"]


def test_priority_decides_between_equals():
    queue = queue_of()
    queue.push(call("first", sequence=1), 0.0)
    queue.push(call("keen", sequence=2, client_priority=-1), 0.0)
    assert drain(queue, 0.0) == ["keen", "first"]


def test_keys_show_the_same_order():
    ordering = ShortestPrefill()
    calls = [call("a", 900), call("b", 100), call("c", 50, arrived_s=-3.0)]
    queue = ordering.queue(INSTANCE, FLEET)
    for one in calls:
        queue.push(one, 0.0)
    by_key = sorted(calls, key=lambda one: ordering.key(one, INSTANCE, FLEET, 0.0))
    assert drain(queue, 0.0) == [one.spec.call_id for one in by_key]


def test_inside_the_engine_the_late_are_passed_too():
    ordering = ShortestPrefill(overdue_s=30.0)
    start_s = ordering.latest_start_s
    assert start_s(call("a", 200), INSTANCE, FLEET, 0.0) == pytest.approx(0.4)
    assert start_s(call("late", 200, arrived_s=-2.0), INSTANCE, FLEET, 0.0) == 28.0
    assert start_s(call("overdue", 200, arrived_s=-50.0), INSTANCE, FLEET, 0.0) == 0.0


def test_one_in_so_many_is_the_oldest_that_is_overdue():
    queue = queue_of(overdue_s=30.0, overdue_share=0.25)
    queue.push(call("old", tokens=4000, arrived_s=-40.0, sequence=0), 0.0)
    for number in range(10):
        queue.push(call(f"c{number}", sequence=1 + number), 0.0)
    assert drain(queue, 0.0)[:5] == ["c0", "c1", "c2", "old", "c3"]


def test_without_turns_calls_may_starve():
    queue = queue_of(overdue_share=0.0)
    queue.push(call("old", arrived_s=-1000.0, sequence=0), 0.0)
    for number in range(500):
        queue.push(call(f"c{number}", sequence=1 + number), 0.0)
    assert drain(queue, 0.0)[-1] == "old"


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3000), st.floats(-40.0, 0.0)), min_size=1, max_size=40),
    st.floats(0.0, 60.0),
)
def test_at_any_time_the_order_is_that_of_a_fresh_queue(sizes, later_s):
    calls = [
        call(f"c{number}", tokens, arrived_s, number)
        for number, (tokens, arrived_s) in enumerate(sizes)
    ]
    old, fresh = queue_of(), queue_of()
    for one in calls:
        old.push(one, 0.0)
        fresh.push(one, later_s)
    for step in (0.1, 0.25):  # asking on the way changes nothing
        old.select("", later_s * step)
    assert drain(old, later_s) == drain(fresh, later_s)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), st.floats(0.02, 0.5))
def test_nobody_starves_however_many_short_calls_come(seed, share):
    """A queue that never runs empty: two calls come for every one that goes."""
    rng = random.Random(seed)
    queue = queue_of(overdue_s=1.0, overdue_share=share)
    queue.push(call("victim", tokens=5000, sequence=0), 0.0)
    now_s, sequence = 0.0, 0
    for _ in range(int(2 / share) + 120):
        for _ in range(2):
            sequence += 1
            queue.push(call(f"c{sequence}", rng.randint(1, 50), now_s, sequence), now_s)
        now_s += 0.01
        chosen = queue.select("", now_s).spec.call_id
        queue.remove(chosen)
        if chosen == "victim":
            return
    raise AssertionError(f"the victim still waits after {now_s} s")


def test_long_calls_get_through_a_flood_of_short_ones():
    services = PolicyServices(random.Random(0))
    policy = catalog.build_policy("heteroserve", {"overdue_s": 1.0}, services)
    world = World(policy, limits=Limits(max_wait_s=1e6), observers=catalog.observers(services))
    world.up("i", seats=1)
    world.arrive("running")
    world.arrive("victim", prompt_tokens=4000)
    for number in range(400):
        world.arrive(f"c{number}", prompt_tokens=20)
        if "victim" in world.in_flight():
            return
        world.post(ev.FirstToken(world.attempt_of(world.in_flight()[0])))
        world.end(world.in_flight()[0], after_s=0.05)
    raise AssertionError("the victim still waits")


def test_prefill_counts_what_a_call_has_generated_already():
    queue = queue_of()
    fresh = call("fresh", 300)
    resumed = call("resumed", 200)
    resumed.generated_tokens = 400
    for one in (fresh, resumed):
        queue.push(one, 0.0)
    assert FLEET.prefill_s(resumed, INSTANCE) == pytest.approx(600 * PREFILL_S_PER_TOKEN)
    assert drain(queue, 0.0) == ["fresh", "resumed"]


def test_a_call_that_is_gone_leaves_nothing_behind():
    queue = queue_of()
    for round_ in range(300):
        queue.push(call(f"c{round_}"), float(round_))
        queue.remove(CallId(f"c{round_}"))
    assert queue.select("", 1e6) is None
    assert sum(len(part) for part in vars(queue).values() if isinstance(part, list)) < 130
