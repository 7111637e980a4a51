"""The coordinator as a specification: events in, commands out."""

from __future__ import annotations

import pytest
from core_world import ByKey, Cycle, HoldAll, World, policy

from dispatcher.core import events as ev
from dispatcher.core.commands import Abort, Dispatch, RecordCall, Reject, WakeAt
from dispatcher.core.coordinator import Limits
from dispatcher.core.errors import InvariantError, UnknownInstanceError
from dispatcher.core.placing import ROUTINGS_PER_EVENT
from dispatcher.core.types import (
    CallId,
    EngineGauges,
    InstanceId,
    LengthEstimate,
    Outcome,
    RejectReason,
    Slo,
    Usage,
    WorkflowId,
)


def urgent_first() -> ByKey:
    return ByKey(key=lambda call: (call.placement.deadline_s,), priority=True)


def late(ordering=None):
    return policy("late", routing=Cycle(late=True), ordering=ordering or ByKey())


# --- dispatch and seats ---


def test_a_call_goes_out_at_once_when_a_seat_is_free():
    world = World()
    world.up("i", seats=1)
    commands = world.arrive("a")
    assert world.sent(commands) == [("a", "i")]


def test_the_next_call_waits_for_the_seat():
    world = World()
    world.up("i", seats=1)
    world.arrive("a")
    assert world.sent(world.arrive("b")) == []
    assert world.sent(world.end("a")) == [("b", "i")]
    assert world.ended == {"a": Outcome.OK}


def test_a_freed_seat_takes_the_first_by_key_not_by_arrival():
    world = World(policy(ordering=urgent_first()))
    world.up("i", seats=1)
    world.arrive("running")
    world.arrive("relaxed", slo=Slo(end_to_end_s=60.0))
    world.arrive("pressing", slo=Slo(end_to_end_s=1.0))
    assert world.sent(world.end("running")) == [("pressing", "i")]


def test_equal_keys_go_in_order_of_arrival():
    world = World(policy(ordering=ByKey(key=lambda call: (0.0,))))
    world.up("i", seats=1)
    for name in ("a", "b", "c", "d"):
        world.arrive(name)
    order = []
    while world.out:
        order += world.in_flight()
        world.end(world.in_flight()[0])
    assert order == ["a", "b", "c", "d"]


def test_engine_priority_is_the_latest_start_in_ms_since_the_epoch():
    world = World(policy(ordering=urgent_first()))
    world.up("i")
    (dispatch,) = [c for c in world.arrive("a") if isinstance(c, Dispatch)]
    assert dispatch.engine_priority == 10_000  # the workflow's 10 s, all of them this stage's


def test_engine_priority_is_0_under_fcfs():
    world = World()
    world.up("i")
    (dispatch,) = [c for c in world.arrive("a") if isinstance(c, Dispatch)]
    assert dispatch.engine_priority == 0


def test_a_call_of_several_sequences_takes_as_many_seats_and_is_not_passed_by():
    world = World()
    world.up("i", seats=4)
    world.arrive("a", seats=2)
    world.arrive("wide", seats=3)
    assert world.sent(world.arrive("small")) == []
    assert world.sent(world.end("a")) == [("wide", "i"), ("small", "i")]


def test_a_call_wider_than_the_instance_goes_when_it_is_empty():
    world = World()
    world.up("i", seats=2)
    world.arrive("a")
    world.arrive("huge", seats=5)
    assert world.sent(world.end("a")) == [("huge", "i")]


# --- what fits ---


def test_a_call_goes_only_where_its_model_is_served():
    world = World()
    world.up("x", models=frozenset({"other"}))
    world.up("i")
    assert world.sent(world.arrive("a")) == [("a", "i")]
    assert world.sent(world.arrive("b")) == []


def test_a_prompt_too_long_for_one_instance_goes_to_another():
    world = World()
    world.up("short", max_model_len=1000)
    world.up("long", max_model_len=8000)
    assert world.sent(world.arrive("a", prompt_tokens=5000)) == [("a", "long")]


