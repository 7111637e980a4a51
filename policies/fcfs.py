"""First come, first served.

vLLM's default scheduling policy, and the ordering of the paper's `vLLM` and `WB+FCFS` baselines
(HexGen-Flow, sections 5.1 and 5.3). Exact at a gateway.

A client's own `priority` (clamped by its tenant, 0 where absent) goes before arrival, as it does in
vLLM's waiting heap, which orders by (priority, arrival); with equal priorities this is plain FCFS.
A call that is tried again keeps its place: its arrival does not change.
"""

from __future__ import annotations

from dispatcher.core.local_queue import HeapQueue
from dispatcher.core.ports import CallQueue
from dispatcher.core.types import Key
from dispatcher.core.views import CallView, FleetView, InstanceView


class Fcfs:
    """Key: (client priority, arrival sequence). O(log n) per call.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> def call(name, sequence, priority=0):
        ...     spec = Fake(call_id=name, client_priority=priority)
        ...     return Fake(spec=spec, sequence=sequence)
        >>> waiting = Fcfs().queue(None, Fake())
        >>> for arrival in (call("first", 1), call("second", 2), call("keen", 3, priority=-1)):
        ...     waiting.push(arrival, 0.0)
        >>> waiting.select("", 0.0).spec.call_id
        'keen'
        >>> waiting.remove("keen")
        >>> waiting.select("", 0.0).spec.call_id
        'first'
    """

    def queue(self, instance: InstanceView | None, fleet: FleetView) -> CallQueue:
        """A heap on the key, which never changes."""
        return HeapQueue(lambda call, now_s: self.key(call, instance, fleet, now_s))

    def key(
        self, call: CallView, instance: InstanceView | None, fleet: FleetView, now_s: float
    ) -> Key:
        """(client priority, arrival sequence): the same at every instance and at all times."""
        return (float(call.spec.client_priority), float(call.sequence))

    def latest_start_s(
        self, call: CallView, instance: InstanceView, fleet: FleetView, now_s: float
    ) -> float | None:
        """None: the engine keeps the order in which calls reach it."""
        return None
