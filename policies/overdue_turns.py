"""Turns of the overdue: the oldest call that has waited too long goes now and then.

An order by what is left of a job may keep long ones back for ever. Of the calls that leave a queue,
every one in `1 / share` is the oldest that has waited longer than `overdue_s`, whatever it is: so
as many calls are older than a given one at some moment, so many such turns later it goes.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from dispatcher.core.types import CallId
from dispatcher.core.views import CallView

_Age = tuple[float, int, CallId]
"""Arrival, arrival sequence, call id."""


class OverdueTurns:
    """Whose turn it is beside the order; O(log n) per call.

    Args:
        overdue_s: Wait from which a call may have such a turn, seconds.
        share: Part of what leaves that such turns are, in [0, 1); 0: there are none.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> turns = OverdueTurns(30.0, 0.5)
        >>> for name, arrived_s in (("old", 0.0), ("new", 40.0), ("newer", 41.0)):
        ...     turns.add(Fake(spec=Fake(call_id=name), sequence=1, arrived_s=arrived_s))
        >>> turns.whose(45.0) is None
        True
        >>> turns.discard(Fake(spec=Fake(call_id="new"), sequence=1, arrived_s=40.0))
        >>> turns.whose(30.0), turns.whose(45.0)
        (None, 'old')
    """

    def __init__(self, overdue_s: float, share: float) -> None:
        self._overdue_s = overdue_s
        self._share = share
        #: ascending; empty where there are no turns
        self._ages: list[_Age] = []
        #: calls that have left since the last turn
        self._left = 0

    def add(self, call: CallView) -> None:
        """A call waits."""
        if self._share:
            insort(self._ages, _age(call))

    def discard(self, call: CallView) -> None:
        """A call has left, by whatever turn."""
        if self._share:
            at = bisect_left(self._ages, _age(call))
            del self._ages[at]
            self._left = 0 if at == 0 else self._left + 1

    def whose(self, now_s: float) -> CallId | None:
        """The call that goes before all others now; `None`: the order decides."""
        if not self._ages or (self._left + 1) * self._share < 1.0:
            return None
        arrived_s, _, call_id = self._ages[0]
        return call_id if now_s - arrived_s > self._overdue_s else None


def _age(call: CallView) -> _Age:
    return (call.arrived_s, call.sequence, call.spec.call_id)