def test_a_prompt_thought_too_long_for_all_goes_to_the_longest_which_may_refuse_it():
    world = World()
    world.up("short", max_model_len=1000)
    world.up("long", max_model_len=8000)
    assert world.sent(world.arrive("a", prompt_tokens=9000)) == [("a", "long")]
    world.end("a", Outcome.CLIENT_ERROR)
    assert world.ended["a"] is Outcome.CLIENT_ERROR


def test_a_pinned_call_goes_where_it_is_pinned():
    world = World()
    world.up("i")
    world.up("j")
    assert world.sent(world.arrive("a", pinned_to=InstanceId("j"))) == [("a", "j")]


def test_modalities_are_respected():
    world = World()
    world.up("text")
    world.up("eyes", modalities=frozenset({"image"}))
    assert world.sent(world.arrive("a", modalities=frozenset({"image"}))) == [("a", "eyes")]


def test_nobody_there_is_a_rejection():
    world = World()
    world.arrive("a")
    assert world.rejected == {"a": RejectReason.NO_ENGINE}
    assert world.ended == {"a": Outcome.REJECTED}


# --- bounds ---


def test_a_full_queue_rejects_with_the_backlog_as_retry_after():
    world = World(limits=Limits(max_calls=2))
    world.up("i", seats=1)
    world.arrive("a", prompt_tokens=20_000)
    world.arrive("b", prompt_tokens=20_000)
    world.arrive("c", prompt_tokens=20_000)
    (reject,) = [c for c in world.arrive("d") if isinstance(c, Reject)]
    assert reject.reason is RejectReason.QUEUE_FULL
    # three prompts of 20 s each, their decodes of 1 s each
    assert reject.retry_after_s == pytest.approx(63.0, abs=0.1)


def test_a_call_that_waits_too_long_is_rejected_on_the_tick_that_was_asked_for():
    world = World(limits=Limits(max_wait_s=5.0))
    world.up("i", seats=1)
    world.arrive("a")
    wakes = [c for c in world.arrive("b") if isinstance(c, WakeAt)]
    assert [w.at_s for w in wakes] == [world.now_s + 5.0]
    world.post(ev.Tick(), after_s=5.0)
    assert world.rejected == {"b": RejectReason.QUEUE_TIMEOUT}
    assert world.in_flight() == ["a"]


def test_a_late_call_is_turned_away_only_where_the_tenant_asked():
    world = World()
    world.up("i", seats=3)
    world.arrive("first", workflow="w", slo=Slo(end_to_end_s=1.0))
    world.now_s += 2.0
    world.arrive("kept", workflow="w", slo=Slo(end_to_end_s=1.0))
    world.arrive("told", workflow="w", slo=Slo(end_to_end_s=1.0), reject_late=True)
    assert world.rejected == {"told": RejectReason.DEADLINE}
    assert world.in_flight() == ["first", "kept"]


# --- ends ---


def test_a_waiting_call_whose_client_goes_leaves_its_queue():
    world = World()
    world.up("i", seats=1)
    world.arrive("a")
    world.arrive("b")
    world.post(ev.CallCancelled(CallId("b")))
    assert world.ended == {"b": Outcome.CANCELLED}
    assert world.sent(world.end("a")) == []


def test_a_running_call_whose_client_goes_is_aborted_once_and_ends_with_its_attempt():
    world = World()
    world.up("i", seats=1)
    world.arrive("a")
    attempt = world.attempt_of("a")
    assert Abort(attempt) in world.post(ev.CallCancelled(CallId("a")))
    assert world.post(ev.CallCancelled(CallId("a"))) == []
    world.end("a", Outcome.CANCELLED)
    assert world.ended == {"a": Outcome.CANCELLED}


def test_a_failure_that_nobody_saw_is_tried_elsewhere():
    world = World()
    world.up("i")
    world.up("j")
    world.arrive("a")
    first = world.where("a")
    commands = world.end("a", Outcome.ENGINE_ERROR, retryable=True)
    ((_, second),) = world.sent(commands)
    assert {first, second} == {"i", "j"}
    world.end("a")
    assert world.ended == {"a": Outcome.OK}


