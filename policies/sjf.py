"""Shortest job first, by predicted output length: a baseline of Tempo.

Tempo, section 6.1, "Tempo (SJF)": the length predictor of Tempo under plain SJF. The key is the
bound that Tempo plans with, Q_0.95 of the length estimate in tokens, and does not move by itself: a
heap serves. Short answers go first however late the long ones are, which therefore may starve.

Exact at a gateway. Ties: the client's own priority, then arrival.
"""

from __future__ import annotations

from dispatcher.core.local_queue import HeapQueue
from dispatcher.core.ports import CallQueue
from dispatcher.core.types import Key
from dispatcher.core.views import CallView, FleetView, InstanceView


class ShortestFirst:
    """Key: (L_hat, client priority). O(log n) per call.

    Args:
        quantile: Of the length estimate; `None`: its mean.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> from dispatcher.core.types import LengthEstimate
        >>> def call(name, sequence, tokens):
        ...     spec = Fake(call_id=name, client_priority=0)
        ...     return Fake(spec=spec, sequence=sequence, length=LengthEstimate(tokens))
        >>> waiting = ShortestFirst().queue(None, Fake())
        >>> waiting.push(call("long", 1, 900.0), 0.0)
        >>> waiting.push(call("short", 2, 80.0), 0.0)
        >>> waiting.select("", 0.0).spec.call_id
        'short'
    """

    def __init__(self, quantile: float | None = 0.95) -> None:
        self.quantile = quantile

    def queue(self, instance: InstanceView | None, fleet: FleetView) -> CallQueue:
        """A heap on the key, which changes with the estimate only."""
        return HeapQueue(lambda call, now_s: self.key(call, instance, fleet, now_s))

    def key(
        self, call: CallView, instance: InstanceView | None, fleet: FleetView, now_s: float
    ) -> Key:
        """(predicted output tokens, client priority), the same everywhere and at all times."""
        length = call.length
        if self.quantile is None:
            return (length.expected_tokens, float(call.spec.client_priority))
        return (length.quantile_tokens(self.quantile), float(call.spec.client_priority))

    def latest_start_s(
        self, call: CallView, instance: InstanceView, fleet: FleetView, now_s: float
    ) -> float | None:
        """None: lengths are no deadlines; the engine keeps the order in which calls reach it."""
        return None
