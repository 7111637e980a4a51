"""Application models: what is learned from finished workflows, and what is answered from it."""

from __future__ import annotations

import itertools
import json
from math import log2

import pytest
from stage_story import LEARNER, TPOT_S, Story, needs_library, sizes, stage, work_s

from dispatcher.core.types import CallId, WorkflowId
from dispatcher.core.workflow_types import StageKind, WorkflowDeclaration
from dispatcher.stage_models import StageFit, fit_stages, stage_fitter
from workflows.plan import PlanError
from workflows.settings import TrackerSettings
from workflows.stage_profiles import StageModel, StageModelSettings
from workflows.tracker import Tracker

PIPELINE = ("split", "sort", "merge")


def taught(count: int = 120, **settings) -> Story:
    """Three stages, each as long as the job is large."""
    story = Story(**settings)
    for number, size in enumerate(sizes(count)):
        story.play(f"old-{number}", [(name, size) for name in PIPELINE])
    return story


def told(story: Story, application: str = "app") -> dict:
    models = story.profiles.stats()["applications"]
    assert isinstance(models, dict)
    return models[application]


# --- how long is left ---


@needs_library
def test_the_posterior_narrows_as_stages_end() -> None:
    story = taught(240)
    assert told(story)["method"] == "bayes"
    call = story.begin("new", "split")
    before = story.remaining("new")
    assert before.known
    # a third of the jobs each take 3, 12 or 48 s
    assert before.low_s < 4.0 < before.mean_s < 32.0 < before.high_s
    story.at(story.now_s + 1.0).finish(call)
    story.begin("new", "sort")
    after = story.remaining("new")
    assert after.high_s - after.low_s < 0.5 * (before.high_s - before.low_s)
    assert after.mean_s < 0.4 * before.mean_s


def test_without_a_network_what_ended_tells_nothing_of_the_rest() -> None:
    story = taught(learner=None)
    assert told(story)["method"] == "independent"
    call = story.begin("new", "split")
    story.at(story.now_s + 1.0).finish(call)
    story.begin("new", "sort")
    left = story.remaining("new")
    # two stages of 7 s on average, though this job is small
    assert left.mean_s == pytest.approx(14.0, rel=0.2)
    assert story.tracker.uncertainty(CallId(f"c{story.calls}")) == 0.0


def test_before_there_is_a_model_budgets_answer() -> None:
    story = taught(15)
    story.begin("new", "split")
    left = story.remaining("new")
    assert not left.known
    assert left.low_s == left.mean_s == left.high_s > 0.0
    assert story.tracker.remaining(WorkflowId("nobody"), work_s) is None


def test_none_learns_and_answers_nothing() -> None:
    story = taught(model=StageModel.NONE)
    story.begin("new", "split")
    assert not story.remaining("new").known
    assert story.profiles.stats()["applications"] == {}


def test_the_pace_of_the_fleet_scales_decoding_and_nothing_else() -> None:
    story = Story()
    for number, size in enumerate(sizes(60)):
        story.play(f"old-{number}", [("write", size), ("check", 2.0)], gap_s=5.0)
    story.begin("new", "write")
    now = story.remaining("new")
    slow = story.tracker.remaining(WorkflowId("new"), lambda p, o: 2 * work_s(p, o))
    # the gap of 5 s at the client stays what it is
    assert slow.mean_s - 5.0 == pytest.approx(2 * (now.mean_s - 5.0), rel=0.02)


def test_durations_under_load_are_learned_as_if_there_were_none() -> None:
    quiet, busy = Story(), Story()
    for number, size in enumerate(sizes(60)):
        quiet.play(f"old-{number}", [("write", size), ("check", 2.0)])
        # three times as long, at a third of the pace
        stages = [("write", 3 * size), ("check", 6.0)]
        busy.play(f"old-{number}", stages, tpot_s=3 * TPOT_S)
    quiet.begin("new", "write")
    busy.begin("new", "write")
    assert busy.remaining("new").mean_s == pytest.approx(quiet.remaining("new").mean_s, rel=0.01)


