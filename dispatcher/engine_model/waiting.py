"""The requests of one engine that wait for a seat, as vLLM's scheduler orders them."""

from __future__ import annotations

import heapq

from dispatcher.engine_model.requests import EngineRequest, RequestState


class WaitingHeap:
    """By priority where it counts, then arrival; aborted requests are passed over.

    Under fcfs whoever ran arrived before whoever waits, so a preempted request, which vLLM puts in
    front, comes first by its arrival too.
    """

    __slots__ = ("_by_priority", "_count", "_heap")

    def __init__(self, *, by_priority: bool) -> None:
        self._by_priority = by_priority
        self._heap: list[tuple[tuple[int, float, int], EngineRequest]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def push(self, request: EngineRequest) -> None:
        """Add a request."""
        priority = request.priority if self._by_priority else 0
        key = (priority, request.arrival_s, request.sequence)
        heapq.heappush(self._heap, (key, request))
        self._count += 1

    def peek(self) -> EngineRequest | None:
        """Return the next one, left here; None where nobody waits."""
        while self._heap:
            request = self._heap[0][1]
            if request.state is RequestState.WAITING:
                return request
            heapq.heappop(self._heap)
        return None

    def pop(self) -> None:
        """Take out the one that `peek` has just returned."""
        heapq.heappop(self._heap)
        self._count -= 1

    def note_aborted(self) -> None:
        """One of those here is no longer in state WAITING.

        Dead entries are dropped once they outnumber the live ones, so that the heap is bounded.
        """
        self._count -= 1
        if len(self._heap) > 2 * self._count + 16:
            self._heap = [entry for entry in self._heap if entry[1].state is RequestState.WAITING]
            heapq.heapify(self._heap)
