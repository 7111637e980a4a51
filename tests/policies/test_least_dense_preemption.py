"""Preemption: only where it gains more than it loses, only where it is safe, seldom."""

from __future__ import annotations

import random

import pytest
from core_world import World
from policy_fakes import fake_call, fake_fleet, fake_instance

from dispatcher import catalog
from dispatcher.core import events as ev
from dispatcher.core.commands import Dispatch, Preempt
from dispatcher.core.types import CallClass, Outcome, Task
from dispatcher.registry import PolicyServices
from policies.least_dense_preemption import ROUND_TRIP_S, SCORED_PER_TICK, LeastDensePreemption
from policies.lsdf import Lsdf
from policies.reserve import RESERVE_SEAT

# 0.5 ms per prompt token, 20 ms per output token: a quantum of 20 tokens is 0.4 s
QUANTUM_S = 0.4


def throughput(name, sequence=1, **fields):
    fields = {"call_class": CallClass.THROUGHPUT, "deadline_s": 1e6, **fields}
    return fake_call(name, sequence, **fields)


class Case:
    """One full instance, one call that waits, and what is stopped."""

    def __init__(self, waiting, running, seats=None, **settings):
        self.here = fake_instance("here", seats=seats or len(running))
        self.ordering = Lsdf()
        self.preemption = LeastDensePreemption(self.ordering, **settings)
        self.fleet = fake_fleet(self.here, calls=[waiting, *running])
        for call in running:
            self.here.start(call)
        self.queue = self.ordering.queue(self.here, self.fleet)
        self.queue.push(waiting, 0.0)

    def stopped(self, now_s=0.0):
        stopped = self.preemption.preempt(self.fleet, now_s)
        return [self.here.in_flight[attempt].call.spec.call_id for attempt in stopped]


def dense(**fields):
    return throughput("dense", 9, **{"prompt_tokens": 4_000, "output_tokens": 10.0, **fields})


def thin(name="thin", sequence=1, **fields):
    fields = {"prompt_tokens": 10, "output_tokens": 500.0, **fields}
    return throughput(name, sequence, **fields)


def test_the_least_dense_goes_for_a_denser_one():
    running = [thin(prompt_tokens=20), thin("thinner", 2), thin("dense too", 3, prompt_tokens=900)]
    assert Case(dense(), running).stopped() == ["thinner"]
    assert Case(thin("hardly denser", 9, output_tokens=400.0), running).stopped() == []


def test_equally_thin_calls_go_youngest_first():
    assert Case(dense(), [thin("older", 1), thin("younger", 2)]).stopped() == ["younger"]


def test_the_gain_of_a_quantum_must_exceed_what_is_lost():
    # u: 4,020 in 2.2 s. v: 1,010 tokens in 10.005 s. Stopped after g tokens, v loses a prefill of
    # its prompt and a round trip of the whole batch, and its g tokens.
    density_u, density_v = 4_020 / 2.2, 1_010 / 10.005
    for tokens in (0, 20, 200, 300, 400):
        ran_s = 0.005 + tokens * 0.02
        batch = 1_010 / ((500 - tokens) * 0.02) if tokens else density_v
        loss = (0.005 + ROUND_TRIP_S + tokens * 0.02) * batch
        gain = (density_u - batch) * QUANTUM_S
        assert Case(dense(), [thin()]).stopped(now_s=ran_s + 1e-9) == (
            ["thin"] if gain > loss else []
        ), tokens
    assert gain < loss, "the last of them is not worth it, the first is"


def test_what_is_nearly_done_is_left_alone():
    # a quantum of 200 s is worth any stall
    for tokens, stopped in ((440, ["thin"]), (455, [])):
        case = Case(dense(), [thin()], quantum_tokens=10_000)
        assert case.stopped(now_s=0.005 + tokens * 0.02) == stopped


def test_who_is_being_stopped_already_is_left_out():
    case = Case(dense(), [thin(), thin("thin too", 2, prompt_tokens=20)])
    first, _ = case.here.in_flight.values()
    first.stopping = True
    assert case.stopped() == ["thin too"]