@needs_library
def test_what_runs_for_long_will_run_on() -> None:
    story = taught(240)
    story.begin("new", "split")
    first = story.remaining("new")
    story.at(story.now_s + 10.0).begin("other", "split")
    later = story.remaining("new")
    # no small and no middle job any more: what is left grew although ten seconds have passed
    assert later.low_s > 2.0 * first.low_s
    assert later.mean_s > first.mean_s


def test_work_counts_what_runs_side_by_side() -> None:
    story = Story()
    for number, size in enumerate(sizes(40)):
        first, second = (story.begin(f"old-{number}", "both") for _ in range(2))
        story.at(story.now_s + size).finish(first)
        story.finish(second)
        story.play(f"old-{number}", [("vote", 1.0)])
    story.begin("new", "both")
    left = story.remaining("new")
    assert left.work_s - 1.0 == pytest.approx(2 * (left.mean_s - 1.0), rel=0.05)


# --- structure ---


def test_chains_are_padded_to_the_longest() -> None:
    story = Story()
    for number in range(80):
        rounds = 1 + number % 3
        story.play(f"old-{number}", [("write", 2.0), ("review", 1.0)] * rounds)
    names = [each["stage"] for each in told(story)["stages"]]
    assert names == ["write", "review", "write#2", "review#2", "write#3", "review#3"]
    executed = {each["stage"]: each["executed"] for each in told(story)["stages"]}
    assert executed["write#2"] == pytest.approx(2 / 3, abs=0.05)
    assert executed["write#3"] == pytest.approx(1 / 3, abs=0.05)
    story.begin("new", "write")
    assert story.remaining("new").mean_s == pytest.approx(6.0, rel=0.1)
    assert story.remaining("new").high_s == pytest.approx(9.0, rel=0.1)


@needs_library
def test_a_round_that_came_tells_of_its_other_half() -> None:
    story = Story()
    for number in range(120):
        rounds = 1 + number % 3
        story.play(f"old-{number}", [("write", 2.0), ("review", 1.0)] * rounds)
    story.play("new", [("write", 2.0), ("review", 1.0), ("write", 2.0)], final=False)
    story.begin("new", "review")
    # half of these have a third round
    assert story.remaining("new").mean_s == pytest.approx(1.0 + 1.5, rel=0.2)


def test_a_stage_that_was_passed_over_will_not_come() -> None:
    story = Story()
    for number in range(60):
        optional = [("fix", 8.0)] if number % 2 else []
        story.play(f"old-{number}", [("draft", 2.0), *optional, ("answer", 1.0)])
    story.play("new", [("draft", 2.0)], final=False)
    between = story.remaining("new")
    assert between.mean_s == pytest.approx(5.0, rel=0.15)
    story.begin("new", "answer")
    assert story.remaining("new").mean_s == pytest.approx(1.0, rel=0.1)
    stages = {each["stage"]: each["status"] for each in story.explain("new")["model"]["stages"]}
    assert stages == {"draft": "ended", "fix": "not executed", "answer": "under way"}


def test_declared_branches_run_side_by_side() -> None:
    declared = (
        stage("split"),
        stage("left", after=["split"]),
        stage("right", after=["split"]),
        stage("merge", after=["left", "right"]),
    )
    story = Story(declared={"app": declared})
    for number in range(40):
        story.play(f"old-{number}", [("split", 1.0)], final=False)
        both = [story.begin(f"old-{number}", name) for name in ("left", "right")]
        story.at(story.now_s + 4.0).finish(both[0])
        story.at(story.now_s + 2.0).finish(both[1])
        story.play(f"old-{number}", [("merge", 1.0)])
    assert told(story)["source"] == "declared"
    call = story.begin("new", "split")
    assert story.remaining("new").mean_s == pytest.approx(1.0 + 6.0 + 1.0, rel=0.02)
    shape = story.tracker.stage_shape(call)
    assert (shape.height, shape.children) == (2, 2)