def test_attempts_are_bounded_and_the_client_is_told():
    world = World(limits=Limits(max_attempts=2))
    world.up("i")
    world.arrive("a")
    world.end("a", Outcome.ENGINE_ERROR, retryable=True)
    world.end("a", Outcome.ENGINE_ERROR, retryable=True)
    assert world.rejected == {"a": RejectReason.ENGINE_FAILED}
    assert world.ended == {"a": Outcome.ENGINE_ERROR}


def test_a_failure_that_the_client_saw_ends_the_call():
    world = World()
    world.up("i")
    world.arrive("a")
    world.end("a", Outcome.ENGINE_ERROR, output_tokens=7)
    assert world.ended == {"a": Outcome.ENGINE_ERROR}
    assert world.rejected == {}


def test_an_attempt_that_ends_twice_is_a_defect():
    world = World()
    world.up("i")
    world.arrive("a")
    attempt = world.attempt_of("a")
    world.end("a")
    with pytest.raises(InvariantError, match="ended twice"):
        world.coordinator.handle(world.now_s, ev.AttemptEnded(attempt, Outcome.OK))


def test_late_news_of_an_ended_attempt_is_ignored():
    world = World()
    world.up("i")
    world.arrive("a")
    attempt = world.attempt_of("a")
    world.end("a")
    assert world.post(ev.FirstToken(attempt)) == []
    assert world.post(ev.Progress(attempt, 5)) == []
    assert world.post(ev.EstimateReady(CallId("a"), LengthEstimate(3.0))) == []


# --- instances ---


def test_the_queue_of_a_lost_instance_goes_elsewhere():
    world = World()
    world.up("i", seats=1)
    world.up("j", seats=1)
    for name in ("a", "b", "c", "d"):
        world.arrive(name)
    assert world.where("a") == "i"
    world.post(ev.InstanceDown(InstanceId("i")))
    world.end("a", Outcome.ENGINE_ERROR, retryable=True)
    served = []
    while world.out:
        served += [(c, i) for c, i in world.out.values()]
        world.end(world.in_flight()[0])
    assert served == [("b", "j"), ("a", "j"), ("c", "j"), ("d", "j")]


def test_calls_that_wait_survive_the_loss_of_the_last_instance():
    world = World()
    world.up("i", seats=1)
    world.arrive("a")
    world.arrive("b")
    world.post(ev.InstanceDown(InstanceId("i")))
    world.end("a", Outcome.ENGINE_ERROR, retryable=True)
    assert world.coordinator.placing.held == 2
    assert world.sent(world.up("i", seats=1)) == [("a", "i")]


def test_a_draining_instance_finishes_and_takes_nothing_new():
    world = World()
    world.up("i", seats=1)
    world.up("j", seats=1)
    world.arrive("a")
    world.post(ev.InstanceDraining(InstanceId("i")))
    for name in ("b", "c"):
        world.arrive(name)
    assert world.in_flight() == ["a", "b"]
    assert world.sent(world.end("a")) == []
    assert world.sent(world.end("b")) == [("c", "j")]


def test_a_removed_instance_leaves_when_its_last_attempt_has_ended():
    world = World()
    world.up("i", seats=1)
    world.arrive("a")
    world.post(ev.InstanceDraining(InstanceId("i"), remove=True))
    assert "i" in world.coordinator.fleet.instances
    world.end("a")
    assert "i" not in world.coordinator.fleet.instances
    with pytest.raises(UnknownInstanceError, match="'i'"):
        world.coordinator.handle(world.now_s, ev.InstanceDown(InstanceId("i")))


def test_a_new_instance_takes_held_calls():
    world = World(late())
    world.up("i", seats=1)
    world.arrive("a")
    world.arrive("b")
    assert world.sent(world.up("j", seats=1)) == [("b", "j")]


# --- late binding and holding ---


