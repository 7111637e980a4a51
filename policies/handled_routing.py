"""Routing that takes a session back to its context where that was to be kept.

AugServe and InferCept schedule one engine; on several, a context that is preserved or swapped out
is worth something at one of them. A call of such a session is routed with affinity
(`policies.affinity`), any other as the routing itself says. The latter still counts, with the rest
of a call's time, the prefill that a prefix left behind happens to spare.
"""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher.core.ports import Routing
from dispatcher.core.types import InstanceId
from dispatcher.core.views import CallView, FleetView, InstanceView
from policies.affinity import with_affinity
from policies.context_handling import ContextHandling
from policies.context_waste import Handling


class HandledRouting:
    """Affinity for what is preserved or swapped; O(N) per call.

    Args:
        routing: What decides for all others.
        weight: Of affinity, seconds of backlog per second of prefill spared; at least 0.
        handling: What was done about each session's pause.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> home = Fake(spec=Fake(instance_id="home"), backlog_s=1.0, spared_s=2.0)
        >>> idle = Fake(spec=Fake(instance_id="idle"), backlog_s=0.0, spared_s=0.0)
        >>> fleet = Fake(
        ...     backlog_s=lambda i: i.backlog_s,
        ...     spared_s=lambda _, i: i.spared_s,
        ...     session=lambda workflow_id: Fake(),
        ... )
        >>> routing = Fake(late_binding=False, route=lambda *_: "idle")
        >>> call = Fake(spec=Fake(workflow_id="w"))
        >>> for handling in (Handling.PRESERVE, Handling.DISCARD):
        ...     handled = HandledRouting(routing, 1.0, Fake(of=lambda session, fleet: handling))
        ...     print(handled.route(call, [home, idle], fleet, 0.0))
        home
        idle
    """

    def __init__(self, routing: Routing, weight: float, handling: ContextHandling) -> None:
        self._routing = routing
        self._pulled = with_affinity(routing, weight)
        self._handling = handling

    @property
    def late_binding(self) -> bool:
        """As the routing has it."""
        return self._routing.late_binding

    def route(
        self, call: CallView, candidates: Sequence[InstanceView], fleet: FleetView, now_s: float
    ) -> InstanceId | None:
        """With affinity where the call's session was to keep its context."""
        session = fleet.session(call.spec.workflow_id)
        kept = session is not None and self._handling.of(session, fleet) is not Handling.DISCARD
        routing = self._pulled if kept else self._routing
        return routing.route(call, candidates, fleet, now_s)
