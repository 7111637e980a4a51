"""Fairness blend: density weighed against what each client has been served (Tempo, section 4.3).

    Priority'(r) = (1 - f) Priority(r) + f Fair(r),    0 <= f <= 1

With f -> 1 the client that has been served least goes first, as under VTC.

Settled: the two have different scales, so both are ranks among the calls that wait here, from 1 for
the first to 0 for the last; clients that have been served alike share a rank. A client is a
workflow and what it has been served are VTC's counters (`policies.token_counters`), as they were
when the call was last scored.

The best of the blend is found by going down both orders at once (Fagin's threshold algorithm) until
nothing further down can be better: a few steps, as a rule. Where the orders oppose each other it
stops after `STEPS` anyway and takes the best it has seen.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence

from dispatcher.core.types import CallId, WorkflowId
from policies.rescored_queue import Entry

STEPS = 128
"""Calls of each order that are looked at, at most."""


class FairBlend:
    """What the calls of one queue have been served, and the best of the blend.

    Args:
        served: A client's present counter.
        weight: f, in (0, 1].

    Example:
        >>> counters = {"busy": 900.0, "new": 0.0}
        >>> order = [((-5.0,), 1, "dense"), ((-4.0,), 2, "fair"), ((-1.0,), 3, "neither")]
        >>> def best(weight):
        ...     blend = FairBlend(counters.__getitem__, weight)
        ...     for call_id, client in (("dense", "busy"), ("fair", "new"), ("neither", "busy")):
        ...         blend.note(call_id, client)
        ...     return blend.best(order, {entry[2]: entry for entry in order}.__getitem__)[2]
        >>> best(0.1), best(0.6)
        ('dense', 'fair')
    """

    def __init__(self, served: Callable[[WorkflowId], float], weight: float) -> None:
        self._served = served
        self._weight = weight
        #: (counter when last looked at, call), ascending
        self._sorted: list[tuple[float, CallId]] = []
        self._counters: dict[CallId, float] = {}

    def note(self, call_id: CallId, client: WorkflowId) -> None:
        """A call has come, or its client's counter is to be looked at anew."""
        counter = self._served(client)
        if self._counters.get(call_id) != counter:
            self.forget(call_id)
            self._counters[call_id] = counter
            insort(self._sorted, (counter, call_id))

    def forget(self, call_id: CallId) -> None:
        """A call has gone; nothing happens where it was not there."""
        counter = self._counters.pop(call_id, None)
        if counter is not None:
            del self._sorted[bisect_left(self._sorted, (counter, call_id))]

    def best(
        self,
        order: Sequence[Entry],
        entry_of: Callable[[CallId], Entry],
        among: Sequence[Entry] | None = None,
    ) -> Entry:
        """The entry with the highest blend; ties: the denser.

        Args:
            order: All calls here, densest first; not empty.
            entry_of: A call's entry in it.
            among: Those that may go, densest first; `None`: all.
        """
        if among is not None:
            return max(among, key=lambda entry: self._blend(order, entry))
        best, best_blend = order[0], self._blend(order, order[0])
        for depth in range(min(len(order), STEPS)):
            counter, call_id = self._sorted[depth]
            for entry in (order[depth], entry_of(call_id)):
                blend = self._blend(order, entry)
                if (blend, best) > (best_blend, entry):
                    best, best_blend = entry, blend
            unseen = (1.0 - self._weight) * _rank(depth, len(order))
            if best_blend > unseen + self._weight * self._fair(counter):
                break
        return best

    def _blend(self, order: Sequence[Entry], entry: Entry) -> float:
        density_rank = _rank(bisect_left(order, entry), len(order))
        fair_rank = self._fair(self._counters[entry[2]])
        return (1.0 - self._weight) * density_rank + self._weight * fair_rank

    def _fair(self, counter: float) -> float:
        return _rank(bisect_left(self._sorted, (counter,)), len(self._sorted))


def _rank(position: int, count: int) -> float:
    """1 for the first, 0 for the last."""
    return 1.0 - position / (count - 1) if count > 1 else 1.0