def test_late_binding_holds_calls_and_binds_them_when_a_seat_frees():
    world = World(late(urgent_first()))
    world.up("i", seats=1)
    world.up("j", seats=1)
    world.arrive("a")
    world.arrive("b")
    world.arrive("relaxed", slo=Slo(end_to_end_s=60.0))
    world.arrive("pressing", slo=Slo(end_to_end_s=1.0))
    assert world.coordinator.placing.held == 2
    assert world.sent(world.end("b")) == [("pressing", "j")]
    assert world.sent(world.end("a")) == [("relaxed", "i")]


def test_a_held_call_that_an_instance_cannot_serve_does_not_block_one_it_can():
    world = World(late())
    world.up("i", seats=1, models=frozenset({"m"}))
    world.up("j", seats=1, models=frozenset({"n"}))
    world.arrive("a", model="m")
    world.arrive("b", model="n")
    world.arrive("c", model="n")
    world.arrive("d", model="m")
    assert world.sent(world.end("a")) == [("d", "i")]


def test_a_call_that_routing_holds_is_routed_when_something_ends():
    world = World(policy(routing=HoldAll(most=1)))
    world.up("i", seats=1)
    for name in ("a", "b", "c"):
        world.arrive(name)
    assert world.coordinator.placing.held == 1
    world.end("a")
    assert (world.in_flight(), world.coordinator.placing.held) == (["b"], 0)


def wide_head(kind):
    world = World(kind)
    world.up("i", seats=2)
    world.arrive("a")
    world.arrive("wide", seats=2)
    assert world.sent(world.arrive("small")) == []
    return world


@pytest.mark.parametrize("kind", [policy, late], ids=["early", "late"])
def test_when_a_wide_head_gives_up_the_one_behind_it_goes(kind):
    world = wide_head(kind())
    assert world.sent(world.post(ev.CallCancelled(CallId("wide")))) == [("small", "i")]


@pytest.mark.parametrize("late_binding", [False, True])
def test_when_a_wide_head_moves_back_the_one_before_it_goes(late_binding):
    shortest = ByKey(key=lambda call: (call.length.expected_tokens,))
    world = wide_head(policy(routing=Cycle(late=late_binding), ordering=shortest))
    commands = world.post(ev.EstimateReady(CallId("wide"), LengthEstimate(5000.0)))
    assert world.sent(commands) == [("small", "i")]


# --- policy switch ---


@pytest.mark.parametrize("there", ["early", "late"])
@pytest.mark.parametrize("here", ["early", "late"])
def test_a_switch_moves_what_waits_and_touches_nothing_in_flight(here, there):
    kinds = {"early": lambda: policy("early"), "late": late}
    world = World(kinds[here]())
    world.up("i", seats=1)
    world.up("j", seats=1)
    for n in range(300):
        world.arrive(f"c{n}")
    running = dict(world.out)
    world.post(ev.PolicySwitched(kinds[there]()))
    assert world.out == running
    while world.coordinator.placing.moving:
        assert world.wake_s == world.now_s
        world.post(ev.Tick())
    served = []
    while world.out:
        served += world.in_flight()
        for call in world.in_flight():
            world.end(call)
    assert len(world.ended) == 300
    assert set(world.ended.values()) == {Outcome.OK}
    assert world.coordinator.policy.name == there


def test_a_switch_takes_bounded_pieces_and_keeps_the_order_of_arrival():
    world = World()
    world.up("i", seats=1)
    for n in range(400):
        world.arrive(f"c{n:03}")
    world.post(ev.PolicySwitched(late()))
    assert len(world.coordinator.placing.moving) == 399 - ROUTINGS_PER_EVENT
    world.arrive("newest")
    while world.coordinator.placing.moving:
        world.post(ev.Tick())
    order = []
    while world.out:
        order += world.in_flight()
        world.end(world.in_flight()[0])
    assert order == [f"c{n:03}" for n in range(400)] + ["newest"]


# --- estimates, budgets, learning ---


