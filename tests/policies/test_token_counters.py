"""The tokens that each workflow has been served: what is charged, lifted, kept, and by whom fed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from fair_world import CLIENTS, fair_world, run_to_the_end
from hypothesis import given, settings
from hypothesis import strategies as st

import policies.token_counters
from dispatcher import catalog
from dispatcher.config import Settings, StoreSettings
from dispatcher.core import events as ev
from dispatcher.core.commands import Dispatch
from dispatcher.core.coordinator import Limits
from dispatcher.core.types import (
    CallId,
    CallSpec,
    InstanceId,
    InstanceSpec,
    Outcome,
    Usage,
    WorkflowId,
)
from dispatcher.gateway.runtime import Gateway
from policies.token_counters import TokenCounters

# --- what is charged ---


def test_tokens_count_while_they_stream():
    world, counters, _ = fair_world()
    world.arrive("a1", workflow="a")
    for tokens, counter in ((10, 120.0), (40, 180.0), (40, 180.0), (30, 180.0)):
        world.post(ev.Progress(world.attempt_of("a1"), tokens))
        assert counters.of("a") == counter


def test_the_engines_own_count_wins_in_both_directions():
    world, counters, _ = fair_world()
    world.arrive("a1", workflow="a")
    world.post(ev.Progress(world.attempt_of("a1"), 80))
    world.end("a1", usage=Usage(prompt_tokens=70, output_tokens=60))
    assert counters.of("a") == 70.0 + 2 * 60.0
    world.arrive("b1", workflow="b")
    before = counters.of("b") - 100.0
    world.end("b1", usage=Usage(prompt_tokens=130, output_tokens=90))
    assert counters.of("b") - before == 130.0 + 2 * 90.0


def test_without_usage_the_drivers_count_stands():
    world, counters, _ = fair_world()
    world.arrive("a1", workflow="a")
    world.end("a1", usage=None, output_tokens=35)
    assert counters.of("a") == 100.0 + 2 * 35.0


def test_several_prompts_and_sequences_count_in_full():
    world, counters, _ = fair_world()
    world.arrive("a1", workflow="a", prompts=3, seats=3)
    assert counters.of("a") == 3 * 100.0


def test_a_counter_that_queues_look_at_falls_only_when_none_of_its_calls_waits():
    world, counters, _ = fair_world()
    world.arrive("a1", workflow="a")
    world.arrive("a2", workflow="a")
    world.arrive("b1", workflow="b")
    world.post(ev.Progress(world.attempt_of("a1"), 90))
    # b1 goes out: a2 still waits with what a1 was charged
    world.end("a1", usage=Usage(prompt_tokens=100, output_tokens=20))
    assert counters.of("a") == 100.0 + 2 * 90.0
    world.end("b1")
    assert counters.of("a") == (100.0 + 2 * 20.0) + 100.0, "corrected, and a2 admitted"


def test_a_call_that_never_ran_costs_nothing():
    world, counters, _ = fair_world()
    world.arrive("a1", workflow="a")
    world.arrive("b1", workflow="b")
    before = counters.of("b")
    world.post(ev.CallCancelled("b1"))
    assert counters.of("b") == before


def test_an_attempt_that_failed_unseen_is_not_paid_for():
    world, counters, _ = fair_world("x", "y")
    world.arrive("a1", workflow="a")
    world.post(ev.Progress(world.attempt_of("a1"), 30))
    world.end("a1", Outcome.ENGINE_ERROR, retryable=True, output_tokens=30)
    assert counters.of("a") == 100.0, "its second attempt's prompt"
    world.end("a1")
    assert counters.of("a") == 200.0


def test_a_failure_that_the_client_saw_is_paid_for():
    world, counters, _ = fair_world()
    world.arrive("a1", workflow="a")
    world.end("a1", Outcome.ENGINE_ERROR, output_tokens=30)
    assert counters.of("a") == 160.0


@pytest.mark.parametrize(("resumable", "kept"), [(True, 20), (False, 0)])
def test_a_call_that_was_stopped_pays_for_its_prompt_once(resumable, kept):
    world, counters, _ = fair_world()
    world.arrive("a1", workflow="a")
    world.post(ev.Progress(world.attempt_of("a1"), 20))
    world.end("a1", Outcome.PREEMPTED, output_tokens=20, resumable=resumable)
    assert counters.of("a") == 100.0 + 2 * kept, "it went out again at once"
    # the engine counts what it was given to go on from as prompt
    world.end("a1", usage=Usage(prompt_tokens=100 + kept, output_tokens=50))
    assert counters.of("a") == 100.0 + 2 * kept + 2 * 50


# --- the lift ---


def test_who_comes_back_does_not_bring_the_credit_of_its_absence():
    world, counters, _ = fair_world()
    world.arrive("old", workflow="old")
    world.end("old")
    for number in range(4):
        world.arrive(f"a{number}", workflow="a")
    world.end("a0")
    world.end("a1")
    assert counters.of("a") == 200.0 + 2 * 200.0 + 100.0, "lifted to old's 200, two done, one out"
    world.arrive("old again", workflow="old")
    assert counters.of("old") == counters.of("a")


def test_the_lift_is_to_the_least_of_those_that_wait():
    world, counters, _ = fair_world()
    world.arrive("running", workflow="r", prompt_tokens=0)
    world.arrive("low", workflow="low")
    world.arrive("high", workflow="high")
    world.end("running", usage=Usage(0, 0))
    assert counters.of("low") == 100.0
    world.arrive("low too", workflow="low")
    assert (counters.of("low"), counters.of("high")) == (100.0, 0.0)
    world.arrive("new", workflow="new")
    assert counters.of("new") == 0.0


def test_with_nobody_waiting_the_lift_is_to_the_last_that_did():
    world, counters, _ = fair_world("x", "y")
    world.arrive("a1", workflow="a")
    world.post(ev.Progress(world.attempt_of("a1"), 200))
    world.arrive("b1", workflow="b")
    assert counters.of("b") == 500.0 + 100.0


def test_a_client_that_has_more_than_the_least_is_not_lifted():
    world, counters, _ = fair_world()
    world.arrive("a1", workflow="a")
    world.arrive("b1", workflow="b")
    world.arrive("c1", workflow="c")
    world.end("a1", usage=Usage(prompt_tokens=100, output_tokens=400))
    world.arrive("a2", workflow="a")
    assert counters.of("a") == 900.0
    assert run_to_the_end(world) == ["b1", "c1", "a2"]


def test_a_workflow_between_two_calls_is_remembered():
    world, counters, _ = fair_world()
    world.arrive("a1", workflow="a")
    world.arrive("b1", workflow="b")
    world.arrive("c1", workflow="c")
    world.end("a1", usage=Usage(prompt_tokens=100, output_tokens=400))
    assert world.coordinator.fleet.live_calls("a") == []
    assert counters.of("a") == 900.0


def test_calls_that_gave_up_waiting_do_not_hold_the_lift_down():
    world, counters, _ = fair_world()
    world.arrive("a1", workflow="a")
    world.arrive("b1", workflow="b")
    for number in range(2, 5):
        world.arrive(f"a{number}", workflow="a")
    world.post(ev.Progress(world.attempt_of("a1"), 300))
    assert (counters.of("a"), counters.of("b")) == (700.0, 100.0)
    world.post(ev.CallCancelled("b1"))
    world.arrive("c1", workflow="c")
    assert counters.of("c") == 700.0


CLIENT_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "arrive", "progress", "end", "cancel"]),
        st.sampled_from(CLIENTS),
        st.integers(1, 90),
    ),
    max_size=40,
)


class Oracle:
    """Algorithm 2 with plain dictionaries, told what the coordinator did."""

    def __init__(self):
        self.counter = dict.fromkeys(CLIENTS, 0.0)
        self.waiting = []
        self.last = None

    def arrives(self, call_id):
        clients = {other[0] for other in self.waiting}
        if call_id[0] not in clients:
            floor = min((self.counter[c] for c in clients), default=self.counter.get(self.last, 0))
            self.counter[call_id[0]] = max(self.counter[call_id[0]], floor)
        self.waiting.append(call_id)

    def leaves(self, call_id):
        self.waiting.remove(call_id)
        if not any(other[0] == call_id[0] for other in self.waiting):
            self.last = call_id[0]

    def sent(self, commands):
        for command in commands:
            if isinstance(command, Dispatch):
                self.leaves(command.call_id)
                self.counter[command.call_id[0]] += 100.0


@settings(max_examples=150, deadline=None)
@given(CLIENT_STEPS)
def test_the_counters_are_the_papers(steps):
    world, counters, _ = fair_world("x", "y")
    oracle, tokens = Oracle(), {}
    for number, (action, client, amount) in enumerate(steps):
        out = [c for c in world.in_flight() if c[0] == client]
        if action == "arrive":
            oracle.arrives(f"{client}{number}")
            oracle.sent(world.arrive(f"{client}{number}", workflow=client))
        elif action == "cancel":
            waiting = [c for c in oracle.waiting if c[0] == client]
            if waiting:
                oracle.leaves(waiting[0])
                oracle.sent(world.post(ev.CallCancelled(waiting[0])))
        elif out:
            new = amount + tokens.get(out[0], 0)
            oracle.counter[client] += 2.0 * amount
            if action == "progress":
                tokens[out[0]] = new
                oracle.sent(world.post(ev.Progress(world.attempt_of(out[0]), new)))
            else:
                oracle.sent(world.end(out[0], usage=Usage(100, new)))
        assert {c: counters.of(c) for c in CLIENTS} == oracle.counter


# --- what is kept ---


def test_only_the_latest_of_those_that_left_are_remembered(monkeypatch):
    monkeypatch.setattr(policies.token_counters, "GONE_BOUND", 20)
    world, counters, _ = fair_world()
    world.arrive("first", workflow="first")
    world.end("first")
    for number in range(100):
        world.arrive(f"c{number}")
        world.end(f"c{number}")
    assert len(counters) == 20
    assert counters.of("first") == 0.0


def test_calls_that_gave_up_leave_nothing_behind(monkeypatch):
    monkeypatch.setattr(policies.token_counters, "GONE_BOUND", 5)
    world, counters, _ = fair_world(limits=Limits(max_calls=10, max_wait_s=50.0))
    world.arrive("running")
    world.arrive("stays")
    for number in range(300):
        world.arrive(f"c{number}")
        if number % 3:
            world.post(ev.CallCancelled(f"c{number}"))
        elif number % 2:
            world.post(ev.WorkflowCancelled(WorkflowId(f"w-c{number}")))
        if number % 60 == 0:
            world.post(ev.Tick(), after_s=51.0)
    assert len(world.coordinator.calls) <= 12
    assert len(counters) <= 5 + 2 * 12
    assert len(counters._waiting) <= 2 * 12


# --- warm, whatever policy is active ---


def test_counters_are_warm_when_vtc_is_switched_in():
    world, _, services = fair_world(policy="vllm")
    for call_id in ("a1", "a2", "b1"):
        world.arrive(call_id, workflow=call_id[0])
    world.post(ev.Progress(world.attempt_of("a1"), 40))
    world.post(ev.PolicySwitched(catalog.build_policy("vtc", {}, services)))
    assert world.sent(world.end("a1")) == [("b1", "i")]


async def test_the_gateway_counts_under_every_policy():
    gateway = Gateway(Settings(store=StoreSettings(path=None)))
    try:
        coordinator = gateway.coordinator
        assert coordinator.policy.name != "vtc"
        spec = InstanceSpec(InstanceId("i"), frozenset({"m"}), seats=1)
        coordinator.handle(coordinator.now_s, ev.InstanceUp(spec))
        call = CallSpec(CallId("c"), WorkflowId("w"), "m", prompt_tokens=100)
        coordinator.handle(coordinator.now_s, ev.CallArrived(call))
        assert gateway.services.observer(TokenCounters).of(WorkflowId("w")) == 100.0
    finally:
        await gateway.stop()


def test_events_of_attempts_that_it_has_not_seen_go_out_are_passed_over():
    counters = TokenCounters()
    nobody = SimpleNamespace(call=lambda call_id: None)
    counters.observe(ev.Progress(7, 10), nobody, 0.0)
    counters.observe(ev.AttemptEnded(7, Outcome.OK), nobody, 0.0)
    assert len(counters) == 0
