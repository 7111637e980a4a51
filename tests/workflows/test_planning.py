"""Plans of planners: what they take the place of, which stages they may name, and how."""

from __future__ import annotations

import doctest
from collections.abc import Sequence

import pytest
from stage_story import TPOT_S, Story, stage, work_s
from workflow_world import World

from dispatcher.core.types import Outcome, WorkflowId
from dispatcher.core.workflow_types import StagePlan, WorkflowDeclaration
from workflows import names, resolving
from workflows.names import listed, visit_name
from workflows.plan import Plan, PlanError
from workflows.resolving import Resolution

W = WorkflowId("w")
TOOLS = stage("tools", "dynamic", candidates=("search", "read", "think"))
ASSISTANT = (
    stage("plan", output_tokens=10),
    TOOLS,
    stage("answer", after=["tools"], output_tokens=30),
)


def declared(*stages: StagePlan) -> Story:
    story = Story()
    declaration = WorkflowDeclaration(W, "app", slo_s=100.0, stages=stages)
    story.tracker.declare(declaration, story.now_s)
    return story


def post(world: World, *stages: StagePlan, workflow: WorkflowId = W) -> None:
    world.tracker.plan_posted(workflow, stages, world.now_s)


def left_s(world: World) -> float:
    return world.tracker.remaining_work_s(W, work_s)


def edges(base: Sequence[StagePlan], *posted: StagePlan) -> set[tuple[str, str]]:
    return set(Resolution(Plan(base)).take(posted, ()).plan(()).edges)


def test_examples_of_names_and_plans_run() -> None:
    for module in (names, resolving):
        found = doctest.testmod(module)
        assert (found.attempted > 0, found.failed) == (True, 0)


# --- what a plan takes the place of ---


def test_declared_stages_after_the_dynamic_one_stay() -> None:
    story = declared(*ASSISTANT)
    story.play("w", [("plan", 1.0)], final=False)
    assert left_s(story) == pytest.approx(30 * TPOT_S)
    post(story, stage("search", output_tokens=20), stage("read", output_tokens=40))
    assert left_s(story) == pytest.approx((20 + 40 + 30) * TPOT_S)
    call = story.begin("w", "search")
    assert story.budget(call).remaining_work_s == pytest.approx((20 + 40 + 30) * TPOT_S)
    story.finish(call)
    story.play("w", [("read", 1.0)], final=False)
    assert left_s(story) == pytest.approx(30 * TPOT_S)


def test_a_plan_stands_where_the_dynamic_stage_stood() -> None:
    found = edges(ASSISTANT, stage("search"), stage("read", after=["plan"]), stage("think"))
    assert found == {
        ("plan", "search"),
        ("plan", "read"),
        ("read", "think"),
        ("search", "answer"),
        ("think", "answer"),
    }


def test_a_plan_that_wants_nothing_leaves_the_rest() -> None:
    assert edges(ASSISTANT) == {("plan", "answer")}
    # naming what is declared anyway wants nothing either
    assert edges(ASSISTANT, stage("answer")) == {("plan", "answer")}


def test_a_plan_may_say_more_of_declared_stages() -> None:
    story = declared(*ASSISTANT)
    post(story, stage("search", output_tokens=20), stage("answer", output_tokens=50))
    assert left_s(story) == pytest.approx((10 + 20 + 50) * TPOT_S)


def test_a_planner_that_changes_its_mind_replaces_its_plan() -> None:
    story = declared(*ASSISTANT)
    post(story, stage("search", output_tokens=20))
    post(story, stage("think", output_tokens=70))
    assert left_s(story) == pytest.approx((10 + 70 + 30) * TPOT_S)


def test_two_planners_fill_a_stage_each() -> None:
    base = (
        stage("plan"),
        stage("find", "dynamic", candidates=("search",)),
        stage("plan again"),
        stage("write", "dynamic", candidates=("draft", "check")),
        stage("answer"),
    )
    first = Resolution(Plan(base)).take([stage("search"), stage("search#2")], ())
    both = first.take([stage("draft")], ["plan", "search", "plan again"])
    assert set(both.plan(()).edges) == {
        ("plan", "search"),
        ("search", "search#2"),
        ("search#2", "plan again"),
        ("plan again", "draft"),
        ("draft", "answer"),
    }
    # one plan may speak of both
    assert set(first.take([stage("draft"), stage("check")], ()).parts) == {"find", "write"}


def test_without_a_dynamic_stage_a_plan_is_all_that_follows() -> None:
    story = declared(stage("draft", output_tokens=10), stage("vote", output_tokens=80))
    story.play("w", [("draft", 1.0)], final=False)
    post(story, stage("fix", output_tokens=20))
    assert left_s(story) == pytest.approx(20 * TPOT_S)


def test_stages_of_the_configuration_stay_where_a_workflow_was_not_declared() -> None:
    story = Story(declared={"app": ASSISTANT})
    story.play("w", [("plan", 1.0)], final=False)
    post(story, stage("search", output_tokens=20))
    assert left_s(story) == pytest.approx((20 + 30) * TPOT_S)


