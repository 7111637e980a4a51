"""The scheduler's promises, checked against its own books; called after every event in tests."""

from __future__ import annotations

import math

from dispatcher.core.call import Call, Place
from dispatcher.core.coordinator import Coordinator
from dispatcher.core.errors import InvariantError
from dispatcher.core.instance import Instance
from dispatcher.core.ports import Admit

_TOLERANCE = 1e-6


def check(coordinator: Coordinator) -> None:
    """Raise `InvariantError` where the books do not add up."""
    for call in coordinator.calls.values():
        _one_place(coordinator, call)
    waiting = {call.call_id for call in coordinator.placing.waiting()}
    in_flight = {attempt.call.call_id for attempt in coordinator.attempts.values()}
    _that(waiting.isdisjoint(in_flight), "a call waits and is in flight")
    _that(waiting | in_flight == set(coordinator.calls), "a live call is nowhere")
    _that(all(len(q) for q in coordinator.placing.lanes.values()), "an empty lane is kept")
    out = 0
    for instance in coordinator.fleet:
        _loads(instance, coordinator.now_s)
        _work_conserved(coordinator, instance)
        out += len(instance.attempts)
    _that(out == len(coordinator.attempts), "attempts outside the fleet")
    if coordinator.placing.moving:
        _that(
            coordinator.placing.next_wake_s(coordinator.now_s) == coordinator.now_s,
            "calls move and nobody will come back for them",
        )


def _that(holds: bool, what: str) -> None:
    if not holds:
        raise InvariantError(what)


def _one_place(coordinator: Coordinator, call: Call) -> None:
    places = []
    if call.call_id in coordinator.placing.moving:
        places.append(Place.MOVING)
    for lane, queue in coordinator.placing.lanes.items():
        if any(c is call for c in queue):
            places.append(Place.HELD)
            _that(lane == call.lane, f"{call.call_id} is held in another lane")
    for instance in coordinator.fleet:
        if any(c is call for c in instance.queue or ()):
            places.append(Place.QUEUED)
            _that(call.instance is instance, f"{call.call_id} thinks it is elsewhere")
    if call.attempt is not None:
        places.append(Place.IN_FLIGHT)
        known = coordinator.attempts.get(call.attempt.attempt_id)
        _that(known is call.attempt, f"{call.call_id} has an attempt nobody knows")
    _that(places == [call.place], f"{call.call_id} says {call.place}, is in {places}")


def _loads(instance: Instance, now_s: float) -> None:
    attempts = list(instance.attempts.values())
    waiting = [c for c in instance.queue or () if isinstance(c, Call)]
    seats = sum(a.call.spec.seats for a in attempts)
    _that(seats == instance.seats_in_use, f"{instance.instance_id}: seats in use")
    context = sum(a.context_tokens for a in attempts)
    _that(context == instance.in_flight_tokens, f"{instance.instance_id}: tokens in flight")
    watched = [a for a in attempts if a.call.spec.streaming and a.pending_prefill_s]
    _that(instance.watched_prefills == len(watched), f"{instance.instance_id}: prefills pending")
    _that(instance.queued == len(instance.queue or ()), f"{instance.instance_id}: calls queued")
    _that(instance.queued_seats == sum(c.spec.seats for c in waiting), "seats queued for")
    sums = (
        (instance.queued_prefill_s, sum(c.queued_prefill_s for c in waiting)),
        (instance.queued_output_tokens, sum(c.queued_output_tokens for c in waiting)),
        (instance.pending_prefill_s, sum(a.pending_prefill_s for a in attempts)),
        (instance.watched_prefill_s, sum(a.pending_prefill_s for a in watched)),
        (instance.remaining_tokens, sum(a.remaining_tokens for a in attempts)),
    )
    for kept, counted in sums:
        close = math.isclose(kept, counted, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
        _that(close, f"{instance.instance_id}: load {kept} kept, {counted} counted")
    unwatched_s = sum(a.pending_prefill_s for a in attempts if not a.call.spec.streaming)
    ahead_s = instance.unwatched_until_s - now_s
    _that(ahead_s <= unwatched_s + _TOLERANCE, f"{instance.instance_id}: prefill that nobody does")


def _work_conserved(coordinator: Coordinator, instance: Instance) -> None:
    """No seat stays free while a call that is queued there may go, unless the policy says so."""
    if not instance.available or instance.queue is None or coordinator.placing.moving:
        return
    now_s = coordinator.now_s
    if coordinator.placing.is_deferred(instance, now_s):
        return  # what would be admitted by now is seen when the time it asked for is over
    admission = coordinator.policy.admission
    for seat in admission.open_seats(instance, now_s):
        call = instance.queue.select(seat, now_s)
        if call is not None:
            verdict = admission.admit(call, seat, instance, now_s)
            idle = isinstance(verdict, Admit)
            _that(not idle, f"{instance.instance_id}: a seat is free and {call.spec.call_id} waits")
    if not coordinator.policy.routing.late_binding or coordinator.policy.planner is not None:
        return
    if instance.queued:
        return  # its seats gather for a call that needs several
    for seat in admission.open_seats(instance, now_s):
        for lane, queue in coordinator.placing.lanes.items():
            call = queue.select(seat, now_s)
            if call is None or instance.instance_id not in lane.candidates:
                continue
            if instance in coordinator.fleet.available(coordinator.calls[call.spec.call_id]):
                chosen = coordinator.policy.routing.route(
                    call, [instance], coordinator.fleet, now_s
                )
                verdict = admission.admit(call, seat, instance, now_s)
                idle = chosen is not None and isinstance(verdict, Admit)
                _that(not idle, f"{instance.instance_id}: idle while {call.spec.call_id} is held")
