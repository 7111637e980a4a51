"""Latency-Aware: the engine where the first token would come soonest. A baseline of HeteroServe.

HeteroServe, section 4.1: "minimum estimated TTFT (queue depth / measured per-token throughput,
refreshed each 100 ms epoch)". No hardware figures, no length bins. It is the rival that matters:
in the paper it serves as many tokens as HeteroServe itself, and keeps 66.3 % of SLOs against 68.8.

Settled:

1. Queue depth over throughput mixes units; the prompt tokens that are queued or out without a first
   token, over the measured prefill rate, are seconds (`FleetView.prefill_ahead_s`), and the call's
   own prefill there comes on top:

        TTFT = queued prompt tokens / rate + t_pre

2. Counters are instant. As of the last epoch (`snapshot`), all calls of one epoch go to the same
   engine.

Exact at a gateway. Ties: the lower t_pre, then fleet order.
"""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher.core.types import InstanceId
from dispatcher.core.views import CallView, FleetView, InstanceView
from policies.queue_depth import QueueDepth


class LatencyAware:
    """Least estimated TTFT, seconds; O(N) per call. Binds early.

    Args:
        depth: Prefill that is queued, seconds.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> def engine(name, ahead_s, own_s):
        ...     return Fake(spec=Fake(instance_id=name), ahead_s=ahead_s, own_s=own_s)
        >>> fleet = Fake(prefill_ahead_s=lambda i: i.ahead_s, prefill_s=lambda c, i: i.own_s)
        >>> busy, slow = engine("busy", 0.3, 0.05), engine("slow", 0.1, 0.2)
        >>> LatencyAware(QueueDepth("prefill")).route(Fake(), [busy, slow], fleet, 0.0)
        'slow'
    """

    late_binding = False

    def __init__(self, depth: QueueDepth) -> None:
        self._depth = depth

    def route(
        self, call: CallView, candidates: Sequence[InstanceView], fleet: FleetView, now_s: float
    ) -> InstanceId | None:
        """The candidate with the least."""
        ahead_s = self._depth.each(candidates, fleet, now_s)
        own_s = [fleet.prefill_s(call, instance) for instance in candidates]
        # of two with the same TTFT the one that has more of it queued: it computes faster
        at = min(range(len(candidates)), key=lambda i: (ahead_s[i] + own_s[i], own_s[i]))
        return candidates[at].spec.instance_id
