"""What waits at each engine, as routing sees it: q of HeteroServe's Eq. 5, in either unit.

- `requests`, the paper: calls queued here and calls waiting inside the engine (its own word);
  running ones do not count. A prompt of 3,000 tokens weighs like one of 60.
- `backlog`, settled: W, seconds until a call's prefill would begin (`policies.seat_wait`).
- `prefill`: queued prompts over the measured prefill rate, in seconds: the estimate of the baseline
  `latency-aware`.

Counters are the gateway's own, and instant. `snapshot` is the paper's broadcast to the letter: all
figures are as of the last epoch, so that the calls of one epoch all see the same and herd.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Literal

from dispatcher.core.ports import Admission
from dispatcher.core.types import InstanceId
from dispatcher.core.views import FleetView, InstanceView
from policies.seat_wait import seat_wait_s

Measure = Literal["backlog", "requests", "prefill"]
Counters = Literal["instant", "snapshot"]


class QueueDepth:
    """q of engines: O(1) for each, and O(N) once an epoch with `snapshot`.

    Args:
        measure: What is counted, seconds or calls.
        counters: As of now, or as of the last epoch.
        epoch_s: Between two snapshots, above 0.
        admission: Says which engines are full; for `backlog`. `None`: those without a free seat.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> engine = Fake(spec=Fake(instance_id="i"), queued=3, gauges=Fake(waiting=2))
        >>> fleet = Fake(instances={"i": engine})
        >>> now, epoch = QueueDepth("requests"), QueueDepth("requests", "snapshot")
        >>> epoch.each([engine], fleet, 0.0)
        [5.0]
        >>> engine.queued = 0
        >>> now.each([engine], fleet, 0.05), epoch.each([engine], fleet, 0.05)
        ([2.0], [5.0])
        >>> epoch.each([engine], fleet, 0.1)
        [2.0]
    """

    def __init__(
        self,
        measure: Measure,
        counters: Counters = "instant",
        *,
        epoch_s: float = 0.1,
        admission: Admission | None = None,
    ) -> None:
        self._measure = measure
        self._admission = admission
        self._snapshot = counters == "snapshot"
        self._epoch_s = epoch_s
        self._taken_s = float("-inf")
        self._as_of: dict[InstanceId, float] = {}

    def each(
        self,
        instances: Sequence[InstanceView],
        fleet: FleetView,
        now_s: float,
        enough: float = inf,
    ) -> list[float]:
        """Of each in its turn: seconds, or calls; at least 0.

        From `enough` on it is not looked how much more it is.
        """
        if not self._snapshot:
            return self._read(instances, fleet, now_s, enough)
        if now_s >= self._taken_s + self._epoch_s:
            self._taken_s = now_s
            read = self._read(list(fleet.instances.values()), fleet, now_s, inf)
            self._as_of = dict(zip(fleet.instances, read, strict=True))
        # one that has come since is taken to be as idle as it most likely is
        return [self._as_of.get(instance.spec.instance_id, 0.0) for instance in instances]

    def _read(
        self, instances: Sequence[InstanceView], fleet: FleetView, now_s: float, enough: float
    ) -> list[float]:
        if self._measure == "requests":
            return [float(instance.queued + instance.gauges.waiting) for instance in instances]
        found = [fleet.prefill_ahead_s(instance) for instance in instances]
        if self._measure == "prefill":
            return found
        for at, instance in enumerate(instances):
            if found[at] < enough:
                full = instance.seats_in_use >= instance.seats
                if not full and self._admission is not None:
                    full = not self._admission.open_seats(instance, now_s)
                if full or instance.queued:
                    found[at] = max(found[at], seat_wait_s(instance, fleet, full=full))
        return found
