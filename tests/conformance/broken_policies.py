"""For each check of the kit, policies that fail it: one sound policy, one part of it spoiled."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace

from dispatcher.core.local_queue import HeapQueue
from dispatcher.core.ports import Admit, Assignment, Defer, Policy
from dispatcher.core.types import PLAIN_SEAT, AttemptId, CallId, InstanceId, SeatTag

MakePolicy = Callable[[], Policy]

_chance = random.Random(0)
_counter = itertools.count()


# --- a sound policy -----------------------------------------------------------------------------


class Routing:
    late_binding = False

    def route(self, call, candidates, fleet, now_s):
        return candidates[0].spec.instance_id


class Ordering:
    def queue(self, instance, fleet):
        return HeapQueue(lambda call, now_s: self.key(call, instance, fleet, now_s))

    def key(self, call, instance, fleet, now_s):
        return (call.budget.stage_deadline_s,)

    def latest_start_s(self, call, instance, fleet, now_s):
        return call.budget.stage_deadline_s


class Admission:
    def open_seats(self, instance, now_s):
        return (PLAIN_SEAT,) if instance.seats_in_use < instance.seats else ()

    def admit(self, call, seat, instance, now_s):
        in_use = instance.seats_in_use
        if in_use == 0 or in_use + call.spec.seats <= instance.seats:
            return Admit(seat)
        return Defer()

    def token_room(self, instance, now_s):
        return None


def sound(**parts: object) -> Policy:
    """The sound policy with some parts put in place of its own."""
    fields = {
        "name": "sound",
        "routing": Routing(),
        "ordering": Ordering(),
        "admission": Admission(),
        **parts,
    }
    return Policy(**fields)


def _spoiled(part: str, base: type, **methods: object) -> MakePolicy:
    return lambda: sound(**{part: type("Broken", (base,), methods)()})


def _routing(route: Callable[..., object], **attributes: object) -> MakePolicy:
    return _spoiled("routing", Routing, route=route, **attributes)


def _ordering(**methods: object) -> MakePolicy:
    return _spoiled("ordering", Ordering, **methods)


def _admission(**methods: object) -> MakePolicy:
    return _spoiled("admission", Admission, **methods)


def _queue(**methods: object) -> MakePolicy:
    """The sound policy with a heap queue, one of its methods spoiled."""
    kind = type("BrokenQueue", (HeapQueue,), methods)

    def queue(self, instance, fleet):
        return kind(lambda call, now_s: self.key(call, instance, fleet, now_s))

    return _ordering(queue=queue)


# --- routing ------------------------------------------------------------------------------------


def _first_of_fleet(self, call, candidates, fleet, now_s):
    return next(iter(fleet.instances))


def _made_up(self, call, candidates, fleet, now_s):
    return InstanceId("elsewhere")


def _global_chance(self, call, candidates, fleet, now_s):
    return _chance.choice(candidates).spec.instance_id


def _marks_the_instance(self, call, candidates, fleet, now_s):
    candidates[0].queued += 1
    return candidates[0].spec.instance_id


def _sorts_the_candidates(self, call, candidates, fleet, now_s):
    candidates.sort(key=lambda instance: -instance.backlog_s)
    return candidates[0].spec.instance_id


def _changes_its_mind(self, call, candidates, fleet, now_s):
    self.late_binding = True
    return candidates[0].spec.instance_id


def _compares_all_pairs(self, call, candidates, fleet, now_s):
    return min(
        candidates,
        key=lambda one: sum(fleet.backlog_s(one) > fleet.backlog_s(other) for other in candidates),
    ).spec.instance_id


def _remembers_every_instance(self, call, candidates, fleet, now_s):
    self.__dict__.setdefault("seen", {})[candidates[0].spec.instance_id] = now_s
    return candidates[0].spec.instance_id


# --- ordering -----------------------------------------------------------------------------------


def _remembers_every_call(self, call, instance, fleet, now_s):
    self.__dict__.setdefault("seen", []).append(call.spec.call_id)
    return (0.0,)


def _swings(self, call, instance, fleet, now_s):
    return (float(next(_counter)),)


def _spends_the_budget(self, call, instance, fleet, now_s):
    call.generated_tokens += 1
    return (0.0,)


def _scans_the_fleet(self, call, instance, fleet, now_s):
    return (min(fleet.compute_s(call, other) for other in fleet.instances.values()),)


# --- queues -------------------------------------------------------------------------------------


def _pops(self, seat, now_s):
    call = HeapQueue.select(self, seat, now_s)
    if call is not None:
        self.remove(call.spec.call_id)
    return call


def _ghost(self, seat, now_s):
    return HeapQueue.select(self, seat, now_s) or SimpleNamespace(
        spec=SimpleNamespace(call_id=CallId("ghost"))
    )


def _only_pairs(self, seat, now_s):
    return HeapQueue.select(self, seat, now_s) if len(self) > 1 else None


def _forgets_nothing(self, call_id):
    if call_id not in self._live:
        raise KeyError(call_id)


def _shrugs(self, call_id):
    self._live.pop(call_id, None)


def _keeps_its_opinion(self, call, now_s):
    pass


def _by_chance(self, seat, now_s):
    waiting = sorted(self, key=lambda call: call.sequence)
    if not waiting:
        return None
    pick = random.Random(len(waiting) + id(self)).randrange(len(waiting))
    return waiting[pick]


def _always_more(self, now_s, limit):
    return len(self) > 0


def _one_short(self):
    return max(0, len(self._live) - 1)


def _never_empty(self):
    return len(self._live) + 1


class _AgesOnPush(HeapQueue):
    """Keys move with time, but rescoring does not follow."""

    def __init__(self):
        super().__init__(lambda call, now_s: (abs(call.budget.stage_deadline_s - now_s),))


# --- the other parts ----------------------------------------------------------------------------


class _TunesAnything:
    def tune(self, name, value):
        return True


class _PlansTwice:
    def plan(self, held, free_seats, fleet, now_s):
        instance_id = next(iter(free_seats))
        return [Assignment(call.spec.call_id, instance_id) for call in (*held, *held)]


class _PlansStrangers:
    def plan(self, held, free_seats, fleet, now_s):
        return [Assignment(CallId("stranger"), next(iter(free_seats)))]


class _PlansElsewhere:
    def plan(self, held, free_seats, fleet, now_s):
        return [Assignment(call.spec.call_id, InstanceId("elsewhere")) for call in held]


class _StealsFromNobody:
    def steal(self, instance, fleet, now_s):
        return CallId("imagined")


class _StopsStrangers:
    def preempt(self, fleet, now_s):
        return [AttemptId(10_000)]


class _StopsTwice:
    def preempt(self, fleet, now_s):
        out = [attempt for i in fleet.instances.values() for attempt in i.in_flight]
        return out[:1] * 2


def _always_open(self, instance, now_s):
    return (PLAIN_SEAT,)


def _always_admits(self, call, seat, instance, now_s):
    return Admit(seat)


def _never_open(self, instance, now_s):
    return ()


def _same_seat_twice(self, instance, now_s):
    return (PLAIN_SEAT, PLAIN_SEAT)


def _only_what_fits(self, call, seat, instance, now_s):
    fits = instance.seats_in_use + call.spec.seats <= instance.seats
    return Admit(seat) if fits else Defer()


def _until_yesterday(self, call, seat, instance, now_s):
    return Defer(until_s=now_s - 1.0)


def _for_ever(self, call, seat, instance, now_s):
    return Defer(until_s=float("inf"))


BROKEN: Mapping[str, Sequence[MakePolicy]] = {
    "routing_picks_a_candidate": (_routing(_first_of_fleet), _routing(_made_up)),
    "routing_repeats_itself": (_routing(_global_chance),),
    "routing_only_reads": (_routing(_marks_the_instance), _routing(_sorts_the_candidates)),
    "binding_is_constant": (_routing(_changes_its_mind),),
    "routing_asks_little": (_routing(_compares_all_pairs),),
    "memory_is_bounded": (
        _routing(_remembers_every_instance),
        _ordering(key=_remembers_every_call),
        _queue(_compact=lambda self: None),
    ),
    "keys_are_finite": (
        _ordering(key=lambda self, call, instance, fleet, now_s: (float("nan"),)),
        _ordering(key=lambda self, call, instance, fleet, now_s: ()),
        _ordering(key=lambda self, call, instance, fleet, now_s: [0.0]),
        _ordering(key=lambda self, call, instance, fleet, now_s: (call.sequence,)),
        _ordering(key=_swings),
    ),
    "latest_start_is_finite_or_none": (
        _ordering(latest_start_s=lambda self, call, instance, fleet, now_s: float("inf")),
    ),
    "ordering_only_reads": (_ordering(key=_spends_the_budget),),
    "keys_ask_little": (_ordering(key=_scans_the_fleet),),
    "queue_starts_empty": (_queue(__len__=_never_empty), _queue(select=_ghost)),
    "queue_counts_its_calls": (
        _queue(__len__=_one_short),
        _queue(__iter__=lambda self: iter(())),
        _queue(remove=_forgets_nothing),
    ),
    "select_leaves_the_call": (
        _queue(select=_pops),
        _queue(select=lambda *_: SeatTag(str(next(_counter)))),
    ),
    "queue_always_offers": (_queue(select=_only_pairs),),
    "removed_calls_stay_away": (_queue(remove=_forgets_nothing), _queue(remove=_shrugs)),
    "order_repeats_itself": (_queue(select=_by_chance),),
    "refresh_orders_anew": (_queue(refresh=_keeps_its_opinion),),
    "rescoring_catches_up": (
        _queue(rescore=_always_more),
        _ordering(queue=lambda self, instance, fleet: _AgesOnPush()),
    ),
    "admission_respects_seats": (
        _admission(open_seats=_always_open),
        _admission(admit=_always_admits),
    ),
    "admission_admits_when_idle": (
        _admission(open_seats=_never_open),
        _admission(open_seats=_same_seat_twice),
        _admission(admit=_only_what_fits),
    ),
    "deferral_ends": (
        _admission(admit=_only_what_fits),
        _admission(admit=_until_yesterday),
        _admission(admit=_for_ever),
    ),
    "policy_describes_itself": (
        lambda: sound(name=""),
        lambda: sound(tick_s=0.0),
        lambda: sound(params={"models": {"a", "b"}}),
        lambda: sound(params={"pair": (1, 2)}),
    ),
    "tuning_is_picky": (lambda: sound(tunable=_TunesAnything()),),
    "plans_name_held_calls": (
        lambda: sound(planner=_PlansTwice()),
        lambda: sound(planner=_PlansStrangers()),
        lambda: sound(planner=_PlansElsewhere()),
    ),
    "stealing_needs_a_victim": (lambda: sound(stealing=_StealsFromNobody()),),
    "preemption_names_what_is_out": (
        lambda: sound(preemption=_StopsStrangers()),
        lambda: sound(preemption=_StopsTwice()),
    ),
}
"""Check -> makers of policies that it must refuse."""
