"""The reserve: who sits there, and that nobody waits for ever."""

from __future__ import annotations

import random

import pytest
from core_world import World
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_fakes import fake_call, fake_fleet, fake_instance

from dispatcher import catalog
from dispatcher.core import events as ev
from dispatcher.core.coordinator import Limits
from dispatcher.core.ports import Admit, Defer
from dispatcher.core.types import PLAIN_SEAT, CallClass, CallId, Outcome, Slo
from dispatcher.registry import PolicyServices
from policies.reserve import OVERDUE_SEAT, RESERVE_SEAT, ReserveAdmission, ReserveTurns


def tempo_world(seats, params=None, engines=1):
    services = PolicyServices(random.Random(0))
    policy = catalog.build_policy("tempo", params or {}, services)
    limits = Limits(max_calls=100_000, max_wait_s=1e6)
    world = World(policy, limits=limits, observers=catalog.observers(services))
    for number in range(engines):
        world.up(f"i{number}", seats=seats)
    return world


def seats_of(world):
    return {a.call.call_id: a.seat for a in world.coordinator.attempts.values()}


# --- seats ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seats", "share", "reserved"),
    [(1, 0.1, 1), (2, 0.1, 1), (10, 0.1, 1), (11, 0.1, 2), (64, 0.1, 7), (8, 0.5, 4), (8, 0.0, 0)],
)
def test_a_tenth_of_the_seats_at_least_one_is_reserved(seats, share, reserved):
    assert ReserveAdmission(ReserveTurns(), share).reserved(seats) == reserved


def test_plain_seats_are_filled_before_those_of_the_reserve():
    admission, instance = ReserveAdmission(ReserveTurns()), fake_instance("i", seats=3)
    given_out = []
    for number in range(3):
        kinds = admission.open_seats(instance, 0.0)
        given_out.append(tuple(kinds))
        instance.start(fake_call(f"c{number}"), kinds[0])
    assert given_out == [(PLAIN_SEAT, RESERVE_SEAT), (PLAIN_SEAT, RESERVE_SEAT), (RESERVE_SEAT,)]
    assert admission.open_seats(instance, 0.0) == ()


def test_without_a_reserve_all_seats_are_plain():
    instance = fake_instance("i", seats=1)
    assert ReserveAdmission(ReserveTurns(), 0.0).open_seats(instance, 0.0) == (PLAIN_SEAT,)


def test_a_call_of_several_sequences_may_overdraw_and_its_kind_closes_first():
    admission, instance = ReserveAdmission(ReserveTurns()), fake_instance("i", seats=4)
    instance.start(fake_call("a"), PLAIN_SEAT)
    instance.start(fake_call("b"), PLAIN_SEAT)
    wide = fake_call("wide", seats=2)
    assert admission.admit(wide, PLAIN_SEAT, instance, 0.0) == Admit(PLAIN_SEAT)
    instance.start(wide, PLAIN_SEAT)
    del instance.in_flight[1]
    assert admission.open_seats(instance, 0.0) == (RESERVE_SEAT,)
    assert admission.admit(fake_call("wider", seats=2), RESERVE_SEAT, instance, 0.0) == Defer()


def test_of_a_single_seat_one_dispatch_in_ten_is_the_reserves():
    world = tempo_world(seats=1, params={"overdue_share": 0.0})
    kinds = []
    for number in range(40):
        urgent(world, f"c{number}")
        kinds.append(seats_of(world)[f"c{number}"])
        world.end(f"c{number}")
    assert [number for number, kind in enumerate(kinds) if kind == RESERVE_SEAT] == [9, 19, 29, 39]


@pytest.mark.parametrize("seats", [1, 3])
def test_one_dispatch_in_so_many_is_for_the_overdue(seats):
    world = tempo_world(seats, {"overdue_share": 0.25, "reserve": 0.0})
    kinds = []
    for number in range(12):
        urgent(world, f"c{number}")
        kinds.append(seats_of(world)[f"c{number}"])
        world.end(f"c{number}")
    assert kinds == [PLAIN_SEAT, PLAIN_SEAT, PLAIN_SEAT, OVERDUE_SEAT] * 3


def test_turns_are_forgotten_with_their_instance():
    turns = ReserveTurns()
    for number in range(50):
        engine = fake_instance(f"i{number}", seats=1)
        attempt = engine.start(fake_call("c"))
        event = ev.Dispatched(attempt.call, attempt.attempt_id, engine.spec.instance_id)
        turns.observe(event, fake_fleet(engine), 0.0)
    known = [turns.of(f"i{number}") for number in range(50)]
    assert known == [(0, 0)] * 49 + [(1, 1)]


