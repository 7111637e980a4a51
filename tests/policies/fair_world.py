"""A world whose policy is fair, and the counters that it is fair by."""

from __future__ import annotations

import random

from core_world import World

from dispatcher import catalog
from dispatcher.registry import PolicyServices
from policies.token_counters import TokenCounters

CLIENTS = "abcd"


def fair_world(*instances, policy="vtc", **world):
    """Calls have prompts of 100 tokens and, unless a test says otherwise, 50 tokens of output."""
    services = PolicyServices(random.Random(0))
    chosen = catalog.build_policy(policy, {}, services)
    world = World(chosen, observers=catalog.observers(services), **world)
    for name in instances or ("i",):
        world.up(name, seats=1)
    return world, services.observer(TokenCounters), services


def run_to_the_end(world):
    """End what is out, oldest first, until nothing is; the calls in the order in which they ran."""
    ran = []
    while world.out:
        ran.append(world.in_flight()[0])
        world.end(ran[-1], after_s=1.0)
    return ran
