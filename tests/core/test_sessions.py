"""What is left of a workflow between its calls, and where."""

import pytest
from core_world import World

from dispatcher.core import events as ev
from dispatcher.core.coordinator import Limits
from dispatcher.core.instance import Instance
from dispatcher.core.sessions import MAX_SESSIONS, Sessions
from dispatcher.core.types import (
    CallId,
    CallSpec,
    InstanceId,
    InstanceSpec,
    Slo,
    Task,
    Usage,
    WorkflowId,
)

A, B = InstanceId("a"), InstanceId("b")


def gap_s(tool, p):
    return {"sql": 10.0 * p, "": 100.0 * p}.get(tool)


def an_instance(name=A, capacity=None, offload=None):
    spec = InstanceSpec(
        name, frozenset({"m"}), kv_capacity_tokens=capacity, offload_tokens=offload, seats=4
    )
    return Instance(spec, 0)


def a_call(prompt=1000, workflow="w", application="agent", name="c", **rest):
    return CallSpec(CallId(name), WorkflowId(workflow), "m", prompt, application, **rest)


def serve(sessions, instance, spec, usage, tool=None, now_s=0.0):
    sessions.arrived(spec, now_s)
    sessions.ended(spec, instance, usage, tool, now_s)


def test_the_next_call_finds_what_the_last_one_left():
    sessions, here, there = Sessions(gap_s), an_instance(A), an_instance(B)
    serve(sessions, here, a_call(1000), Usage(1000, 200))
    following = a_call(1500)
    assert sessions.left_tokens(following, here) == 1200
    assert sessions.left_tokens(following, there) == 0
    assert sessions.left_tokens(a_call(800), here) == 800
    assert sessions.left_tokens(a_call(1500, "other"), here) == 0
    session = sessions.get(WorkflowId("w"))
    assert (session.instance_id, session.context_tokens, session.tool) == (A, 1200, None)


def test_what_is_left_counts_as_far_as_engines_said_it_helps():
    sessions, here = Sessions(gap_s), an_instance()
    serve(sessions, here, a_call(1000), Usage(1000, 200))
    assert sessions.cached_tokens(a_call(1500), here) == 0
    sessions.learn(a_call(1500), 1200.0, Usage(1500, 10, cached_tokens=600))
    assert sessions.cached_tokens(a_call(1500), here) == 600
    assert sessions.cached_tokens(a_call(1500, application="other"), here) == 0
    sessions.learn(a_call(1500), 1200.0, Usage(1500, 10, cached_tokens=1200))
    assert sessions.cached_tokens(a_call(1500), here) == pytest.approx(0.525 * 1200)


def test_a_common_beginning_helps_every_call():
    sessions, here = Sessions(gap_s), an_instance()
    for _ in range(500):
        here.saw_cache(1000, 250, cold=True)
        here.saw_cache(1000, 1000, cold=False)
    assert sessions.cached_tokens(a_call(400), here) == pytest.approx(100.0)
    assert here.cached_share == pytest.approx(0.625, abs=0.05)


def test_what_has_been_evicted_since_is_gone():
    sessions, here = Sessions(gap_s), an_instance(capacity=3000)
    serve(sessions, here, a_call(1000), Usage(1000, 200))
    serve(sessions, here, a_call(1000, "x"), Usage(1000, 800))
    assert sessions.left_tokens(a_call(1500), here) == 1200
    serve(sessions, here, a_call(1000, "y"), Usage(1000, 1, cached_tokens=1000))
    assert sessions.left_tokens(a_call(1500), here) == 0


@pytest.mark.parametrize(("offload", "left"), [(None, 0), (2000, 0), (4000, 1200), (3199, 0)])
def test_what_fell_into_the_offload_tier_is_still_there(offload, left):
    sessions, here = Sessions(gap_s), an_instance(capacity=3000, offload=offload)
    serve(sessions, here, a_call(1000), Usage(1000, 200))
    serve(sessions, here, a_call(1000, "x"), Usage(1800, 200))
    assert sessions.left_tokens(a_call(1500), here) == left
    serve(sessions, here, a_call(1000, "x"), Usage(1800, 200))
    assert sessions.left_tokens(a_call(1500), here) == 0