def test_what_runs_at_clients_is_seen_as_a_gap_or_reported() -> None:
    declared = (stage("write"), stage("execute", "regular"), stage("answer"))
    story = Story(declared={"app": declared})
    for number in range(40):
        name = f"old-{number}"
        story.play(name, [("write", 2.0)], final=False, gap_s=3.0)
        if number % 2:
            report(story, name, "execute", 3.0)
        story.play(name, [("answer", 1.0)])
    kinds = {each["stage"]: each["kind"] for each in told(story)["stages"]}
    assert kinds == {"write": "llm", "execute": "regular", "answer": "llm"}
    story.begin("new", "write")
    assert story.remaining("new").mean_s == pytest.approx(6.0, rel=0.02)
    story.play("other", [("write", 2.0)], final=False, gap_s=2.0)
    report(story, "other", "execute", 2.0)
    assert story.remaining("other").mean_s == pytest.approx(1.0, rel=0.02)


def report(story: Story, workflow: str, name: str, seconds: float) -> None:
    story.tracker.stage_reported(WorkflowId(workflow), name, seconds, story.now_s)


def test_moments_between_calls_are_no_stages() -> None:
    story = Story()
    for number, size in enumerate(sizes(40)):
        story.play(f"old-{number}", [("draft", size), ("answer", size)], gap_s=0.01)
    assert [each["stage"] for each in told(story)["stages"]] == ["draft", "answer"]
    slow = Story()
    for number in range(40):
        slow.play(f"old-{number}", [("draft", 1.0), ("answer", 1.0)], gap_s=1.0)
    names = [each["stage"] for each in told(slow)["stages"]]
    assert names == ["draft", "before answer", "answer"]


# --- what an end would tell ---


def model(**changes) -> dict:
    """Two stages of two states; the second follows the first three times out of four."""
    variable = {"kind": "llm", "share": 1.0, "tasks": 1.0, "ran": 1.0, "may_not_run": False}
    bins = [[2.0, 1.0, 3.0], [8.0, 7.0, 9.0]]
    return {
        "method": "bayes",
        "samples": 100,
        "tpot_s": TPOT_S,
        "variables": [
            {**variable, "name": "first", "level": 0.0, "bins": bins},
            {**variable, "name": "second", "level": 1.0, "bins": bins},
        ],
        "before": [[], [0]],
        "parents": [[], [0]],
        "tables": [[0.5, 0.5], [0.75, 0.25, 0.25, 0.75]],
        "candidates": [],
        "edges": [],
        **changes,
    }


def with_model(state: dict, **settings) -> Story:
    story = Story(fitter=None, **settings)
    for number in range(20):
        story.play(f"old-{number}", [("first", 1.0), ("second", 1.0)])
    story.profiles.install("app", state, story.now_s)
    return story


def test_uncertainty_reduction_worked_out_by_hand() -> None:
    story = with_model(model())
    first = story.begin("new", "first")
    bits = 1.0 + 0.25 * log2(0.25) + 0.75 * log2(0.75)
    # both states of the second are likely: from 1 s to 9 s
    assert story.tracker.uncertainty(first) == pytest.approx(bits * 8.0)
    story.at(story.now_s + 2.0).finish(first)
    second = story.begin("new", "second")
    assert story.tracker.uncertainty(second) == 0.0
    assert story.tracker.uncertainty(CallId("nobody")) == 0.0


def test_unlikely_states_make_no_range() -> None:
    story = with_model(model(tables=[[0.5, 0.5], [0.995, 0.005, 0.992, 0.008]]))
    first = story.begin("new", "first")
    reach = story.tracker.uncertainty(first)
    network = story.profiles._applications["app"].profile.network
    assert reach == pytest.approx(network.information_bits([1], 0, {}) * 2.0)


