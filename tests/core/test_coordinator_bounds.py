"""What one event may do at most, and what a call keeps through mishaps."""

from __future__ import annotations

import pytest
from core_world import ByKey, Cycle, FlatTracker, World, policy

from dispatcher.core import events as ev
from dispatcher.core.attempts import Attempts
from dispatcher.core.commands import Abort, Dispatch, Preempt, RecordCall
from dispatcher.core.coordinator import Limits
from dispatcher.core.ports import TrackerUpdate
from dispatcher.core.types import (
    AttemptId,
    CallId,
    EngineGauges,
    InstanceId,
    LengthEstimate,
    Outcome,
    RejectReason,
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


def test_a_policy_that_raises_loses_no_call(monkeypatch):
    world = World()
    world.up("i", seats=1)
    world.arrive("running")
    world.arrive("next")
    kept = Attempts.prepare

    def fail_once(self, *args):
        monkeypatch.setattr(Attempts, "prepare", kept)
        raise RuntimeError("a defect in a policy")

    monkeypatch.setattr(Attempts, "prepare", fail_once)
    with pytest.raises(RuntimeError, match="a defect"):
        world.end("running")
    decided = world.coordinator.take_commands()
    assert ended(decided) == ["running"], "its client is told all the same"
    world.waiting_clients.discard(CallId("running"))
    assert world.sent(world.arrive("later")) == [("next", "i")]


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
