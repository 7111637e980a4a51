"""What calls keep in a KV cache: tokens of prompts and answers, of those that ended lately.

No paper; what HeteroServe's Eq. 4 (90th percentile by bin) and Eq. 6 (mean) are computed from. An
observer, so that a switch to a policy that needs it starts with what was served before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from dispatcher.core.events import AttemptEnded, Dispatched, Event
from dispatcher.core.types import Outcome
from dispatcher.core.views import FleetView

KEPT = 512
"""Calls remembered."""
LEAST_CALLS = 16
"""From so many on a mean says something."""


class ContextFootprints:
    """(prompt, prompt + answer) of the latest calls, tokens as the engine counted: an `Observer`.

    Example:
        >>> footprints = ContextFootprints()
        >>> for _ in range(LEAST_CALLS):
        ...     footprints.add(500, 100)
        >>> footprints.mean_tokens, footprints.ended
        (600.0, 16)
    """

    def __init__(self) -> None:
        self._latest: deque[tuple[int, int]] = deque(maxlen=KEPT)
        self._sum = 0
        #: calls that ended ever; what was worked out from `latest` is as old as this tells
        self.ended = 0

    def observe(self, event: Event | Dispatched, fleet: FleetView, now_s: float) -> None:
        """Count attempts that ended well."""
        if isinstance(event, AttemptEnded) and event.outcome is Outcome.OK and event.usage:
            self.add(event.usage.prompt_tokens, event.usage.output_tokens)

    def add(self, prompt_tokens: int, output_tokens: int) -> None:
        """One more; O(1)."""
        if len(self._latest) == KEPT:
            self._sum -= self._latest[0][1]
        self._latest.append((prompt_tokens, prompt_tokens + output_tokens))
        self._sum += prompt_tokens + output_tokens
        self.ended += 1

    @property
    def latest(self) -> Sequence[tuple[int, int]]:
        """Oldest first, at most `KEPT`."""
        return self._latest

    @property
    def mean_tokens(self) -> float | None:
        """Of prompt and answer together; `None` before enough calls have ended. At least 1."""
        if len(self._latest) < LEAST_CALLS:
            return None
        return max(1.0, self._sum / len(self._latest))