# --- who sits there -------------------------------------------------------------------------------


def best_effort(world, name, **spec):
    return world.arrive(name, call_class=CallClass.BEST_EFFORT, **spec)


def urgent(world, name, **spec):
    spec.setdefault("prompt_tokens", 3_000)
    return world.arrive(name, call_class=CallClass.THROUGHPUT, **spec)


def test_best_effort_goes_first_on_the_reserve_and_last_elsewhere():
    world = tempo_world(seats=2)
    urgent(world, "running")
    urgent(world, "backfill")
    assert seats_of(world) == {"running": PLAIN_SEAT, "backfill": RESERVE_SEAT}
    best_effort(world, "patient")
    best_effort(world, "patient too")
    urgent(world, "dense")
    assert world.sent(world.end("running")) == [("dense", "i0")]
    assert world.sent(world.end("backfill")) == [("patient", "i0")]
    assert world.sent(world.end("patient")) == [("patient too", "i0")]


def test_who_has_waited_long_has_a_turn_whatever_its_class():
    world = tempo_world(2, {"overdue_share": 0.25})
    for name in ("running", "backfill", "thin", "dense0"):
        urgent(world, name, prompt_tokens=1 if name == "thin" else 3_000)
    world.now_s += 31.0
    urgent(world, "dense1")
    urgent(world, "dense2")
    # the fourth dispatch is the turn; "dense0" has become late
    assert world.sent(world.end("running")) == [("dense1", "i0")]
    assert world.sent(world.end("dense1")) == [("thin", "i0")]
    assert world.sent(world.end("thin")) == [("dense2", "i0")]
    assert world.sent(world.end("dense2")) == [("dense0", "i0")]


def test_the_reserve_is_not_for_the_overdue():
    world = tempo_world(2, {"overdue_share": 0.0})
    for name in ("running", "backfill", "thin"):
        urgent(world, name, prompt_tokens=1 if name == "thin" else 3_000)
    world.now_s += 1_000.0
    best_effort(world, "patient")
    urgent(world, "dense")
    assert world.sent(world.end("backfill")) == [("patient", "i0")]
    assert world.sent(world.end("patient")) == [("dense", "i0")]


def test_an_idle_fleet_serves_best_effort_on_every_seat():
    world = tempo_world(seats=4)
    for number in range(6):
        best_effort(world, f"b{number}")
    assert world.in_flight() == ["b0", "b1", "b2", "b3"]


def test_seats_gather_for_a_wide_call_that_has_its_turn():
    world = tempo_world(3, {"overdue_share": 0.2})
    for number in range(3):
        urgent(world, f"running{number}")
    urgent(world, "wide", seats=3, prompt_tokens=1)
    urgent(world, "dense")
    world.now_s += 31.0
    # the fourth dispatch is nobody's turn: others pass
    assert world.sent(world.end("running0")) == [("dense", "i0")]
    urgent(world, "denser", prompt_tokens=3_500)
    assert world.sent(world.end("running1")) == []
    assert world.sent(world.end("running2")) == []
    assert world.sent(world.end("dense")) == [("wide", "i0")]


@pytest.mark.parametrize("width", [16, 40])
def test_plain_seats_do_not_stand_idle_for_a_call_that_needs_those_of_the_reserve(width):
    world = tempo_world(seats=16)
    for number in range(14):
        urgent(world, f"running{number}")
    for number in range(100):
        best_effort(world, f"patient{number}")
    urgent(world, "wide", seats=width)
    for number in range(100):
        urgent(world, f"next{number}")
    assert list(seats_of(world).values()).count(RESERVE_SEAT) == 2
    for _ in range(16):
        # the reserve's end last, so that each could be followed by another
        world.end(world.in_flight()[0], after_s=1.0)
    assert world.in_flight() == ["wide"]
    world.end("wide", after_s=1.0)
    assert list(seats_of(world).values()) == [PLAIN_SEAT] * 14 + [RESERVE_SEAT] * 2


def test_seats_that_gathered_for_a_call_that_has_gone_are_open_to_all():
    world = tempo_world(seats=16)
    for number in range(14):
        urgent(world, f"running{number}")
    for number in range(4):
        best_effort(world, f"patient{number}")
    urgent(world, "wide", seats=16)
    assert world.sent(world.end("running0")) == world.sent(world.end("patient0")) == []
    went = world.sent(world.post(ev.CallCancelled(CallId("wide"))))
    assert went == [("patient2", "i0"), ("patient3", "i0")]