@pytest.mark.parametrize("event", ["emptied", "lost"])
def test_an_engine_that_begins_anew_keeps_nothing(event):
    sessions, here = Sessions(gap_s), an_instance()
    serve(sessions, here, a_call(1000), Usage(1000, 200), "sql")
    getattr(sessions, event)(A)
    assert sessions.left_tokens(a_call(1500), here) == 0
    assert sessions.paused_tokens(A, 0.0) == 0
    serve(sessions, here, a_call(1500), Usage(1500, 100))
    assert sessions.left_tokens(a_call(1700), here) == 1600


def test_a_session_pauses_for_a_tool_until_its_next_call():
    sessions, here = Sessions(gap_s), an_instance()
    serve(sessions, here, a_call(1000), Usage(1000, 200), "sql", now_s=5.0)
    (paused,) = sessions.paused(A, 6.0)
    assert (paused.tool, paused.gap_s, paused.ttl_s) == ("sql", 5.0, 9.0)
    assert sessions.paused_tokens(A, 6.0) == 1200
    sessions.arrived(a_call(1500), 6.0)
    assert sessions.paused(A, 6.0) == []
    assert sessions.paused_tokens(A, 6.0) == 0


def test_a_pause_ends_when_the_tool_has_taken_too_long():
    sessions, here = Sessions(gap_s), an_instance()
    serve(sessions, here, a_call(1000), Usage(1000, 200), "sql", now_s=5.0)
    assert sessions.paused_tokens(A, 13.9) == 1200
    assert sessions.paused_tokens(A, 14.0) == 0
    assert sessions.left_tokens(a_call(1500), here) == 1200


def test_questions_change_nothing():
    sessions, here = Sessions(gap_s), an_instance()
    for number, ended_s in enumerate((5.0, 3.0, 8.0, 1.0, 6.0)):
        serve(sessions, here, a_call(1000, f"w{number}"), Usage(1000, 200), "sql", now_s=ended_s)

    def told(now_s):
        listed = [(s.workflow_id, s.paused_until_s) for s in sessions.paused(A, now_s)]
        return listed, sessions.paused_count(A, now_s), sessions.paused_tokens(A, now_s)

    early, later = told(9.0), told(14.5)
    assert [w for w, _ in early[0]] == ["w0", "w1", "w2", "w3", "w4"]
    assert (early[1], early[2]) == (5, 6000)
    assert later == ([("w2", 17.0), ("w4", 15.0)], 2, 2400)
    assert told(99.0) == ([], 0, 0)
    # whoever asks of later, as an administrator may, has ended no pause
    assert told(9.0) == early


def test_pauses_that_are_over_are_taken_off_when_the_next_call_comes():
    sessions, here = Sessions(gap_s), an_instance()
    for number in range(100):
        serve(
            sessions, here, a_call(1000, f"w{number}"), Usage(1000, 200), "sql", now_s=number / 10
        )
    sessions.arrived(a_call(1000, "new"), 50.0)
    assert (sessions._ends, sessions._caches[A].paused) == ([], {})
    assert sessions.paused_tokens(A, 9.0) == 0


def test_a_call_that_was_turned_away_has_not_ended_the_pause():
    sessions, here = Sessions(gap_s), an_instance()
    serve(sessions, here, a_call(1000), Usage(1000, 200), "sql", now_s=5.0)
    sessions.ended(a_call(1500, name="turned-away"), None, None, None, 6.0)
    assert sessions.paused_tokens(A, 6.0) == 1200


@pytest.mark.parametrize("tool", [None, "never-seen"])
def test_without_a_tool_of_known_length_nothing_pauses(tool):
    sessions, here = Sessions(gap_s), an_instance()
    serve(sessions, here, a_call(1000), Usage(1000, 200), tool)
    assert sessions.paused(A, 0.0) == []


def test_it_does_not_pause_while_a_sibling_runs():
    sessions, here = Sessions(gap_s), an_instance()
    sessions.arrived(a_call(), 0.0)
    serve(sessions, here, a_call(name="sibling"), Usage(1000, 200), "sql")
    # another one, that was turned away on arrival, leaves the count of those that run as it is
    sessions.ended(a_call(name="turned-away"), None, None, None, 0.0)
    serve(sessions, here, a_call(name="another"), Usage(1000, 200), "sql")
    assert sessions.paused(A, 0.0) == []
    sessions.ended(a_call(), here, Usage(1000, 300), "sql", 1.0)
    assert [s.context_tokens for s in sessions.paused(A, 1.0)] == [1300]