@pytest.mark.parametrize(
    "unsafe",
    [
        {"streaming": True},
        {"seats": 2},
        {"task": Task.EMBED},
        {"call_class": CallClass.BEST_EFFORT},
    ],
    ids=str,
)
def test_what_cannot_be_stopped_unnoticed_is_not(unsafe):
    assert Case(dense(), [thin(**unsafe)], seats=1).stopped() == []


def test_the_reserve_keeps_what_it_serves():
    case = Case(dense(), [thin()])
    next(iter(case.here.in_flight.values())).seat = RESERVE_SEAT
    assert case.stopped() == []


@pytest.mark.parametrize("waiting", [{"call_class": CallClass.BEST_EFFORT}, {"seats": 2}], ids=str)
def test_nothing_is_stopped_for_what_the_seat_would_not_serve(waiting):
    assert Case(dense(**waiting), [thin()]).stopped() == []


def test_nothing_is_stopped_while_a_seat_is_free_or_for_nobody():
    assert Case(dense(), [thin()], seats=2).stopped() == []
    case = Case(dense(), [thin()])
    case.queue.remove("dense")
    assert case.stopped() == []


def test_an_instance_is_looked_at_once_per_quantum():
    case = Case(dense(), [thin("a", 1), thin("b", 2)])
    assert case.stopped(0.0) == ["b"]
    assert case.stopped(QUANTUM_S - 0.01) == []
    assert len(case.stopped(QUANTUM_S + 0.01)) == 1
    finer = Case(dense(), [thin()], quantum_tokens=10)
    assert finer.stopped(0.0) == ["thin"]
    assert finer.stopped(QUANTUM_S / 2 + 0.01) == ["thin"]


def test_many_instances_take_turns():
    ordering = Lsdf()
    engines = [fake_instance(f"i{number}", seats=16) for number in range(8)]
    fleet = fake_fleet(*engines)
    for engine in engines:
        for number in range(16):
            engine.start(thin(f"{engine.spec.instance_id}-{number}", number))
        ordering.queue(engine, fleet).push(dense(), 0.0)
    preemption = LeastDensePreemption(ordering)
    looked_at = [len(preemption.preempt(fleet, 0.04 * tick)) for tick in range(10)]
    per_tick = SCORED_PER_TICK // 16
    assert looked_at == [per_tick] * (8 // per_tick) + [0] * (10 - 8 // per_tick)


def test_held_calls_count_where_nothing_is_queued():
    here = fake_instance("here", seats=1)
    here.start(thin())
    ordering = Lsdf()
    fleet = fake_fleet(here)
    held = ordering.queue(None, fleet)
    held.push(dense(), 0.0)
    assert len(LeastDensePreemption(ordering).preempt(fleet, 0.0)) == 1


def test_a_stopped_call_goes_on_later_and_both_end():
    services = PolicyServices(random.Random(0))
    policy = catalog.build_policy("tempo", {"preemption": True}, services)
    world = World(policy, observers=catalog.observers(services))
    world.up("i", seats=1)
    world.lengths.tokens = 1_000.0
    kind = {"call_class": CallClass.THROUGHPUT}
    world.arrive("thin", prompt_tokens=1, **kind)
    thin_attempt = world.attempt_of("thin")
    world.lengths.tokens = 1.0
    world.arrive("dense", prompt_tokens=4_000, **kind)
    assert Preempt(thin_attempt) in world.post(ev.Tick(), after_s=0.2)
    stopped = world.end("thin", Outcome.PREEMPTED)
    assert world.sent(stopped) == [("dense", "i")]
    (again,) = [c for c in world.end("dense", after_s=1.0) if isinstance(c, Dispatch)]
    assert (again.call_id, again.generated_tokens) == ("thin", 0)
    world.end("thin")
    assert world.ended == {"dense": Outcome.OK, "thin": Outcome.OK}