def test_a_held_call_closes_the_reserve_only_where_its_seats_gather():
    world = tempo_world(16, {"routing": "least-backlog-late"}, engines=2)
    for number in range(32):
        urgent(world, f"running{number}")
    urgent(world, "wide", seats=16)
    world.end("running0")
    world.end("running1")
    gather = world.coordinator.calls[CallId("wide")].instance
    turns = world.policy.admission.turns
    assert turns.gathering == {gather.instance_id}


# --- nobody waits for ever ------------------------------------------------------------------------

VARIANTS = [
    {},
    {"reading": "slack"},
    {"reading": "printed"},
    {"routing": "least-backlog-late"},
    {"fairness": 0.5},
    {"window": 2},
    {"preemption": True},
]


@pytest.mark.parametrize("params", VARIANTS, ids=str)
@settings(max_examples=8, deadline=None, database=None)
@given(seats=st.sampled_from([1, 2, 4]), engines=st.sampled_from([1, 2]), seed=st.integers(0, 99))
def test_under_permanent_overload_every_call_ends(params, seats, engines, seed):
    rng = random.Random(seed)
    world = tempo_world(seats, {"overdue_share": 0.1, **params}, engines)
    early = []
    for number in range(12):
        name = f"early{number}"
        call_class = rng.choice([CallClass.BEST_EFFORT, CallClass.THROUGHPUT, CallClass.COLLECTIVE])
        wide = rng.choice([1, 1, 1, seats, seats + 1])
        early.append(name)
        world.arrive(name, call_class=call_class, prompt_tokens=1, seats=wide)
    for step in range(420):
        # one for one, twenty ahead: the queue never empties, and all of it is denser than `early`
        for twin in range(20 if step == 0 else 1):
            slo = Slo(end_to_end_s=rng.uniform(1.0, 1e4), ttft_s=1e3, tpot_s=1.0)
            world.arrive(
                f"late{step}-{twin}",
                call_class=rng.choice([CallClass.LATENCY, CallClass.THROUGHPUT]),
                slo=slo,
                prompt_tokens=rng.randint(2_000, 4_000),
            )
        world.post(ev.Tick(), after_s=1.0)
        for attempt in sorted(world.to_stop):
            world.end_attempt(attempt, Outcome.PREEMPTED)
        world.end(rng.choice(world.in_flight()))
        if all(name in world.ended for name in early):
            break
    assert {world.ended.get(name) for name in early} == {Outcome.OK}, (seed, step)


@settings(max_examples=6, deadline=None, database=None)
@given(seats=st.sampled_from([1, 2, 10]), seed=st.integers(0, 99))
def test_best_effort_is_served_within_a_few_calls_under_permanent_overload(seats, seed):
    rng = random.Random(seed)
    world = tempo_world(seats)
    for number in range(20 + seats):
        urgent(world, f"first{number}")
    best_effort(world, "patient")
    for step in range(25 * seats):
        urgent(world, f"late{step}")
        world.post(ev.Tick(), after_s=0.1)
        # each call is as long as any other
        world.end(world.in_flight()[0] if rng.random() < 0.9 else world.in_flight()[-1])
        if "patient" in world.ended:
            break
    assert world.ended.get("patient") is Outcome.OK


@pytest.mark.parametrize("call_class", [CallClass.BEST_EFFORT, CallClass.THROUGHPUT])
def test_held_calls_of_other_needs_do_not_keep_one_out_for_ever(call_class):
    params = {"routing": "least-backlog-late", "overdue_share": 0.1}
    if call_class is CallClass.BEST_EFFORT:
        params["overdue_share"] = 0.0
    world = tempo_world(0, params, engines=0)
    world.up("both", seats=4, models=frozenset({"m", "other"}))
    world.up("one", seats=1, models=frozenset({"other"}))
    for number in range(5):
        urgent(world, f"first{number}", model="other")
    world.arrive("patient", call_class=call_class, prompt_tokens=1)
    for step in range(60):
        urgent(world, f"late{step}", model="other")
        urgent(world, f"later{step}", model="other")
        world.end(world.in_flight()[0], after_s=1.0)
        if "patient" in world.in_flight():
            break
    assert "patient" in world.in_flight()


def test_without_a_reserve_best_effort_does_starve():
    world = tempo_world(2, {"reserve": 0.0, "overdue_share": 0.0})
    urgent(world, "a")
    urgent(world, "b")
    best_effort(world, "starved")
    for step in range(100):
        urgent(world, f"late{step}")
        world.end(world.in_flight()[0], after_s=1.0)
    assert "starved" not in world.ended