def test_a_planner_tells_what_it_plans() -> None:
    dynamic = {
        "name": "tools", "kind": "dynamic", "level": 1.0, "share": 0.0, "tasks": 2.0, "ran": 1.0,
        "may_not_run": False, "bins": [[2.0, 1.0, 3.0], [6.0, 5.0, 7.0]],
    }  # fmt: skip
    candidate = {
        "kind": "regular",
        "share": 0.0,
        "tasks": 1.0,
        "mean": 2.0,
        "quantiles": [2.0, 2.0],
    }
    state = model()
    state = {
        **state,
        "variables": [state["variables"][0], dynamic],
        "tables": [[0.5, 0.5], [0.5, 0.5, 0.5, 0.5]],
        "candidates": [
            {**candidate, "name": "tools\x1esearch", "ran": 0.5},
            {**candidate, "name": "tools\x1eread", "ran": 0.25},
        ],
        "edges": [["tools\x1esearch", "tools\x1eread", 0.25]],
    }
    declared = (stage("first"), stage("tools", "dynamic", candidates=("search", "read")))
    story = with_model(state, declared={"app": declared})
    planner = story.begin("new", "first")
    quarter = -0.25 * log2(0.25) - 0.75 * log2(0.75)
    # the network tells nothing: H of the candidates and of the edge, times 7 s - 1 s
    assert story.tracker.uncertainty(planner) == pytest.approx((1.0 + 2 * quarter) * 6.0)


def test_the_end_of_a_stage_that_tells_is_worth_more_than_one_that_does_not() -> None:
    story = taught()
    call = story.begin("new", "split")
    told_by_first = story.tracker.uncertainty(call)
    assert told_by_first >= 0.0
    story.at(story.now_s + 16.0).finish(call)
    sort = story.begin("new", "sort")
    # that it is a large job is known by now
    assert story.tracker.uncertainty(sort) <= told_by_first


# --- planners ---

ASSISTANT = (
    stage("plan"),
    stage("tools", "dynamic", candidates=("search", "read", "think")),
    stage("answer", after=["tools"]),
)


def assistant(count: int = 60) -> Story:
    """Half of the jobs search (4 s) and then read (1 s), half think (an LLM stage of 10 s)."""
    story = Story(declared={"app": ASSISTANT})
    for number in range(count):
        name = f"old-{number}"
        story.play(name, [("plan", 1.0)], final=False)
        if number % 2:
            post(story, name, stage("search"), stage("read", after=["search"]))
            for tool, seconds in (("search", 4.0), ("read", 1.0)):
                story.at(story.now_s + seconds)
                report(story, name, tool, seconds)
        else:
            post(story, name, stage("think"))
            story.play(name, [("think", 10.0)], final=False)
        story.play(name, [("answer", 2.0)])
    return story


def post(story: Story, workflow: str, *stages) -> None:
    story.tracker.plan_posted(WorkflowId(workflow), stages, story.now_s)


def test_a_posted_plan_resolves_the_dynamic_stage() -> None:
    story = assistant()
    assert [each["stage"] for each in told(story)["stages"]] == ["plan", "tools", "answer"]
    story.play("new", [("plan", 1.0)], final=False)
    before = story.remaining("new")
    assert before.mean_s == pytest.approx(0.5 * 5.0 + 0.5 * 10.0 + 2.0, rel=0.1)
    assert before.high_s - before.low_s > 4.0
    post(story, "new", stage("search"), stage("read", after=["search"]))
    after = story.remaining("new")
    assert after.mean_s == pytest.approx(5.0 + 2.0, rel=0.02)
    assert after.high_s - after.low_s < 0.5
    explained = story.explain("new")["model"]["stages"][1]
    assert explained["status"] == "planned"
    assert explained["planned"] == ["search", "read"]


def test_what_of_a_plan_is_done_is_not_left() -> None:
    story = assistant()
    story.play("new", [("plan", 1.0)], final=False)
    post(story, "new", stage("search"), stage("search#2", after=["search"]))
    assert story.remaining("new").mean_s == pytest.approx(4.0 + 4.0 + 2.0, rel=0.02)
    report(story.at(story.now_s + 4.0), "new", "search", 4.0)
    assert story.remaining("new").mean_s == pytest.approx(4.0 + 2.0, rel=0.02)
    report(story.at(story.now_s + 4.0), "new", "search#2", 4.0)
    assert story.remaining("new").mean_s == pytest.approx(2.0, rel=0.02)


