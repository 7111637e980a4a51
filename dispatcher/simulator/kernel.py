"""Virtual time: callbacks at moments, in order."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

_Entry = tuple[float, int, Callable[..., None], tuple[Any, ...]]


class Kernel:
    """A heap of what is to happen; what is due together happens in the order it was asked for.

    Example:
        >>> kernel, said = Kernel(), []
        >>> kernel.at(2.0, said.append, "later")
        >>> kernel.at(1.0, said.append, "sooner")
        >>> kernel.run()
        >>> said, kernel.now_s
        (['sooner', 'later'], 2.0)
    """

    __slots__ = ("_heap", "_sequence", "now_s")

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[_Entry] = []
        self._sequence = 0

    def at(self, at_s: float, callback: Callable[..., None], *args: Any) -> None:
        """Call back at that moment; at once (but not before this returns) where it has passed."""
        self._sequence += 1
        heapq.heappush(self._heap, (max(at_s, self.now_s), self._sequence, callback, args))

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Let time pass until nothing is left to happen, or `until` says so."""
        heap = self._heap
        while heap and not (until is not None and until()):
            self.now_s, _, callback, args = heapq.heappop(heap)
            callback(*args)
