"""Virtual time: callbacks at moments, in order."""

from __future__ import annotations

import gc
import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_COLLECT_AT = 500_000
"""Objects that have come without going."""

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


@contextmanager
def seldom_collecting() -> Iterator[None]:
    """Let the collector look for cycles less often: hardly any come, and much stays."""
    before = gc.get_threshold()
    gc.set_threshold(_COLLECT_AT, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
