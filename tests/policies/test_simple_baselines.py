"""Shortest first, and first come, first served under the name that papers compare with."""

from __future__ import annotations

import random

from core_world import World
from policy_fakes import fake_call, fake_fleet, fake_instance, taken_in_order

from dispatcher.catalog import build_policy
from dispatcher.core.types import LengthEstimate
from dispatcher.registry import PolicyServices
from policies.sjf import ShortestFirst


def order(ordering, calls):
    queue = ordering.queue(None, fake_fleet(fake_instance("here")))
    for call in calls:
        queue.push(call, 0.0)
    return taken_in_order(queue)


def test_the_shortest_goes_first_whatever_its_deadline():
    calls = [
        fake_call("long and late", 1, output_tokens=900.0, deadline_s=-5.0),
        fake_call("middling", 2, output_tokens=200.0),
        fake_call("as middling", 3, output_tokens=200.0),
        fake_call("keen", 4, output_tokens=200.0, client_priority=-1),
        fake_call("short", 5, output_tokens=20.0),
    ]
    expected = ["short", "keen", "middling", "as middling", "long and late"]
    assert order(ShortestFirst(), calls) == expected


def test_the_bound_counts_or_the_mean():
    sure, unsure = fake_call("sure", 1), fake_call("unsure", 2)
    sure.length = LengthEstimate(150.0, ((0.5, 150.0), (0.95, 160.0)))
    unsure.length = LengthEstimate(100.0, ((0.5, 50.0), (0.95, 900.0)))
    assert order(ShortestFirst(), [unsure, sure]) == ["sure", "unsure"]
    assert order(ShortestFirst(quantile=None), [sure, unsure]) == ["unsure", "sure"]
    assert order(ShortestFirst(quantile=0.5), [sure, unsure]) == ["unsure", "sure"]


def test_sarathi_fcfs_decides_as_vllm_does():
    def ran(name):
        world = World(build_policy(name, {}, PolicyServices(random.Random(0))))
        for engine in ("x", "y"):
            world.up(engine, seats=2)
        rng = random.Random(7)
        sent = []
        for number in range(40):
            priority = rng.choice([0, 0, 3])
            arrived = world.arrive(
                f"c{number}", prompt_tokens=rng.randint(1, 900), client_priority=priority
            )
            sent += world.sent(arrived)
            if number % 2:
                sent += world.sent(world.end(rng.choice(world.in_flight()), after_s=1.0))
        return sent

    assert ran("sarathi-fcfs") == ran("vllm")
    assert len(ran("vllm")) > 20
