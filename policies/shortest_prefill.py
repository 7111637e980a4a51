"""Shortest prefill first, those that are late already last, and nobody for ever.

What HeteroServe needs at each engine, settled: the paper says nothing of the order there, and first
come, first served lets one long prompt make a row of short ones late. A call is *doomed* from the
moment at which its prefill would have had to start for its first token to be in time,

    K = arrival + SLO_TTFT - t_pre

Those that are not yet go by t_pre, shortest first; the doomed come after all of them, in order of
arrival.

Nobody starves: of the calls that leave the queue, every one in `1 / overdue_share` is the oldest
that has waited longer than `overdue_s`, whatever it is. So as many calls are older than a given one
at some moment, so many such turns later it goes.

Settled: t_pre is taken when the call is queued, and again when its estimate or budget changes, with
what the engine's prefix cache should hold; for calls that are held it is the mean over the engines
that fit. A client's own priority decides between equals. The engine's priority is K; of a call that
is doomed when it goes, it is the moment at which it would be overdue, so that inside the engine,
too, it is passed by those that can still be in time. Calls that ask for no SLO on the first token
have the policy's.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from typing import NamedTuple

from dispatcher.core.ports import CallQueue
from dispatcher.core.types import CallId, Key, SeatTag
from dispatcher.core.views import CallView, FleetView, InstanceView

_IN_TIME, _DOOMED = 0.0, 1.0


class ShortestPrefill:
    """Order by (doomed, t_pre or arrival, client priority); O(log n) per call.

    Args:
        slo_ttft_s: SLO on the first token of calls that ask for none, seconds.
        overdue_s: Wait from which a call may have a turn of the overdue, seconds.
        overdue_share: Part of the calls leaving a queue that such turns are, in [0, 1); 0: none,
            calls may starve.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> def call(name, arrived_s, prefill_s):
        ...     spec = Fake(call_id=name, client_priority=0, slo=Fake(ttft_s=None))
        ...     return Fake(spec=spec, sequence=1, arrived_s=arrived_s, prefill_s=prefill_s)
        >>> fleet = Fake(mean_prefill_s=lambda call: call.prefill_s)
        >>> waiting = ShortestPrefill().queue(None, fleet)
        >>> for one in (call("long", 0.0, 0.3), call("short", 0.1, 0.05), call("late", -9.0, 0.01)):
        ...     waiting.push(one, 0.1)
        >>> waiting.select("", 0.1).spec.call_id
        'short'
        >>> waiting.remove("short")
        >>> waiting.select("", 0.2).spec.call_id, waiting.select("", 0.21).spec.call_id
        ('long', 'late')
    """

    def __init__(
        self,
        *,
        slo_ttft_s: float = 0.5,
        overdue_s: float = 30.0,
        overdue_share: float = 0.01,
    ) -> None:
        self._slo_ttft_s = slo_ttft_s
        self._overdue_s = overdue_s
        self._overdue_share = overdue_share

    def queue(self, instance: InstanceView | None, fleet: FleetView) -> CallQueue:
        """Two bands, and a clock that moves calls from one to the other."""

        def place(call: CallView) -> Place:
            prefill_s = _prefill_s(call, instance, fleet)
            return Place(prefill_s, self._start_s(call, prefill_s))

        return ShortestPrefillQueue(
            place, overdue_s=self._overdue_s, overdue_share=self._overdue_share
        )

    def key(
        self, call: CallView, instance: InstanceView | None, fleet: FleetView, now_s: float
    ) -> Key:
        """(0, t_pre, client priority), or for the doomed (1, arrival, client priority)."""
        prefill_s = _prefill_s(call, instance, fleet)
        priority = float(call.spec.client_priority)
        if self._start_s(call, prefill_s) < now_s:
            return (_DOOMED, call.arrived_s, priority)
        return (_IN_TIME, prefill_s, priority)

    def latest_start_s(
        self, call: CallView, instance: InstanceView, fleet: FleetView, now_s: float
    ) -> float | None:
        """K; once that has passed, when the call would be overdue."""
        start_s = self._start_s(call, fleet.prefill_s(call, instance))
        if start_s >= now_s:
            return start_s
        return max(now_s, call.arrived_s + self._overdue_s)

    def _start_s(self, call: CallView, prefill_s: float) -> float:
        return call.arrived_s + (call.spec.slo.ttft_s or self._slo_ttft_s) - prefill_s


def _prefill_s(call: CallView, instance: InstanceView | None, fleet: FleetView) -> float:
    return fleet.mean_prefill_s(call) if instance is None else fleet.prefill_s(call, instance)


class Place(NamedTuple):
    """What orders a call."""

    prefill_s: float
    start_s: float
    """K: doomed after it."""


class _Waiting(NamedTuple):
    call: CallView
    entry: int
    """Number of its latest push; older ones in the heap are void."""
    in_time: tuple[float, float, int, CallId]
    by_age: tuple[float, int, CallId]


class ShortestPrefillQueue:
    """Calls by prefill while they can be in time, by arrival afterwards; turns for the overdue.

    Moving a call from one band to the other is amortised over its push; `select` does it, as it is
    told the time, and is else without effect. O(log n) comparisons per operation, and a shift of a
    list on push and remove.

    Args:
        place: t_pre of a call, and K.
        overdue_s: As `ShortestPrefill` has it.
        overdue_share: As `ShortestPrefill` has it.
    """

    def __init__(
        self, place: Callable[[CallView], Place], *, overdue_s: float, overdue_share: float
    ) -> None:
        self._place = place
        self._overdue_s = overdue_s
        self._overdue_share = overdue_share
        self._live: dict[CallId, _Waiting] = {}
        self._entries = 0
        #: (t_pre, client priority, sequence, call id), ascending
        self._in_time: list[tuple[float, float, int, CallId]] = []
        #: (arrival, sequence, call id), ascending: those that are doomed, and all
        self._doomed: list[tuple[float, int, CallId]] = []
        self._by_age: list[tuple[float, int, CallId]] = []
        #: (K, entry, call id) of those in time, and of some that are gone
        self._clock: list[tuple[float, int, CallId]] = []
        #: calls that have left since the last turn of the overdue
        self._left = 0

    def push(self, call: CallView, now_s: float) -> None:
        """Add a call; it must not be here yet."""
        call_id = call.spec.call_id
        if call_id in self._live:
            raise KeyError(f"call {call_id} is queued here already")
        place = self._place(call)  # first: where it raises, nothing has changed
        self._entries += 1
        waiting = _Waiting(
            call,
            self._entries,
            (place.prefill_s, float(call.spec.client_priority), call.sequence, call_id),
            (call.arrived_s, call.sequence, call_id),
        )
        self._live[call_id] = waiting
        insort(self._by_age, waiting.by_age)
        if place.start_s < now_s:
            insort(self._doomed, waiting.by_age)
        else:
            insort(self._in_time, waiting.in_time)
            heapq.heappush(self._clock, (place.start_s, waiting.entry, call_id))

    def remove(self, call_id: CallId) -> None:
        """Take a call out. Raises `KeyError` when it is not here."""
        oldest = self._by_age[0][2] if self._by_age else None
        self._take_out(call_id)
        self._left = 0 if call_id == oldest else self._left + 1

    def refresh(self, call: CallView, now_s: float) -> None:
        """Order the call anew. Raises `KeyError` when it is not here."""
        self._take_out(call.spec.call_id)
        self.push(call, now_s)

    def select(self, seat: SeatTag, now_s: float) -> CallView | None:
        """The overdue at their turn, else the shortest in time, else the oldest."""
        if not self._live:
            return None
        self._doom(now_s)
        oldest = self._by_age[0]
        turn = (self._left + 1) * self._overdue_share >= 1.0
        if turn and now_s - oldest[0] > self._overdue_s:
            return self._live[oldest[2]].call
        if self._in_time:
            return self._live[self._in_time[0][3]].call
        return self._live[self._doomed[0][2]].call

    def rescore(self, now_s: float, limit: int) -> bool:
        """Nothing to do: only the line between the bands moves."""
        return False

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[CallView]:
        return (waiting.call for waiting in self._live.values())

    def _doom(self, now_s: float) -> None:
        """Move those whose moment has passed."""
        clock = self._clock
        while clock and clock[0][0] < now_s:
            _, entry, call_id = heapq.heappop(clock)
            waiting = self._live.get(call_id)
            if waiting is not None and waiting.entry == entry:
                del self._in_time[bisect_left(self._in_time, waiting.in_time)]
                insort(self._doomed, waiting.by_age)

    def _take_out(self, call_id: CallId) -> None:
        waiting = self._live.pop(call_id)
        del self._by_age[bisect_left(self._by_age, waiting.by_age)]
        at = bisect_left(self._doomed, waiting.by_age)
        if at < len(self._doomed) and self._doomed[at] == waiting.by_age:
            del self._doomed[at]
        else:
            del self._in_time[bisect_left(self._in_time, waiting.in_time)]
        if len(self._clock) > 64 and len(self._clock) > 2 * len(self._live):
            live = self._live
            self._clock = [c for c in self._clock if c[2] in live and live[c[2]].entry == c[1]]
            heapq.heapify(self._clock)
