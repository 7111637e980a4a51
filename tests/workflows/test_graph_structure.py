"""Structure told by finished workflows like a running one, as the tracker grants it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from workflow_world import World, work_s

from dispatcher.core.types import Outcome, WorkflowId
from dispatcher.core.workflow_types import StagePlan, WorkflowDeclaration
from workflows.graph_history import GraphBounds
from workflows.settings import Structure, TrackerSettings
from workflows.structure import GraphStructure
from workflows.tracker import Tracker

GRAPHS = TrackerSettings(structure=Structure.GRAPHS)
SLO_S = 60.0


def taught(settings: TrackerSettings = GRAPHS) -> World:
    """Two kinds of workflow: a short draft is followed by long work, a long one by little."""
    world = World(settings)
    world.run("short-draft", ("draft", 10), ("fix", 300), ("vote", 90))
    world.run("long-draft", ("draft", 800), ("vote", 200))
    return world


def after_draft(world: World, output: int, workflow: str = "w") -> World:
    """A workflow of 60 s whose draft took a second, and whose next stage begins now."""
    world.arrive(f"{workflow}-1", workflow, stage="draft", slo_s=SLO_S)
    world.at(world.now_s + 1).end(f"{workflow}-1", output=output)
    world.arrive(f"{workflow}-2", workflow, stage="next")
    return world


def test_a_stage_deadline_is_its_share_of_the_remaining_time() -> None:
    world = after_draft(taught(), output=11)
    budget = world.budget("w-2")
    # fix 30 s and vote 9 s are left in the workflow that is most alike
    assert budget.stage_budget_s == pytest.approx((SLO_S - 1) * 30 / (30 + 9))
    assert budget.stage_deadline_s == pytest.approx(world.now_s + budget.stage_budget_s)
    assert budget.remaining_work_s - budget.stage_work_s == pytest.approx(9)
    # in the one with a long draft its vote is the last
    after_draft(world, output=900, workflow="x")
    assert world.budget("x-2").stage_budget_s == pytest.approx(SLO_S - 1)
    assert world.budget("x-2").remaining_work_s == world.budget("x-2").stage_work_s


def test_templates_do_not_tell_them_apart() -> None:
    world = after_draft(taught(TrackerSettings()), output=11)
    after_draft(world, output=900, workflow="x")
    assert world.budget("w-2").remaining_work_s == world.budget("x-2").remaining_work_s


def test_without_structure_a_stage_has_all_of_the_remaining_time() -> None:
    world = after_draft(taught(TrackerSettings(structure=Structure.NONE)), output=11)
    budget = world.budget("w-2")
    assert budget.stage_budget_s == pytest.approx(SLO_S - 1)
    assert budget.remaining_work_s == budget.stage_work_s > 0
    world.end("w-2")
    assert world.tracker.remaining_work_s(WorkflowId("w"), work_s) == 0


def test_between_two_stages_what_is_to_come_is_left() -> None:
    world = taught()
    world.arrive("a", stage="draft")
    assert world.tracker.remaining_work_s(WorkflowId("w"), work_s) > 39
    world.end("a", output=10)
    assert world.tracker.remaining_work_s(WorkflowId("w"), work_s) == pytest.approx(39)


def test_the_first_stage_goes_by_what_it_reads() -> None:
    world = World(GRAPHS)
    for name, prompt, after in (("a", 100, 10), ("b", 5000, 500)):
        world.arrive(f"{name}1", name, prompt_tokens=prompt)
        world.at(world.now_s + 1).end(f"{name}1")
        world.arrive(f"{name}2", name, final=True)
        world.at(world.now_s + 1).end(f"{name}2", output=after)
    for name, prompt, tail_s in (("c", 120, 1), ("d", 4000, 50)):
        world.arrive(name, name, prompt_tokens=prompt)
        budget = world.budget(name)
        assert budget.remaining_work_s - budget.stage_work_s == pytest.approx(tail_s)


def test_aggregates_count_all_siblings_and_siblings_share_what_they_say() -> None:
    world = World(GRAPHS)
    world.run("wide", ("draft", 100), ("vote", 10), ("end", 20), width=4)
    world.run("narrow", ("draft", 100), ("vote", 10), ("end", 990))
    for workflow, width, tail_s in (("w", 4, 2), ("n", 1, 99)):
        drafts = [f"{workflow}{member}" for member in range(width)]
        for call in drafts:
            world.arrive(call, workflow, stage="draft")
        for call in drafts:
            world.end(call, output=100)
        votes = [f"{call}-2" for call in drafts]
        for call in votes:
            world.arrive(call, workflow, stage="vote")
        budgets = [world.budget(call) for call in votes]
        assert len(set(budgets)) == 1
        assert budgets[0].remaining_work_s - budgets[0].stage_work_s == pytest.approx(tail_s)
        assert budgets[0].stage_budget_s == pytest.approx(SLO_S / (1 + tail_s))


def test_a_sibling_that_has_ended_is_still_of_the_present_stage() -> None:
    world = taught()
    world.arrive("a", stage="draft")
    world.arrive("b", stage="draft")
    world.end("a", output=10)
    world.budget("b")
    assert world.explain()["stages"][0]["match"]["stage"] == "draft"


def test_a_stage_of_which_all_failed_is_still_to_be_done() -> None:
    world = taught()
    world.arrive("a", stage="draft")
    world.end("a", outcome=Outcome.ENGINE_ERROR)
    world.arrive("b", stage="draft")
    world.budget("b")
    assert world.explain()["stages"][-1]["match"]["stage"] == "draft"


def test_a_member_that_comes_changes_what_the_stage_reads() -> None:
    world = World(GRAPHS)
    for name, prompt, after in (("a", 100, 10), ("b", 5000, 500)):
        world.arrive(f"{name}1", name, prompt_tokens=prompt)
        world.end(f"{name}1")
        world.arrive(f"{name}2", name, final=True)
        world.end(f"{name}2", output=after)
    for member, tail_s in enumerate([1, 1, 50, 50, 50]):
        world.arrive(f"w{member}", stage="draft", prompt_tokens=300)
        budget = world.budget(f"w{member}")
        assert budget.remaining_work_s - budget.stage_work_s == pytest.approx(tail_s)


def test_announced_members_count_before_they_come() -> None:
    world = World(GRAPHS)
    for name, width, after in (("a", 8, 10), ("b", 1, 500)):
        for member in range(width):
            world.arrive(f"{name}{member}", name, stage="draft", prompt_tokens=100)
        for member in range(width):
            world.end(f"{name}{member}")
        world.arrive(f"{name}-2", name, stage="vote", final=True)
        world.end(f"{name}-2", output=after)
    world.arrive("c", "c", stage="draft", prompt_tokens=100, stage_width=8)
    assert world.budget("c").remaining_work_s - world.budget("c").stage_work_s == pytest.approx(1)
    world.arrive("d", "d", stage="draft", prompt_tokens=100)
    assert world.budget("d").remaining_work_s - world.budget("d").stage_work_s == pytest.approx(50)


@pytest.mark.parametrize("application", ["unheard-of", "app"])
def test_what_no_graph_answers_goes_the_way_of_templates(application: str) -> None:
    """An application without graphs; and a workflow longer than any graph."""
    worlds = taught(GRAPHS), taught(TrackerSettings())
    told = []
    for world in worlds:
        for stage in range(5):
            world.arrive(f"w{stage}", application=application, slo_s=SLO_S)
            budget = world.budget(f"w{stage}")
            world.at(world.now_s + 1).end(f"w{stage}", output=50)
        told.append(budget)
        assert world.explain()["stages"][-1]["match"] is None
    assert told[0] == told[1]


def test_a_declared_plan_outranks_what_was_seen() -> None:
    world = taught()
    plan = (StagePlan("draft"), StagePlan("next"), StagePlan("end", output_tokens=70))
    declaration = WorkflowDeclaration(WorkflowId("w"), "app", stages=plan)
    world.tracker.declare(declaration, world.now_s)
    after_draft(world, output=11)
    assert world.budget("w-2").remaining_work_s - world.budget("w-2").stage_work_s == 7
    assert world.explain()["stages"][-1]["match"] is None


def test_several_matches_are_averaged() -> None:
    world = taught(TrackerSettings(structure=Structure.GRAPHS, graph_matches=2))
    after_draft(world, output=100)
    shares = sorted([30 / 39, 1.0])
    assert shares[0] < world.budget("w-2").stage_budget_s / (SLO_S - 1) < shares[1]
    assert world.explain()["stages"][-1]["match"]["averaged"] == 2


def test_a_stage_that_ends_is_matched_anew() -> None:
    world = taught()
    world.arrive("a", stage="draft", slo_s=SLO_S)
    world.budget("a")
    assert world.explain()["stages"][0]["match"]["of"] == 2
    world.at(world.now_s + 1).end("a", output=11)
    world.arrive("b", stage="next")
    world.budget("b")
    world.at(world.now_s + 1).end("b", output=290)
    world.arrive("c", stage="vote")
    assert world.budget("c").stage_budget_s == pytest.approx(SLO_S - 2)
    matches = [stage["match"] for stage in world.explain()["stages"]]
    assert [match["of"] for match in matches] == [2, 2, 1]
    assert [match["stage"] for match in matches][1:] == ["fix", "vote"]


def test_explain_shows_the_match() -> None:
    world = after_draft(taught(), output=10)
    world.budget("w-2")
    match = world.explain()["stages"][-1]["match"]
    assert match == {
        "similarity": 1.0,
        "of": 2,
        "averaged": 1,
        "time_share": pytest.approx(30 / 39),
        "stage": "fix",
        "remaining": [{"stage": "vote", "prompt_tokens": 0.0, "output_tokens": 90.0}],
    }
    json.dumps(world.explain(), allow_nan=False)
    assert taught(TrackerSettings()).explain("long-draft")["stages"][0]["match"] is None


def test_only_what_went_well_and_was_seen_whole_is_learned() -> None:
    world = World(GRAPHS)
    world.arrive("a", "failed", final=True)
    world.end("a", outcome=Outcome.ENGINE_ERROR)
    world.arrive("b", "cancelled", final=True)
    world.end("b", outcome=Outcome.CANCELLED)
    assert len(world.tracker.graphs) == 0
    world.arrive("c", "well", stage="draft", prompt_tokens=7)
    world.arrive("d", "well", stage="draft", prompt_tokens=9)
    world.end("c", outcome=Outcome.ENGINE_ERROR)
    world.end("d", output=5)
    world.arrive("e", "well", stage="vote", prompt_tokens=3, final=True)
    world.end("e", output=2)
    kept = json.loads(json.dumps(world.tracker.graphs.dump()["app"]))
    assert kept == {"graphs": [[["draft", "vote"], [9, 3], [5, 2], [9, 3], [5, 2]]], "used": [1]}


def test_a_call_sent_again_counts_once() -> None:
    world = taught()
    world.arrive("a", stage="draft", prompt_tokens=100, dedupe_key="k")
    world.arrive("a-again", stage="draft", prompt_tokens=100, dedupe_key="k")
    world.budget("a-again")
    (visit,) = world.tracker._live[WorkflowId("w")].visits
    assert (visit.members, visit.asked_tokens) == (1, 100)
    world.end("a", outcome=Outcome.CANCELLED)
    world.end("a-again", output=10)
    assert (visit.total_output_tokens, visit.total_input_tokens) == (10, 100)


def test_parallel_stages_are_one_super_node() -> None:
    world = World(GRAPHS)
    for stage, output in (("search", 30), ("code", 70)):
        world.arrive(stage, "p", stage=stage, prompt_tokens=output)
    world.end("search", output=30)
    world.end("code", output=70)
    world.arrive("join", "p", stage="join", final=True)
    world.end("join", output=5)
    kept = json.loads(json.dumps(world.tracker.graphs.dump()["app"]))
    assert kept["graphs"] == [[["code+search", "join"], [100, 0], [100, 5], [70, 0], [70, 5]]]


def test_a_restart_keeps_the_history() -> None:
    world = taught()
    snapshot = json.loads(json.dumps(world.tracker.snapshot(world.now_s)))
    restarted = World(GRAPHS)
    restarted.tracker.restore(snapshot, 0.0)
    assert json.loads(json.dumps(restarted.tracker.snapshot(0.0))) == snapshot
    budgets = []
    for each in (world, restarted):
        began_s = each.now_s
        budget = after_draft(each, output=11).budget("w-2")
        budgets.append((budget.stage_deadline_s - began_s, budget.remaining_work_s))
    assert budgets[0] == pytest.approx(budgets[1])


def test_a_workflow_of_before_a_restart_goes_the_way_of_templates() -> None:
    world = taught()
    world.arrive("w-1", stage="draft", slo_s=SLO_S)
    world.end("w-1", output=11)
    restarted = World(GRAPHS)
    restarted.tracker.restore(world.tracker.snapshot(world.now_s), 0.0)
    before = len(restarted.tracker.graphs)
    restarted.arrive("w-2", stage="vote", final=True)
    restarted.budget("w-2")
    assert restarted.explain()["stages"][-1]["match"] is None
    restarted.end("w-2")
    assert len(restarted.tracker.graphs) == before


def test_a_snapshot_of_before_there_were_graphs_is_taken() -> None:
    world = taught()
    snapshot = world.tracker.snapshot(world.now_s)
    del snapshot["graphs"], snapshot["tool_windows"]
    restarted = World(GRAPHS)
    restarted.tracker.restore(snapshot, 0.0)
    assert restarted.tracker.templates.dump() == world.tracker.templates.dump()
    assert len(restarted.tracker.graphs) == 0
    after_draft(restarted, output=11)
    assert restarted.budget("w-2").remaining_work_s > restarted.budget("w-2").stage_work_s


@pytest.mark.parametrize("graphs", [[], {"app": 3}, {"app": {"graphs": [[]], "used": [1]}}])
def test_a_snapshot_with_other_graphs_changes_nothing(graphs: object) -> None:
    snapshot = taught().tracker.snapshot(9.0)
    tracker = taught().tracker
    before = tracker.snapshot(9.0)
    with pytest.raises(ValueError, match=r"graph|objects"):
        tracker.restore({**snapshot, "graphs": graphs}, 9.0)
    assert tracker.snapshot(9.0) == before


def test_bounds_come_from_the_settings() -> None:
    bounds = GraphBounds(per_application=3)
    world = World(TrackerSettings(structure=Structure.GRAPHS, graphs=bounds))
    for number in range(10):
        world.run(f"w{number}", ("draft", 10 + number))
    assert world.tracker.graphs.count("app") == 3


def test_graphs_are_learned_though_templates_are_asked() -> None:
    world = taught(TrackerSettings())
    assert world.tracker.graphs.count("app") == 2
    assert world.tracker.stats()["structure"] == "templates"
    assert GraphStructure(world.tracker.graphs).next(
        next(iter(after_draft(world, 11).tracker._live.values()))
    )


def test_a_budget_asked_twice_is_matched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = after_draft(taught(), output=11)
    looked_up: list[str] = []
    match = world.tracker.graphs.match

    def counted(application: str, *args: object) -> object:
        looked_up.append(application)
        return match(application, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(world.tracker.graphs, "match", counted)
    first = world.budget("w-2")
    assert world.at(world.now_s + 1).budget("w-2") == first
    assert looked_up == ["app"]


def test_arrays_are_loaded_only_where_graphs_are_asked() -> None:
    code = (
        "import sys; from workflows.tracker import Tracker; Tracker(); assert 'numpy' not in"
        " sys.modules; from workflows.settings import *; "
        "Tracker(TrackerSettings(structure=Structure.GRAPHS)); assert 'numpy' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_tracker_that_asks_graphs_is_a_tracker() -> None:
    assert Tracker(GRAPHS).stats() == {
        "structure": "graphs",
        "graphs": {"applications": 0, "graphs": 0, "super_nodes": 0},
        "tools": [],
        "stage_models": {"model": "bayes", "row_bytes": 0, "answers": 0, "applications": {}},
    }
