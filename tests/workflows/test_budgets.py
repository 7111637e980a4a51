"""Shares of the remaining time, from templates and from declared plans. Work is output / 10."""

from __future__ import annotations

import math

import pytest
from workflow_world import World, work_s

from dispatcher.core.types import CallId, WorkflowId
from dispatcher.core.workflow_types import StagePlan, WorkflowDeclaration
from workflows.plan import Plan, PlanError

W = WorkflowId("w")


def taught(*stages: tuple[str, int], times: int = 1) -> World:
    world = World()
    for number in range(times):
        world.run(f"history-{number}", *stages)
    return world


def test_without_history_the_present_stage_gets_everything() -> None:
    world = World()
    world.at(10).arrive("a", slo_s=60.0, max_tokens=50)
    budget = world.at(30).budget("a")
    assert (budget.stage_budget_s, budget.stage_deadline_s) == (40, 70)
    assert budget.stage_work_s == budget.remaining_work_s == 5


def test_history_divides_the_remaining_time_by_work() -> None:
    world = taught(("draft", 100), ("vote", 300))
    start_s = world.now_s
    world.arrive("a", stage="draft", slo_s=60.0)
    budget = world.budget("a")
    assert (budget.stage_work_s, budget.remaining_work_s) == (10, 40)
    assert budget.stage_budget_s == pytest.approx(15)
    world.at(start_s + 20).end("a")
    world.arrive("b", stage="vote")
    assert world.budget("b").stage_budget_s == pytest.approx(40)


def test_an_overdue_budget_stays_negative() -> None:
    world = taught(("draft", 100), ("vote", 300))
    start_s = world.now_s
    world.arrive("a", stage="draft", slo_s=60.0)
    assert world.at(start_s + 100).budget("a").stage_budget_s == pytest.approx(-10)


def test_parallel_calls_count_once_and_share_a_deadline() -> None:
    world = World()
    world.run("history", ("draft", 100), ("vote", 100), width=8)
    start_s = world.now_s
    world.arrive("a", stage="draft", slo_s=60.0)
    first = world.budget("a")
    world.at(start_s + 5).arrive("b", stage="draft")
    second = world.budget("b")
    assert first.remaining_work_s == pytest.approx(20)
    assert first.stage_deadline_s == second.stage_deadline_s == start_s + 30


def test_stages_side_by_side_count_as_the_longest() -> None:
    world = World()
    for name in ("left", "right"):
        world.arrive(name, "history", stage=name)
        world.at(world.now_s + 1)
    for name, output in (("left", 100), ("right", 300)):
        world.end(name, output=output)
    world.run("history", ("vote", 100))
    world.arrive("a", stage="left", slo_s=60.0)
    assert world.budget("a").remaining_work_s == pytest.approx(20)
    assert world.tracker.templates.get("app").whole.levels.value == 2


def test_repetitions_weigh_as_often_as_they_happened() -> None:
    world = taught(("draft", 100))
    world.run("looped", ("draft", 100), ("fix", 100), ("fix", 100))
    world.arrive("a", stage="draft", slo_s=60.0)
    # half of the workflows went on with two more visits of 10 s
    assert world.budget("a").remaining_work_s == pytest.approx(20)


def test_a_second_visit_expects_less_than_the_first() -> None:
    world = taught(("fix", 100), ("fix", 100), ("fix", 100), times=4)
    left = []
    for call in "abc":
        world.arrive(call, stage="fix", slo_s=60.0)
        left.append(world.budget(call).remaining_work_s)
        world.end(call)
    assert left == pytest.approx([30, 20, 10])


def test_a_new_stage_is_judged_by_its_level() -> None:
    world = taught(("draft", 100), ("fix", 100), ("vote", 100))
    world.arrive("a", stage="something else", slo_s=60.0)
    assert world.budget("a").remaining_work_s == pytest.approx(30)


def test_a_budget_is_granted_anew_when_a_parallel_stage_ends() -> None:
    world = World()
    world.arrive("a", stage="left", slo_s=60.0)
    world.arrive("b", stage="right")
    world.budget("b")
    world.at(12).end("a")
    assert world.budget("b").granted_s == 12