def test_what_has_run_of_an_unknown_plan_is_not_left() -> None:
    story = Story(declared={"app": ASSISTANT})
    for number in range(60):
        name = f"old-{number}"
        story.play(name, [("plan", 1.0)], final=False)
        # read once or twice
        story.play(name, [("read", 4.0)] * (1 + number % 2), final=False)
        story.play(name, [("answer", 2.0)])
    story.play("new", [("plan", 1.0)], final=False)
    assert story.remaining("new").mean_s == pytest.approx(6.0 + 2.0, rel=0.05)
    story.play("new", [("read", 4.0)], final=False)
    # it may be all, or half of it
    assert story.remaining("new").mean_s < 0.8 * (6.0 + 2.0)
    assert story.remaining("new").high_s == pytest.approx(4.0 + 2.0, rel=0.2)
    call = story.begin("new", "answer")
    assert story.remaining("new").mean_s == pytest.approx(2.0, rel=0.05)
    assert story.tracker.uncertainty(call) == 0.0


def test_a_plan_that_wants_nothing_leaves_nothing_to_run() -> None:
    story = assistant()
    story.play("new", [("plan", 1.0)], final=False)
    post(story, "new", stage("answer"))
    assert story.remaining("new").mean_s == pytest.approx(2.0, rel=0.02)


def test_a_planner_is_uncertain_of_what_it_will_plan() -> None:
    story = assistant()
    planner = story.begin("new", "plan")
    bits = 4.0  # three candidates and an edge, each in half of all jobs
    assert story.tracker.uncertainty(planner) == pytest.approx(bits * (10.0 - 5.0), rel=0.1)


def test_candidates_that_call_scale_with_the_load() -> None:
    story = assistant()
    story.play("new", [("plan", 1.0)], final=False)
    post(story, "new", stage("think"))
    slow = story.tracker.remaining(WorkflowId("new"), lambda p, o: 2 * work_s(p, o))
    assert story.remaining("new").mean_s == pytest.approx(12.0, rel=0.02)
    assert slow.mean_s == pytest.approx(24.0, rel=0.02)


def test_a_plan_of_an_undeclared_application_says_what_will_not_run() -> None:
    story = Story()
    for number in range(60):
        extra = [("fix", 8.0)] if number % 2 else []
        story.play(f"old-{number}", [("draft", 2.0), *extra, ("answer", 1.0)])
    story.play("new", [("draft", 2.0)], final=False)
    post(story, "new", stage("answer"))
    assert story.remaining("new").mean_s == pytest.approx(1.0, rel=0.05)
    story.play("other", [("draft", 2.0)], final=False)
    post(story, "other", stage("fix"), stage("answer"))
    assert story.remaining("other").mean_s == pytest.approx(9.0, rel=0.05)


def test_of_a_plan_with_strange_stages_the_model_speaks_of_the_rest() -> None:
    story = taught()
    story.play("new", [("split", 1.0)], final=False)
    story.play("other", [("split", 1.0)], final=False)
    post(story, "new", stage("sort"), stage("merge"))
    strange = (stage("dance", output_tokens=50), stage("sing", output_tokens=20))
    post(story, "other", stage("sort"), stage("merge"), *strange)
    usual, longer = story.remaining("new"), story.remaining("other")
    assert usual.known
    assert longer.known
    # as long as declared
    more = (50 + 20) * TPOT_S
    assert longer.mean_s == pytest.approx(usual.mean_s + more)
    assert longer.high_s == pytest.approx(usual.high_s + more)
    call = story.begin("other", "dance")
    later = story.tracker.remaining(WorkflowId("other"), work_s, story.now_s + 3.0)
    assert later.mean_s == pytest.approx(longer.mean_s - 3.0)
    story.at(story.now_s + 3.0).finish(call)
    assert story.remaining("other").mean_s == pytest.approx(usual.mean_s + 20 * TPOT_S, rel=0.2)


