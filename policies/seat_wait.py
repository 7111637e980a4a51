"""How long a call would wait for a seat, or for memory: part of W of HeteroServe, settled.

W, the wait until the prefill of a call that is sent to an engine now would begin, is the larger of
two times, since whichever is short runs out under the other:

- the prefill ahead of it, queued or sent and not seen done (`FleetView.prefill_ahead_s`);
- the wait for a seat: where none is free, or memory has no room, k calls have to end before it, and
  those that are queued and in flight, n in all, end within the backlog (`FleetView.backlog_s`),
  about evenly: k / n of it. The backlog counts on all seats; where memory keeps fewer busy than
  there are, it is that much longer.

Not the backlog itself: that is the time until the engine has nothing left to do, and a call's first
token does not wait for the last token of others.
"""

from __future__ import annotations

from dispatcher.core.views import FleetView, InstanceView


def seat_wait_s(instance: InstanceView, fleet: FleetView, *, full: bool) -> float:
    """Until there is room for a call that is queued there now; 0 where there is; O(1).

    Args:
        instance: The engine.
        fleet: Knows its backlog.
        full: Admission lets nothing more go out there now.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> fleet = Fake(backlog_s=lambda instance: 6.0)
        >>> seat_wait_s(Fake(queued=0, seats=4, seats_in_use=3), fleet, full=False)
        0.0
        >>> seat_wait_s(Fake(queued=0, seats=4, seats_in_use=4), fleet, full=True)
        1.5
        >>> seat_wait_s(Fake(queued=2, seats=4, seats_in_use=4), fleet, full=True)
        3.0
        >>> seat_wait_s(Fake(queued=0, seats=8, seats_in_use=4), fleet, full=True)
        3.0
    """
    queued, in_use = instance.queued, instance.seats_in_use
    if in_use == 0 or not (full or queued):
        return 0.0
    share = (queued + 1) / (queued + in_use)
    return fleet.backlog_s(instance) * max(1.0, instance.seats / in_use) * min(1.0, share)
