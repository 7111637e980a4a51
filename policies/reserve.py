"""Admission with a reserve: a tenth of the seats serves who would otherwise starve.

Tempo, section 4.3: strict order by density starves some, so "a small portion of serving bandwidth
(e.g., 10 % of the batch size)" is kept for calls without an SLO, in order of arrival; what of it is
idle is filled by density.

Settled:

1. Per instance R = max(1, ceil(0.1 seats)) seats are the reserve's, known by their tag. The other
   seats are filled first, so that the reserve is idle as long as there is room.
2. On a seat of the reserve goes the oldest best-effort call; where there is none, the densest of
   the others does (`policies.density_queue`). Whoever goes there holds a reserved seat until it
   ends, so that a reserve full of backfill is back after at most one call.
3. Calls with an SLO may starve, too: density can stay low for ever. So one dispatch in a hundred of
   an instance goes to the oldest call that has waited more than 30 s, whatever its class. They are
   not put on the reserve's own seats: under overload there are ever more of them, and a tenth of
   the engine would go to what is late already (docs/decisions/0007).
4. Of an instance with a single seat one dispatch in ten is the reserve's: kept for good, the seat
   would never serve by density; never kept, best-effort calls would starve.
5. A call of several sequences may take seats of both kinds; while it runs, the kind that it has
   overdrawn is closed first. When it is the oldest and has its turn, no seat is open for others, so
   that seats gather for it. The same holds for the densest where it needs seats of the reserve:
   else the plain ones would stand idle while others keep those taken.

So every call runs: when it has waited long, there are finitely many older ones, and every hundredth
dispatch serves the oldest. (`queue.max_wait_s` may end its wait before.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dispatcher.core.events import Dispatched, Event
from dispatcher.core.ports import Admit, Defer, TokenRoom
from dispatcher.core.types import PLAIN_SEAT, InstanceId, SeatTag
from dispatcher.core.views import CallView, FleetView, InstanceView

RESERVE_SEAT = SeatTag("reserve")
OVERDUE_SEAT = SeatTag("overdue")


class ReserveTurns:
    """Dispatches of each instance since either kind of turn was taken: an `Observer`; O(1).

    Also knows where seats gather for a call that needs some of the reserve's: until anything goes
    out there.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> in_flight = {1: Fake(seat=""), 2: Fake(seat=OVERDUE_SEAT)}
        >>> fleet = Fake(instances={"i": Fake(in_flight=in_flight)})
        >>> turns = ReserveTurns()
        >>> turns.observe(Dispatched(Fake(), 1, "i"), fleet, 0.0)
        >>> turns.of("i")
        (1, 1)
        >>> turns.observe(Dispatched(Fake(), 2, "i"), fleet, 0.0)
        >>> turns.of("i")
        (2, 0)
    """

    def __init__(self) -> None:
        self._turns: dict[InstanceId, tuple[int, int]] = {}
        self.gathering: set[InstanceId] = set()

    def of(self, instance_id: InstanceId) -> tuple[int, int]:
        """Dispatches there since the last of the reserve, and since the last of the overdue."""
        return self._turns.get(instance_id, (0, 0))

    def observe(self, event: Event | Dispatched, fleet: FleetView, now_s: float) -> None:
        """Count what goes out."""
        if not isinstance(event, Dispatched):
            return
        seat = fleet.instances[event.instance_id].in_flight[event.attempt_id].seat
        reserve, overdue = self.of(event.instance_id)
        self.gathering.discard(event.instance_id)
        self._turns[event.instance_id] = (
            0 if seat == RESERVE_SEAT else reserve + 1,
            0 if seat == OVERDUE_SEAT else overdue + 1,
        )
        if len(self._turns) > len(fleet.instances):
            self._turns = {i: n for i, n in self._turns.items() if i in fleet.instances}
            self.gathering.intersection_update(fleet.instances)


class ReserveAdmission:
    """Plain seats, then reserved ones; O(calls in flight there) where a seat is free.

    Args:
        turns: Whose turn it is; must observe the coordinator.
        share: Part of the seats that is reserved, in [0, 1); 0: none.
        overdue_share: Part of the dispatches that are for who has waited too long, in [0, 1); 0:
            none. With both at 0 calls may starve.

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

    def __init__(
        self, turns: ReserveTurns, share: float = 0.1, *, overdue_share: float = 0.01
    ) -> None:
        self.turns = turns
        self.share = share
        self.overdue_share = overdue_share

    def reserved(self, seats: int) -> int:
        """R: seats of the reserve among so many, 0 to `seats`."""
        return max(1, math.ceil(self.share * seats)) if self.share > 0.0 else 0

    def open_seats(self, instance: InstanceView, now_s: float) -> Sequence[SeatTag]:
        """Kinds of which a seat is free: plain ones first; one alone where it has its turn."""
        seats = instance.seats
        if instance.seats_in_use >= seats:
            return ()
        since_reserve, since_overdue = self.turns.of(instance.spec.instance_id)
        if _has_turn(since_overdue, self.overdue_share):
            return (OVERDUE_SEAT,)
        reserved = self.reserved(seats)
        if not reserved:
            return (PLAIN_SEAT,)
        if seats == 1:
            return (RESERVE_SEAT,) if _has_turn(since_reserve, self.share) else (PLAIN_SEAT,)
        used = sum(
            attempt.call.spec.seats
            for attempt in instance.in_flight.values()
            if attempt.seat == RESERVE_SEAT
        )
        # one of the two has room: together they have
        plain = instance.seats_in_use - used < seats - reserved
        if used >= reserved or instance.spec.instance_id in self.turns.gathering:
            return (PLAIN_SEAT,)
        return (PLAIN_SEAT, RESERVE_SEAT) if plain else (RESERVE_SEAT,)

    def admit(
        self, call: CallView, seat: SeatTag, instance: InstanceView, now_s: float
    ) -> Admit | Defer:
        """Yes when its sequences fit, or when the instance is empty; else when an attempt ends."""
        in_use, seats = instance.seats_in_use, instance.seats
        if in_use and in_use + call.spec.seats > seats:
            needs_reserve = call.spec.seats > seats - self.reserved(seats)
            # a held call that asks here may find room elsewhere
            if seat == PLAIN_SEAT and needs_reserve and instance.queued:
                self.turns.gathering.add(instance.spec.instance_id)
            return Defer()
        return Admit(seat)

    def token_room(self, instance: InstanceView, now_s: float) -> TokenRoom | None:
        """None: only seats count."""
        return None


def _has_turn(since: int, share: float) -> bool:
    """Whether the next dispatch is that of one in so many."""
    return (since + 1) * share >= 1.0
