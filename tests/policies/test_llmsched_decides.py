"""LLMSched in the coordinator: the paper's example, several lanes, engines of any speed."""

from __future__ import annotations

import random

import pytest
from llmsched_world import Stage, play, told_world
from policy_fakes import fake_call, fake_fleet, fake_instance

from dispatcher import catalog
from dispatcher.core import events as ev
from dispatcher.core.errors import BadParameterError
from dispatcher.core.types import CallId, WorkflowId
from dispatcher.registry import PolicyServices
from policies.fewest_running import FewestRunning

# --- the paper's example, Fig. 2 ------------------------------------------------------------------

#: what each job really takes: the first one's plan makes it short
FIG_2 = {
    "TA": [Stage(2.0, pause_s=1.0, tells_left=(1.0, 1.0, 1.0))],
    "CG": [Stage(5.0)],
}


def fig_2(policy, **params):
    world = told_world(policy, **params)
    world.tracker.know("TA", 15.0, 3.0, 30.0)
    world.tracker.know("CG", 9.0, 5.0, 13.0)
    world.tracker.tells.update({"TA": 20.0, "CG": 4.0})
    world.tracker.means_s.update({"default": 1.0})
    return play(world, FIG_2)


def test_the_stage_that_would_tell_most_first_gives_a_mean_of_five_seconds():
    ended_s = fig_2("llmsched", epsilon=1.0)
    assert ended_s == pytest.approx({"TA": 3.0, "CG": 7.0})
    assert sum(ended_s.values()) / 2 == pytest.approx(5.0)


def test_the_shortest_expected_job_first_gives_six_and_a_half():
    ended_s = fig_2("llmsched", uncertainty=False)
    assert ended_s == pytest.approx({"TA": 8.0, "CG": 5.0})
    assert sum(ended_s.values()) / 2 == pytest.approx(6.5)


def test_what_a_stage_has_told_decides_over_the_next_ones():
    """Two planned jobs of one application: the plan of each says how long it will be."""
    world = told_world("llmsched", epsilon=1.0)
    world.tracker.know("other", 12.0, 2.0, 40.0)
    jobs = {"other": [Stage(4.0)]}
    for name, left_s in (("big", 20.0), ("small", 2.0)):
        world.tracker.know(name, 10.0, 1.0, 30.0)
        world.tracker.tells[name] = 9.0
        told = (left_s, left_s, left_s)
        jobs[name] = [Stage(1.0, pause_s=0.5, tells_left=told), Stage(left_s)]
    ended_s = play(world, jobs)
    assert ended_s == pytest.approx({"other": 6.0, "small": 8.0, "big": 28.0})


# --- held calls of several kinds ------------------------------------------------------------------


def test_lanes_go_by_what_their_queues_would_send_out_of_turn():
    services = PolicyServices(random.Random(0))
    policy = catalog.build_policy("llmsched", {"epsilon": 1.0}, services)
    fleet = fake_fleet(fake_instance("here"))
    one, two = (policy.ordering.queue(None, fleet) for _ in range(2))
    short = fake_call("short", 1, workflow="s", remaining_work_s=1.0)
    telling = fake_call("telling", 2, workflow="t", remaining_work_s=50.0)
    one.push(short, 0.0)
    fleet.uncertainties[CallId("telling")] = 3.0
    two.push(telling, 0.0)
    assert policy.held_key(short, "", fleet, 0.0) < policy.held_key(telling, "", fleet, 0.0)
    assert two.select("", 0.0) is telling
    assert policy.held_key(telling, "", fleet, 0.0) < policy.held_key(short, "", fleet, 0.0)
    two.remove(CallId("telling"))
    assert policy.held_key(telling, "", fleet, 0.0) > policy.held_key(short, "", fleet, 0.0)


# --- where a call goes ----------------------------------------------------------------------------


def running(name, calls, slowness=1.0):
    instance = fake_instance(name, slowness=slowness, seats=8)
    for number in range(calls):
        instance.start(fake_call(f"{name}{number}"))
    return instance


