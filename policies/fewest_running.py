"""Fewest running: a call is bound when a seat frees, to where least runs for the engine's speed.

LLMSched, section IV-D: "assigns the next scheduled LLM task to the instance with the fewest running
tasks"; the dispatcher of LLMSched and of all its baselines.

Settled: unequal engines are told apart. What counts is (running + 1) x TPOT, with TPOT the engine's
time per token at its present load: running tasks over speed, the new one among them, so that an
idle slow engine does not win against a fast one that has a call. `by_speed=False` is the paper's
count. Every call waits centrally until then (late binding).
"""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher.core.types import InstanceId
from dispatcher.core.views import CallView, FleetView, InstanceView


class FewestRunning:
    """Least (running + 1) x TPOT, or least running; O(N) per call.

    Args:
        by_speed: Count what runs in seconds per token, not in calls alone.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> slow = Fake(spec=Fake(instance_id="slow"), seats_in_use=0, tpot_s=0.09)
        >>> fast = Fake(spec=Fake(instance_id="fast"), seats_in_use=1, tpot_s=0.03)
        >>> fleet = Fake(tpot_s=lambda instance: instance.tpot_s)
        >>> FewestRunning().route(Fake(), [slow, fast], fleet, 0.0)
        'fast'
        >>> FewestRunning(by_speed=False).route(Fake(), [slow, fast], fleet, 0.0)
        'slow'
    """

    late_binding = True

    def __init__(self, *, by_speed: bool = True) -> None:
        self.by_speed = by_speed

    def route(
        self, call: CallView, candidates: Sequence[InstanceView], fleet: FleetView, now_s: float
    ) -> InstanceId | None:
        """The candidate with the least; ties: faster, then fleet order."""

        def load(instance: InstanceView) -> tuple[float, float]:
            if not self.by_speed:
                return (float(instance.seats_in_use), 0.0)
            tpot_s = fleet.tpot_s(instance)
            return ((instance.seats_in_use + 1) * tpot_s, tpot_s)

        return min(candidates, key=load).spec.instance_id
