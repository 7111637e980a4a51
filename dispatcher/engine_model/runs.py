"""Runs of iterations that can be played, and priced, at once."""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher.engine_model.config import EngineConfig
from dispatcher.engine_model.requests import EngineRequest
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


def run_of(
    running: Sequence[EngineRequest], config: EngineConfig, free_blocks: int
) -> AlikeRun | None:
    """Return the iterations in which each of these decodes one token; None: not even the next.

    The last of them is the one in which the first ends, or after which blocks may run out.
    """
    longest = config.max_model_len - 1
    count, context = longest, 0
    for request in running:
        generated, computed = request.generated, request.computed
        # without a token yet, even the last one of its prompt is priced as a prompt
        if not generated or request.prompt_tokens + generated - computed > 1:
            return None
        left = request.output_tokens - generated
        count = min(count, left)
        count = min(count, longest - computed)
        context += computed
    # every request takes up to a block more than its tokens fill
    spare = free_blocks - len(running)
    if spare < 0 or count * len(running) > spare * config.block_size:
        while count and _blocks_for(running, count, config.block_size) > free_blocks:
            count //= 2
    return AlikeRun(config.timing, count, len(running), context) if count else None


def _blocks_for(running: Sequence[EngineRequest], count: int, block_size: int) -> int:
    """Return how many more blocks these need for so many tokens each."""
    return sum(
        max(0, -(-(request.computed + count) // block_size) - request.blocks) for request in running
    )
