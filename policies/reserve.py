"""Admission with a reserve: a tenth of the seats serves who would otherwise starve.

Tempo, section 4.3: strict order by density starves some, so "a small portion of serving bandwidth
(e.g., 10 % of the batch size)" is kept for calls without an SLO, in order of arrival; what of it is
idle is filled by density.

Settled:

1. Per instance R = max(1, ceil(0.1 seats)) seats are the reserve's, known by their tag. The other
   seats are filled first, so that the reserve is idle as long as there is room.
2. On a seat of the reserve goes the oldest call of {best-effort} and {has waited more than 30 s},
   whatever its class: a call of low density needs saving as much as one without an SLO. Where there
   is none, the densest goes (`policies.density_queue`). Whoever goes there holds a reserved seat
   until it ends, so that a reserve full of backfill is back after at most one call.
3. Of an instance with a single seat one dispatch in ten is the reserve's: kept for good, the seat
   would never serve by density; never kept, density would starve the rest. `ReserveTurns` counts.
4. A call of several sequences may take seats of both kinds. While it runs, the kind that it has
   overdrawn is closed first. One that has waited more than 30 s and is the oldest of its kind is
   offered for every seat, so that seats gather for it and nobody passes.

So every call runs: there are finitely many calls before it in order of arrival, and the seats of
the reserve do not serve anybody else first. (`queue.max_wait_s` may end its wait before.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dispatcher.core.events import Dispatched, Event
from dispatcher.core.ports import Admit, Defer
from dispatcher.core.types import PLAIN_SEAT, InstanceId, SeatTag
from dispatcher.core.views import CallView, FleetView, InstanceView

RESERVE_SEAT = SeatTag("reserve")


class ReserveTurns:
    """Dispatches of single-seat instances since the reserve had one: an `Observer`; O(1).

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> engine = Fake(seats=1, in_flight={1: Fake(seat="")})
        >>> turns = ReserveTurns()
        >>> turns.observe(Dispatched(Fake(), 1, "i"), Fake(instances={"i": engine}), 0.0)
        >>> turns.of("i")
        1
    """

    def __init__(self) -> None:
        self._turns: dict[InstanceId, int] = {}

    def of(self, instance_id: InstanceId) -> int:
        """Dispatches there since the last to the reserve."""
        return self._turns.get(instance_id, 0)

    def observe(self, event: Event | Dispatched, fleet: FleetView, now_s: float) -> None:
        """Count what goes out."""
        if not isinstance(event, Dispatched):
            return
        instance = fleet.instances[event.instance_id]
        if instance.seats > 1:
            return
        reserved = instance.in_flight[event.attempt_id].seat == RESERVE_SEAT
        self._turns[event.instance_id] = 0 if reserved else self.of(event.instance_id) + 1
        if len(self._turns) > len(fleet.instances):
            self._turns = {i: n for i, n in self._turns.items() if i in fleet.instances}


class ReserveAdmission:
    """Plain seats, then reserved ones; O(calls in flight there) where a seat is free.

    Args:
        turns: Whose turn a single seat is; must observe the coordinator.
        share: Part of the seats that is reserved, in [0, 1); 0: none, calls may starve.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> out = {1: Fake(seat="", call=Fake(spec=Fake(seats=3)))}
        >>> spec = Fake(instance_id="i")
        >>> admission = ReserveAdmission(ReserveTurns())
        >>> admission.open_seats(Fake(spec=spec, seats=4, seats_in_use=3, in_flight=out), 0.0)
        ('reserve',)
        >>> admission.open_seats(Fake(spec=spec, seats=8, seats_in_use=3, in_flight=out), 0.0)
        ('', 'reserve')
    """

    def __init__(self, turns: ReserveTurns, share: float = 0.1) -> None:
        self.turns = turns
        self.share = share

    def reserved(self, seats: int) -> int:
        """R: seats of the reserve among so many, 0 to `seats`."""
        return max(1, math.ceil(self.share * seats)) if self.share > 0.0 else 0

    def open_seats(self, instance: InstanceView, now_s: float) -> Sequence[SeatTag]:
        """Kinds of which a seat is free: plain ones first."""
        seats = instance.seats
        if instance.seats_in_use >= seats:
            return ()
        reserved = self.reserved(seats)
        if not reserved:
            return (PLAIN_SEAT,)
        if seats == 1:
            turn = 1 + self.turns.of(instance.spec.instance_id)
            return (RESERVE_SEAT,) if turn * self.share >= 1.0 else (PLAIN_SEAT,)
        used = sum(
            attempt.call.spec.seats
            for attempt in instance.in_flight.values()
            if attempt.seat == RESERVE_SEAT
        )
        # one of the two has room: together they have
        plain = instance.seats_in_use - used < seats - reserved
        if used >= reserved:
            return (PLAIN_SEAT,)
        return (PLAIN_SEAT, RESERVE_SEAT) if plain else (RESERVE_SEAT,)

    def admit(
        self, call: CallView, seat: SeatTag, instance: InstanceView, now_s: float
    ) -> Admit | Defer:
        """Yes when its sequences fit, or when the instance is empty; else when an attempt ends."""
        in_use = instance.seats_in_use
        if in_use and in_use + call.spec.seats > instance.seats:
            return Defer()
        return Admit(seat)
