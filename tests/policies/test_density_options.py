"""Options of the density queue: windows of similar lengths, and fairness blended in."""

from __future__ import annotations

import random

import pytest
from core_world import World
from hypothesis import given
from hypothesis import strategies as st
from policy_fakes import fake_call, fake_fleet, fake_instance, taken_in_order

from dispatcher import catalog
from dispatcher.core import events as ev
from dispatcher.core.types import CallClass
from dispatcher.registry import PolicyServices
from policies.fair_blend import FairBlend
from policies.lsdf import Lsdf
from policies.similar_lengths import best_window
from policies.token_counters import TokenCounters


def throughput(name, sequence=1, **fields):
    return fake_call(name, sequence, call_class=CallClass.THROUGHPUT, deadline_s=1e6, **fields)


# --- windows --------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 100)), min_size=1, max_size=30),
    st.integers(1, 8),
)
def test_no_run_of_neighbours_by_length_has_more_density(calls, width):
    lengths, densities = [c[0] for c in calls], [float(c[1]) for c in calls]
    window = best_window(lengths, densities, width)
    assert len(window) == min(width, len(calls))
    best = sum(densities[position] for position in window)
    by_length = sorted(range(len(calls)), key=lambda position: (lengths[position], position))
    for start in range(max(1, len(calls) - width + 1)):
        rival = by_length[start : start + width]
        assert sum(densities[position] for position in rival) <= best


def test_a_batch_of_similar_length_goes_before_a_denser_call_of_another():
    here = fake_instance("here", seats=2)
    calls = [
        throughput("tiny", 1, prompt_tokens=100, output_tokens=2.0),  # density 1,156
        throughput("short", 2, prompt_tokens=300, output_tokens=600.0),  # 123
        throughput("long", 3, prompt_tokens=2_000),  # 733
        throughput("as long", 4, prompt_tokens=2_010),  # 735
    ]

    def order(window):
        queue = Lsdf(window=window).queue(here, fake_fleet(here))
        for call in calls:
            queue.push(call, 0.0)
        return taken_in_order(queue)

    assert order(None) == ["tiny", "as long", "long", "short"]
    assert order(1) == order(None), "the two densest are their own best window"
    # the tiny one has only the short one beside it: 1,156 + 123 against 733 + 735
    assert order(2) == ["as long", "tiny", "long", "short"]


def test_a_window_leaves_out_what_is_of_another_band():
    here = fake_instance("here", seats=8)
    queue = Lsdf(window=4).queue(here, fake_fleet(here))
    best_effort = fake_call("b", 1, call_class=CallClass.BEST_EFFORT)
    queue.push(best_effort, 0.0)
    assert queue.select("", 0.0) is best_effort
    queue.push(throughput("t", 2), 0.0)
    assert queue.select("", 0.0).spec.call_id == "t"


# --- fairness -------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=40),
    st.floats(0.01, 1.0),
)
def test_the_best_of_the_blend_is_found(calls, weight):
    """The threshold algorithm finds what a scan finds."""
    counters = {f"w{client}": float(client) for client in range(4)}
    blend = FairBlend(counters.__getitem__, weight)
    order = sorted(
        ((-float(density),), number, f"c{number}") for number, (density, _) in enumerate(calls)
    )
    for number, (_, client) in enumerate(calls):
        blend.note(f"c{number}", f"w{client}")
    found = blend.best(order, {entry[2]: entry for entry in order}.__getitem__)

    last = max(1, len(calls) - 1)
    served = sorted(client for _, client in calls)

    def blended(entry):
        density_rank = 1.0 - order.index(entry) / last
        fair_rank = 1.0 - served.index(calls[entry[1]][1]) / last
        return (1.0 - weight) * density_rank + weight * fair_rank

    assert blended(found) == pytest.approx(max(map(blended, order)))
    assert blend.best(order, {}.__getitem__, among=order[-1:]) == order[-1]


def test_calls_that_have_gone_count_no_longer():
    blend = FairBlend({"a": 1.0, "b": 2.0}.__getitem__, 1.0)
    for name, client in (("x", "b"), ("y", "a")):
        blend.note(name, client)
    order = [((-5.0,), 1, "x"), ((-1.0,), 2, "y")]
    entries = {entry[2]: entry for entry in order}.__getitem__
    assert blend.best(order, entries)[2] == "y"
    blend.forget("y")
    blend.forget("never came")
    assert blend.best(order[:1], entries)[2] == "x"


def fair_world(fairness):
    services = PolicyServices(random.Random(0))
    policy = catalog.build_policy("tempo", {"fairness": fairness}, services)
    world = World(policy, observers=catalog.observers(services))
    world.up("i", seats=2)
    return world, services.observer(TokenCounters)


@pytest.mark.parametrize(("fairness", "next_one"), [(0.0, "dense"), (0.3, "dense"), (0.7, "fair")])
def test_who_has_been_served_least_gains_on_who_is_densest(fairness, next_one):
    world, counters = fair_world(fairness)
    arrive = {"call_class": CallClass.THROUGHPUT}
    for name in ("greedy1", "greedy2"):
        world.arrive(name, "greedy", prompt_tokens=1_000, **arrive)
    world.arrive("dense", "greedy", prompt_tokens=3_000, **arrive)
    world.arrive("fair", "modest", prompt_tokens=100, **arrive)
    world.post(ev.Progress(world.attempt_of("greedy1"), 20))
    assert counters.of("greedy") > counters.of("modest")
    world.post(ev.Tick(), after_s=1.0)
    assert world.sent(world.end("greedy1")) == [(next_one, "i")]


def test_fairness_alone_is_least_served_first():
    world, counters = fair_world(1.0)
    for number in range(2):
        world.arrive(f"run{number}", f"w{number}", prompt_tokens=10)
    for number in range(9):
        world.arrive(f"c{number}", f"w{number % 3}", prompt_tokens=100 + 50 * number)
    for _ in range(8):
        world.post(ev.Tick(), after_s=0.2)
        had = {f"w{number}": counters.of(f"w{number}") for number in range(3)}
        ((name, _),) = world.sent(world.end(world.in_flight()[0]))
        waiting = {call.spec.workflow_id for call in world.coordinator.placing.waiting()}
        own = world.coordinator.calls[name].spec.workflow_id
        assert had[own] == min(had[workflow] for workflow in {own, *waiting})
