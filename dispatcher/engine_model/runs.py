"""Runs of iterations that can be played, and priced, at once."""

from __future__ import annotations

from dispatcher.engine_model.timing import Timing


class AlikeRun:
    """Iterations that differ only in their contexts' length.

    Attributes:
        count: How many, at least 1.
    """

    __slots__ = ("_context", "_sequences", "_timing", "count")

    def __init__(self, timing: Timing, count: int, sequences: int, context: int) -> None:
        """`context`: tokens computed of all requests before the first iteration."""
        self.count = count
        self._timing = timing
        self._sequences = sequences
        self._context = context

    def duration_s(self, count: int) -> float:
        """Return how long the first so many of them take, seconds."""
        sequences = self._sequences
        mean_context = self._context + 0.5 * sequences * (count + 1)
        return count * self._timing.iteration_s(sequences, sequences, mean_context, mean_context)