def test_a_workflow_that_is_over_is_forgotten():
    sessions, here = Sessions(gap_s), an_instance()
    serve(sessions, here, a_call(), Usage(1000, 200), "sql")
    sessions.finished(WorkflowId("w"))
    assert sessions.get(WorkflowId("w")) is None
    assert (sessions.paused_tokens(A, 0.0), len(sessions)) == (0, 0)


def test_calls_that_fail_leave_nothing_behind():
    sessions = Sessions(gap_s)
    sessions.arrived(a_call(), 0.0)
    sessions.ended(a_call(), None, None, None, 0.0)
    assert len(sessions) == 0


def test_what_is_remembered_is_bounded():
    sessions, here = Sessions(gap_s), an_instance()
    for number in range(MAX_SESSIONS + 500):
        serve(sessions, here, a_call(100, f"w{number}"), Usage(100, 10), "sql", now_s=0.0)
    assert len(sessions) == MAX_SESSIONS
    assert sessions.paused_tokens(A, 0.0) == MAX_SESSIONS * 110
    for number in range(500, MAX_SESSIONS + 500):
        sessions.arrived(a_call(100, f"w{number}"), 0.0)
    assert sessions.paused_tokens(A, 0.0) == 0
    assert len(sessions._ends) < 1000


def test_one_that_was_pushed_out_and_came_back_counts_once():
    sessions, here = Sessions(gap_s), an_instance()
    sessions.arrived(a_call(name="first"), 0.0)
    sessions._forget(WorkflowId("w"))
    serve(sessions, here, a_call(), Usage(1000, 200), "sql")
    sessions.ended(a_call(name="first"), here, Usage(2000, 200), "sql", 1.0)
    assert sessions.paused_tokens(A, 1.0) == 2200
    sessions.arrived(a_call(), 1.0)
    assert sessions.paused_tokens(A, 1.0) == 0


def test_what_a_tool_embeds_meanwhile_is_no_call_of_its_session():
    sessions, here = Sessions(gap_s), an_instance()
    serve(sessions, here, a_call(1000), Usage(1000, 200), "sql")
    embedding = a_call(50, task=Task.EMBED)
    assert sessions.left_tokens(embedding, here) == 0
    serve(sessions, here, embedding, Usage(50, 0), now_s=1.0)
    assert sessions.paused_tokens(A, 1.0) == 1200
    assert sessions.left_tokens(a_call(1500), here) == 1200
    session = sessions.get(WorkflowId("w"))
    assert (session.tool, session.context_tokens, session.live) == ("sql", 1200, 0)
    serve(sessions, here, a_call(50, "other", task=Task.EMBED), Usage(50, 0))
    assert len(sessions) == 1


def a_paused_world(**limits):
    """One engine, and a session that waits there for a tool."""
    world = World(limits=Limits(**limits))
    world.up("a", seats=1)
    world.arrive("first", workflow="w")
    world.end("first", tool="sql")
    assert world.coordinator.fleet.sessions.paused_count(A, world.now_s) == 1
    return world


@pytest.mark.parametrize("reason", ["deadline_gone", "no_engine", "queue_full"])
def test_a_client_that_is_turned_away_comes_again_to_a_session_that_still_waits(reason):
    world = a_paused_world(max_calls=1)
    asked = {}
    if reason == "deadline_gone":
        asked = {"slo": Slo(end_to_end_s=0.0), "reject_late": True}
    elif reason == "no_engine":
        asked = {"model": "other"}
    else:
        world.arrive("runs")
        world.arrive("waits")
    sessions = world.coordinator.fleet.sessions
    world.arrive("second", workflow="w", **asked)
    assert world.rejected == {"second": reason}
    assert sessions.paused_count(A, world.now_s) == 1
    if reason == "queue_full":
        world.end("runs")
        world.end("waits")
    world.arrive("third", workflow="w")
    assert world.where("third") == A
    assert sessions.paused_count(A, world.now_s) == 0


def test_a_call_that_gives_up_waiting_has_ended_the_pause():
    world = a_paused_world(max_wait_s=1.0)
    world.arrive("runs")
    world.arrive("second", workflow="w")
    world.post(ev.Tick(), after_s=2.0)
    assert world.rejected == {"second": "queue_timeout"}
    assert world.coordinator.fleet.sessions.paused_count(A, world.now_s) == 0
