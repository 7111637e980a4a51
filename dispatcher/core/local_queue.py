"""The ready-made queue: a binary heap on keys that do not change by themselves.

Push, remove and re-key are O(log n) amortised: a removed or re-keyed entry stays in the heap as a
tombstone until it surfaces, and the heap is rebuilt when tombstones outnumber the living.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from dispatcher.core.types import CallId, Key, SeatTag
from dispatcher.core.views import CallView

_REBUILD_FLOOR = 64


class HeapQueue:
    """Calls by key, smallest first, ties by arrival. Serves every kind of seat alike.

    Example: `HeapQueue(lambda call, now_s: (call.budget.stage_deadline_s,))` is EDF.
    """

    def __init__(self, key: Callable[[CallView, float], Key]) -> None:
        self._key = key
        #: (key, arrival sequence, entry number, call id); alive where `_live` agrees on the number
        self._heap: list[tuple[Key, int, int, CallId]] = []
        #: call id -> (entry number, call)
        self._live: dict[CallId, tuple[int, CallView]] = {}
        self._entries = 0

    def push(self, call: CallView, now_s: float) -> None:
        """Add a call; it must not be here yet."""
        call_id = call.spec.call_id
        if call_id in self._live:
            raise KeyError(f"call {call_id} is queued here already")
        self._put(call, now_s)

    def remove(self, call_id: CallId) -> None:
        """Take a call out. Raises `KeyError` when it is not here."""
        del self._live[call_id]
        self._compact()

    def refresh(self, call: CallView, now_s: float) -> None:
        """Order the call anew. Raises `KeyError` when it is not here."""
        if call.spec.call_id not in self._live:
            raise KeyError(f"call {call.spec.call_id} is not queued here")
        self._put(call, now_s)
        self._compact()

    def select(self, seat: SeatTag, now_s: float) -> CallView | None:
        """The call with the smallest key, left in the queue."""
        while self._heap:
            _, _, entry, call_id = self._heap[0]
            live = self._live.get(call_id)
            if live is not None and live[0] == entry:
                return live[1]
            heapq.heappop(self._heap)
        return None

    def rescore(self, now_s: float, limit: int) -> bool:
        """Nothing to do: these keys do not move with time."""
        return False

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[CallView]:
        return (call for _, call in self._live.values())

    def _put(self, call: CallView, now_s: float) -> None:
        key = self._key(call, now_s)  # first: where it raises, nothing has changed
        self._entries += 1
        call_id = call.spec.call_id
        self._live[call_id] = (self._entries, call)
        heapq.heappush(self._heap, (key, call.sequence, self._entries, call_id))

    def _compact(self) -> None:
        if len(self._heap) > _REBUILD_FLOOR and len(self._heap) > 2 * len(self._live):
            self._heap = [
                item
                for item in self._heap
                if (live := self._live.get(item[3])) is not None and live[0] == item[2]
            ]
            heapq.heapify(self._heap)
