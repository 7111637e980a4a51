"""What is left shrinks as stages run, whoever says how much it is."""

from __future__ import annotations

import gc
import itertools
import json
import weakref

import pytest
from stage_story import TPOT_S, Story, needs_library, sizes, stage, work_s

from dispatcher.core.types import CallId, InstanceId, WorkflowId
from dispatcher.core.workflow_types import Remaining
from workflows.stage_application import remaining_told

W = WorkflowId("w")


def after(story: Story, seconds: float) -> Remaining:
    """As of so many seconds from now, to the moment; nothing has happened meanwhile."""
    found = story.tracker.remaining(W, work_s, story.now_s + seconds)
    assert found is not None
    return found


def ordered(left: Remaining) -> bool:
    return 0.0 <= left.low_s <= left.mean_s <= left.high_s


# --- budgets answer ---


def test_what_has_run_is_not_left_before_there_is_a_model() -> None:
    story = Story()
    for number in range(3):
        story.play(f"old-{number}", [("draft", 1.0), ("vote", 1.0)])
    story.begin("w", "draft", application="app")
    # ten tokens each
    assert after(story, 0.0).mean_s == pytest.approx(20 * TPOT_S)
    assert after(story, 0.4).mean_s == pytest.approx(20 * TPOT_S - 0.4)
    # the stage takes longer than predicted: what follows it is still left
    assert after(story, 60.0).mean_s == pytest.approx(10 * TPOT_S)
    assert not after(story, 60.0).known


def test_waiting_is_not_running() -> None:
    story = Story()
    story.arrive("a", stage="draft")
    waited = after(story, 0.0).mean_s
    assert after(story, 50.0).mean_s == waited
    story.tracker.call_dispatched(CallId("a"), InstanceId("e"), 0.0, story.now_s)
    assert after(story, 50.0).mean_s < waited


def test_of_stages_side_by_side_the_one_that_ends_last_is_left() -> None:
    story = Story()
    story.begin("w", "left")
    first = after(story, 0.0).mean_s
    story.at(story.now_s + 1.0).begin("w", "right")
    assert after(story, 0.0).mean_s == pytest.approx(first)
    assert after(story, 2.0).mean_s == pytest.approx(first - 2.0)


def test_an_interval_that_nobody_knows_is_not_told() -> None:
    story = Story()
    story.begin("w", "draft")
    told = remaining_told(after(story, 0.0))
    assert (told["low_s"], told["high_s"], told["known"]) == (None, None, False)
    assert isinstance(told["mean_s"], float)


# --- a model answers ---


@needs_library
def test_a_posterior_goes_with_what_runs() -> None:
    story = Story()
    for number, size in enumerate(sizes(240)):
        story.play(f"old-{number}", [("draft", size), ("answer", size)])
    story.begin("w", "draft")
    lefts = [after(story, seconds) for seconds in (0.0, 0.2, 0.4, 0.6)]
    assert all(left.known and ordered(left) for left in lefts)
    # nobody has ended within 0.9 s, so all are as likely as before and time passes for all
    for earlier, later in itertools.pairwise(lefts):
        assert later.mean_s == pytest.approx(earlier.mean_s - 0.2, abs=1e-6)
    assert all(ordered(after(story, seconds)) for seconds in (1.5, 3.0, 5.0, 12.0, 17.0, 500.0))
    # the longest drafts took 17.6 s: what is left then is the answer
    assert after(story, 500.0).mean_s <= 17.7


def test_the_moment_is_exact_for_people_and_coarse_for_policies() -> None:
    story = Story(learner=None)
    for number, size in enumerate(sizes(60)):
        story.play(f"old-{number}", [("draft", size)])
    story.begin("w", "draft")
    coarse = [story.at(story.now_s + 0.01).remaining("w").mean_s for _ in range(2)]
    assert coarse[0] == coarse[1]
    assert after(story, 0.01).mean_s > after(story, 0.02).mean_s


def test_a_planned_stage_that_runs_shrinks() -> None:
    declared = (
        stage("plan"),
        stage("tools", "dynamic", candidates=("think", "search")),
        stage("answer"),
    )
    story = Story(declared={"app": declared})
    for number in range(60):
        name = f"old-{number}"
        story.play(name, [("plan", 1.0)], final=False)
        story.tracker.plan_posted(WorkflowId(name), [stage("think"), stage("search")], story.now_s)
        story.play(name, [("think", 10.0)], final=False)
        story.at(story.now_s + 4.0)
        story.tracker.stage_reported(WorkflowId(name), "search", 4.0, story.now_s)
        story.play(name, [("answer", 2.0)])
    story.play("w", [("plan", 1.0)], final=False)
    story.tracker.plan_posted(W, [stage("think"), stage("search")], story.now_s)
    assert after(story, 0.0).mean_s == pytest.approx(10.0 + 4.0 + 2.0, rel=0.02)
    call = story.begin("w", "think")
    assert after(story, 3.0).mean_s == pytest.approx(7.0 + 4.0 + 2.0, rel=0.02)
    assert after(story, 99.0).mean_s == pytest.approx(4.0 + 2.0, rel=0.02)
    story.at(story.now_s + 10.0).finish(call)
    # at the client nobody says when it began: when the call before it ended
    assert after(story, 3.0).mean_s == pytest.approx(1.0 + 2.0, rel=0.02)
    assert ordered(after(story, 3.0))


def test_what_has_ended_keeps_no_model() -> None:
    story = Story(learner=None, refit_after=10)
    for number in range(20):
        story.play(f"old-{number}", [("draft", 1.0), ("vote", 2.0)])
    story.play("w", [("draft", 1.0)], final=False)
    assert story.remaining("w").known
    model = weakref.ref(story.profiles._applications["app"].profile)
    story.play("w", [("vote", 2.0)])
    for number in range(20):
        story.play(f"new-{number}", [("draft", 1.0), ("vote", 2.0)])
    gc.collect()
    assert story.explain("w")["state"] == "finished"
    assert model() is None


def test_when_a_model_was_fitted_is_told_and_kept() -> None:
    story = Story(fitter=None)
    for number in range(20):
        story.play(f"old-{number}", [("draft", 1.0), ("answer", 2.0)])
    job = story.profiles.job("app")
    assert job is not None
    fitted = Story(learner=None).profiles.settings.fitter
    assert fitted is not None
    story.profiles.install("app", fitted(job), 1_800_000_000.0)
    snapshot = json.loads(json.dumps(story.tracker.snapshot(story.now_s)))
    other = Story()
    other.tracker.restore(snapshot, 0.0)
    for each in (story, other):
        models = each.profiles.stats()["applications"]
        assert models["app"]["fitted_unix_s"] == 1_800_000_000.0
