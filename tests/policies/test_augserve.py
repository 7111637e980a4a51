"""AugServe's order: classes, values, waiting; and InferCept's."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from core_world import World
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_fakes import FakeSession, fake_call, fake_fleet, fake_instance

from dispatcher import catalog
from dispatcher.core import events as ev
from dispatcher.core.types import (
    AttemptId,
    InstanceId,
    LengthEstimate,
    Outcome,
    Task,
    Usage,
    WorkflowId,
)
from dispatcher.registry import PolicyServices
from policies import tool_habits
from policies.augserve import AugServe
from policies.context_handling import ContextHandling
from policies.session_fcfs import SessionFcfs
from policies.tool_habits import Habit, ToolHabits

# the fakes take 0.5 ms per prompt token and 20 ms per output token
T = 0.02


class Habits(ToolHabits):
    """As a test says."""

    def __init__(self, **habits):
        super().__init__()
        self._habits.update(habits)


def ordering(habits=None, **params):
    # as the paper has it: classes, and everybody who has waited for long goes first
    as_published = {"strict": True, "tau_s": 5.0, "promote_share": 1.0}
    return AugServe(habits or Habits(), ContextHandling(), **{**as_published, **params})


def session(workflow="w", context=1_000, cached=True, instance="here", **fields):
    return FakeSession(
        WorkflowId(workflow), InstanceId(instance), context, cached=cached, live=1, **fields
    )


def key(rule, call, *sessions, now_s=0.0, instance=None):
    here = instance or fake_instance("here")
    return rule.key(call, here, fake_fleet(here, sessions=sessions), now_s)


def order(rule, calls, *sessions, now_s=0.0):
    here = fake_instance("here")
    queue = rule.queue(here, fake_fleet(here, calls=calls, sessions=sessions))
    for call in calls:
        queue.push(call, now_s)
    given_out = []
    while len(queue):
        given_out.append(queue.select("", now_s).spec.call_id)
        queue.remove(given_out[-1])
    return given_out


# --- values ---------------------------------------------------------------------------------------


def test_a_new_call_has_the_value_of_stage_one():
    call = fake_call("c", prompt_tokens=1_000, output_tokens=200.0)
    assert key(ordering(), call) == (2.0, pytest.approx(T * (1_000 + 200_000 + 20_000)), 0.0)


def test_pauses_count_by_what_the_application_has_done():
    habits = Habits(default=Habit(asks=0.5, gap_s=0.2, calls=9))
    call = fake_call("c", prompt_tokens=1_000, output_tokens=200.0)
    served = T * (1_000 + 200_000 + 20_000)
    # 1,200 tokens: keeping them for 0.2 s wastes 240, computing them again 0.6 x 1,200
    assert key(ordering(habits), call)[1] == pytest.approx(served + 0.5 * 1_200 * 0.2)
    last = fake_call("c", prompt_tokens=1_000, output_tokens=200.0, final=True)
    assert key(ordering(habits), last)[1] == pytest.approx(served)


def test_a_pause_that_would_waste_more_than_computing_again_is_planned_as_a_discard():
    habits = Habits(default=Habit(asks=1.0, gap_s=60.0, calls=9))
    call = fake_call("c", prompt_tokens=1_000, output_tokens=200.0)
    assert key(ordering(habits), call) == key(ordering(), call)


def test_a_return_has_the_value_of_stage_two():
    call = fake_call("c", workflow="w", prompt_tokens=1_300, output_tokens=50.0)
    later = T * (1_300 + 50 * 1_300 + 1_250)
    kept = key(ordering(), call, session(context=1_000))
    assert kept == (0.0, pytest.approx(later), 0.0)
    lost = key(ordering(), call, session(context=1_000, cached=False))
    assert lost == (2.0, pytest.approx(later + T * 1_000), 0.0)


def test_a_context_that_was_to_be_swapped_and_is_not_cached_is_swapped_in():
    # moved in an iteration: 2 x 0.02 x 600 of others, against 2 s of its own thousand
    call = fake_call("c", workflow="w", prompt_tokens=1_300, output_tokens=50.0)
    here = fake_instance("here", offload_tokens=5_000)
    here.start(fake_call("other", prompt_tokens=600))
    away = session(context=1_000, cached=False, gap_s=2.0)
    swapped = key(ordering(), call, away, instance=here)
    later = T * (1_300 + 50 * 1_300 + 1_250)
    assert swapped == (1.0, pytest.approx(later + T * 1_000), 0.0)


def test_a_shorter_prompt_goes_on_from_as_much_as_it_has():
    call = fake_call("c", workflow="w", prompt_tokens=400, output_tokens=50.0)
    value = key(ordering(), call, session(context=9_000))[1]
    assert value == pytest.approx(T * (50 * 400 + 1_250))


def test_quantile_and_sequences_enter_the_value():
    call = fake_call("c", prompt_tokens=100, output_tokens=10.0, seats=3)
    call.length = LengthEstimate(10.0, ((0.5, 8.0), (0.9, 40.0)))
    assert key(ordering(), call)[1] == pytest.approx(3 * T * (100 + 1_000 + 50))
    long = key(ordering(quantile=0.9), call)[1]
    assert long == pytest.approx(3 * T * (100 + 4_000 + 800))


def test_held_calls_are_valued_where_their_session_is():
    fast, slow = fake_instance("fast"), fake_instance("slow", slowness=3.0)
    fleet = fake_fleet(fast, slow, sessions=[session(instance="slow")])
    rule = ordering()
    new = fake_call("new", prompt_tokens=1_000, output_tokens=50.0)
    back = fake_call("back", workflow="w", prompt_tokens=1_000, output_tokens=50.0)
    assert rule.key(new, None, fleet, 0.0) == rule.key(new, fast, fleet, 0.0)
    assert rule.key(back, None, fleet, 0.0) == rule.key(back, slow, fleet, 0.0)
    assert rule.key(new, None, fake_fleet(), 0.0) == (2.0, 0.0, 0.0)


# --- classes and waiting --------------------------------------------------------------------------


def test_returns_to_what_was_kept_go_first_then_the_cheapest():
    calls = [
        fake_call("new long", 1, output_tokens=900.0),
        fake_call("new short", 2, output_tokens=20.0),
        fake_call("lost", 3, workflow="lost", output_tokens=20.0),
        fake_call("kept long", 4, workflow="kept", output_tokens=890.0),
        fake_call("kept short", 5, workflow="kept", output_tokens=300.0),
    ]
    sessions = [session("lost", 100, cached=False), session("kept", 100)]
    kept_first = ["kept short", "kept long", "new short", "lost", "new long"]
    assert order(ordering(), calls, *sessions) == kept_first
    by_value = ["new short", "lost", "kept short", "kept long", "new long"]
    assert order(ordering(strict=False), calls, *sessions) == by_value


def test_waiting_halves_a_value_after_tau_or_takes_alpha_off():
    call = fake_call("c", prompt_tokens=1_000, output_tokens=200.0)
    whole = key(ordering(), call)[1]
    assert key(ordering(), call, now_s=5.0)[1] == pytest.approx(whole / 2)
    assert key(ordering(tau_s=10.0), call, now_s=20.0)[1] == pytest.approx(whole / 3)
    linear = ordering(aging="linear", alpha=150.0)
    assert key(linear, call, now_s=20.0)[1] == pytest.approx(whole - 3_000.0)


def test_a_clients_priority_decides_between_equals():
    calls = [fake_call("a", 1), fake_call("keen", 2, client_priority=-1)]
    assert order(ordering(), calls) == ["keen", "a"]


def test_values_are_looked_at_anew_on_ticks():
    # 6,004 against 2,104 token seconds, of which waiting for 20 s leaves a fifth
    dear = fake_call("dear", 1, output_tokens=600.0)
    cheap = fake_call("cheap", 2, output_tokens=300.0, arrived_s=20.0)
    here = fake_instance("here")
    fleet = fake_fleet(here)
    rule = ordering(promote_s=None)
    queue = rule.queue(here, fleet)
    queue.push(dear, 0.0)
    queue.push(cheap, 20.0)
    assert queue.select("", 20.0) is cheap
    assert rule.key(dear, here, fleet, 20.0) < rule.key(cheap, here, fleet, 20.0)
    while queue.rescore(20.0, 512):
        pass
    assert queue.select("", 20.0) is dear


def test_who_has_waited_long_enough_is_next_without_a_tick():
    old = fake_call("old", 1, output_tokens=4_000.0)
    cheap = fake_call("cheap", 2, workflow="kept", output_tokens=1.0, arrived_s=29.0)
    here = fake_instance("here")
    queue = ordering().queue(here, fake_fleet(here, sessions=[session("kept")]))
    queue.push(old, 0.0)
    queue.push(cheap, 29.0)
    assert queue.select("", 29.9) is cheap
    assert queue.select("", 30.0) is old
    assert ordering().key(old, here, fake_fleet(here), 30.0) < (0.0,)
    patient = ordering(promote_s=None).queue(here, fake_fleet(here, sessions=[session("kept")]))
    patient.push(old, 0.0)
    patient.push(cheap, 29.0)
    assert patient.select("", 1e3) is cheap


def test_one_in_so_many_that_leave_is_the_oldest():
    here = fake_instance("here")
    queue = ordering(promote_share=0.25).queue(here, fake_fleet(here))
    queue.push(fake_call("old", 1, output_tokens=9_000.0), 0.0)
    queue.push(fake_call("older", 0, output_tokens=9_000.0, arrived_s=-1.0), 0.0)
    for number in range(2, 10):
        queue.push(fake_call(f"c{number}", number, output_tokens=1.0, arrived_s=20.0), 20.0)
    left = []
    while len(queue):
        left.append(queue.select("", 40.0).spec.call_id)
        queue.remove(left[-1])
    assert left[:8] == ["c2", "c3", "c4", "older", "c5", "c6", "c7", "old"]


def test_what_leaves_otherwise_is_a_turn_as_well():
    here = fake_instance("here")
    queue = ordering(promote_share=0.5).queue(here, fake_fleet(here))
    for number in range(4):
        queue.push(fake_call(f"c{number}", number, output_tokens=100.0 - number), 0.0)
    queue.remove("c3")
    assert queue.select("", 40.0).spec.call_id == "c0"
    queue.remove("c0")
    assert queue.select("", 40.0).spec.call_id == "c2"


@settings(max_examples=25, deadline=None)
@given(
    st.randoms(use_true_random=False),
    st.sampled_from(["ratio", "linear"]),
    st.sampled_from([0.05, 0.2, 1.0]),
)
def test_nobody_starves_however_many_cheaper_calls_come(rng, aging, share):
    """One seat, overrun by cheap calls for ever: the dearest still has its turn."""
    rule = ordering(aging=aging, promote_share=share)
    here = fake_instance("here")
    fleet = fake_fleet(here, sessions=[session("kept", 100)])
    queue = rule.queue(here, fleet)
    worst = fake_call("worst", 0, prompt_tokens=30_000, output_tokens=4_000.0)
    queue.push(worst, 0.0)
    served_s = None
    number = 0
    for step in range(400):
        now_s = 0.5 * step
        for _ in range(rng.randint(1, 3)):
            number += 1
            workflow = rng.choice(["kept", f"new{number}"])
            tokens = float(rng.randint(1, 50))
            queue.push(
                fake_call(f"c{number}", number, workflow=workflow, output_tokens=tokens,
                          arrived_s=now_s),
                now_s,
            )  # fmt: skip
        queue.rescore(now_s, 64)
        chosen = queue.select("", now_s)
        queue.remove(chosen.spec.call_id)
        if chosen is worst:
            served_s = now_s
            break
    # it is the oldest of all: its turn is the first that there is
    assert served_s is not None and served_s <= 30.5 + 0.5 / share


# --- what applications do -------------------------------------------------------------------------


def out(name, number, application="agent", workflow=None):
    call = fake_call(name, number, workflow=workflow, application=application)
    return call, ev.Dispatched(call, AttemptId(number), InstanceId("here"))


def test_how_often_and_how_long_an_application_is_away():
    habits = ToolHabits()
    here = fake_instance("here")
    for number, tool in enumerate(["search", None, "search", "search"]):
        call, sent = out(f"c{number}", number, workflow="w")
        back = session("w", ended_s=10.0 * number, tool=tool)
        fleet = fake_fleet(here, calls=[call], sessions=[back])
        habits.observe(sent, fleet, 10.0 * number)
        habits.observe(ev.AttemptEnded(AttemptId(number), Outcome.OK, tool=tool), fleet, 0.0)
        following = fake_call("next", 9, workflow="w", application="agent")
        fleet.calls[following.spec.call_id] = following
        habits.observe(ev.CallArrived(following.spec), fleet, 10.0 * number + number)
    known = habits.of("agent")
    assert known.asks == pytest.approx(0.75)
    assert known.gap_s == 2.0  # of 0, 2 and 3; the one without a tool is none
    assert habits.of("unheard") == Habit()


def test_calls_beside_others_and_lost_answers_teach_nothing():
    habits = ToolHabits()
    call, sent = out("c", 1, workflow="w")
    busy = replace(session("w"), live=2)
    fleet = fake_fleet(fake_instance("here"), calls=[call], sessions=[busy])
    habits.observe(sent, fleet, 0.0)
    habits.observe(ev.AttemptEnded(AttemptId(1), Outcome.ENGINE_ERROR), fleet, 0.0)
    habits.observe(ev.CallArrived(call.spec), fleet, 5.0)
    assert len(habits) == 0


def test_applications_are_forgotten(monkeypatch):
    monkeypatch.setattr(tool_habits, "KEPT", 2)
    habits = ToolHabits()
    for number, application in enumerate("abac"):
        _, sent = out(f"c{number}", number, application)
        habits.observe(sent, fake_fleet(), 0.0)
        ended = ev.AttemptEnded(AttemptId(number), Outcome.OK, tool="")
        habits.observe(ended, fake_fleet(), 0.0)
    assert [habits.of(one).calls for one in "abc"] == [2, 0, 1]


def test_habits_are_learned_whatever_policy_runs():
    services = PolicyServices(random.Random(0))
    world = World(catalog.build_policy("vllm", {}, services), observers=catalog.observers(services))
    world.up("i", seats=1)
    world.arrive("c1", "w", application="agent")
    world.end("c1", tool="search", after_s=1.0)
    world.now_s += 4.0
    world.arrive("c2", "w", application="agent")
    known = services.observer(ToolHabits).of("agent")
    assert (known.asks, known.gap_s) == (1.0, 4.0)
    # what the tool embeds, or its client beside the call, is neither an answer nor a return
    world.up("j", tasks=frozenset({Task.EMBED}))
    world.arrive("e", "w", application="agent", task=Task.EMBED)
    world.end("e", after_s=1.0)
    assert (known.asks, known.calls, list(known.gaps_s)) == (1.0, 1, [4.0])


# --- the whole policy -----------------------------------------------------------------------------


def aug_world(name="augserve", seats=1, spec=None, **params):
    services = PolicyServices(random.Random(0))
    world = World(
        catalog.build_policy(name, params, services), observers=catalog.observers(services)
    )
    world.up("i", seats=seats, **(spec or {}))
    return world


def test_a_return_to_its_prefix_passes_new_calls():
    world = aug_world(strict=True)
    world.arrive("turn 1", "s")
    world.end("turn 1", tool="search", after_s=1.0)
    world.arrive("turn 2", "s", prompt_tokens=200)
    # the engine says that it has found all that was there
    world.end("turn 2", tool="search", after_s=1.0, usage=Usage(200, 50, cached_tokens=150))
    world.arrive("running")
    world.arrive("new", prompt_tokens=10)
    world.arrive("turn 3", "s", prompt_tokens=300)
    assert world.sent(world.end("running", after_s=1.0)) == [("turn 3", "i")]


def test_without_two_stages_the_oldest_session_goes_first():
    for name, params in (("infercept", {}), ("augserve", {"two_stage": False})):
        world = aug_world(name, **params)
        world.arrive("turn 1", "s")
        world.arrive("other")
        world.end("turn 1", tool="search", after_s=1.0)
        world.arrive("new", prompt_tokens=10)
        world.arrive("turn 2", "s", prompt_tokens=200)
        assert world.sent(world.end("other", after_s=1.0)) == [("turn 2", "i")]
        assert isinstance(world.policy.ordering, SessionFcfs)


def test_promoted_calls_go_first_under_the_policy_as_well():
    world = aug_world(promote_share=1.0)
    world.arrive("running")
    world.arrive("dear", prompt_tokens=30_000)
    world.now_s += 30.0
    world.arrive("cheap", prompt_tokens=1)
    assert world.sent(world.end("running")) == [("dear", "i")]
