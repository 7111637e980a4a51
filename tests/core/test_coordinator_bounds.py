"""What one event may do at most, and what a call keeps through mishaps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from core_world import ByKey, Cycle, FlatTracker, Seats, World, policy

from dispatcher.core import events as ev
from dispatcher.core import invariants
from dispatcher.core.attempts import Attempts
from dispatcher.core.commands import Abort, Dispatch, Preempt, RecordCall, Reject, WakeAt
from dispatcher.core.coordinator import Limits
from dispatcher.core.ports import TrackerUpdate
from dispatcher.core.types import (
    AttemptId,
    CallId,
    CallSpec,
    EngineGauges,
    InstanceId,
    LengthEstimate,
    Outcome,
    RejectReason,
    Slo,
    Usage,
    WorkflowId,
)
from dispatcher.core.workflow_types import WorkflowDeclaration


def ended(commands) -> list[str]:
    return [c.record.call_id for c in commands if isinstance(c, RecordCall)]


# --- bounded pieces ---


def test_a_cancelled_workflow_lets_its_calls_go_in_pieces():
    world = World()
    world.up("i", seats=1)
    for n in range(150):
        world.arrive(f"c{n}", workflow="big")
    world.arrive("other")
    first = world.post(ev.WorkflowCancelled(WorkflowId("big")))
    assert Abort(world.attempt_of("c0")) in first
    assert 0 < len(ended(first)) < 149
    assert world.wake_s == world.now_s, "the rest follows at once"
    while world.wake_s is not None and world.wake_s <= world.now_s:
        world.post(ev.Tick())
    assert len(world.ended) == 149
    assert world.sent(world.end("c0", Outcome.CANCELLED)) == [("other", "i")]


def test_new_budgets_of_a_wide_workflow_come_in_pieces():
    by_grant = ByKey(key=lambda call: (call.budget.granted_s,))
    world = World(policy(ordering=by_grant))
    world.tracker.rebudget_on_end = True
    world.up("i", seats=1)
    for n in range(150):
        world.arrive(f"c{n:03}", workflow="w")
    world.end("c000", after_s=1.0)
    stale = [c for c in world.coordinator.calls.values() if c.budget.granted_s == 100.0]
    assert 0 < len(stale) < 149
    while world.wake_s is not None and world.wake_s <= world.now_s:
        world.post(ev.Tick())
    waiting = [c for c in world.coordinator.calls.values() if c.attempt is None]
    assert {c.budget.granted_s for c in waiting} == {101.0}


def test_calls_whose_time_is_up_are_told_in_pieces():
    world = World(limits=Limits(max_wait_s=5.0))
    world.up("i", seats=1)
    for n in range(150):
        world.arrive(f"c{n}")
    commands = world.post(ev.Tick(), after_s=6.0)
    assert 0 < len(ended(commands)) < 149
    while world.wake_s is not None and world.wake_s <= world.now_s:
        world.post(ev.Tick())
    assert len(world.rejected) == 149
    assert set(world.rejected.values()) == {RejectReason.QUEUE_TIMEOUT}


def test_each_event_routes_fewer_held_calls_where_there_are_more_instances():
    world = World(policy("late", routing=Cycle(late=True)))
    for n in range(4):
        world.up(f"i{n}", seats=1)
    for n in range(300):
        world.arrive(f"c{n:03}")
    world.post(ev.PolicySwitched(policy("early")))
    routed = sum(instance.queued for instance in world.coordinator.fleet)
    assert routed == 256 // 4


def test_the_queue_takes_as_many_calls_as_it_is_said_to():
    world = World(limits=Limits(max_calls=2))
    world.up("i", seats=1)
    for name in ("running", "first", "second", "third"):
        world.arrive(name, seats=2)
    assert world.rejected == {"third": RejectReason.QUEUE_FULL}


# --- estimates ---


@pytest.mark.parametrize("tokens", [1e12, float("inf"), float("nan")])
def test_an_estimate_is_at_most_what_an_instance_has_room_for(tokens):
    world = World()
    world.lengths.tokens = tokens
    world.up("i", seats=1, max_model_len=4_096)
    world.arrive("a", prompt_tokens=96)
    assert world.coordinator.calls[CallId("a")].length.expected_tokens == 4_000.0
    world.post(ev.EstimateReady(CallId("a"), LengthEstimate(tokens, ((0.5, 10.0), (0.9, tokens)))))
    estimate = world.coordinator.calls[CallId("a")].length
    assert estimate.expected_tokens == 4_000.0
    assert estimate.quantile_tokens(0.5) == 10.0


def test_of_a_wide_workflow_as_many_live_calls_are_looked_up_as_are_asked_for():
    class Watched(FlatTracker):
        def live_calls(self, workflow_id):
            for call_id in super().live_calls(workflow_id):
                looked.append(call_id)
                yield call_id

    looked: list[CallId] = []
    world = World(tracker=Watched())
    world.up("i", seats=1)
    for number in range(50):
        world.arrive(f"c{number}", "w")
    fleet = world.coordinator.fleet
    assert [c.spec.call_id for c in fleet.live_calls(WorkflowId("w"), 3)] == ["c0", "c1", "c2"]
    assert looked == ["c0", "c1", "c2"]
    assert len(fleet.live_calls(WorkflowId("w"))) == 50


# --- failures, preemption, cancellation ---


class StopAll:
    """Preempts whatever runs."""

    def preempt(self, fleet, now_s):
        return [a for i in fleet.instances.values() for a in i.in_flight]


def test_a_preempted_call_begins_again_unless_the_driver_can_go_on():
    world = World(policy(preemption=StopAll(), tick_s=1.0))
    world.up("i", seats=1)
    world.arrive("a")
    world.post(ev.Progress(world.attempt_of("a"), 20))
    assert Preempt(world.attempt_of("a")) in world.post(ev.Tick(), after_s=1.0)
    (again,) = [
        c for c in world.end("a", Outcome.PREEMPTED, output_tokens=20) if isinstance(c, Dispatch)
    ]
    assert again.generated_tokens == 0


def test_a_stopped_call_keeps_its_first_token_only_where_the_driver_can_go_on():
    world = World(policy(preemption=StopAll(), tick_s=1.0))
    world.up("i", seats=1)
    world.arrive("a")
    call = world.coordinator.calls[CallId("a")]
    world.post(ev.FirstToken(world.attempt_of("a")), after_s=0.5)
    first_s = world.now_s
    world.post(ev.Tick(), after_s=1.0)
    world.end("a", Outcome.PREEMPTED, output_tokens=20, resumable=True, token_lag_s=-1.0)
    assert (call.first_token_s, call.generated_tokens) == (first_s, 20)
    world.post(ev.Tick(), after_s=1.0)
    world.end("a", Outcome.PREEMPTED, output_tokens=20, token_lag_s=-1.0)
    assert (call.first_token_s, call.token_lag_s, call.generated_tokens) == (None, None, 0)
    world.post(ev.FirstToken(world.attempt_of("a")), after_s=0.5)
    assert call.first_token_s == world.now_s


def test_an_estimate_that_comes_late_counts_what_has_been_generated():
    world = World()
    world.up("i", seats=1)
    world.arrive("a")
    call = world.coordinator.calls[CallId("a")]
    world.post(ev.Progress(world.attempt_of("a"), 120))
    known = LengthEstimate(100.0, ((0.5, 100.0), (0.95, 400.0)))
    world.post(ev.EstimateReady(CallId("a"), known))
    assert call.first_length == known
    assert call.length == known.longer_than(120)
    world.end("a", Outcome.ENGINE_ERROR, retryable=True)
    assert call.length == known


def test_no_length_grows_beyond_the_room_while_tokens_come():
    world = World()
    world.up("i", seats=1, max_model_len=1_000)
    world.arrive("a", prompt_tokens=600)
    call = world.coordinator.calls[CallId("a")]
    world.post(ev.EstimateReady(CallId("a"), LengthEstimate(200.0, ((0.5, 100.0), (0.9, 380.0)))))
    for tokens in (150, 300, 390):
        world.post(ev.Progress(world.attempt_of("a"), tokens))
        assert call.length.quantile_tokens(0.9) == 400.0
        assert tokens < call.length.quantile_tokens(0.5) <= 400.0
        assert call.length.expected_tokens <= 400.0


@pytest.mark.parametrize(("max_tokens", "most"), [(None, 400.0), (399, 399.0), (401, 400.0)])
def test_the_room_counts_before_another_estimate_comes_too(max_tokens, most):
    world = World()
    world.lengths.predict = lambda spec: LengthEstimate(200.0, ((0.5, 100.0), (0.9, 380.0)))
    world.up("i", seats=1, max_model_len=1_000)
    world.arrive("a", prompt_tokens=600, max_tokens=max_tokens)
    world.post(ev.Progress(world.attempt_of("a"), 300))
    assert world.coordinator.calls[CallId("a")].length.quantile_tokens(0.9) == most


def test_preemptions_are_not_failures():
    world = World(policy(preemption=StopAll(), tick_s=1.0), limits=Limits(max_attempts=2))
    world.up("i", seats=1)
    world.arrive("a")
    for _ in range(5):
        world.post(ev.Tick(), after_s=1.0)
        world.end("a", Outcome.PREEMPTED)
    world.end("a", Outcome.ENGINE_ERROR, retryable=True)
    assert world.in_flight() == ["a"], "one failure of two"
    world.end("a", Outcome.ENGINE_ERROR, retryable=True)
    assert world.rejected == {"a": RejectReason.ENGINE_FAILED}


def test_a_call_whose_client_goes_during_a_preemption_is_aborted():
    world = World(policy(preemption=StopAll(), tick_s=1.0))
    world.up("i", seats=1)
    world.arrive("a")
    attempt = world.attempt_of("a")
    assert Preempt(attempt) in world.post(ev.Tick(), after_s=1.0)
    assert Abort(attempt) in world.post(ev.CallCancelled(CallId("a")))
    world.end("a", Outcome.PREEMPTED)
    assert world.ended == {"a": Outcome.CANCELLED}


def test_a_retry_knows_nothing_of_the_attempt_that_nobody_saw():
    world = World()
    world.up("i", seats=1)
    world.up("j", seats=1)
    world.arrive("a")
    world.post(ev.FirstToken(world.attempt_of("a")), after_s=0.5)
    (again,) = [
        c
        for c in world.end("a", Outcome.ENGINE_ERROR, retryable=True, output_tokens=7)
        if isinstance(c, Dispatch)
    ]
    call = world.coordinator.calls[CallId("a")]
    assert (again.generated_tokens, call.first_token_s) == (0, None)


def test_a_held_call_that_an_instance_has_failed_does_not_stand_in_the_way_of_others():
    world = World(policy("late", routing=Cycle(late=True)))
    world.up("i", seats=1)
    world.up("j", seats=1)
    for name in ("on i", "on j", "next"):
        world.arrive(name)
    failing = "on i"
    where = world.where(failing)
    sent = world.sent(world.end(failing, Outcome.ENGINE_ERROR, retryable=True))
    assert sent == [("next", where)], "the failed call waits for the other instance"
    assert world.sent(world.end("on j")) == [(failing, "j" if where == "i" else "i")]


def test_a_call_that_a_policy_raises_on_ends_and_the_others_go_on(monkeypatch):
    world = World()
    world.up("i", seats=1)
    world.arrive("running")
    world.arrive("next")
    world.arrive("after")
    kept = Attempts.prepare

    def fail_once(self, *args):
        monkeypatch.setattr(Attempts, "prepare", kept)
        raise RuntimeError("a defect in a policy")

    monkeypatch.setattr(Attempts, "prepare", fail_once)
    assert world.sent(world.end("running")) == [("after", "i")]
    assert world.rejected == {"next": RejectReason.ENGINE_FAILED}
    (defect,) = world.coordinator.take_defects()
    assert str(defect) == "a defect in a policy"
    assert world.coordinator.take_defects() == []


def test_what_is_raised_on_no_call_in_particular_goes_up_and_what_was_decided_holds():
    class Broken(Seats):
        def open_seats(self, instance, now_s):
            raise RuntimeError("a defect in a policy")

    world = World()
    world.up("i", seats=1)
    world.arrive("running")
    world.arrive("next")
    world.post(ev.Tick())
    coordinator = world.coordinator
    with pytest.raises(RuntimeError, match="a defect"):
        coordinator.handle(world.now_s, ev.PolicySwitched(policy(admission=Broken())))
    with pytest.raises(RuntimeError, match="a defect"):
        coordinator.handle(world.now_s, ev.AttemptEnded(AttemptId(1), Outcome.OK))
    decided = coordinator.take_commands()
    assert ended(decided) == ["running"], "its client is told all the same"
    assert not [c for c in decided if isinstance(c, WakeAt) and c.at_s <= world.now_s]
    assert not coordinator.take_defects()


class RaisesOn(Cycle):
    """Round robin with a defect."""

    def __init__(self, call_id: str, **options) -> None:
        super().__init__(**options)
        self._call_id = call_id

    def route(self, call, candidates, fleet, now_s):
        if call.spec.call_id == self._call_id:
            raise RuntimeError("a defect in a policy")
        return super().route(call, candidates, fleet, now_s)


class RaisesOnKey(ByKey):
    """A defect in the ordering."""

    def key(self, call, instance, fleet, now_s):
        if call.spec.call_id == "bad":
            raise RuntimeError("a defect in a policy")
        return super().key(call, instance, fleet, now_s)


@pytest.mark.parametrize(
    "broken",
    [
        policy(routing=RaisesOn("bad")),
        policy(routing=RaisesOn("bad", late=True)),
        policy(ordering=RaisesOnKey()),
        policy(ordering=RaisesOnKey(), routing=Cycle(late=True)),
    ],
    ids=["early route", "late route", "early key", "late key"],
)
def test_a_switch_to_a_policy_with_a_defect_costs_the_call_that_meets_it(broken):
    world = World()
    world.up("i", seats=1)
    for name in ("running", "good", "bad", "better"):
        world.arrive(name)
    world.post(ev.PolicySwitched(broken))
    while world.out:
        world.end(world.in_flight()[0])
    assert world.rejected == {"bad": RejectReason.ENGINE_FAILED}
    assert [name for name, o in world.ended.items() if o is Outcome.OK] == [
        "running",
        "good",
        "better",
    ]
    assert len(world.coordinator.take_defects()) == 1


def test_a_cost_model_that_raises_on_a_call_costs_that_call(monkeypatch):
    world = World()
    world.up("i", seats=1)
    world.arrive("running")
    world.up("j", seats=1)
    monkeypatch.setattr(world.costs, "prefill_s", lambda instance_id, tokens: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        world.arrive("a")
    monkeypatch.undo()
    world.coordinator.take_commands()
    world.waiting_clients.discard(CallId("a"))
    invariants.check(world.coordinator)
    assert world.sent(world.arrive("b")) == [("b", "j")]


def test_a_predictor_that_raises_leaves_nothing_behind(monkeypatch):
    world = World()
    world.up("i", seats=1)
    monkeypatch.setattr(world.lengths, "predict", lambda spec: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        world.arrive("a")
    assert not world.tracker.live
    monkeypatch.undo()
    world.waiting_clients.clear()
    assert world.sent(world.arrive("a")) == [("a", "i")]


# --- what a wait is told to be ---


@pytest.mark.parametrize("late", [False, True])
def test_retry_after_counts_what_waits_wherever_it_waits(late):
    world = World(policy(routing=Cycle(late=late)), limits=Limits(max_calls=40))
    world.up("i", seats=1)
    for n in range(41):
        world.arrive(f"c{n:02}")
    (reject,) = [c for c in world.arrive("one more") if isinstance(c, Reject)]
    assert reject.retry_after_s == pytest.approx(41 * 1.101, rel=0.01)


def test_a_call_that_comes_back_has_the_budget_of_now():
    world = World()
    world.up("i", seats=1)
    world.arrive("a")
    world.tracker.slo_s = 4.0
    world.end("a", Outcome.ENGINE_ERROR, retryable=True, after_s=1.0)
    budget = world.coordinator.calls[CallId("a")].budget
    assert (budget.granted_s, budget.stage_deadline_s) == (101.0, 104.0)


def test_a_whole_answer_is_thought_to_come_nearer_with_time():
    world = World()
    world.up("i", seats=1)
    world.arrive("a", streaming=False)
    instance = world.coordinator.fleet.get(InstanceId("i"))
    backlogs_s = []
    for _ in range(3):
        world.post(ev.InstanceObserved(InstanceId("i"), EngineGauges()), after_s=0.4)
        backlogs_s.append(world.coordinator.fleet.backlog_s(instance))
    assert backlogs_s == pytest.approx([0.701, 0.301, 0.01])
    assert world.coordinator.calls[CallId("a")].generated_tokens == 0, "what is guessed is not seen"


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.CANCELLED])
def test_no_more_prefill_is_ahead_than_that_of_what_is_out(outcome):
    world = World()
    world.up("i", seats=4)
    world.arrive("stays")
    fleet = world.coordinator.fleet
    for number in range(50):  # each of them takes 10 ms, where a second was expected
        world.arrive(f"c{number}", prompt_tokens=1_000)
        world.end(f"c{number}", outcome, after_s=0.01)
    assert fleet.prefill_ahead_s(fleet.get(InstanceId("i"))) <= 0.101
    world.arrive("last", prompt_tokens=1_000)
    assert fleet.prefill_ahead_s(fleet.get(InstanceId("i"))) == pytest.approx(1.102, abs=0.102)


# --- held calls ---


def test_a_wide_call_gathers_seats_at_one_instance_and_leaves_the_others_to_the_rest():
    world = World(policy("late", routing=Cycle(late=True)))
    world.up("i", seats=2)
    world.up("j", seats=2)
    for name in ("a", "b", "c", "d"):
        world.arrive(name)
    world.arrive("wide", seats=2)
    for n in range(4):
        world.arrive(f"n{n}")
    at_j = [name for name in "abcd" if world.where(name) == "j"]
    at_i = [name for name in "abcd" if world.where(name) == "i"]
    assert world.sent(world.end(at_j[0])) == [], "this seat is kept"
    assert world.sent(world.end(at_i[0])) == [("n0", "i")], "this one is not"
    assert world.sent(world.end(at_j[1])) == [("wide", "j")]


def test_a_wide_call_does_not_wait_for_seats_where_others_have_them():
    world = World(policy("late", routing=Cycle(late=True)))
    world.up("i", seats=2)
    world.up("j", seats=2)
    for name in ("a", "b", "c", "d"):
        world.arrive(name)
    world.arrive("wide", seats=2)
    first = {name: world.where(name) for name in "abcd"}
    world.end(next(n for n, at in first.items() if at == "j"))
    assert world.coordinator.fleet.get(InstanceId("j")).queued == 1
    at_i = [name for name, at in first.items() if at == "i"]
    world.end(at_i[0])
    assert world.sent(world.end(at_i[1])) == [("wide", "i")]


def test_a_wide_call_goes_to_an_instance_that_comes_empty():
    world = World(policy("late", routing=Cycle(late=True)))
    world.up("i", seats=2)
    for name in ("a", "b"):
        world.arrive(name)
    world.arrive("wide", seats=2)
    world.end("a")
    assert world.sent(world.up("k", seats=2)) == [("wide", "k")]


def test_a_rejection_looks_at_few_of_the_calls_that_wait(monkeypatch):
    world = World(policy(routing=Cycle(late=True)), limits=Limits(max_calls=500))
    world.up("i", seats=1)
    for n in range(501):
        world.arrive(f"c{n}")
    fleet, weighed = world.coordinator.fleet, []
    mean = fleet.mean_compute_s
    monkeypatch.setattr(fleet, "mean_compute_s", lambda call: weighed.append(call) or mean(call))
    (queue,) = world.coordinator.placing.lanes.values()
    seen = []
    walk = type(queue).__iter__
    monkeypatch.setattr(
        type(queue), "__iter__", lambda self: (seen.append(c) or c for c in walk(self))
    )
    rejects = [
        c
        for c in world.coordinator.handle(world.now_s, ev.CallArrived(spec_of("more")))
        if isinstance(c, Reject)
    ]
    assert len(rejects) == 1
    assert 0 < len(weighed) <= 64
    assert len(seen) <= 64


def spec_of(call_id: str) -> CallSpec:
    return CallSpec(CallId(call_id), WorkflowId("w"), "m", prompt_tokens=100)


class OnlyAt:
    """Early binding that places nothing but one model."""

    late_binding = False

    def __init__(self) -> None:
        self.model = None

    def route(self, call, candidates, fleet, now_s):
        return candidates[0].spec.instance_id if call.spec.model == self.model else None


def test_held_calls_are_all_looked_at_however_few_one_event_may_route():
    only = OnlyAt()
    world = World(policy(routing=only))
    for n in range(200):
        world.up(f"i{n}", models=frozenset({f"m{n}"}))
    for n in range(20):
        world.arrive(f"c{n}", model=f"m{n}")
    while world.wake_s is not None and world.wake_s <= world.now_s:
        world.post(ev.Tick())
    only.model = "m15"
    world.post(ev.InstanceDown(InstanceId("i199")))
    ticks = 0
    while world.wake_s is not None and world.wake_s <= world.now_s:
        world.post(ev.Tick())
        ticks += 1
        assert ticks < 100, "it comes to an end although most calls find no place"
    assert world.in_flight() == ["c15"]


# --- the tracker's word ---


class Rebudgeting(FlatTracker):
    """A later call changes what its siblings may take."""

    def call_arrived(self, spec, now_s):
        siblings = tuple(c for c, w in self.live.items() if w == spec.workflow_id)
        self.slo_s = spec.slo.end_to_end_s or self.slo_s
        return replace(super().call_arrived(spec, now_s), rebudget=siblings)


def test_an_arrival_that_changes_the_deadline_reaches_its_siblings():
    world = World(tracker=Rebudgeting())
    world.up("i", seats=1)
    for name in ("running", "waiting"):
        world.arrive(name, workflow="w")
    world.arrive("late", workflow="w", slo=Slo(end_to_end_s=3.0))
    assert world.coordinator.calls[CallId("waiting")].budget.stage_deadline_s == 103.0


# --- a call of several sequences ---


def test_a_call_of_several_sequences_weighs_as_much_as_it_takes():
    world = World()
    world.up("i", seats=4)
    world.arrive("wide", seats=4, prompts=4)
    backlog_s = world.coordinator.fleet.backlog_s(world.coordinator.fleet.get(InstanceId("i")))
    narrow = World()
    narrow.up("i", seats=4)
    for n in range(4):
        narrow.arrive(f"c{n}")
    instance = narrow.coordinator.fleet.get(InstanceId("i"))
    assert backlog_s == pytest.approx(narrow.coordinator.fleet.backlog_s(instance))


def test_several_prompts_need_the_context_of_one():
    world = World()
    world.up("i", seats=64, max_model_len=1_100)
    world.up("j", seats=64, max_model_len=1_000)
    world.arrive("list", prompt_tokens=1_020, prompts=64, seats=64)
    assert world.where("list") == "i"
    assert world.coordinator.calls[CallId("list")].length.expected_tokens == 80.0


def test_the_sequences_of_one_prompt_share_its_prefill():
    backlogs_s = []
    for prompts in (1, 2):
        world = World()
        world.up("i", seats=2)
        world.arrive("wide", seats=2, prompts=prompts)
        instance = world.coordinator.fleet.get(InstanceId("i"))
        backlogs_s.append(world.coordinator.fleet.backlog_s(instance))
    assert backlogs_s[1] - backlogs_s[0] == pytest.approx(0.101 / 2)


def test_an_answer_of_no_tokens_teaches_no_length():
    world = World()
    world.up("i", seats=1)
    world.arrive("a")
    world.end("a", usage=Usage(prompt_tokens=100, output_tokens=0), after_s=1.0)
    assert (world.lengths.learned, world.costs.timings) == ([], [])


def test_attempts_that_end_together_teach_times_once_and_lengths_each():
    world = World()
    world.up("i", seats=4)
    for name in ("a", "b", "c"):
        world.arrive(name)
    world.end("a", after_s=1.0)
    world.end("b", after_s=0.001)
    world.end("c", after_s=1.0)
    assert len(world.lengths.learned) == 3
    assert [timing.total_s for timing in world.costs.timings] == pytest.approx([1.0, 2.001])


def test_engine_priorities_still_order_after_a_month():
    by_deadline = ByKey(key=lambda call: (call.placement.deadline_s,), priority=True)
    world = World(policy(ordering=by_deadline))
    world.up("i", seats=4)
    priorities = []
    for name in ("a", "b"):
        world.now_s += 40 * 86_400.0
        (sent,) = [c for c in world.arrive(name) if isinstance(c, Dispatch)]
        priorities.append(sent.engine_priority)
    assert priorities[0] < priorities[1]


class Results(FlatTracker):
    """Notes what calls gave."""

    def call_ended(self, call_id, result, now_s):
        self.result = result
        return super().call_ended(call_id, result, now_s)


def test_what_a_call_gave_is_told_per_sequence():
    world = World(tracker=Results())
    world.up("i", seats=4)
    world.arrive("wide", seats=4)
    world.post(ev.Progress(world.attempt_of("wide"), 80))
    world.end("wide", Outcome.CLIENT_ERROR)
    assert world.tracker.result.output_tokens == 20


# --- what others report ---


def test_seats_follow_the_tokens_that_an_engine_counts_itself():
    """Answers that come whole show the gateway no token before they end."""
    seats = []
    for counted in (None, 1_000):
        world = World()
        world.up("i", seats=None)
        for n in range(80):
            world.arrive(f"c{n:02}")
        for second in range(60):
            instance = world.coordinator.fleet.get(InstanceId("i"))
            tokens = None if counted is None else counted * second * instance.seats
            gauges = EngineGauges(running=instance.seats_in_use, output_tokens_total=tokens)
            world.post(ev.InstanceObserved(InstanceId("i"), gauges), after_s=1.0)
        seats.append(instance.seats)
    assert seats[1] > seats[0]


class Rebudgets(FlatTracker):
    """A declaration changes the budgets of what waits."""

    def declare(self, declaration, now_s):
        self.slo_s = declaration.slo_s
        return TrackerUpdate(rebudget=tuple(self.live))


def test_a_declaration_reaches_calls_that_wait_already():
    world = World(tracker=Rebudgets())
    world.up("i", seats=1)
    world.arrive("running", workflow="w")
    world.arrive("waiting", workflow="w")
    before = world.coordinator.calls[CallId("waiting")].budget
    world.post(ev.WorkflowDeclared(WorkflowDeclaration(WorkflowId("w"), "chat", slo_s=3.0)))
    assert world.coordinator.calls[CallId("waiting")].budget != before
    assert AttemptId(1) in world.coordinator.attempts


class StealOldest:
    """Takes the first call of any other queue."""

    def steal(self, instance, fleet, now_s):
        for other in fleet.instances.values():
            for call in other.queue or ():
                if other is not instance:
                    return call.spec.call_id
        return None


def test_when_a_wide_head_is_stolen_the_one_behind_it_goes():
    world = World(policy(stealing=StealOldest()))
    world.up("i", seats=2)
    world.arrive("running")
    world.arrive("wide", seats=2)
    world.arrive("narrow")
    assert world.sent(world.up("j", seats=2)) == [("wide", "j"), ("narrow", "i")]


def test_a_record_says_of_how_many_sequences_its_tokens_are():
    world = World()
    world.up("i", seats=4)
    world.arrive("a", seats=3)
    (record,) = [c.record for c in world.end("a") if isinstance(c, RecordCall)]
    assert record.sequences == 3