# --- declarations ---


def declare(story: Story, *stages, workflow: str = "w") -> None:
    declaration = WorkflowDeclaration(WorkflowId(workflow), "app", stages=stages)
    story.tracker.declare(declaration, story.now_s)


def test_a_client_declares_an_application_by_its_kinds() -> None:
    story = taught(30)
    declare(story, stage("split"), stage("sort"))
    assert told(story)["source"] == "learned"
    declare(story, *ASSISTANT)
    assert told(story)["source"] == "declared"
    assert told(story)["workflows"] == 0


def test_one_odd_declaration_does_not_take_the_place_of_what_is_learned() -> None:
    story = Story(min_workflows=5)
    declare(story, *ASSISTANT, workflow="first")
    for number in range(10):
        story.play(f"old-{number}", [("plan", 1.0)], final=False, gap_s=2.0)
        story.play(f"old-{number}", [("answer", 2.0)])
    other = (stage("plan"), stage("tools", "regular"))
    declare(story, *other, workflow="odd")
    declare(story, *ASSISTANT, workflow="usual")
    for number in range(4):
        declare(story, *other, workflow=f"odd-{number}")
    assert told(story)["workflows"] == 10
    declare(story, *other, workflow="odd-4")
    assert told(story)["workflows"] == 0


@pytest.mark.parametrize(
    "stages",
    [
        (stage("a", "dynamic"), stage("a")),
        (stage("a", "dynamic", after=["b"]), stage("b", after=["a"])),
        (stage("a", candidates=("x",)), stage("b", "regular")),
        tuple(stage(f"s{n}", "regular") for n in range(65)),
    ],
)
def test_stages_that_are_no_application_change_nothing(stages) -> None:
    story = Story()
    with pytest.raises(PlanError):
        declare(story, *stages)
    assert story.tracker.live == 0
    with pytest.raises(PlanError):
        StageModelSettings(declared={"app": stages}) and Story(declared={"app": stages})


def test_unnamed_calls_of_a_declared_workflow_pass_what_runs_at_clients() -> None:
    story = Story()
    declare(story, stage("plan"), stage("tools", "dynamic"), stage("answer", after=["tools"]))
    assert story.arrive("a").stage == "plan"
    story.end("a")
    assert story.arrive("b").stage == "answer"


# --- fits ---


def test_fits_come_seldom_as_more_is_known() -> None:
    fits: list[int] = []
    fitter = stage_fitter(None)

    def counted(job):
        fits.append(len(job.rows))
        return fitter(job)

    taught(400, fitter=counted, refit_after=50)
    assert fits[0] == 20
    assert len(fits) < 14
    assert all(b - a <= 50 for a, b in itertools.pairwise(fits))


def test_a_fit_that_fails_leaves_the_model_that_is_there() -> None:
    good, fail = stage_fitter(None), False

    def fitter(job):
        if fail:
            raise RuntimeError("out of luck")
        return good(job)

    story = taught(25, fitter=fitter)
    fail = True
    for number in range(60):
        story.play(f"more-{number}", [(name, 1.0) for name in PIPELINE])
    assert told(story)["error"] == "out of luck"
    assert told(story)["samples"] == 20
    story.begin("new", "split")
    assert story.remaining("new").known


@pytest.mark.parametrize(
    "broken",
    [
        {},
        model(tables=[[0.5, 0.5], [1.0]]),
        model(tpot_s=0.0),
        model(parents=[[1], [0]], tables=[[0.5] * 4, [0.5] * 4]),
        model(edges=[["a", "b"]]),
        model(before=[[], [7]]),
        model(before=[[]]),
        model(before=[[1], [0]]),
        {**model(), "variables": [{"name": "first"}]},
    ],
)
def test_what_is_no_model_is_not_installed(broken) -> None:
    story = with_model(model())
    with pytest.raises((KeyError, TypeError, ValueError)):
        story.profiles.install("app", broken, 1.0)
    story.begin("new", "first")
    assert story.remaining("new").known


