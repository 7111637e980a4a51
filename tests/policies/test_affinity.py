"""Affinity: where a session's prefix is, as far as that pays."""

import math
from types import SimpleNamespace as Fake

import pytest

from dispatcher.bench.fleets import fleet_named
from dispatcher.core.errors import BadParameterError
from dispatcher.simulator import simulate
from dispatcher.simulator.workloads import ARRIVALS, WORKLOADS, make_trace
from policies.affinity import Affinity, with_affinity
from policies.round_robin import RoundRobin


def test_without_a_weight_it_is_the_routing_itself():
    routing = RoundRobin()
    assert with_affinity(routing, 0.0) is routing


@pytest.mark.parametrize("weight", [-1.0, 0.0, math.inf, math.nan])
def test_a_weight_must_be_above_nothing(weight):
    with pytest.raises(BadParameterError, match="affinity must be above 0"):
        Affinity(RoundRobin(), weight)


def test_what_is_held_stays_held():
    routing = Fake(late_binding=False, route=lambda *_: None)
    assert Affinity(routing, 1.0).route(Fake(), [Fake()], Fake(), 0.0) is None


def test_a_new_session_goes_where_the_routing_says():
    shared = Fake(spec=Fake(instance_id="shared"), backlog_s=0.0, spared_s=9.0)
    other = Fake(spec=Fake(instance_id="other"), backlog_s=0.0, spared_s=0.0)
    fleet = Fake(
        backlog_s=lambda i: i.backlog_s, spared_s=lambda _, i: i.spared_s, session=lambda _: None
    )
    routing = Fake(late_binding=False, route=lambda *_: "other")
    call = Fake(spec=Fake(workflow_id="w"))
    assert Affinity(routing, 1000.0).route(call, [shared, other], fleet, 0.0) == "other"


def test_it_binds_when_its_routing_does():
    assert Affinity(Fake(late_binding=True), 1.0).late_binding
    assert not Affinity(Fake(late_binding=False), 1.0).late_binding


def test_an_agent_finds_its_prefix_where_it_was():
    trace = make_trace(
        WORKLOADS["coding-agent"], ARRIVALS["poisson"], rate_per_s=0.4, seed=3, count=20
    )
    found = {}
    for affinity in (0.0, 1.0):
        engines = fleet_named("A100x3", size="8b", seats=16).engines()
        played = simulate(trace, engines, policy="vllm", params={"affinity": affinity}).played
        asked = sum(one.prefix_queries_tokens for one in played.instances.values())
        found[affinity] = sum(one.prefix_hits_tokens for one in played.instances.values()) / asked
    assert found[1.0] > found[0.0] + 0.1
