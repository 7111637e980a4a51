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
   would never serve by density; never kept, density would starve the rest.
4. A call of several sequences may take seats of both kinds. While it runs, the kind that it has
   overdrawn is closed first. One that has waited more than 30 s and is the oldest of its kind is
   offered for every seat, so that seats gather for it and nobody passes.

So every call runs: there are finitely many calls before it in order of arrival, and the seats of
the reserve do not serve anybody else first. (`queue.max_wait_s` may end its wait before.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dispatcher.core.ports import Admit, Defer
from dispatcher.core.types import PLAIN_SEAT, InstanceId, SeatTag
from dispatcher.core.views import CallView, InstanceView

RESERVE_SEAT = SeatTag("reserve")

_MEMORY = 1_024
"""Single-seat instances whose dispatches are counted."""


class ReserveAdmission:
    """Plain seats, then reserved ones; O(calls in flight there) where a seat is free.

    Args:
        share: Part of the seats that is reserved, in [0, 1); 0: none, calls may starve.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> out = {1: Fake(seat="", call=Fake(spec=Fake(seats=3)))}
        >>> spec = Fake(instance_id="i")
        >>> admission = ReserveAdmission()
        >>> admission.open_seats(Fake(spec=spec, seats=4, seats_in_use=3, in_flight=out), 0.0)
        ('reserve',)
        >>> admission.open_seats(Fake(spec=spec, seats=8, seats_in_use=3, in_flight=out), 0.0)
        ('', 'reserve')
    """

    def __init__(self, share: float = 0.1) -> None:
        self.share = share
        #: single-seat instance -> dispatches since the reserve's last
        self._since_reserve: dict[InstanceId, int] = {}

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
            turns = self._since_reserve.get(instance.spec.instance_id, 0)
            return (RESERVE_SEAT,) if (turns + 1) * self.share >= 1.0 else (PLAIN_SEAT,)
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
        if instance.seats == 1:
            self._count(instance.spec.instance_id, seat)
        return Admit(seat)

    def _count(self, instance_id: InstanceId, seat: SeatTag) -> None:
        turns = self._since_reserve.pop(instance_id, 0)
        if len(self._since_reserve) >= _MEMORY:
            del self._since_reserve[next(iter(self._since_reserve))]
        self._since_reserve[instance_id] = 0 if seat == RESERVE_SEAT else turns + 1