def test_without_the_library_stages_are_independent_and_it_says_so() -> None:
    story = taught(30, fitter=None)
    job = story.profiles.job("app")
    found = fit_stages(StageFit(job, "stage_story:without_library"))
    assert found["method"] == "independent"
    assert "no such library" in found["why"]
    story.profiles.install("app", found, 1.0)
    assert told(story)["why"] == found["why"]


def test_a_network_too_large_to_ask_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    story = taught(30, fitter=None)
    job = story.profiles.job("app")
    monkeypatch.setattr("workflows.stage_network.MAX_CELLS", 10)
    found = fit_stages(StageFit(job, LEARNER))
    assert found["method"] == "independent"


@needs_library
def test_a_question_too_large_is_left_to_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    story = taught()
    call = story.begin("new", "split")
    monkeypatch.setattr("workflows.stage_network.MAX_CELLS", 1)
    assert not story.remaining("new").known
    assert story.tracker.uncertainty(call) == 0.0


# --- kept, bounded ---


def test_models_come_back_after_a_restart() -> None:
    story = assistant()
    snapshot = json.loads(json.dumps(story.tracker.snapshot(story.now_s)))
    settings = story.tracker.settings
    restored = Story(declared=settings.stage_models.declared)
    restored.tracker.restore(snapshot, story.now_s)
    restored.at(story.now_s)
    for each in (story, restored):
        each.calls = 10_000
        each.play("new", [("plan", 1.0)], final=False)
        post(each, "new", stage("search"))
    assert restored.remaining("new") == story.remaining("new")
    assert told(restored)["workflows"] == told(story)["workflows"]
    # what is learned goes on
    assert (
        restored.tracker.snapshot(0.0)["stage_models"]
        == story.tracker.snapshot(0.0)["stage_models"]
    )


def test_a_workflow_that_was_running_at_the_restart_is_taken_up_by_depth() -> None:
    story = taught()
    story.play("new", [("split", 4.0)], final=False)
    snapshot = json.loads(json.dumps(story.tracker.snapshot(story.now_s)))
    restored = Story()
    restored.tracker.restore(snapshot, story.now_s)
    restored.at(story.now_s).calls = 10_000
    left = restored.remaining("new")
    assert left.known
    # two stages of 7 s on average are left: how long the first took is not known any more
    assert left.mean_s == pytest.approx(14.0, rel=0.25)


def test_an_application_declared_otherwise_now_begins_anew() -> None:
    story = assistant()
    snapshot = story.tracker.snapshot(story.now_s)
    other = Story(declared={"app": (stage("plan"), stage("answer"))})
    other.tracker.restore(snapshot, 0.0)
    assert other.profiles.stats()["applications"] == {}


def break_rows(state: dict) -> None:
    state["rows"] = state["rows"][:-8]


@pytest.mark.parametrize(
    "damage",
    [
        break_rows,
        lambda state: state.update(rows="no base64!"),
        lambda state: state.update(columns=[]),
        lambda state: state.update(columns=7),
        lambda state: state.update(sizes=[[1, 0]]),
        lambda state: state.update(stages=[{"name": "x"}]),
        lambda state: state.update(model={}),
        lambda state: state.update(total=-1),
    ],
)
def test_a_damaged_snapshot_is_refused_whole(damage) -> None:
    story = taught(40)
    snapshot = json.loads(json.dumps(story.tracker.snapshot(0.0)))
    damage(snapshot["stage_models"]["app"])
    fresh = Tracker(TrackerSettings())
    with pytest.raises((KeyError, ValueError)):
        fresh.restore(snapshot, 0.0)
    assert fresh.profiles.stats()["applications"] == {}
    assert fresh.live == 0


def test_a_snapshot_from_before_there_were_models_is_taken() -> None:
    story = taught(40)
    snapshot = story.tracker.snapshot(0.0)
    del snapshot["stage_models"]
    fresh = Tracker(TrackerSettings())
    fresh.restore(snapshot, 0.0)
    assert fresh.profiles.stats()["applications"] == {}


