"""Urgency queue: the call with the least time left to start goes first.

HexGen-Flow, section 4.2. With t_SLO the stage's budget (Eq. 5, computed by the workflow tracker),
t_comp the call's own time at the instance (Eqs. 2 and 6) and tau its wait so far, the urgency is

    U = t_comp - (t_SLO - tau)                                                            (Eq. 7)

in seconds, largest first (Eq. 8), positive when it is already late. Since tau grows alike for
all, U = now - K with

    K = t_enqueue + t_SLO - t_comp          (the latest start)

and the order by K never changes by itself: a heap on K, smallest first, is Eq. 8 exactly, in
O(log n) instead of a scan at every step. K is also the engine's priority, so that its own waiting
heap repeats the order.

Settled, and deviations:

1. t_enqueue + t_SLO is the stage's deadline, fixed when the budget is computed: on arrival, and
   anew when a stage of the workflow ends. Time spent held or re-routed counts as waiting.
2. t_comp is taken when the call is queued, and again when its estimate or budget changes, at the
   instance's load of that moment; not at every later load. Held calls have no instance: the mean
   over those that fit (Eq. 6) stands in.
3. "Preempt" means passing in the queue; nothing in flight is stopped. That is the paper's meaning.
4. A client's own priority decides between equal K only: it cannot break a deadline.

Options:

`scope="workflow"` orders by the workflow's laxity, K = deadline - remaining work along the critical
    path, instead of the stage's. Better under heavy load with few seats, where stage budgets shrink
    together.
`shed_doomed` puts calls whose K has passed behind all others, in order of K among themselves. Least
    laxity otherwise spends an overloaded fleet on calls that are late already. They still run when
    nobody else waits, and their engine priority stays K: one unit for all policies.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from typing import Literal

from dispatcher.core.local_queue import HeapQueue
from dispatcher.core.ports import CallQueue
from dispatcher.core.types import CallId, Key, SeatTag
from dispatcher.core.views import CallView, FleetView, InstanceView

Scope = Literal["stage", "workflow"]

_ON_TIME = 0.0
_DOOMED = 1.0


class Urgency:
    """Order by the latest start K, seconds; O(log n) per call.

    Args:
        scope: Whose time counts, the stage's share (the paper) or the whole workflow's.
        shed_doomed: Serve calls that can no longer be in time after all that can.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> def call(name, sequence, deadline_s, compute_s):
        ...     spec = Fake(call_id=name, client_priority=0)
        ...     budget = Fake(stage_deadline_s=deadline_s)
        ...     return Fake(spec=spec, sequence=sequence, budget=budget, compute_s=compute_s)
        >>> fleet = Fake(mean_compute_s=lambda call: call.compute_s)
        >>> waiting = Urgency().queue(None, fleet)
        >>> waiting.push(call("short", 1, deadline_s=20.0, compute_s=2.0), 0.0)
        >>> waiting.push(call("long", 2, deadline_s=25.0, compute_s=12.0), 0.0)
        >>> waiting.select("", 0.0).spec.call_id
        'long'
        >>> Urgency().key(call("long", 2, 25.0, 12.0), None, fleet, 0.0)
        (13.0, 0.0)
    """

    def __init__(self, *, scope: Scope = "stage", shed_doomed: bool = False) -> None:
        self.scope = scope
        self.shed_doomed = shed_doomed

    def queue(self, instance: InstanceView | None, fleet: FleetView) -> CallQueue:
        """A heap on K; with `shed_doomed`, a sorted list that is cut at the present moment."""

        def static_key(call: CallView, now_s: float) -> Key:
            return (self._start_s(call, instance, fleet), float(call.spec.client_priority))

        return DoomedLastQueue(static_key) if self.shed_doomed else HeapQueue(static_key)

    def key(
        self, call: CallView, instance: InstanceView | None, fleet: FleetView, now_s: float
    ) -> Key:
        """(K, client priority); with `shed_doomed`, after 0 for on time and 1 for doomed."""
        start_s = self._start_s(call, instance, fleet)
        key = (start_s, float(call.spec.client_priority))
        if not self.shed_doomed:
            return key
        return (_DOOMED if start_s < now_s else _ON_TIME, *key)

    def latest_start_s(
        self, call: CallView, instance: InstanceView, fleet: FleetView, now_s: float
    ) -> float | None:
        """K at this instance."""
        return self._start_s(call, instance, fleet)

    def _start_s(self, call: CallView, instance: InstanceView | None, fleet: FleetView) -> float:
        if self.scope == "workflow":
            return call.budget.deadline_s - call.budget.remaining_work_s
        if instance is None:
            return call.budget.stage_deadline_s - fleet.mean_compute_s(call)
        return call.budget.stage_deadline_s - fleet.compute_s(call, instance)


class DoomedLastQueue:
    """Calls by latest start; those whose moment has passed come after those whose has not.

    One list sorted by key holds both bands: the doomed are its front, and where they end is found
    by bisection, so that time moving on costs nothing. O(log n) comparisons per operation, and a
    shift of the list on push and remove (microseconds at ten thousand calls).

    Args:
        key: What orders a call; its first entry is the latest start, seconds.
    """

    def __init__(self, key: Callable[[CallView, float], Key]) -> None:
        self._key = key
        #: (key, arrival sequence, call id), ascending
        self._sorted: list[tuple[Key, int, CallId]] = []
        #: call id -> (its entry in the list, the call)
        self._live: dict[CallId, tuple[tuple[Key, int, CallId], CallView]] = {}

    def push(self, call: CallView, now_s: float) -> None:
        """Add a call; it must not be here yet."""
        call_id = call.spec.call_id
        if call_id in self._live:
            raise KeyError(f"call {call_id} is queued here already")
        entry = (self._key(call, now_s), call.sequence, call_id)
        self._live[call_id] = (entry, call)
        insort(self._sorted, entry)

    def remove(self, call_id: CallId) -> None:
        """Take a call out. Raises `KeyError` when it is not here."""
        entry, _ = self._live.pop(call_id)
        del self._sorted[bisect_left(self._sorted, entry)]

    def refresh(self, call: CallView, now_s: float) -> None:
        """Order the call anew. Raises `KeyError` when it is not here."""
        self.remove(call.spec.call_id)
        self.push(call, now_s)

    def select(self, seat: SeatTag, now_s: float) -> CallView | None:
        """The least latest start that has not passed, else the least of all."""
        if not self._sorted:
            return None
        on_time = bisect_left(self._sorted, ((now_s,),))
        entry = self._sorted[on_time if on_time < len(self._sorted) else 0]
        return self._live[entry[2]][1]

    def rescore(self, now_s: float, limit: int) -> bool:
        """Nothing to do: the keys stay, only the cut between the bands moves."""
        return False

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[CallView]:
        return (call for _, call in self._live.values())