def test_stages_of_the_configuration_give_way_to_a_workflow_s_own() -> None:
    story = Story(declared={"app": ASSISTANT})
    own = (stage("draft", output_tokens=10), stage("vote", output_tokens=80))
    declaration = WorkflowDeclaration(W, "app", slo_s=100.0, stages=own)
    story.tracker.declare(declaration, story.now_s)
    story.play("w", [("draft", 1.0)], final=False)
    post(story, stage("fix", output_tokens=20))
    assert left_s(story) == pytest.approx(20 * TPOT_S)
    post(story, stage("fix", output_tokens=20), stage("mend", output_tokens=40))
    assert left_s(story) == pytest.approx((20 + 40) * TPOT_S)


def test_a_new_declaration_begins_anew() -> None:
    story = declared(*ASSISTANT)
    post(story, stage("search", output_tokens=20))
    declaration = WorkflowDeclaration(W, "app", slo_s=100.0, stages=ASSISTANT)
    story.tracker.declare(declaration, story.now_s)
    assert left_s(story) == pytest.approx((10 + 30) * TPOT_S)


# --- which stages a plan and a report may name ---


@pytest.mark.parametrize(
    ("posted", "message"),
    [
        ([stage("dance")], r"'dance' is no candidate of 'tools'; expected: search, read, think"),
        ([stage("search"), stage("search")], "declared twice"),
        ([stage("search", after=["answer"])], "circle"),
        ([stage("search", after=["nowhere"])], "no stage"),
        ([StagePlan("search", candidates=("read",))], "'search': only a dynamic stage has cand"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused_and_changes_nothing(posted, message) -> None:
    story = declared(*ASSISTANT)
    post(story, stage("search", output_tokens=20))
    before = story.explain("w"), left_s(story)
    with pytest.raises(PlanError, match=message):
        post(story, *posted)
    assert (story.explain("w"), left_s(story)) == before


def test_candidates_of_a_stage_whose_kind_was_forgotten_are_refused_not_dropped() -> None:
    with pytest.raises(PlanError, match="'tools': only a dynamic stage has candidates"):
        declared(stage("plan"), StagePlan("tools", candidates=("search",)), stage("answer"))


def test_where_nobody_said_what_may_come_planned_stages_are_learned() -> None:
    story = Story(declared={"app": (stage("plan"), stage("tools", "dynamic"), stage("answer"))})
    for number in range(40):
        workflow = f"old-{number}"
        story.play(workflow, [("plan", 1.0)], final=False)
        post(story, stage("search"), workflow=WorkflowId(workflow))
        story.play(workflow, [("search", 4.0), ("answer", 2.0)])
    known = story.profiles.stats()["applications"]["app"]
    assert [each["stage"] for each in known["stages"]] == ["plan", "tools", "answer"]
    story.play("w", [("plan", 1.0)], final=False)
    post(story, stage("search"), stage("search#2"))
    assert story.remaining("w").mean_s == pytest.approx(4.0 + 4.0 + 2.0, rel=0.02)
    # and come back after a restart
    other = Story(declared=story.tracker.settings.stage_models.declared)
    other.tracker.restore(story.tracker.snapshot(story.now_s), story.now_s)
    assert other.profiles._applications["app"].declared.inside_of("search#3") == "tools"


def test_a_candidate_that_never_ran_is_taken_to_be_like_the_others() -> None:
    story = Story(declared={"app": ASSISTANT})
    for number in range(40):
        workflow = f"old-{number}"
        story.play(workflow, [("plan", 1.0)], final=False)
        post(story, stage("search"), workflow=WorkflowId(workflow))
        story.play(workflow, [("search", 4.0), ("answer", 2.0)])
    story.play("w", [("plan", 1.0)], final=False)
    post(story, stage("think"))
    assert story.remaining("w").mean_s == pytest.approx(4.0 + 2.0, rel=0.02)


@pytest.mark.parametrize("name", ["tools", "search", "search#2", "answer"])
def test_declared_stages_and_candidates_may_be_reported(name: str) -> None:
    story = declared(*ASSISTANT)
    assert story.tracker.stage_reported(W, name, 1.0, 1.0).stage_ended


def test_a_report_of_no_stage_of_the_application_is_refused_and_changes_nothing() -> None:
    story = declared(*ASSISTANT)
    before = story.explain("w")
    with pytest.raises(PlanError, match=r"'serch' is none of 'app'; expected: plan, tools, answer"):
        story.tracker.stage_reported(W, "serch", 1.0, 1.0)
    assert story.explain("w")["stages"] == before["stages"] == []
    assert story.tracker.gap_s("serch", 0.5) is None


def test_where_nothing_is_declared_any_stage_may_be_reported() -> None:
    story = Story()
    story.play("w", [("plan", 1.0)], final=False)
    assert story.tracker.stage_reported(W, "whatever", 1.0, story.now_s).stage_ended
    open_ended = declared(stage("plan"), stage("tools", "dynamic"))
    assert open_ended.tracker.stage_reported(W, "whatever", 1.0, 1.0).stage_ended


# --- names of visits ---


def test_visits_are_numbered_whoever_counts() -> None:
    assert visit_name("search", 1) == "search"
    assert visit_name("search", 3) == "search#3"
    assert visit_name("search#2", 2) == "search#3"
    assert visit_name("step#x", 2) == "step#x#2"


@pytest.mark.parametrize("second", ["search", "search#2"])
def test_a_second_visit_is_the_planned_one_under_either_name(second: str) -> None:
    story = declared(*ASSISTANT)
    story.play("w", [("plan", 1.0)], final=False)
    post(story, stage("search", output_tokens=20), stage("search#2", output_tokens=50))
    story.play("w", [("search", 1.0)], final=False)
    assert left_s(story) == pytest.approx((50 + 30) * TPOT_S)
    call = story.begin("w", second)
    assert story.budget(call).stage_work_s == pytest.approx(50 * TPOT_S)
    assert story.budget(call).remaining_work_s == pytest.approx((50 + 30) * TPOT_S)
    story.finish(call)
    assert left_s(story) == pytest.approx(30 * TPOT_S)
    told = [(each["name"], each["visit"]) for each in story.explain("w")["stages"]]
    assert told == [("plan", 1), ("search", 1), ("search", 2)]


def test_visits_side_by_side_are_told_apart() -> None:
    story = declared(*ASSISTANT)
    story.play("w", [("plan", 1.0)], final=False)
    post(
        story,
        stage("search", output_tokens=20, after=["plan"]),
        stage("search#2", output_tokens=50, after=["plan"]),
    )
    first, second = story.begin("w", "search"), story.begin("w", "search#2")
    assert story.budget(first).stage_work_s == pytest.approx(20 * TPOT_S)
    assert story.budget(second).stage_work_s == pytest.approx(50 * TPOT_S)
    story.finish(second)
    assert left_s(story) == pytest.approx((20 + 30) * TPOT_S)


def test_unnamed_calls_fill_the_planned_visits() -> None:
    story = declared(*ASSISTANT)
    story.play("w", [("plan", 1.0)], final=False)
    post(story, stage("search", width=2), stage("search#2"))
    seen = []
    for call in ("a", "b"):
        seen.append(story.arrive(call).stage)
    for call in ("a", "b"):
        story.end(call)
    seen.append(story.arrive("c").stage)
    story.end("c")
    seen.append(story.arrive("d").stage)
    assert seen == ["search", "search", "search", "answer"]


def test_a_failed_first_visit_is_not_the_second_one() -> None:
    story = declared(*ASSISTANT)
    story.play("w", [("plan", 1.0)], final=False)
    post(story, stage("search", output_tokens=20), stage("search#2", output_tokens=50))
    call = story.begin("w", "search")
    story.end(call, outcome=Outcome.ENGINE_ERROR)
    assert left_s(story) == pytest.approx((20 + 50 + 30) * TPOT_S)
    story.play("w", [("search", 1.0)], final=False)
    assert left_s(story) == pytest.approx((50 + 30) * TPOT_S)


def test_a_workflow_of_which_a_planned_stage_failed_is_learned_from() -> None:
    story = Story(declared={"app": ASSISTANT})
    for number in range(30):
        name = f"old-{number}"
        story.play(name, [("plan", 1.0)], final=False)
        story.end(story.begin(name, "search"), outcome=Outcome.ENGINE_ERROR)
        story.play(name, [("answer", 2.0)])
    known = story.profiles.stats()["applications"]["app"]
    assert (known["workflows"], known["error"]) == (30, None)
    assert "search" not in [each["stage"] for each in known["stages"]]


def test_a_number_is_part_of_the_name_where_there_is_no_such_stage() -> None:
    story = declared(stage("issue#7", output_tokens=10), stage("issue#9", output_tokens=20))
    story.play("w", [("issue#7", 1.0)], final=False)
    assert left_s(story) == pytest.approx(20 * TPOT_S)
    call = story.begin("w", "issue#9")
    assert story.explain("w")["stages"][1]["name"] == "issue#9"
    story.finish(call)
    assert left_s(story) == 0.0


def test_templates_know_a_visit_under_its_number() -> None:
    story = Story()
    for number in range(5):
        story.play(f"old-{number}", [("search", 1.0), ("search", 1.0), ("answer", 1.0)])
    story.play("w", [("search", 1.0)], final=False)
    plain = story.begin("w", "search#2")
    # one stage of ten tokens follows a second visit
    assert story.budget(plain).remaining_work_s == pytest.approx((10 + 10) * TPOT_S)


def test_a_call_sent_again_joins_its_visit_under_either_name() -> None:
    story = declared(*ASSISTANT)
    story.play("w", [("plan", 1.0), ("search", 1.0)], final=False)
    story.arrive("a", stage="search#2", dedupe_key="k")
    story.arrive("b", stage="search#2", dedupe_key="k")
    assert story.explain("w")["stages"][-1]["width"] == 1


def test_long_lists_of_names_are_cut() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed([f"s{n}" for n in range(25)]).endswith("s19 and 5 more")