def test_ten_thousand_workflows_of_fifty_applications_stay_bounded() -> None:
    story = Story(fitter=stage_fitter(None), refit_after=100)
    names = [f"stage-{n}" for n in range(8)]
    for number, size in enumerate(sizes(10_000)):
        application = f"app-{number % 50}"
        story.play(f"w{number}", [(name, size) for name in names], application=application)
    models = story.profiles.stats()
    assert len(models["applications"]) == 50
    assert sum(each["workflows"] for each in models["applications"].values()) == 10_000
    assert all(each["samples"] >= 100 for each in models["applications"].values())
    # 18 bytes for each of eight stages
    assert models["row_bytes"] == 10_000 * 8 * 18
    for number in range(5_000):
        story.play(f"more-{number}", [("stage-0", 1.0)], application="app-0")
    assert story.profiles.stats()["applications"]["app-0"]["kept"] == 400
    assert story.profiles.stats()["row_bytes"] < 1_440_000
    # what a restart takes over is as much, and answers alike
    text = json.dumps(story.tracker.snapshot(story.now_s))
    restored = Story(fitter=None)
    restored.at(story.now_s).tracker.restore(json.loads(text), story.now_s)
    assert len(json.dumps(json.loads(text)["stage_models"])) < 6_000_000
    for each in (story, restored):
        each.calls = 1_000_000
        each.play("new", [("stage-0", 4.0)], application="app-7", final=False)
    assert restored.profiles.stats()["applications"] == story.profiles.stats()["applications"]
    assert restored.remaining("new") == story.remaining("new")
    assert restored.remaining("new").known


def test_the_application_that_learned_least_recently_goes_first() -> None:
    story = Story(applications=3)
    for name in ("a", "b", "c", "a", "d"):
        story.play(f"{name}-{story.calls}", [("only", 1.0)], application=name)
    assert set(story.profiles.stats()["applications"]) == {"c", "a", "d"}
    small = Story(row_bytes=100)
    for number in range(20):
        small.play(f"w{number}", [("only", 1.0)], application=f"app-{number}")
    assert small.profiles.stats()["row_bytes"] <= 100


def test_what_one_workflow_may_say_is_bounded() -> None:
    story = Story(min_workflows=5)
    for number in range(8):
        story.play(f"w{number}", [(f"stage-{n}", 1.0) for n in range(150)])
    found = told(story)
    assert len(found["stages"]) == 32
    assert found["bytes"] <= 8 * 96 * 18
    story.begin("new", "stage-0")
    assert story.remaining("new").known


def test_answers_are_remembered_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workflows.stage_answers.MAX_ANSWERS", 4)
    story = taught()
    for number in range(12):
        call = story.begin(f"new-{number}", "split")
        story.at(story.now_s + 0.7 * number).finish(call)
        story.begin(f"new-{number}", "sort")
        story.remaining(f"new-{number}")
        story.tracker.uncertainty(CallId(f"c{story.calls}"))
    assert story.profiles.stats()["answers"] <= 8


def test_the_same_question_is_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    story = taught()
    for number in range(2):
        story.begin(f"new-{number}", "split")
    story.remaining("new-0")
    asked: list[object] = []
    profile = story.profiles._applications["app"].profile
    work_out = type(profile).remaining

    def counted(self, question, tpot_s):
        asked.append(question)
        return work_out(self, question, tpot_s)

    monkeypatch.setattr(type(profile), "remaining", counted)
    assert story.remaining("new-1") == story.remaining("new-0")
    assert asked == []
    story.at(story.now_s + 9.0).begin("other", "split")
    story.remaining("new-1")
    assert len(asked) == 1


def test_kinds_of_undeclared_stages() -> None:
    story = assistant()
    assert story.profiles.kind("app", "tools") is StageKind.DYNAMIC
    assert story.profiles.kind("app", "whatever") is StageKind.LLM
    assert story.profiles.kind("nobody", "tools") is StageKind.LLM
