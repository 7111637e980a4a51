"""First session, first served: the ordering of InferCept.

InferCept (Abhyankar et al., ICML '24) serves requests in order of arrival, and a request that comes
back from a tool keeps the arrival it had: in its code (WukLab/InferCept, `vllm/core`) the queues
are sorted by the request's arrival, and what was discarded is put at the head of those that wait.
To a gateway such a request is a workflow and its returns are calls, so that a call's place is that
of its workflow's beginning. vLLM, to which every return is a new request, is plain first come,
first served (`policies.fcfs`).

Exact between calls. What InferCept does with contexts meanwhile is in `policies.context_handling`;
its cutting of recomputation into chunks is the engine's.
"""

from __future__ import annotations

from dispatcher.core.local_queue import HeapQueue
from dispatcher.core.ports import CallQueue
from dispatcher.core.types import Key
from dispatcher.core.views import CallView, FleetView, InstanceView


class SessionFcfs:
    """Key: (client priority, beginning of the workflow). O(log n) per call.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> def call(name, sequence, began_s):
        ...     spec = Fake(call_id=name, client_priority=0)
        ...     placement = Fake(workflow_started_s=began_s)
        ...     return Fake(spec=spec, sequence=sequence, placement=placement)
        >>> waiting = SessionFcfs().queue(None, Fake())
        >>> waiting.push(call("new", 7, began_s=9.0), 9.0)
        >>> waiting.push(call("returns", 8, began_s=2.0), 10.0)
        >>> waiting.select("", 10.0).spec.call_id
        'returns'
    """

    def queue(self, instance: InstanceView | None, fleet: FleetView) -> CallQueue:
        """A heap on the key, which never changes."""
        return HeapQueue(lambda call, now_s: self.key(call, instance, fleet, now_s))

    def key(
        self, call: CallView, instance: InstanceView | None, fleet: FleetView, now_s: float
    ) -> Key:
        """(client priority, beginning of the workflow): the same everywhere and at all times."""
        return (float(call.spec.client_priority), float(call.placement.workflow_started_s))

    def latest_start_s(
        self, call: CallView, instance: InstanceView, fleet: FleetView, now_s: float
    ) -> float | None:
        """None: the engine keeps the order in which calls reach it."""
        return None
