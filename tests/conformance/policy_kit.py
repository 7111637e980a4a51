"""What every policy must keep, whatever it decides.

A check takes a factory of policies (a fresh one per call) and raises `ConformanceError`. Every
policy of the catalog goes through `POLICY_CHECKS`; so can any other. `broken_policies` keeps, for
each check, policies that fail it. What is never asked of a policy is not checked either: `route`
with no candidates, `push` of a call that is queued already.
"""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Callable, Mapping, Sequence

from conformance_error import ConformanceError, ensure
from policy_fakes import (
    CountingFleet,
    FakeCall,
    FakeFleet,
    FakeInstance,
    fake_call,
    fake_fleet,
    fake_instance,
    random_call,
    random_fleet,
)
from queue_checks import NOW_S, QUEUE_CHECKS

from dispatcher.core.ports import Admit, CallQueue, Defer, Policy
from dispatcher.core.types import Key
from dispatcher.core.views import InstanceView

MakePolicy = Callable[[], Policy]
Check = Callable[[MakePolicy], None]

_ROUNDS = 60
_CHURN = 300
_SLACK_ITEMS = 300
_QUESTIONS_PER_CANDIDATE = 4
_QUESTIONS_PER_KEY = 4


# --- routing ------------------------------------------------------------------------------------


