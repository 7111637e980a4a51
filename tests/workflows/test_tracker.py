"""Sequences of events, and what the tracker makes of them."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from workflow_world import World, work_s

from dispatcher.core.errors import InvariantError
from dispatcher.core.types import CallId, InstanceId, Outcome, WorkflowId
from dispatcher.core.workflow_types import StagePlan, WorkflowDeclaration
from workflows.plan import PlanError
from workflows.settings import TrackerSettings, WorkflowDefaults

W = WorkflowId("w")


# --- stages ---


@pytest.mark.parametrize(
    ("story", "stages"),
    [
        # + arrives, - ends; a name after a colon is the call's stage
        ("+a", ["stage-0"]),
        ("+a -a +b", ["stage-0", "stage-1"]),
        ("+a +b", ["stage-0", "stage-0"]),
        ("+a +b -a +c -b -c +d", ["stage-0", "stage-0", "stage-1", "stage-2"]),
        ("+a:plan -a +b:draft +c:draft -b +d:vote", ["plan", "draft", "draft", "vote"]),
        ("+a:plan -a +b -b +c:plan -c +d", ["plan", "stage-1", "plan", "stage-2"]),
    ],
)
def test_stages_by_name_or_by_observed_order(story: str, stages: list[str]) -> None:
    world, seen = World(), []
    for word in story.split():
        call, _, stage = word[1:].partition(":")
        if word[0] == "+":
            seen.append(world.arrive(call, stage=stage or None).stage)
        else:
            world.end(call)
    assert seen == stages


def test_a_named_stage_keeps_the_depth_of_first_sight() -> None:
    world = World()
    assert world.arrive("a", stage="plan").depth == 0
    world.end("a")
    assert world.arrive("b", stage="fix").depth == 1
    world.end("b")
    assert world.arrive("c", stage="fix").depth == 1
    world.end("c")
    assert world.arrive("d", stage="vote").depth == 2


def test_a_stage_ends_with_its_last_member() -> None:
    world = World()
    world.arrive("a", stage="draft")
    world.arrive("b", stage="draft")
    assert not world.end("a").stage_ended
    assert world.end("b").stage_ended


def test_a_declared_width_keeps_the_stage_open_until_all_have_come() -> None:
    world = World()
    world.arrive("a", stage="draft", stage_width=2)
    assert not world.end("a").stage_ended
    world.arrive("b", stage="draft", stage_width=2)
    assert world.end("b").stage_ended
    assert [s["width"] for s in world.explain()["stages"]] == [2]


def test_members_that_never_come_do_not_hold_a_workflow_up() -> None:
    world = World()
    world.arrive("a", stage="draft", stage_width=5)
    world.at(1).end("a")
    world.at(2).arrive("b", stage="vote", final=True)
    world.at(3)
    assert world.end("b").ended[0].ended_s == 3
    assert [s["ended_s"] for s in world.explain()["stages"]] == [1, 3]


def test_when_a_stage_ends_the_calls_still_live_get_new_budgets() -> None:
    world = World()
    world.arrive("a", stage="left")
    world.arrive("b", stage="right")
    world.arrive("c", stage="right")
    update = world.end("a")
    assert (update.stage_ended, update.rebudget) == (True, ("b", "c"))
    assert world.end("b").rebudget == ()


def test_a_stage_that_repeats_is_visited_again() -> None:
    world = World()
    world.run("w", ("draft", 10), ("fix", 20), ("fix", 30))
    rows = [(s["name"], s["visit"]) for s in world.explain()["stages"]]
    assert rows == [("draft", 1), ("fix", 1), ("fix", 2)]


def test_beyond_the_bound_stages_share_one_name() -> None:
    world = World(TrackerSettings(max_stages=2))
    names = []
    for number in range(5):
        names.append(world.arrive(f"c{number}").stage)
        world.end(f"c{number}")
    assert names == ["stage-0", "stage-1", *["later-stages"] * 3]


# --- calls sent again ---


def test_a_call_sent_again_while_the_first_is_live_takes_its_place() -> None:
    world = World()
    world.arrive("a", stage="draft", dedupe_key="k")
    world.arrive("a2", stage="draft", dedupe_key="k", final=True)
    assert world.end("a2").stage_ended
    assert world.tracker.live_calls(W) == ("a",)
    update = world.end("a", Outcome.CANCELLED)
    assert update.ended[0].outcome is Outcome.OK
    assert [s["width"] for s in world.explain()["stages"]] == [1]


def test_a_call_sent_again_after_a_failure_stays_in_its_stage() -> None:
    world = World()
    world.arrive("a", dedupe_key="k")
    world.end("a", Outcome.ENGINE_ERROR)
    assert world.arrive("a2", dedupe_key="k").stage == "stage-0"
    world.end("a2")
    assert [(s["name"], s["width"]) for s in world.explain()["stages"]] == [("stage-0", 1)]


def test_a_late_repeat_of_a_failed_call_leaves_the_next_visit_open() -> None:
    world = World()
    world.arrive("a", stage="fix", dedupe_key="k")
    world.end("a", Outcome.ENGINE_ERROR)
    world.arrive("b", stage="fix")
    world.arrive("a2", stage="fix", dedupe_key="k")
    world.end("a2")
    assert world.arrive("c", stage="fix").stage == "fix"
    rows = [(s["visit"], s["width"]) for s in world.explain()["stages"]]
    assert rows == [(1, 1), (2, 2)]


def test_one_trace_id_on_every_call_does_not_make_them_one() -> None:
    world = World()
    world.arrive("a", dedupe_key="k")
    world.end("a")
    assert world.arrive("b", dedupe_key="k").stage == "stage-1"


# --- how workflows end ---


@pytest.mark.parametrize(
    ("story", "outcome"),
    [
        ("+a -a:ok", Outcome.OK),
        ("+a -a:engine_error", Outcome.ENGINE_ERROR),
        ("+a -a:engine_error +b -b:ok", Outcome.OK),
        ("+a -a:ok +b -b:rejected", Outcome.REJECTED),
        ("+a +b -a:ok -b:cancelled", Outcome.OK),
        ("+a -a:ok +b -b:cancelled", Outcome.CANCELLED),
    ],
)
def test_the_last_calls_decide_the_outcome(story: str, outcome: Outcome) -> None:
    world = World()
    for word in story.split():
        call, _, how = word[1:].partition(":")
        if word[0] == "+":
            world.arrive(call)
        else:
            world.end(call, Outcome(how))
    (record,) = world.tracker.finish(W, 0.0, cancelled=False).ended
    assert record.outcome is outcome
    assert world.tracker.live == 0


def test_a_final_call_ends_its_workflow() -> None:
    world = World()
    world.at(5).arrive("a", final=True, slo_s=2.0)
    (record,) = world.at(8).end("a").ended
    assert (record.started_s, record.ended_s, record.deadline_s) == (5, 8, 7)
    assert (record.calls, record.stages, record.met_slo) == (1, 1, False)


def test_a_final_call_waits_for_its_siblings() -> None:
    world = World()
    world.arrive("a")
    world.arrive("b", final=True)
    assert world.at(1).end("b").ended == ()
    assert world.at(2).end("a", Outcome.CANCELLED).ended[0].outcome is Outcome.OK


@pytest.mark.parametrize("how", [Outcome.ENGINE_ERROR, Outcome.CLIENT_ERROR, Outcome.REJECTED])
def test_a_final_call_that_fails_leaves_its_workflow_to_be_gone_on_with(how: Outcome) -> None:
    world = World()
    world.arrive("a", slo_s=60.0)
    world.at(1).end("a")
    world.arrive("b", final=True)
    assert world.at(2).end("b", how).ended == ()
    assert world.at(3).arrive("b2", final=True).workflow_started_s == 0
    (record,) = world.at(4).end("b2").ended
    assert (record.calls, record.outcome, record.duration_s) == (3, Outcome.OK, 4)


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_of_two_final_calls_the_one_that_went_well_counts(order: str) -> None:
    world = World()
    world.arrive("a", final=True)
    world.arrive("b", final=True)
    updates = [world.end(c, Outcome.OK if c == "a" else Outcome.ENGINE_ERROR) for c in order]
    assert updates[0].ended == ()
    assert [record.outcome for record in updates[1].ended] == [Outcome.OK]


def test_a_final_call_whose_client_has_gone_ends_its_workflow() -> None:
    world = World()
    world.arrive("a")
    world.end("a")
    world.arrive("b", final=True)
    assert world.end("b", Outcome.CANCELLED).ended[0].outcome is Outcome.CANCELLED


def test_a_lone_final_call_leaves_nothing_behind_however_it_ends() -> None:
    world = World()
    world.arrive("a", final=True)
    assert world.end("a", Outcome.ENGINE_ERROR).ended[0].outcome is Outcome.ENGINE_ERROR
    assert world.tracker.live == 0


def test_a_workflow_of_which_nothing_ran_ends_at_once() -> None:
    world = World()
    world.arrive("a")
    world.arrive("b")
    assert world.end("a", Outcome.REJECTED).ended == ()
    (record,) = world.end("b", Outcome.REJECTED).ended
    assert (record.outcome, record.calls) == (Outcome.REJECTED, 2)
    assert world.tracker.next_expiry_s() is None


def test_a_rejected_call_does_not_end_what_was_declared_or_ran() -> None:
    world = World()
    world.tracker.declare(WorkflowDeclaration(W, "app"), 0.0)
    world.arrive("a")
    assert world.end("a", Outcome.REJECTED).ended == ()
    world.arrive("b", "other")
    world.end("b")
    world.arrive("c", "other")
    assert world.end("c", Outcome.REJECTED).ended == ()
    assert world.tracker.live == 2


def test_a_cancelled_workflow_asks_for_no_new_budgets() -> None:
    world = World()
    for number in range(4):
        world.arrive(f"c{number}", stage=f"s{number}")
    assert world.end("c0").rebudget == ("c1", "c2", "c3")
    world.tracker.finish(W, 0.0, cancelled=True)
    assert world.tracker.stage_reported(W, "tool", 1.0, 0.0).rebudget == ()
    assert world.tracker.plan_posted(W, [StagePlan("x")], 0.0).rebudget == ()
    update = world.end("c1", Outcome.CANCELLED)
    assert (update.stage_ended, update.rebudget) == (True, ())


def test_cancelling_waits_for_what_is_live() -> None:
    world = World()
    world.arrive("a")
    world.arrive("b")
    assert world.tracker.finish(W, 1.0, cancelled=True).ended == ()
    assert world.tracker.live_calls(W) == ("a", "b")
    world.at(2).end("a")
    (record,) = world.at(3).end("b", Outcome.CANCELLED).ended
    assert (record.outcome, record.ended_s) == (Outcome.CANCELLED, 3)
    assert world.explain()["state"] == "cancelled"


def test_silence_ends_a_workflow_as_of_its_last_call() -> None:
    world = World(TrackerSettings(applications={"app": WorkflowDefaults(slo_s=9, idle_s=30)}))
    world.arrive("a")
    assert world.tracker.next_expiry_s() is None
    world.at(4).end("a")
    assert world.tracker.next_expiry_s() == 34
    assert world.tracker.expire(33.9).ended == ()
    (record,) = world.tracker.expire(34).ended
    assert (record.ended_s, record.deadline_s, record.met_slo) == (4, 9, True)
    assert world.explain()["state"] == "expired"


def test_live_calls_keep_a_workflow_alive_however_long() -> None:
    world = World()
    world.arrive("a")
    assert world.tracker.expire(1e9).ended == ()
    assert world.tracker.live == 1


def test_a_declared_workflow_that_never_ran_is_cancelled_by_silence() -> None:
    world = World()
    world.tracker.declare(WorkflowDeclaration(W, "app"), 0.0)
    (record,) = world.tracker.expire(300.0).ended
    assert (record.calls, record.outcome) == (0, Outcome.CANCELLED)


def test_too_many_workflows_push_out_the_one_silent_for_longest() -> None:
    world = World(TrackerSettings(max_live=3))
    world.arrive("busy", "w0")
    for number in (1, 2):
        world.at(number).arrive(f"c{number}", f"w{number}")
        world.end(f"c{number}")
    world.at(3).arrive("c3", "w3")
    assert world.tracker.next_expiry_s() == 3
    assert [r.workflow_id for r in world.tracker.expire(3).ended] == ["w1"]
    assert [w["id"] for w in world.tracker.workflows()] == ["w0", "w2", "w3"]


def test_too_many_busy_workflows_shrink_back_to_the_bound() -> None:
    world = World(TrackerSettings(max_live=2))
    for number in range(5):
        world.arrive(f"c{number}", f"w{number}")
    ended = [record for number in range(5) for record in world.end(f"c{number}").ended]
    assert [record.workflow_id for record in ended] == ["w0", "w1", "w2"]
    assert world.tracker.live == 2


def test_unknown_workflows_are_ignored() -> None:
    tracker, other = World().tracker, WorkflowId("nobody")
    assert tracker.finish(other, 0.0, cancelled=True).ended == ()
    assert tracker.stage_reported(other, "tool", 1.0, 0.0).rebudget == ()
    assert tracker.plan_posted(other, [StagePlan("a")], 0.0).rebudget == ()
    assert tracker.live_calls(other) == ()
    assert tracker.explain(other) is None
    assert tracker.remaining_work_s(other, work_s) == 0


def test_calls_that_are_not_live_are_a_defect() -> None:
    world = World()
    world.arrive("a")
    with pytest.raises(InvariantError):
        world.arrive("a")
    with pytest.raises(InvariantError):
        world.end("nobody")
    with pytest.raises(InvariantError):
        world.budget("nobody")


# --- plans, tools, explaining ---


def test_a_plan_that_is_no_graph_changes_nothing() -> None:
    world = World()
    circle = (StagePlan("a", after=("b",)), StagePlan("b", after=("a",)))
    with pytest.raises(PlanError, match="circle"):
        world.tracker.declare(WorkflowDeclaration(W, "app", stages=circle), 0.0)
    assert world.tracker.live == 0


def test_a_declaration_in_flight_gives_new_budgets_where_something_changed() -> None:
    world = World()
    world.arrive("a", stage="draft", slo_s=60.0)
    world.arrive("b", stage="draft")

    def declare(**what: Any) -> tuple[CallId, ...]:
        return world.tracker.declare(WorkflowDeclaration(W, "app", **what), 0.0).rebudget

    assert declare() == ()
    assert declare(slo_s=60.0) == ()
    assert declare(slo_s=30.0) == ("a", "b")
    assert world.budget("a").stage_budget_s == 30
    assert declare(stages=(StagePlan("draft"), StagePlan("vote", output_tokens=100))) == ("a", "b")


def test_a_declaration_is_a_sign_of_life() -> None:
    world = World()
    world.arrive("a")
    world.end("a")
    world.tracker.declare(WorkflowDeclaration(W, "app"), 250.0)
    assert world.tracker.expire(301.0).ended == ()
    assert len(world.tracker.expire(550.0).ended) == 1


def test_a_declared_stage_that_failed_is_still_to_be_done() -> None:
    world = World()
    plan = (StagePlan("draft"), StagePlan("vote"))
    world.tracker.declare(WorkflowDeclaration(W, "app", stages=plan), 0.0)
    world.arrive("a")
    world.end("a", Outcome.ENGINE_ERROR)
    assert world.arrive("b").stage == "draft"
    world.end("b")
    assert world.arrive("c").stage == "vote"


def test_unnamed_calls_of_a_declared_workflow_fill_its_stages() -> None:
    world = World()
    plan = (StagePlan("draft", width=2), StagePlan("vote"))
    world.tracker.declare(WorkflowDeclaration(W, "sql", slo_s=7.0, stages=plan), 0.0)
    first = world.at(10).arrive("a")
    assert (first.stage, first.application, first.deadline_s) == ("draft", "sql", 17)
    assert world.arrive("b").stage == "draft"
    world.end("a")
    world.end("b")
    assert world.arrive("c").stage == "vote"


def test_tool_gaps_are_measured_between_calls() -> None:
    world = World()
    world.arrive("a")
    world.at(1).end("a")
    world.at(3.5).arrive("b", tool="sqlite")
    assert world.tracker.tools.mean_s("sqlite") == 2.5
    assert world.explain()["tool_gap_s"] == 2.5


def test_no_tool_runs_between_a_call_and_the_same_call_sent_again() -> None:
    world = World()
    world.arrive("a", dedupe_key="k")
    world.at(1).end("a", Outcome.ENGINE_ERROR)
    world.at(5).arrive("a2", dedupe_key="k", tool="sqlite")
    assert world.tracker.tools.mean_s("sqlite") is None
    assert world.explain()["tool_gap_s"] == 0


@pytest.mark.parametrize("duration_s", [math.nan, math.inf, -math.inf, -1.0, 1e300])
def test_a_duration_that_is_no_time_teaches_nothing(duration_s: float) -> None:
    world = World()
    world.arrive("a")
    world.tracker.stage_reported(W, "execute", duration_s, 3.0)
    assert world.tracker.tools.mean_s("execute") is None
    json.dumps(world.explain(), allow_nan=False)


@pytest.mark.parametrize("slo_s", [math.nan, math.inf, 0.0, -5.0, 1e300])
def test_an_slo_that_is_no_time_is_refused_where_declared_and_cut_where_told(slo_s: float) -> None:
    world = World()
    with pytest.raises(PlanError, match="slo_s"):
        world.tracker.declare(WorkflowDeclaration(W, "app", slo_s=slo_s), 0.0)
    assert world.tracker.live == 0
    assert 0 < world.arrive("a", slo_s=slo_s).deadline_s <= 1e8


def test_huge_counts_are_cut() -> None:
    world = World()
    huge = 10**400
    world.arrive("a", prompt_tokens=huge, max_tokens=huge, stage_width=huge)
    assert math.isfinite(world.budget("a").stage_budget_s)
    world.end("a", output=huge)
    world.tracker.finish(W, 0.0, cancelled=False)
    json.dumps(world.tracker.templates.dump(), allow_nan=False)
    assert world.explain()["stages"][0]["width"] == 10_000


def test_a_reported_stage_counts_as_one() -> None:
    world = World()
    world.arrive("a", stage="draft")
    world.at(1).end("a")
    update = world.tracker.stage_reported(W, "execute", 2.0, 3.0)
    assert update.stage_ended
    assert world.at(3).arrive("b").depth == 2
    row = world.explain()["stages"][1]
    assert (row["name"], row["at_client"], row["actual_s"]) == ("execute", True, 2)


def test_a_workflow_of_reported_stages_alone_ends_with_the_last_of_them() -> None:
    world = World()
    world.tracker.declare(WorkflowDeclaration(W, "app"), 1.0)
    world.tracker.stage_reported(W, "execute", 2.0, 4.0)
    world.tracker.finish(W, 9.0, cancelled=False)
    assert world.explain()["elapsed_s"] == 3


def test_explain_tells_what_was_decided_and_what_came_of_it() -> None:
    world = World()
    world.at(10).arrive("a", stage="draft", prompt_tokens=500, max_tokens=50, slo_s=60.0)
    world.budget("a")
    world.at(12).tracker.call_dispatched(CallId("a"), InstanceId("a100"), -3.0, 12.0)
    world.at(15).end("a", output=40)
    world.tracker.finish(W, 15.0, cancelled=False)
    explained = json.loads(json.dumps(world.explain()))
    (stage,) = explained.pop("stages")
    (call,) = stage.pop("calls")
    assert explained["met_slo"] is True
    assert (explained["elapsed_s"], explained["slo_s"]) == (5, 60)
    assert (stage["budget_s"], stage["predicted_s"], stage["actual_s"]) == (60, 5.5, 5)
    assert (call["instance"], call["queued_s"], call["urgency_s"]) == ("a100", 2, -3)
    assert (call["output_tokens"], call["outcome"], call["attempts"]) == (40, "ok", 1)


@pytest.mark.parametrize(
    ("outcome", "met"),
    [(Outcome.OK, True), (Outcome.ENGINE_ERROR, False), (Outcome.CANCELLED, None)],
)
def test_a_cancelled_workflow_has_neither_kept_nor_missed_its_slo(
    outcome: Outcome, met: bool | None
) -> None:
    world = World()
    world.arrive("a", slo_s=60.0)
    assert world.explain()["met_slo"] is None
    world.at(5).end("a", outcome)
    world.tracker.finish(W, 5.0, cancelled=outcome is Outcome.CANCELLED)
    assert world.explain()["met_slo"] is met


def test_ended_workflows_are_remembered_within_bounds() -> None:
    world = World(TrackerSettings(max_finished=3, finished_s=100.0))
    for number in range(5):
        world.run(f"w{number}", ("draft", 10))
    assert world.tracker.explain(WorkflowId("w1")) is None
    assert world.explain("w4")["state"] == "finished"
    assert world.tracker.explainable == 3
    world.tracker.expire(500.0)
    assert world.tracker.explainable == 0


def test_long_ended_workflows_push_out_more_than_short_ones() -> None:
    world = World(TrackerSettings(max_finished_calls=10))
    for number in range(9):
        world.run(f"short{number}", ("draft", 10))
    assert world.tracker.explainable == 9
    world.run("long", *[("loop", 10)] * 8)
    assert world.tracker.explainable == 3


def test_a_long_workflow_forgets_its_oldest_calls() -> None:
    world = World(TrackerSettings(max_calls=4))
    world.run("w", *[("loop", 10)] * 10)
    explained = world.explain()
    assert (explained["calls"], explained["calls_forgotten"]) == (10, 6)
    assert len(explained["stages"]) == 4


# --- restarts ---


def test_a_restart_keeps_deadlines_depths_and_what_was_learned() -> None:
    world = World()
    world.run("old", ("draft", 100), ("vote", 300))
    world.at(100).arrive("a", stage="draft", slo_s=40.0)
    world.at(103).end("a")
    snapshot = json.loads(json.dumps(world.tracker.snapshot(105.0)))

    after = World()
    after.tracker.restore(snapshot, now_s=7.0, down_s=10.0)
    placement = after.at(7).arrive("b", stage="vote")
    assert placement.deadline_s == pytest.approx(7 - 15 + 40)
    assert placement.depth == 1
    assert after.tracker.templates.dump() == world.tracker.templates.dump()
    after.end("b")
    (record,) = after.tracker.finish(W, 7.0, cancelled=False).ended
    assert (record.calls, record.duration_s) == (2, pytest.approx(15))


@pytest.mark.parametrize("flaw", [math.nan, math.inf, None, "x"])
@pytest.mark.parametrize("where", ["slo_s", "age_s", "tool", "template"])
def test_a_snapshot_with_a_flaw_changes_nothing(where: str, flaw: object) -> None:
    world = World()
    world.run("old", ("draft", 100))
    world.arrive("a")
    world.at(2).end("a")
    world.at(3).arrive("b", tool="sql")
    snapshot: Any = json.loads(json.dumps(world.tracker.snapshot(3.0)))
    if where == "tool":
        snapshot["tools"]["sql"][0] = flaw
    elif where == "template":
        snapshot["templates"]["app"]["whole"][0][0] = flaw
    else:
        snapshot["live"][0][where] = flaw
    after = World().tracker
    before = after.snapshot(0.0)
    with pytest.raises(ValueError, match="expected"):
        after.restore(snapshot, 0.0)
    assert after.snapshot(0.0) == before


def test_a_snapshot_of_another_shape_is_refused() -> None:
    snapshot = World().tracker.snapshot(0.0)
    with pytest.raises(ValueError, match="version 1"):
        World().tracker.restore({**snapshot, "version": 2}, 0.0)


def test_a_deadline_that_a_later_call_sets_is_told_of_its_siblings() -> None:
    world = World()
    world.arrive("a", stage="plan")
    assert world.arrive("b", stage="plan").rebudget == ()
    assert world.arrive("c", stage="plan", slo_s=5.0).rebudget == ("a", "b")
    assert world.budget("a").deadline_s == 5.0


def test_siblings_that_share_a_moment_share_a_budget_and_no_other_moment_does() -> None:
    world = World()
    for call in ("a", "b"):
        world.arrive(call, stage="plan")
    assert world.budget("a") == world.budget("b")
    world.arrive("c", stage="plan", prompt_tokens=9_000)
    assert world.budget("a").stage_work_s == world.budget("c").stage_work_s >= 9.0


def test_no_tool_ran_while_the_gateway_was_down() -> None:
    world = World()
    world.arrive("a")
    world.at(1).end("a")
    state = world.tracker.snapshot(2.0)
    again = World()
    again.tracker.restore(json.loads(json.dumps(state)), 3_600.0)
    again.at(3_600.0).arrive("b", tool="sqlite")
    assert again.tracker.tools.mean_s("sqlite") is None
    again.at(3_601.0).end("b")
    again.at(3_603.0).arrive("c", tool="sqlite")
    assert again.tracker.tools.mean_s("sqlite") == 2.0
