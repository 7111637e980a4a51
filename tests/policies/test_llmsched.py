"""LLMSched's two lists, the coin between them, samples, and who may not starve."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_fakes import fake_call, fake_fleet, fake_instance

from dispatcher.core.types import CallId, WorkflowId
from dispatcher.core.workflow_types import Remaining
from policies import grouped_queue
from policies.llmsched import Llmsched

PROPERTY = settings(max_examples=100, deadline=None, derandomize=True)


class Jobs:
    """Calls that wait under LLMSched, with what a test says of their jobs."""

    def __init__(self, seed=0, **params):
        params = {"overdue_share": 0.0, **params}
        self.rng = random.Random(seed)
        self.ordering = Llmsched(self.rng, **params)
        self.fleet = fake_fleet(fake_instance("here"))
        self.queue = self.ordering.queue(None, self.fleet)
        self.calls = {}

    def know(self, job, mean_s, low_s=None, high_s=None, work_s=None, known=True):
        low_s, high_s = mean_s if low_s is None else low_s, mean_s if high_s is None else high_s
        left = Remaining(mean_s, low_s, high_s, work_s or mean_s, known)
        self.fleet.remainders[WorkflowId(job)] = left

    def add(self, job, *, stage="s", tasks=1, tells=0.0, now_s=0.0, **fields):
        for _ in range(tasks):
            number = len(self.calls) + 1
            name = f"{job}.{stage}.{number}"
            one = fake_call(name, number, workflow=job, arrived_s=now_s, **fields)
            object.__setattr__(one.placement, "stage", stage)
            self.fleet.uncertainties[CallId(name)] = tells
            self.calls[name] = one
            self.queue.push(one, now_s)

    def next(self, now_s=0.0):
        chosen = self.queue.select("", now_s)
        self.queue.remove(chosen.spec.call_id)
        return chosen.spec.call_id

    def stage(self, now_s=0.0):
        return ".".join(self.next(now_s).split(".")[:2])

    def drain(self):
        return [self.next() for _ in range(len(self.queue))]


# --- the shortest remaining job -------------------------------------------------------------------


def test_without_exploring_it_is_the_shortest_remaining_job():
    jobs = Jobs(epsilon=0.0)
    for name, mean_s in (("long", 30.0), ("short", 3.0), ("middling", 12.0)):
        jobs.know(name, mean_s, low_s=0.0, high_s=100.0)
        jobs.add(name, tells=mean_s)
    assert [name.split(".")[0] for name in jobs.drain()] == ["short", "middling", "long"]


def test_ties_go_to_less_work_then_to_the_earlier_job_then_to_the_earlier_call():
    jobs = Jobs(epsilon=0.0)
    jobs.know("wide", 5.0, work_s=40.0)
    jobs.know("narrow", 5.0, work_s=6.0)
    jobs.know("late", 5.0, work_s=6.0)
    jobs.add("wide")
    jobs.add("late", now_s=9.0)
    jobs.add("narrow", tasks=2)
    assert jobs.drain() == ["narrow.s.3", "narrow.s.4", "late.s.2", "wide.s.1"]


def test_a_stage_ends_and_its_job_moves_before_the_next_decision():
    jobs = Jobs(epsilon=0.0)
    jobs.know("a", 10.0)
    jobs.know("b", 20.0)
    jobs.add("a")
    jobs.add("b", tasks=3)
    assert jobs.queue.select("", 0.0).spec.workflow_id == "a"
    jobs.know("b", 4.0)
    jobs.queue.refresh(jobs.calls["b.s.3"], 1.0)
    assert [name.split(".")[0] for name in jobs.drain()] == ["b", "b", "b", "a"]


def test_of_a_stage_of_many_calls_is_asked_once():
    jobs, asked = Jobs(epsilon=0.5), []
    known = jobs.fleet.remaining
    jobs.fleet.remaining = lambda workflow_id: asked.append(workflow_id) or known(workflow_id)
    jobs.know("wide", 10.0)
    jobs.add("wide", tasks=200)
    jobs.queue.select("", 0.0)
    for one in jobs.calls.values():
        jobs.queue.refresh(one, 1.0)
    jobs.queue.select("", 1.0)
    assert len(asked) <= 3


def test_however_much_becomes_known_before_a_decision_little_is_left_for_it():
    jobs, asked = Jobs(epsilon=0.0), []
    for number in range(50):
        jobs.know(f"job{number}", 10.0 + number)
        jobs.add(f"job{number}")
    known = jobs.fleet.remaining
    jobs.fleet.remaining = lambda workflow_id: asked.append(workflow_id) or known(workflow_id)
    for number, one in enumerate(list(jobs.calls.values())):
        jobs.know(f"job{number}", 90.0 - number)
        jobs.queue.refresh(one, 1.0)
    asked.clear()
    assert jobs.queue.select("", 1.0).spec.workflow_id == "job49"
    assert len(asked) <= grouped_queue.NEWS_KEPT


def test_ticks_find_what_has_moved_by_itself():
    jobs = Jobs(epsilon=0.0)
    jobs.know("a", 10.0)
    jobs.know("b", 20.0)
    jobs.add("a")
    jobs.add("b")
    jobs.know("a", 50.0)
    assert jobs.queue.select("", 5.0).spec.workflow_id == "a"
    while jobs.queue.rescore(5.0, 7):
        pass
    assert jobs.queue.select("", 5.0).spec.workflow_id == "b"


def test_where_asking_fails_the_call_is_not_here_and_the_others_are_as_before():
    jobs = Jobs(epsilon=0.5)
    jobs.know("a", 10.0)
    jobs.add("a")

    def fails(call):
        raise ValueError("no such stage")

    jobs.queue._tells = fails
    for job in ("b", "c"):
        with pytest.raises(ValueError, match="no such stage"):
            jobs.add(job)
    assert len(jobs.queue) == len(list(jobs.queue)) == 1
    assert jobs.drain() == ["a.s.1"]


# --- what would tell most -------------------------------------------------------------------------


def test_exploring_takes_sets_by_lower_bound_and_in_each_what_tells_most():
    jobs = Jobs(epsilon=1.0)
    jobs.know("late", 60.0, 50.0, 90.0)
    jobs.know("short", 6.0, 2.0, 9.0)
    jobs.know("overlaps", 20.0, 8.0, 40.0)
    for name, tells in (("late", 99.0), ("short", 1.0), ("overlaps", 7.0)):
        jobs.add(name, tells=tells)
    assert [name.split(".")[0] for name in jobs.drain()] == ["overlaps", "short", "late"]


def test_of_one_job_the_stage_that_tells_most_goes_first():
    jobs = Jobs(epsilon=1.0)
    jobs.know("a", 10.0, 2.0, 30.0)
    jobs.add("a", stage="dull", tells=0.5)
    jobs.add("a", stage="telling", tells=8.0)
    assert [jobs.stage(), jobs.stage()] == ["a.telling", "a.dull"]


def test_only_a_fraction_of_a_stage_is_sampled_and_the_rest_stays_where_it_was():
    jobs = Jobs(epsilon=1.0, sample_ratio=0.3)
    jobs.know("wide", 30.0, 1.0, 90.0)
    jobs.know("a", 5.0, 4.0, 6.0)
    jobs.know("b", 8.0, 7.0, 9.0)
    jobs.add("wide", tasks=10, tells=50.0)
    jobs.add("a", tells=2.0)
    jobs.add("b", tells=1.0)
    order = [jobs.stage() for _ in range(12)]
    assert order[:5] == ["wide.s", "wide.s", "wide.s", "a.s", "b.s"]
    assert order[5:] == ["wide.s"] * 7


@pytest.mark.parametrize(("ratio", "tasks", "sampled"), [(0.3, 1, 1), (0.3, 10, 3), (0.31, 10, 4)])
def test_a_sample_is_rounded_up(ratio, tasks, sampled):
    jobs = Jobs(epsilon=1.0, sample_ratio=ratio)
    jobs.know("wide", 30.0, 1.0, 90.0)
    jobs.know("short", 5.0, 4.0, 6.0)
    jobs.add("wide", tasks=tasks, tells=50.0)
    jobs.add("short", tasks=2)
    order = [jobs.stage() for _ in range(sampled + 1)]
    assert order == ["wide.s"] * sampled + ["short.s"]


def test_a_stage_is_not_sampled_again_because_something_else_has_happened():
    jobs = Jobs(epsilon=1.0, sample_ratio=0.2)
    jobs.know("wide", 30.0, 1.0, 90.0)
    jobs.add("wide", tasks=10, tells=50.0)
    gone = []
    for number in range(4):
        jobs.know(f"new{number}", 5.0, 4.0, 6.0)
        jobs.add(f"new{number}")
        gone.append(jobs.stage())
    assert gone == ["wide.s", "wide.s", "new0.s", "new1.s"]


def test_where_nothing_would_tell_anything_the_shortest_goes_with_all_its_calls():
    jobs = Jobs(epsilon=1.0, sample_ratio=0.1)
    jobs.know("long", 20.0, 1.0, 40.0)
    jobs.know("short", 6.0, 2.0, 40.0)
    jobs.know("telling, later", 90.0, 80.0, 99.0)
    jobs.add("telling, later", tells=9.0)
    jobs.add("long", tasks=2)
    jobs.add("short", tasks=2)
    assert [name.split(".")[0] for name in jobs.drain()] == [
        "short", "short", "long", "long", "telling, later"
    ]  # fmt: skip


def test_the_ablation_without_uncertainty_never_explores_nor_asks():
    jobs = Jobs(epsilon=1.0, uncertainty=False)
    jobs.fleet.uncertainty = None
    jobs.know("long", 30.0, 1.0, 90.0)
    jobs.know("short", 5.0, 4.0, 6.0)
    jobs.add("long")
    jobs.add("short")
    assert [name.split(".")[0] for name in jobs.drain()] == ["short", "long"]


# --- the coin -------------------------------------------------------------------------------------


def test_the_coin_is_tossed_once_for_a_stage_however_often_it_is_asked():
    jobs = Jobs(epsilon=0.5)
    jobs.know("a", 10.0, 2.0, 30.0)
    jobs.add("a", tasks=6, tells=3.0)
    jobs.queue.select("", 0.0)
    state = jobs.rng.getstate()
    for _ in range(5):
        jobs.queue.select("", 0.0)
    assert jobs.rng.getstate() == state
    jobs.queue.refresh(jobs.calls["a.s.4"], 1.0)
    jobs.queue.select("", 1.0)
    assert jobs.rng.getstate() != state


def test_epsilon_is_the_part_of_stages_that_are_chosen_for_what_they_tell():
    jobs = Jobs(epsilon=0.2)
    for number in range(1_000):
        jobs.know(f"job{number}", 100.0 + number, 1.0, 2_000.0)
        jobs.add(f"job{number}", tells=float(number))
    explored = 0
    for _ in range(500):
        chosen = jobs.queue.select("", 0.0)
        explored += jobs.queue.out_of_turn == chosen.spec.call_id
        jobs.queue.remove(chosen.spec.call_id)
    assert 70 <= explored <= 130


STAGES = st.lists(
    st.tuples(
        st.integers(0, 4),  # job
        st.sampled_from("xyz"),
        st.integers(1, 9),  # tasks
        st.integers(1, 5),  # tells
    ),
    min_size=1,
    max_size=12,
)
MEANS = st.lists(st.integers(1, 40), min_size=5, max_size=5)


def filled(stages, means, **params):
    jobs = Jobs(**params)
    for number, mean_s in enumerate(means):
        jobs.know(f"job{number}", float(mean_s), mean_s / 2, mean_s * 1.5)
    for number, stage, tasks, tells in stages:
        jobs.add(f"job{number}", stage=stage, tasks=tasks, tells=float(tells))
    return jobs


@PROPERTY
@given(STAGES, MEANS, st.floats(0.0, 1.0), st.floats(0.01, 1.0), st.integers(0, 99))
def test_every_call_comes_up_once_whatever_the_coin_says(stages, means, epsilon, ratio, seed):
    jobs = filled(stages, means, epsilon=epsilon, sample_ratio=ratio, seed=seed)
    assert sorted(jobs.drain()) == sorted(jobs.calls)
    assert len(jobs.queue) == 0


@PROPERTY
@given(STAGES, MEANS)
def test_epsilon_zero_is_the_shortest_remaining_job_first(stages, means):
    jobs = filled(stages, means, epsilon=0.0)
    order = [means[int(jobs.calls[name].spec.workflow_id[3:])] for name in jobs.drain()]
    assert order == sorted(order)


@PROPERTY
@given(STAGES, MEANS, st.floats(0.01, 1.0))
def test_no_sample_is_larger_than_its_part_of_the_stage(stages, means, ratio):
    jobs = filled(stages, means, epsilon=1.0, sample_ratio=ratio)
    tasks = {}
    for one in jobs.calls.values():
        stage = (one.spec.workflow_id, one.placement.stage)
        tasks[stage] = tasks.get(stage, 0) + 1
    sampled = {}
    while len(jobs.queue):
        chosen = jobs.queue.select("", 0.0)
        if jobs.queue.out_of_turn is not None:
            stage = (chosen.spec.workflow_id, chosen.placement.stage)
            sampled[stage] = sampled.get(stage, 0) + 1
        jobs.queue.remove(chosen.spec.call_id)
    assert sampled == {stage: math.ceil(ratio * n - 1e-9) for stage, n in tasks.items()}


# --- other orders, other estimates ----------------------------------------------------------------


def test_by_gittins_index_a_job_that_will_probably_end_early_goes_first():
    for order, first in (("srtf", "sure"), ("gittins", "gamble")):
        jobs = Jobs(epsilon=0.0, order=order)
        jobs.know("gamble", 12.0, 1.0, 120.0)
        jobs.know("sure", 10.0, 9.0, 11.0)
        jobs.add("gamble")
        jobs.add("sure")
        assert jobs.next().startswith(first)


@pytest.mark.parametrize(("measure", "first"), [("path", "wide"), ("work", "narrow")])
def test_what_is_left_is_time_along_the_critical_path_or_work(measure, first):
    jobs = Jobs(epsilon=0.0, measure=measure)
    jobs.know("wide", 5.0, work_s=40.0)
    jobs.know("narrow", 8.0, work_s=9.0)
    jobs.add("wide")
    jobs.add("narrow")
    assert jobs.stage() == f"{first}.s"


def test_by_work_sets_are_of_work_too():
    for measure, first in (("path", "wide"), ("work", "narrow")):
        jobs = Jobs(epsilon=1.0, measure=measure)
        jobs.know("wide", 5.0, 4.0, 6.0, work_s=40.0)
        jobs.know("narrow", 5.5, 5.0, 7.0, work_s=5.5)
        jobs.add("wide", tells=9.0)
        jobs.add("narrow", tells=1.0)
        assert jobs.stage() == f"{first}.s"


def test_without_a_network_jobs_go_by_the_mean_of_their_application():
    jobs = Jobs(epsilon=0.0, profile="mean")
    jobs.fleet.application_means_s.update({"slow": 40.0, "fast": 4.0})
    jobs.know("a", 1.0)
    jobs.know("b", 90.0)
    jobs.add("a", application="slow")
    jobs.add("b", application="fast")
    assert [name[0] for name in jobs.drain()] == ["b", "a"]


def test_by_stages_jobs_go_by_what_is_left_of_their_budgets():
    jobs = Jobs(epsilon=0.0, profile="stages")
    jobs.know("a", 1.0)
    jobs.know("b", 90.0)
    jobs.add("a", remaining_work_s=9.0)
    jobs.add("b", remaining_work_s=3.0)
    assert [name[0] for name in jobs.drain()] == ["b", "a"]


def test_where_nothing_is_known_predicted_work_stands_in():
    jobs = Jobs(epsilon=1.0)
    jobs.add("a", remaining_work_s=9.0)
    jobs.add("b", remaining_work_s=3.0)
    jobs.add("c", remaining_work_s=-3.0)
    assert [name[0] for name in jobs.drain()] == ["c", "b", "a"]


# --- nobody starves -------------------------------------------------------------------------------


def waits_of_the_long_job(**params):
    """Decisions that a long job waits for while short ones keep coming, one a second."""
    jobs = Jobs(epsilon=0.2, **params)
    jobs.know("long", 500.0, 400.0, 600.0)
    jobs.add("long")
    for second in range(400):
        jobs.know(f"short{second}", 2.0, 1.0, 3.0)
        jobs.add(f"short{second}", now_s=float(second))
        if jobs.next(float(second)).startswith("long"):
            return second
    return None


def test_a_long_job_that_is_overdue_has_its_turn():
    waited = waits_of_the_long_job(overdue_s=60.0, overdue_share=0.02)
    assert 60 < waited <= 61 + 50


def test_in_the_papers_form_it_waits_as_long_as_shorter_ones_keep_coming():
    assert waits_of_the_long_job(overdue_share=0.0) is None


def test_no_turn_is_given_before_the_wait_is_too_long():
    jobs = Jobs(epsilon=0.0, overdue_s=60.0, overdue_share=0.9)
    jobs.know("long", 500.0)
    jobs.know("short", 1.0)
    jobs.add("long", tasks=3)
    jobs.add("short", now_s=50.0)
    assert jobs.next(60.0).startswith("short")
    assert jobs.next(60.1) == "long.s.1"
