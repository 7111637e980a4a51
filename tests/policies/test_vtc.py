"""VTC: the workflow that has been served least goes first, whatever engine serves it."""

from __future__ import annotations

from fair_world import CLIENTS, fair_world, run_to_the_end
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_fakes import fake_call

from dispatcher.core import events as ev
from dispatcher.core.types import PLAIN_SEAT, InstanceId
from policies.vtc import ClientQueue


def test_the_least_served_client_goes_first_and_its_calls_in_order_of_arrival():
    world, counters, _ = fair_world()
    for call_id in ("a1", "a2", "a3", "b1"):
        world.arrive(call_id, workflow=call_id[0])
    assert run_to_the_end(world) == ["a1", "b1", "a2", "a3"]
    # 100 + 2 x 50 a call; b came in at a's level of 100
    assert (counters.of("a"), counters.of("b")) == (3 * 200.0, 100.0 + 200.0)


def test_equal_counters_are_served_in_order_of_arrival():
    world, _, _ = fair_world()
    world.arrive("running", workflow="r", prompt_tokens=0)
    for call_id in ("b1", "a1", "c1"):
        world.arrive(call_id, workflow=call_id[0])
    assert run_to_the_end(world) == ["running", "b1", "a1", "c1"]


def test_among_calls_of_one_client_its_own_priority_decides():
    world, _, _ = fair_world()
    world.arrive("running")
    world.arrive("a plain", workflow="a")
    world.arrive("a keen", workflow="a", client_priority=-1)
    world.arrive("b low", workflow="b", client_priority=5)
    assert run_to_the_end(world) == ["running", "a keen", "b low", "a plain"]


def test_counters_are_the_fleets_and_the_choice_each_engines():
    world, counters, _ = fair_world("x", "y")
    world.arrive("a1", workflow="a", pinned_to=InstanceId("x"))
    world.arrive("running", workflow="r", pinned_to=InstanceId("y"))
    world.arrive("a2", workflow="a", pinned_to=InstanceId("y"))
    world.arrive("b1", workflow="b", pinned_to=InstanceId("y"))
    before = counters.of("a")
    world.post(ev.Progress(world.attempt_of("a1"), 400))
    assert counters.of("a") == before + 2 * 400.0
    assert world.sent(world.end("running")) == [("b1", "y")]


def test_an_admission_counts_before_the_next_seat_of_the_same_event():
    world, _, _ = fair_world()
    world.up("i", seats=2)
    world.arrive("wide", workflow="w", seats=2)
    for call_id in ("a1", "a2", "b1"):
        world.arrive(call_id, workflow=call_id[0])
    assert world.sent(world.end("wide")) == [("a1", "i"), ("b1", "i")]


def test_the_listed_key_is_the_clients_counter():
    world, _, _ = fair_world()
    world.arrive("a1", workflow="a")
    world.arrive("a2", workflow="a", client_priority=3)
    (waiting,) = world.coordinator.fleet.get("i").queue
    key = world.policy.ordering.key(waiting, None, world.coordinator.fleet, world.now_s)
    assert key == (100.0, 3.0)


QUEUE_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["push", "push", "remove", "first", "serve"]),
        st.sampled_from(CLIENTS),
        st.integers(-1, 1),
        st.integers(0, 30),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(QUEUE_STEPS)
def test_the_queue_is_the_papers_scan(steps):
    """argmin over the clients that wait, then the earliest call of that client (Algorithm 2)."""
    served = dict.fromkeys(CLIENTS, 0.0)
    queue, here = ClientQueue(served.__getitem__), []
    for number, (action, client, priority, amount) in enumerate(steps):
        if action == "push":
            call = fake_call(f"c{number}", number, workflow=client, client_priority=priority)
            here.append(call)
            queue.push(call, 0.0)
        elif action == "serve":
            served[client] += amount
        elif here:
            gone = queue.select(PLAIN_SEAT, 0.0) if action == "first" else here[amount % len(here)]
            here.remove(gone)
            queue.remove(gone.spec.call_id)
        earliest = {}
        for call in sorted(here, key=lambda c: (c.spec.client_priority, c.sequence)):
            earliest.setdefault(call.spec.workflow_id, call)
        scan = min(
            earliest.values(),
            key=lambda c: (served[c.spec.workflow_id], c.spec.client_priority, c.sequence),
            default=None,
        )
        assert queue.select(PLAIN_SEAT, 0.0) is scan


def test_a_queue_that_lives_long_keeps_nothing_of_what_has_left():
    queue = ClientQueue(lambda client: 0.0)
    queue.push(fake_call("stays", 0), 0.0)
    for number in range(1, 2_000):
        queue.push(fake_call(f"c{number}", number, workflow=f"w{number}"), 0.0)
        queue.remove(f"c{number}")
    assert len(queue) == 1
    assert len(queue._heap) < 200
