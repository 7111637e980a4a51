"""Affinity: a call goes back to where its session left its prefix, as far as that pays.

What a session's last call left in an instance's prefix cache spares its next call that much
prefill there (InferCept; AugServe, section 4.2: what a gateway can do towards *Preserve* and
*Swap*). Whatever routing decides first; the instance that spares the call most takes it instead
where the prefill spared, times a weight, is no less than the longer backlog it means to wait for:

    W_home - W_chosen <= weight * (spared_home - spared_chosen)

A call whose session has left nothing yet goes as the routing says: what all prompts share (which
counts as spared, too) would draw every new session to the instance that happens to serve it best.
A routing that counts prefill already weighs it once itself, through `FleetView.compute_s`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from dispatcher.core.errors import BadParameterError
from dispatcher.core.ports import Routing
from dispatcher.core.types import InstanceId
from dispatcher.core.views import CallView, FleetView, InstanceView


class Affinity:
    """Another routing, with a pull to where a session's prefix is; O(N) per call.

    Args:
        routing: What decides where nothing is spared.
        weight: Seconds of backlog that a second of spared prefill is worth, above 0.

    Raises:
        BadParameterError: The weight is not above 0 and finite.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> home = Fake(spec=Fake(instance_id="home"), backlog_s=2.0, spared_s=1.5)
        >>> idle = Fake(spec=Fake(instance_id="idle"), backlog_s=0.0, spared_s=0.0)
        >>> fleet = Fake(
        ...     backlog_s=lambda i: i.backlog_s,
        ...     spared_s=lambda _, i: i.spared_s,
        ...     session=lambda _: "known",
        ... )
        >>> routing = Fake(late_binding=False, route=lambda *_: "idle")
        >>> call = Fake(spec=Fake(workflow_id="w"))
        >>> Affinity(routing, 1.0).route(call, [home, idle], fleet, 0.0)
        'idle'
        >>> Affinity(routing, 2.0).route(call, [home, idle], fleet, 0.0)
        'home'
    """

    def __init__(self, routing: Routing, weight: float) -> None:
        if not (weight > 0.0 and isfinite(weight)):
            raise BadParameterError(f"affinity must be above 0 and finite, got {weight!r}")
        self._routing = routing
        self._weight = weight

    @property
    def late_binding(self) -> bool:
        """As the routing has it."""
        return self._routing.late_binding

    def route(
        self, call: CallView, candidates: Sequence[InstanceView], fleet: FleetView, now_s: float
    ) -> InstanceId | None:
        """Where the prefix is, where that pays; else as the routing says. Ties: fleet order."""
        chosen_id = self._routing.route(call, candidates, fleet, now_s)
        if chosen_id is None or fleet.session(call.spec.workflow_id) is None:
            return chosen_id
        spared_s = [fleet.spared_s(call, instance) for instance in candidates]
        at = max(range(len(candidates)), key=spared_s.__getitem__)
        chosen = next(i for i, c in enumerate(candidates) if c.spec.instance_id == chosen_id)
        more_s = spared_s[at] - spared_s[chosen]
        if more_s <= 0.0:
            return chosen_id
        longer_s = fleet.backlog_s(candidates[at]) - fleet.backlog_s(candidates[chosen])
        return candidates[at].spec.instance_id if longer_s <= self._weight * more_s else chosen_id


def with_affinity(routing: Routing, weight: float) -> Routing:
    """The routing itself where the weight is 0."""
    return Affinity(routing, weight) if weight else routing