def test_a_new_estimate_reorders_a_waiting_call():
    shortest = ByKey(key=lambda call: (call.length.expected_tokens,))
    world = World(policy(ordering=shortest))
    world.up("i", seats=1)
    for name in ("running", "a", "b"):
        world.arrive(name)
    world.post(ev.EstimateReady(CallId("b"), LengthEstimate(5.0)))
    assert world.sent(world.end("running")) == [("b", "i")]


def test_the_end_of_a_stage_gives_waiting_calls_new_budgets():
    by_stage_deadline = ByKey(key=lambda call: (call.budget.granted_s,))
    world = World(policy(ordering=by_stage_deadline))
    world.tracker.rebudget_on_end = True
    world.up("i", seats=1)
    world.arrive("first", workflow="w")
    world.arrive("sibling", workflow="w")
    world.now_s += 1.0
    world.arrive("stranger")
    world.end("first", after_s=1.0)
    assert world.in_flight() == ["stranger"]


def test_a_good_end_teaches_lengths_and_costs_with_the_load_it_saw():
    world = World()
    world.up("i", seats=2)
    world.arrive("a", streaming=True)
    world.arrive("b")
    world.post(ev.FirstToken(world.attempt_of("a")), after_s=1.0)
    world.end("b", after_s=1.0)
    world.end("a", after_s=2.0, usage=Usage(prompt_tokens=80, output_tokens=40, cached_tokens=16))
    timing = world.costs.timings[-1]
    assert (timing.ttft_s, timing.decode_s, timing.total_s) == (1.0, 3.0, 4.0)
    assert (timing.prompt_tokens, timing.cached_tokens, timing.output_tokens) == (80, 16, 40)
    assert timing.mean_running == pytest.approx(1.5)
    assert world.lengths.learned == [("b", 50), ("a", 40)]


def test_failures_teach_nothing():
    world = World()
    world.up("i")
    world.arrive("a")
    world.end("a", Outcome.ENGINE_ERROR, usage=Usage(1, 1))
    assert world.costs.timings == []
    assert world.lengths.learned == []


def test_backlog_is_what_is_queued_and_in_flight_over_the_seats():
    world = World()
    world.up("i", seats=2)
    fleet = world.coordinator.fleet
    instance = fleet.get(InstanceId("i"))
    assert fleet.backlog_s(instance) == 0.0
    for name in ("a", "b", "c"):
        world.arrive(name)
    # per call: prefill of 100 tokens 0.101 s, 100 tokens of 10 ms
    assert fleet.backlog_s(instance) == pytest.approx(3 * 1.101 / 2)
    world.post(ev.FirstToken(world.attempt_of("a")))
    world.post(ev.Progress(world.attempt_of("a"), 60))
    assert fleet.backlog_s(instance) == pytest.approx((2 * 1.101 + 0.4) / 2)
    for name in ("a", "b", "c"):
        world.end(name)
    assert fleet.backlog_s(instance) == 0.0


def test_a_record_says_what_was_predicted_and_what_came():
    world = World()
    world.up("i", seats=1)
    world.arrive("a", workflow="w", stage="plan")
    (record,) = [c.record for c in world.end("a", after_s=2.0) if isinstance(c, RecordCall)]
    assert (record.placement.workflow_id, record.placement.stage) == (WorkflowId("w"), "plan")
    assert (record.instance_id, record.attempts, record.outcome) == ("i", 1, Outcome.OK)
    assert record.predicted_compute_s == pytest.approx(1.101)
    assert record.urgency_s == pytest.approx(1.101 - 10.0)
    assert (record.prompt_tokens, record.output_tokens) == (100, 50)
    assert record.ended_s - record.arrived_s == 2.0


# --- seats found by themselves ---


def test_auto_seats_fill_when_they_grow():
    world = World()
    world.up("i", seats=None)
    for n in range(40):
        world.arrive(f"c{n}")
    assert len(world.out) == 16
    for rate in range(1, 9):
        for attempt in list(world.out):
            world.post(ev.Progress(attempt, 100 * rate), after_s=0.01)
        world.post(ev.InstanceObserved(InstanceId("i"), EngineGauges(running=16)), after_s=2.0)
    assert len(world.out) > 16
