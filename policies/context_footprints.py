"""What calls keep in a KV cache: tokens of prompts and answers, of those that ended lately.

No paper; what HeteroServe's Eq. 4 (90th percentile by bin) and Eq. 6 (mean, by engine: routing that
looks at lengths gives engines calls of different length) are computed from. An observer, so that a
switch to a policy that needs it starts with what was served before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from dispatcher.core.events import AttemptEnded, Dispatched, Event
from dispatcher.core.types import AttemptId, InstanceId, Outcome
from dispatcher.core.views import FleetView

KEPT = 512
"""Calls remembered."""
LEAST_CALLS = 16
"""From so many on a mean says something."""
_MEAN_OVER = 64
"""Calls over which an engine's mean is taken."""


class ContextFootprints:
    """(prompt, prompt + answer) of the latest calls, tokens as the engine counted: an `Observer`.

    Example:
        >>> footprints = ContextFootprints()
        >>> for _ in range(LEAST_CALLS):
        ...     footprints.add(500, 100)
        >>> footprints.mean_tokens("any"), footprints.ended
        (600.0, 16)
    """

    def __init__(self) -> None:
        self._latest: deque[tuple[int, int]] = deque(maxlen=KEPT)
        self._sum = 0
        #: where attempts are that are out
        self._out: dict[AttemptId, InstanceId] = {}
        #: by engine: calls that ended there, and their mean
        self._means: dict[InstanceId, tuple[int, float]] = {}
        #: calls that ended ever; what was worked out from `latest` is as old as this tells
        self.ended = 0

    def observe(self, event: Event | Dispatched, fleet: FleetView, now_s: float) -> None:
        """Count attempts that ended well."""
        if isinstance(event, Dispatched):
            self._out[event.attempt_id] = event.instance_id
        elif isinstance(event, AttemptEnded):
            instance_id = self._out.pop(event.attempt_id, None)
            if event.outcome is Outcome.OK and event.usage:
                self.add(event.usage.prompt_tokens, event.usage.output_tokens, instance_id)
            if len(self._means) > len(fleet.instances):
                self._means = {i: m for i, m in self._means.items() if i in fleet.instances}

    def add(
        self, prompt_tokens: int, output_tokens: int, instance_id: InstanceId | None = None
    ) -> None:
        """One more; O(1)."""
        if len(self._latest) == KEPT:
            self._sum -= self._latest[0][1]
        tokens = prompt_tokens + output_tokens
        self._latest.append((prompt_tokens, tokens))
        self._sum += tokens
        self.ended += 1
        if instance_id is not None:
            calls, mean = self._means.get(instance_id, (0, 0.0))
            calls = min(calls + 1, _MEAN_OVER)
            self._means[instance_id] = (calls, mean + (tokens - mean) / calls)

    @property
    def latest(self) -> Sequence[tuple[int, int]]:
        """Oldest first, at most `KEPT`."""
        return self._latest

    def mean_tokens(self, instance_id: InstanceId) -> float | None:
        """Of prompt and answer together, at an engine, or of all where few have ended there.

        At least 1; `None` before enough calls have ended anywhere.
        """
        calls, mean = self._means.get(instance_id, (0, 0.0))
        if calls >= LEAST_CALLS:
            return max(1.0, mean)
        if len(self._latest) < LEAST_CALLS:
            return None
        return max(1.0, self._sum / len(self._latest))