def test_output_is_capped_by_max_tokens_and_fixed_by_ignore_eos() -> None:
    world = taught(("draft", 400))
    world.arrive("a", "w1", stage="draft", max_tokens=100)
    assert world.budget("a").stage_work_s == 10
    world.arrive("b", "w2", stage="draft", max_tokens=900, features={"ignore_eos": 1.0})
    assert world.budget("b").stage_work_s == 90


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_a_sibling_of_unknown_length_counts_whoever_comes_first(order: str) -> None:
    world = taught(("draft", 400))
    for call in order:
        if call == "a":
            world.arrive("a", stage="draft", max_tokens=90, features={"ignore_eos": 1.0})
        else:
            world.arrive("b", stage="draft")
    assert world.budget("a").stage_work_s == world.budget("b").stage_work_s == 40


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0, 1e300])
def test_a_cost_model_out_of_its_mind_does_not_spoil_budgets(seconds: float) -> None:
    world = taught(("draft", 100), ("vote", 300))
    world.arrive("a", stage="draft", slo_s=60.0)
    budget = world.tracker.budget(CallId("a"), lambda prompt, output: seconds, world.now_s)
    assert math.isfinite(budget.stage_budget_s)
    assert 0 <= budget.stage_work_s <= budget.remaining_work_s < math.inf
    left_s = world.tracker.remaining_work_s(W, lambda prompt, output: seconds)
    assert 0 <= left_s < math.inf


def test_other_applications_teach_nothing() -> None:
    world = taught(("draft", 100), ("vote", 300))
    world.arrive("a", stage="draft", application="other", max_tokens=10)
    assert world.budget("a").remaining_work_s == 1


# --- declared ---

DIAMOND = (
    StagePlan("plan", output_tokens=100),
    StagePlan("left", output_tokens=100, after=("plan",)),
    StagePlan("right", output_tokens=500, after=("plan",)),
    StagePlan("vote", output_tokens=100, after=("left", "right")),
)


def declared(*stages: StagePlan) -> World:
    world = World()
    world.tracker.declare(WorkflowDeclaration(W, "app", slo_s=100.0, stages=stages), 0.0)
    return world


def test_a_declared_graph_is_as_long_as_its_critical_path() -> None:
    world = declared(*DIAMOND)
    assert world.tracker.remaining_work_s(W, work_s) == pytest.approx(70)
    world.arrive("a", stage="plan")
    assert world.budget("a").stage_budget_s == pytest.approx(100 * 10 / 70)
    world.end("a")
    world.arrive("b", stage="left")
    assert world.budget("b").remaining_work_s == pytest.approx(20)
    world.arrive("c", stage="right")
    assert world.budget("c").remaining_work_s == pytest.approx(60)
    assert world.tracker.remaining_work_s(W, work_s) == pytest.approx(60)
    world.end("b")
    world.end("c")
    assert world.tracker.remaining_work_s(W, work_s) == pytest.approx(10)


def test_what_a_plan_leaves_out_comes_from_history() -> None:
    world = taught(("draft", 100), ("vote", 300))
    plan = (StagePlan("draft"), StagePlan("vote"), StagePlan("vote again", output_tokens=50))
    world.tracker.declare(WorkflowDeclaration(W, "app", stages=plan), world.now_s)
    assert world.tracker.remaining_work_s(W, work_s) == pytest.approx(45)


def test_a_posted_plan_replaces_the_rest() -> None:
    world = taught(("draft", 100), ("vote", 300))
    world.arrive("a", stage="draft")
    assert world.budget("a").remaining_work_s == pytest.approx(40)
    posted = [StagePlan("search", output_tokens=50, after=("draft",)), StagePlan("write")]
    update = world.tracker.plan_posted(W, posted, world.now_s)
    assert update.rebudget == ("a",)
    # "write" is unknown: taken to be like the present stage
    assert world.budget("a").remaining_work_s == pytest.approx(10 + 5 + 10)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([StagePlan("a"), StagePlan("a")], "declared twice"),
        ([StagePlan("a", after=("b",))], "no stage"),
        ([StagePlan("a", after=("a",))], "circle"),
        ([StagePlan("a", width=0)], "width"),
        ([StagePlan("a", width=10_001)], "'a': width must be at least 1 and at most 10000"),
        ([StagePlan("a", prompt_tokens=10**400)], "'a': prompt_tokens must be"),
        ([StagePlan("a", output_tokens=-1)], "'a': output_tokens must be"),
        ([StagePlan("a", after=("b",) * 201)], "'a': after: expected at most 200"),
        ([StagePlan(f"s{n}") for n in range(201)], "at most 200"),
    ],
)
def test_a_plan_that_is_no_graph_is_refused(stages: list[StagePlan], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Plan(stages)
