"""Admission by seats: as many sequences in flight as the instance has seats for.

No paper: what every policy needs under it. An engine that is kept just full has no queue of its
own, so that the order decided here is the order in which calls run.
"""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher.core.ports import Admit, Defer, TokenRoom
from dispatcher.core.types import PLAIN_SEAT, SeatTag
from dispatcher.core.views import CallView, InstanceView

_ONE_KIND = (PLAIN_SEAT,)


class SeatAdmission:
    """Plain seats, all alike; O(1).

    A call of several sequences (`CallSpec.seats`: n choices, several prompts) waits until as many
    seats are free; one that needs more than the instance has goes when the instance is empty.
    Meanwhile nobody passes it: smaller calls behind it would keep it out for good.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> instance = Fake(seats=4, seats_in_use=3)
        >>> SeatAdmission().admit(Fake(spec=Fake(seats=1)), PLAIN_SEAT, instance, 0.0)
        Admit(seat='')
        >>> SeatAdmission().admit(Fake(spec=Fake(seats=2)), PLAIN_SEAT, instance, 0.0)
        Defer(until_s=None)
    """

    def open_seats(self, instance: InstanceView, now_s: float) -> Sequence[SeatTag]:
        """The one kind there is, while a seat is free."""
        return _ONE_KIND if instance.seats_in_use < instance.seats else ()

    def admit(
        self, call: CallView, seat: SeatTag, instance: InstanceView, now_s: float
    ) -> Admit | Defer:
        """Yes when its sequences fit, or when the instance is empty; else when an attempt ends."""
        in_use = instance.seats_in_use
        if in_use == 0 or in_use + call.spec.seats <= instance.seats:
            return Admit(seat)
        return Defer()

    def token_room(self, instance: InstanceView, now_s: float) -> TokenRoom | None:
        """None: only seats count."""
        return None
