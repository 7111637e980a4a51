"""A small fake of AugServe: room kept for a session that is away at a tool."""

from __future__ import annotations

from later_papers import ScanQueue

from dispatcher.core import events as ev
from dispatcher.core.ports import Admit, Defer
from dispatcher.core.types import PLAIN_SEAT, SeatTag
from policies.fcfs import Fcfs

RETURNING = SeatTag("returning")


class Reservations:
    """An observer and an admission: tokens kept for a session until it is back or too long away."""

    def __init__(self, capacity_tokens, ttl_s):
        self.capacity_tokens, self.ttl_s = capacity_tokens, ttl_s
        #: (instance, session) -> (tokens, until)
        self.kept = {}
        self.out = {}

    def observe(self, event, fleet, now_s):
        match event:
            case ev.Dispatched():
                where = (event.instance_id, event.call.spec.workflow_id)
                self.out[event.attempt_id] = (where, event.call.spec.prompt_tokens)
                self.kept.pop(where, None)
            case ev.AttemptEnded():
                where, tokens = self.out.pop(event.attempt_id)
                self.kept[where] = (tokens + event.output_tokens, now_s + self.ttl_s)
        self.kept = {where: kept for where, kept in self.kept.items() if kept[1] > now_s}

    def held_for(self, instance, now_s, but=None):
        return [
            kept
            for (instance_id, session), kept in self.kept.items()
            if instance_id == instance.spec.instance_id and session != but and kept[1] > now_s
        ]

    def open_seats(self, instance, now_s):
        return (RETURNING, PLAIN_SEAT) if instance.seats_in_use < instance.seats else ()

    def admit(self, call, seat, instance, now_s):
        others = self.held_for(instance, now_s, but=call.spec.workflow_id)
        used = instance.in_flight_tokens + sum(tokens for tokens, _ in others)
        if used + call.spec.prompt_tokens <= self.capacity_tokens:
            return Admit(seat)
        if not others and not instance.in_flight:
            return Admit(seat)
        return Defer(min((until_s for _, until_s in others), default=None))

    def token_room(self, instance, now_s):
        return None


class ReturningFirst(Fcfs):
    """On a seat for the returning, only calls of sessions for which room is kept here."""

    def __init__(self, reservations):
        self.reservations = reservations

    def queue(self, instance, fleet):
        reservations = self.reservations

        class Queue(ScanQueue):
            def select(self, seat, now_s):
                waiting = self.by_arrival()
                if seat == RETURNING:
                    kept = reservations.kept
                    own = None if instance is None else instance.spec.instance_id
                    waiting = [c for c in waiting if (own, c.spec.workflow_id) in kept]
                return next(iter(waiting), None)

        return Queue()