@pytest.mark.parametrize(
    ("by_speed", "engines", "chosen"),
    [
        (True, [("slow", 0, 4.0), ("fast", 2, 1.0)], "fast"),
        (False, [("slow", 0, 4.0), ("fast", 2, 1.0)], "slow"),
        (True, [("slow", 0, 4.0), ("fast", 4, 1.0)], "slow"),
        (True, [("slow", 0, 4.0), ("fast", 3, 1.0)], "fast"),
        (False, [("first", 2, 1.0), ("second", 2, 1.0)], "first"),
        (True, [("first", 2, 1.0), ("second", 1, 1.0)], "second"),
    ],
)
def test_a_call_goes_to_where_least_runs_for_the_engines_speed(by_speed, engines, chosen):
    instances = [running(*engine) for engine in engines]
    routing = FewestRunning(by_speed=by_speed)
    route = routing.route(fake_call("c"), instances, fake_fleet(*instances), 0.0)
    assert (route, routing.late_binding) == (chosen, True)


# --- parameters -----------------------------------------------------------------------------------


def built(**params):
    return catalog.build_policy("llmsched", params, PolicyServices(random.Random(0)))


def test_parameters_reach_the_parts():
    policy = built(
        epsilon=0.5, sample_ratio=0.1, profile="mean", order="gittins", measure="work",
        overdue_s=5.0, overdue_share=0.1,
    )  # fmt: skip
    ordering = policy.ordering
    assert (ordering.epsilon, ordering.sample_ratio, ordering.overdue_share) == (0.5, 0.1, 0.1)
    assert (ordering.profile, ordering.order, ordering.overdue_s) == ("mean", "gittins", 5.0)
    assert ordering.measure == "work"
    assert policy.routing.by_speed


def test_the_papers_form_counts_calls_and_gives_no_turns_to_the_overdue():
    paper, settled = built(form="paper"), built()
    assert (paper.routing.by_speed, paper.ordering.overdue_share) == (False, 0.0)
    assert (settled.routing.by_speed, settled.ordering.overdue_share) == (True, 0.02)
    assert built(form="paper", placement="speed", overdue_share=0.1).routing.by_speed
    assert (settled.ordering.epsilon, settled.ordering.sample_ratio) == (0.2, 0.3)
    assert built(uncertainty=False).ordering.epsilon == 0.0


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"epsilon": 1.1}, "epsilon = 1.1.*less than or equal to 1"),
        ({"sample_ratio": 0.0}, "sample_ratio = 0.0.*greater than 0"),
        ({"profile": "bayes"}, "profile = 'bayes'.*'network', 'stages' or 'mean'"),
        ({"order": "sjf"}, "order = 'sjf'.*'srtf' or 'gittins'"),
        ({"overdue_share": 1.0}, "overdue_share = 1.0.*less than 1"),
    ],
)
def test_bad_parameters_say_what_was_expected(params, says):
    with pytest.raises(BadParameterError, match=f"llmsched: .*{says}"):
        built(**params)


def test_a_switch_begins_with_what_waits():
    services = PolicyServices(random.Random(0))
    world = told_world("vllm")
    world.tracker.know("long", 50.0)
    world.tracker.know("short", 2.0)
    world.arrive("blocker")
    world.arrive("long1", "long")
    world.arrive("short1", "short")
    world.post(ev.PolicySwitched(catalog.build_policy("llmsched", {"epsilon": 0.0}, services)))
    assert world.sent(world.end("blocker")) == [("short1", "i")]


def test_a_stage_that_ends_moves_the_calls_of_its_job_that_wait():
    world = told_world("llmsched", epsilon=0.0)
    world.tracker.know("a", 30.0)
    world.tracker.know("b", 10.0)
    world.arrive("a1", "a", stage="first")
    world.arrive("a2", "a", stage="second")
    world.arrive("b1", "b")
    world.tracker.know("a", 1.0)
    assert world.sent(world.end("a1")) == [("a2", "i")]
    assert WorkflowId("b") in {call.spec.workflow_id for call in world.coordinator.calls.values()}
