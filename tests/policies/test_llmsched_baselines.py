"""What LLMSched is compared with: job arrival, fair counts, application means, topology, gifts."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llmsched_world import Stage, play, told_world
from policy_fakes import fake_call, fake_fleet, fake_instance

from dispatcher import catalog
from dispatcher.core import events as ev
from dispatcher.core.types import AttemptId, InstanceId, Outcome, WorkflowId
from dispatcher.core.workflow_types import Remaining, StageShape
from dispatcher.registry import PolicyServices
from policies import running_jobs
from policies.argus import Argus
from policies.carbyne import Carbyne
from policies.fair_jobs import FairJobs
from policies.running_jobs import RunningJobs
from policies.shortest_job import ShortestJob

BASELINES = ("fcfs-jobs", "fair", "sjf-jobs", "argus", "carbyne")


def drain(queue, now_s=0.0):
    order = []
    while len(queue):
        order.append(queue.select("", now_s).spec.call_id)
        queue.remove(order[-1])
    return order


def out(running, counts):
    """Give workflows so many calls out."""
    fleet, attempts = fake_fleet(fake_instance("here")), {}
    for name, count in counts.items():
        for _ in range(count):
            attempt = AttemptId(len(running._out) + 1)
            call = fake_call(f"{name}{attempt}", workflow=name)
            running.observe(ev.Dispatched(call, attempt, InstanceId("here")), fleet, 0.0)
            attempts.setdefault(name, []).append(attempt)
    return attempts


# --- all of them ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BASELINES)
def test_calls_wait_centrally_and_go_to_where_least_runs(name):
    services = PolicyServices(random.Random(0))
    policy = catalog.build_policy(name, {}, services)
    assert policy.routing.late_binding
    assert policy.routing.by_speed
    assert not catalog.build_policy(name, {"placement": "count"}, services).routing.by_speed


@pytest.mark.parametrize("name", ("llmsched", *BASELINES))
def test_every_call_of_every_job_is_served(name):
    world = told_world(name, seats=2)
    rng = random.Random(7)
    jobs = {
        f"job{number}": [
            Stage(rng.uniform(0.1, 3.0), rng.randint(1, 5), rng.choice((0.0, 0.4)))
            for _ in range(rng.randint(1, 4))
        ]
        for number in range(12)
    }
    ended_s = play(world, jobs)
    assert set(ended_s) == set(jobs)
    assert world.in_flight() == []
    calls = sum(stage.calls for stages in jobs.values() for stage in stages)
    assert len(world.ended) == calls + 1
    assert set(world.ended.values()) == {Outcome.OK}


# --- first job first ------------------------------------------------------------------------------


def test_by_arrival_of_jobs_a_later_stage_passes_newer_jobs():
    """First come, first served of calls would serve them the other way round."""
    sent = {}
    for policy in ("fcfs-jobs", "least-backlog", "vllm"):
        world = told_world(policy)
        world.arrive("old1", "old")
        world.post(ev.Tick(), after_s=1.0)
        world.arrive("new1", "new")
        world.post(ev.Tick(), after_s=1.0)
        world.arrive("old2", "old")
        sent[policy] = world.sent(world.end("old1"))
    assert sent["fcfs-jobs"] == [("old2", "i")]
    assert sent["least-backlog"] == sent["vllm"] == [("new1", "i")]


# --- fair -----------------------------------------------------------------------------------------


def test_seats_are_shared_between_jobs():
    world = told_world("fair", seats=4)
    for call in range(6):
        world.arrive(f"a{call}", "a")
    for call in range(6):
        world.arrive(f"b{call}", "b")
    assert len([c for c in world.in_flight() if c.startswith("a")]) == 4
    assert world.sent(world.end("a0")) == [("b0", "i")]
    assert world.sent(world.end("a1")) == [("b1", "i")]
    assert world.sent(world.end("a2")) == [("a4", "i")]
    assert world.sent(world.end("b0")) == [("b2", "i")]


def test_counts_follow_what_goes_out_and_what_ends_however_it_ends():
    world = told_world("fair", seats=3)
    running = world.observers[[type(o) for o in world.observers].index(RunningJobs)]
    for call in ("a1", "a2", "b1"):
        world.arrive(call, call[0])
    assert (running.of("a"), running.of("b"), running.jobs) == (2, 1, 2)
    world.end("a1", Outcome.ENGINE_ERROR)
    world.end("b1", Outcome.CANCELLED)
    assert (running.of("a"), running.of("b"), running.jobs) == (1, 0, 1)
    world.end("a2")
    assert running.jobs == 0


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7)), min_size=1, max_size=60),
    st.integers(1, 4),
)
def test_whoever_is_selected_has_fewest_out(steps, kept):
    changes, running_jobs.CHANGES_KEPT = running_jobs.CHANGES_KEPT, kept
    try:
        running = RunningJobs()
    finally:
        running_jobs.CHANGES_KEPT = changes
    fleet = fake_fleet(fake_instance("here"))
    queue, attempts, numbers = FairJobs(running).queue(None, fleet), [], iter(range(1_000))
    for job, ending in steps:
        number = next(numbers)
        queue.push(fake_call(f"c{number}", number, workflow=f"job{job}"), 0.0)
        if ending % 2:
            chosen = queue.select("", 0.0)
            fewest = min(running.of(call.spec.workflow_id) for call in queue)
            assert running.of(chosen.spec.workflow_id) == fewest
            queue.remove(chosen.spec.call_id)
            attempt = AttemptId(next(numbers))
            running.observe(ev.Dispatched(chosen, attempt, InstanceId("here")), fleet, 0.0)
            attempts.append(attempt)
        elif attempts:
            attempt = attempts.pop(ending % len(attempts))
            running.observe(ev.AttemptEnded(attempt, Outcome.OK), fleet, 0.0)


def test_what_has_changed_is_told_as_long_as_it_is_kept(monkeypatch):
    monkeypatch.setattr(running_jobs, "CHANGES_KEPT", 2)
    running = RunningJobs()
    out(running, {"a": 1, "b": 1, "c": 1})
    assert running.version == 3
    assert running.changed_since(3) == []
    assert running.changed_since(1) == ["c", "b"]
    assert running.changed_since(0) is None


# --- shortest job ---------------------------------------------------------------------------------


def test_jobs_go_by_the_mean_of_their_application_however_far_they_are():
    ordering, fleet = ShortestJob(), fake_fleet(fake_instance("here"))
    fleet.application_means_s.update({"slow": 40.0, "fast": 4.0})
    queue = ordering.queue(None, fleet)
    for number, (workflow, application, left_s) in enumerate(
        [("a", "slow", 1.0), ("b", "fast", 90.0), ("c", "unknown", 20.0), ("d", "fast", 3.0)]
    ):
        call = fake_call(
            workflow, number, workflow=workflow, application=application, remaining_work_s=left_s
        )
        queue.push(call, 0.0)
    assert drain(queue) == ["b", "d", "c", "a"]


def test_a_mean_that_has_moved_is_found_on_ticks():
    ordering, fleet = ShortestJob(), fake_fleet(fake_instance("here"))
    fleet.application_means_s.update({"slow": 40.0, "fast": 4.0})
    queue = ordering.queue(None, fleet)
    for number, application in enumerate(("slow", "fast")):
        queue.push(fake_call(application, number, application=application), 0.0)
    fleet.application_means_s["fast"] = 90.0
    assert queue.select("", 1.0).spec.call_id == "fast"
    while queue.rescore(1.0, 1):
        pass
    assert queue.select("", 1.0).spec.call_id == "slow"


def test_the_papers_example_under_the_shortest_job():
    """Fig. 2: 6.5 s on average, since the first job turns out to be short only as it runs."""
    world = told_world("sjf-jobs")
    world.tracker.know("TA", 15.0)
    world.tracker.know("CG", 9.0)
    world.tracker.remaining_work_s = lambda workflow_id, work_s: 1.0
    jobs = {"CG": [Stage(5.0)], "TA": [Stage(2.0, pause_s=1.0)]}
    ended_s = play(world, jobs)
    assert sum(ended_s.values()) / 2 == pytest.approx(6.5)


# --- Argus ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "order"),
    [
        ("depth", ["deep", "many tasks", "many children", "few", "tall"]),
        ("height", ["tall", "many tasks", "many children", "few", "deep"]),
    ],
)
def test_stages_go_by_depth_then_children_then_tasks(level, order):
    fleet = fake_fleet(fake_instance("here"))
    shapes = {
        "tall": StageShape(depth=0, height=9, children=1, tasks=1),
        "few": StageShape(depth=2, height=2, children=2, tasks=1),
        "many children": StageShape(depth=2, height=2, children=4, tasks=1),
        "many tasks": StageShape(depth=2, height=2, children=4, tasks=6),
        "deep": StageShape(depth=5, height=0, children=0, tasks=1),
    }
    fleet.shapes.update(shapes)
    queue = Argus(level).queue(None, fleet)
    for number, name in enumerate(shapes):
        queue.push(fake_call(name, number), 0.0)
    assert drain(queue) == order


def test_a_call_without_a_graph_is_a_lone_stage():
    fleet = fake_fleet(fake_instance("here"))
    fleet.stage_shape = lambda call: None
    assert Argus().key(fake_call("c"), None, fleet, 0.0) == (0.0, 0.0, -1.0, 0.0)


# --- Carbyne --------------------------------------------------------------------------------------


def carbyne(seats, counts=None, profile="network", **left):
    running = RunningJobs()
    attempts = out(running, counts or {})
    fleet = fake_fleet(fake_instance("here", seats=seats))
    for name, (mean_s, work_s) in left.items():
        fleet.remainders[WorkflowId(name)] = Remaining(mean_s, mean_s, mean_s, work_s, known=True)
    ordering = Carbyne(running, profile)
    return ordering, fleet, ordering.queue(None, fleet), running, attempts


def wait(queue, *names):
    for number, name in enumerate(names):
        queue.push(fake_call(f"{name}.{number}", number, workflow=name), 0.0)


@pytest.mark.parametrize(
    ("seats", "counts", "waiting", "share"),
    [
        (12, {}, ["a", "b", "c"], 4),
        (12, {"a": 3, "x": 1}, ["a", "b", "c"], 3),
        (12, {"x": 1, "y": 5}, [], 6),
        (2, {}, ["a", "b", "c"], 1),
        (5, {}, [], 5),
    ],
)
def test_a_fair_share_is_seats_over_jobs(seats, counts, waiting, share):
    ordering, fleet, queue, *_ = carbyne(seats, counts)
    wait(queue, *waiting)
    assert ordering.share(fleet) == share


def test_a_job_needs_no_more_of_its_share_than_it_can_use():
    # 12 seats, 2 jobs: 6 for each; the chain can use one, the fan 4 of them
    ordering, fleet, queue, *_ = carbyne(
        12, {"chain": 1, "fan": 3}, chain=(10.0, 10.0), fan=(10.0, 40.0)
    )
    wait(queue, "chain", "fan", "fan")
    assert ordering.width(fake_call("f", workflow="fan"), fleet) == 4
    assert drain(queue)[0] == "fan.1"


def test_what_is_left_over_goes_to_the_shortest():
    _, _, queue, *_ = carbyne(12, {"long": 1, "short": 1}, long=(50.0, 50.0), short=(4.0, 4.0))
    wait(queue, "long", "long", "short", "short")
    assert drain(queue) == ["short.2", "short.3", "long.0", "long.1"]


def test_who_is_owed_goes_before_who_is_short():
    _, fleet, queue, running, attempts = carbyne(
        4, {"short": 1}, short=(1.0, 1.0), new=(90.0, 90.0)
    )
    wait(queue, "short", "new")
    assert queue.select("", 0.0).spec.workflow_id == "new"
    out(running, {"new": 1})
    assert queue.select("", 0.0).spec.workflow_id == "short"
    running.observe(ev.AttemptEnded(attempts["short"][0], Outcome.OK), fleet, 0.0)
    queue.remove("short.0")
    assert queue.select("", 0.0).spec.workflow_id == "new"


def test_keys_tell_the_owed_from_the_others():
    ordering, fleet, queue, *_ = carbyne(
        4, {"short": 1}, "mean", short=(1.0, 1.0), new=(90.0, 90.0)
    )
    fleet.application_means_s["default"] = 7.0
    wait(queue, "short", "new")
    keys = {call.spec.workflow_id: ordering.key(call, None, fleet, 0.0) for call in queue}
    assert keys == {"new": (0.0, 0.0, 0.0), "short": (1.0, 7.0, 0.0)}


def test_jobs_that_have_left_are_not_counted():
    ordering, fleet, queue, *_ = carbyne(12)
    wait(queue, "a", "b", "a")
    assert ordering.share(fleet) == 6
    drain(queue)
    assert queue.idle_jobs == 0
    assert ordering.share(fleet) == 12