def routing_picks_a_candidate(make: MakePolicy) -> None:
    """The answer is one of the candidates or None, however they change from call to call."""
    rng = random.Random(1)
    routing = make().routing
    for generation in range(_ROUNDS):
        fleet = random_fleet(rng, rng.randint(1, 6), generation // 10)
        candidates = _some(fleet, rng)
        chosen = routing.route(random_call(rng, generation), candidates, fleet, NOW_S)
        ids = [instance.spec.instance_id for instance in candidates]
        ensure(chosen is None or chosen in ids, f"{chosen!r} is not one of {ids}")


def routing_repeats_itself(make: MakePolicy) -> None:
    """The same history gives the same answers."""
    first, second = _routes(make()), _routes(make())
    ensure(first == second, "two policies with the same history answered differently")


def routing_only_reads(make: MakePolicy) -> None:
    """Calls, instances and the list of candidates are as before."""
    rng = random.Random(2)
    routing = make().routing
    for sequence in range(_ROUNDS):
        fleet, call = random_fleet(rng, 4), random_call(rng, sequence)
        candidates = _some(fleet, rng)
        before = copy.deepcopy((fleet, call, candidates))
        routing.route(call, candidates, fleet, NOW_S)
        ensure((fleet, call, candidates) == before, "routing changed what it was shown")


def binding_is_constant(make: MakePolicy) -> None:
    """`late_binding` is a fact of the policy, not a mood."""
    policy = make()
    before = policy.routing.late_binding
    _routes(policy)
    ensure(policy.routing.late_binding == before == make().routing.late_binding, "binding changed")


def routing_asks_little(make: MakePolicy) -> None:
    """O(N): a bounded number of questions to the cost model per candidate."""
    rng = random.Random(3)
    for size in (1, 8, 64):
        fleet = CountingFleet(random_fleet(rng, size).instances)
        make().routing.route(random_call(rng, 1), list(fleet.instances.values()), fleet, NOW_S)
        asked = fleet.asked
        ensure(
            asked <= _QUESTIONS_PER_CANDIDATE * size,
            f"{asked} questions to route one call among {size} instances",
        )


def memory_is_bounded(make: MakePolicy) -> None:
    """Nothing is kept of calls and instances that are gone."""
    policy = make()
    lasting = policy.ordering.queue(None, random_fleet(random.Random(10), 2))
    _churn(policy, lasting, 0, _CHURN)
    after_one = _items((policy, lasting))
    _churn(policy, lasting, _CHURN, 4 * _CHURN)
    after_four = _items((policy, lasting))
    ensure(
        after_four <= after_one + _SLACK_ITEMS,
        f"keeps {after_one} items after {_CHURN} calls and {after_four} after {4 * _CHURN}",
    )


# --- ordering -----------------------------------------------------------------------------------


def keys_are_finite(make: MakePolicy) -> None:
    """A key is a non-empty tuple of finite floats, at an instance and held, asked twice alike."""
    ordering = make().ordering
    for call, instance, fleet in _places():
        for place in (instance, None):
            key = ordering.key(call, place, fleet, NOW_S)
            ensure(isinstance(key, tuple) and len(key) > 0, f"{key!r} is no tuple of floats")
            ensure(all(_is_finite(part) for part in key), f"{key!r} has parts that are not finite")
            again: Key = ordering.key(call, place, fleet, NOW_S)
            ensure(key == again, f"asked twice, {key!r} became {again!r}")


def latest_start_is_finite_or_none(make: MakePolicy) -> None:
    """What becomes the engine's priority is a moment, or nothing."""
    ordering = make().ordering
    for call, instance, fleet in _places():
        start_s = ordering.latest_start_s(call, instance, fleet, NOW_S)
        ensure(start_s is None or _is_finite(start_s), f"latest start {start_s!r}")


def ordering_only_reads(make: MakePolicy) -> None:
    """Keys, starts and queues leave calls and instances as they were."""
    ordering = make().ordering
    for call, instance, fleet in _places():
        before = copy.deepcopy((call, instance, fleet))
        ordering.key(call, instance, fleet, NOW_S)
        ordering.latest_start_s(call, instance, fleet, NOW_S)
        queue = ordering.queue(instance, fleet)
        queue.push(call, NOW_S)
        queue.select(make().admission.open_seats(fake_instance("idle"), NOW_S)[0], NOW_S)
        queue.rescore(NOW_S + 1.0, 10)
        queue.refresh(call, NOW_S + 1.0)
        queue.remove(call.spec.call_id)
        ensure((call, instance, fleet) == before, "ordering changed what it was shown")


def keys_ask_little(make: MakePolicy) -> None:
    """O(1): the cost of a key does not grow with the fleet."""
    rng = random.Random(4)
    ordering = make().ordering
    for size in (1, 64):
        fleet = CountingFleet(random_fleet(rng, size).instances)
        instance = next(iter(fleet.instances.values()))
        for place in (instance, None):
            fleet.asked = 0
            ordering.key(random_call(rng, 1), place, fleet, NOW_S)
            asked = fleet.asked
            ensure(asked <= _QUESTIONS_PER_KEY, f"{asked} questions for one key")


# --- admission ----------------------------------------------------------------------------------


def admission_respects_seats(make: MakePolicy) -> None:
    """Nothing passes the seats of an instance that is not empty; a full one has none open."""
    policy, rng = make(), random.Random(5)
    for sequence in range(_ROUNDS):
        instance = fake_instance("i", seats=rng.randint(1, 6))
        for running in range(rng.randint(1, instance.seats)):
            instance.start(fake_call(f"running-{running}"))
        call = fake_call("c", sequence, seats=rng.randint(1, 8))
        free = instance.seats - instance.seats_in_use
        tags = policy.admission.open_seats(instance, NOW_S)
        ensure(free > 0 or not tags, f"{tags!r} open at a full instance")
        for tag in tags:
            verdict = policy.admission.admit(call, tag, instance, NOW_S)
            over = isinstance(verdict, Admit) and call.spec.seats > free
            ensure(not over, f"{call.spec.seats} sequences admitted to {free} free seats")


def admission_admits_when_idle(make: MakePolicy) -> None:
    """An empty instance takes any call, even one that needs more seats than it has."""
    policy = make()
    for seats in (1, 4):
        for needs in (1, 3, 9):
            instance = fake_instance("i", seats=seats)
            tags = policy.admission.open_seats(instance, NOW_S)
            ensure(len(tags) > 0, "no seat is open at an empty instance")
            ensure(len(set(tags)) == len(tags), f"a kind of seat twice in {tags!r}")
            call = fake_call("c", seats=needs)
            verdicts = [policy.admission.admit(call, tag, instance, NOW_S) for tag in tags]
            ensure(
                any(isinstance(verdict, Admit) for verdict in verdicts),
                f"an empty instance of {seats} seats turns away a call of {needs}",
            )


def deferral_ends(make: MakePolicy) -> None:
    """A deferral names a later moment, or waits for an attempt that is out."""
    policy = make()
    instance = fake_instance("i", seats=3)
    for running in range(3):
        for needs in (1, 2, 5):
            for tag in policy.admission.open_seats(instance, NOW_S):
                verdict = policy.admission.admit(fake_call("c", seats=needs), tag, instance, NOW_S)
                if isinstance(verdict, Defer):
                    until_s = verdict.until_s
                    waits = until_s is None and bool(instance.in_flight)
                    later = until_s is not None and NOW_S < until_s < math.inf
                    ensure(waits or later, f"{verdict!r} with {running} attempts out")
        instance.start(fake_call(f"running-{running}"))


# --- the rest -----------------------------------------------------------------------------------


def policy_describes_itself(make: MakePolicy) -> None:
    """Name, parameters and tick can be shown and sent."""
    policy = make()
    ensure(bool(policy.name), "a policy without a name")
    ensure(policy.tick_s is None or policy.tick_s > 0.0, f"a tick every {policy.tick_s!r} s")
    try:
        sent = json.loads(json.dumps(policy.params))
    except (TypeError, ValueError) as error:
        raise ConformanceError(f"parameters are not JSON: {error}") from error
    ensure(sent == policy.params, "parameters change on their way through JSON")


def tuning_is_picky(make: MakePolicy) -> None:
    """A parameter that is not its own is refused, not swallowed."""
    tunable = make().tunable
    if tunable is not None:
        ensure(tunable.tune("no such parameter", 0.5) is False, "took a parameter it cannot know")


def plans_name_held_calls(make: MakePolicy) -> None:
    """A plan assigns held calls, each once, to instances of the fleet."""
    planner = make().planner
    if planner is None:
        return
    rng = random.Random(6)
    held = [random_call(rng, sequence) for sequence in range(20)]
    fleet = fake_fleet(fake_instance("a"), fake_instance("b", slowness=2.0), calls=held)
    free = dict.fromkeys(fleet.instances, 2)
    plan = planner.plan(held, free, fleet, NOW_S)
    named = [assignment.call_id for assignment in plan]
    ensure(len(set(named)) == len(named), "a call is planned twice")
    ensure(set(named) <= set(fleet.calls), "a call is planned that nobody holds")
    ensure(
        all(assignment.instance_id in fleet.instances for assignment in plan),
        "a plan names an instance that is not there",
    )
    ensure(not planner.plan([], free, fleet, NOW_S), "a plan for no calls")


def stealing_needs_a_victim(make: MakePolicy) -> None:
    """With nothing queued anywhere there is nothing to steal."""
    stealing = make().stealing
    if stealing is not None:
        thief = fake_instance("thief")
        fleet = fake_fleet(thief, fake_instance("other"))
        stolen = stealing.steal(thief, fleet, NOW_S)
        ensure(stolen is None, f"stole {stolen!r} from empty queues")


def preemption_names_what_is_out(make: MakePolicy) -> None:
    """Only attempts in flight are stopped, each once."""
    preemption = make().preemption
    if preemption is None:
        return
    rng = random.Random(7)
    for size in (0, 1, 4):
        fleet = random_fleet(rng, size)
        out = [attempt for i in fleet.instances.values() for attempt in i.in_flight]
        stopped = list(preemption.preempt(fleet, NOW_S))
        ensure(set(stopped) <= set(out), "stops an attempt that is not out")
        ensure(len(set(stopped)) == len(stopped), "stops an attempt twice")


_OWN_CHECKS: tuple[Check, ...] = (
    routing_picks_a_candidate,
    routing_repeats_itself,
    routing_only_reads,
    binding_is_constant,
    routing_asks_little,
    memory_is_bounded,
    keys_are_finite,
    latest_start_is_finite_or_none,
    ordering_only_reads,
    keys_ask_little,
    admission_respects_seats,
    admission_admits_when_idle,
    deferral_ends,
    policy_describes_itself,
    tuning_is_picky,
    plans_name_held_calls,
    stealing_needs_a_victim,
    preemption_names_what_is_out,
)

POLICY_CHECKS: Mapping[str, Check] = {
    check.__name__: check for check in (*_OWN_CHECKS, *QUEUE_CHECKS)
}


# --- helpers ------------------------------------------------------------------------------------


def _is_finite(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def _some(fleet: FakeFleet, rng: random.Random) -> Sequence[InstanceView]:
    """Some of the instances, at least one, in fleet order."""
    everyone = list(fleet.instances.values())
    kept = [instance for instance in everyone if rng.random() < 0.6]
    return kept or [rng.choice(everyone)]


def _routes(policy: Policy) -> list[object]:
    rng = random.Random(8)
    answers: list[object] = []
    for sequence in range(_ROUNDS):
        fleet = random_fleet(rng, 5)
        call = random_call(rng, sequence)
        answers.append(policy.routing.route(call, _some(fleet, rng), fleet, NOW_S))
    return answers


def _places() -> Sequence[tuple[FakeCall, FakeInstance, FakeFleet]]:
    rng = random.Random(9)
    places = []
    for sequence in range(_ROUNDS):
        fleet = random_fleet(rng, 3)
        instance = rng.choice(list(fleet.instances.values()))
        assert isinstance(instance, FakeInstance)
        places.append((random_call(rng, sequence), instance, fleet))
    return places


def _churn(policy: Policy, lasting: CallQueue, first: int, last: int) -> None:
    """Calls that come and go at instances that come and go, and through one lasting queue."""
    for sequence in range(first, last):
        fleet = fake_fleet(fake_instance(f"i-{sequence}"), fake_instance("stays"))
        call = fake_call(f"call-{sequence}", sequence, stage_deadline_s=float(sequence))
        policy.routing.route(call, list(fleet.instances.values()), fleet, NOW_S)
        queues = [policy.ordering.queue(i, fleet) for i in fleet.instances.values()]
        for queue in (*queues, lasting):
            queue.push(call, NOW_S)
            queue.refresh(call, NOW_S)
            queue.remove(call.spec.call_id)


def _items(root: object) -> int:
    """Entries of all containers that can be reached from the policy's parts."""
    seen: set[int] = set()
    stack: list[object] = [root]
    count = 0
    while stack:
        one = stack.pop()
        if id(one) in seen or isinstance(one, (type, str, bytes, random.Random)):
            continue
        seen.add(id(one))
        if isinstance(one, Mapping):
            count += len(one)
            stack.extend((*one.keys(), *one.values()))
        elif isinstance(one, (list, tuple, set, frozenset)) or type(one).__name__ == "deque":
            count += len(one)  # type: ignore[arg-type]
            stack.extend(one)  # type: ignore[arg-type]
        else:
            stack.extend(vars(one).values() if hasattr(one, "__dict__") else ())
            for owner in type(one).__mro__:
                slots = getattr(owner, "__slots__", ())
                names = (slots,) if isinstance(slots, str) else slots
                stack.extend(getattr(one, name) for name in names if hasattr(one, name))
    return count
