"""What a gateway does about the contexts of sessions whose tools run.

A tool's pause is, to a gateway, the gap between two calls of a session. Which handling wastes least
(`policies.context_waste`) is decided per pause, and carried out with what there is:

Preserve   the session goes back to the instance that holds its prefix (`policies.handled_routing`),
           and room for its context is kept in that instance's token budget
           (`policies.token_budget`) until it returns or the P90 of its tool's time has passed
Swap       the session goes back there: the engine's offload tier has it. Only where there is one
           (`InstanceSpec.offload_tokens`) and the context fits
Discard    nothing

Deviations, forced by the place: engines keep what ends in a prefix cache anyway, and evict by age
however we decide. Ordering is exact, retention is best effort; what was really kept is read back
from cached tokens (`FleetView.cached_tokens`). The decision falls when the pause is first looked
at, and stands until the session's next call has ended. Where nothing is known of the tool's time,
no pause is expected to end soon: Discard.

What recomputing takes is the cost model's prefill of that many tokens; moving takes an iteration
per `swap_tokens`.
"""

from __future__ import annotations

from collections import OrderedDict
from math import ceil
from typing import NamedTuple

from dispatcher.core.types import InstanceId, WorkflowId
from dispatcher.core.views import FleetView, InstanceView, SessionView
from policies.context_waste import Handling, least_waste, waste

KEPT = 20_000
"""Sessions whose handling is remembered."""
_LOOK_AGAIN_S = 1.0


class _Reserved(NamedTuple):
    """Room kept at an instance."""

    looked_s: float
    paused_tokens: float
    tokens: float


class ContextHandling:
    """Handling by least waste, remembered per pause; O(1), reserved tokens O(paused) when changed.

    Args:
        swap_tokens: S, tokens that an instance moves to or from its offload tier per iteration.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> there = Fake(spec=Fake(instance_id="i", offload_tokens=None), in_flight_tokens=20_000)
        >>> session = Fake(
        ...     workflow_id="w", instance_id="i", ended_s=1.0, context_tokens=1_000, gap_s=2.0
        ... )
        >>> fleet = Fake(
        ...     instances={"i": there},
        ...     tpot_s=lambda i: 0.02,
        ...     prompt_s=lambda tokens, i: tokens / 1e4,
        ...     paused=lambda i: [session],
        ...     paused_tokens=lambda i: 1_000.0,
        ... )
        >>> ContextHandling().of(session, fleet).value
        'preserve'
        >>> ContextHandling().reserved_tokens(there, fleet, 2.0)
        1000.0
    """

    def __init__(self, *, swap_tokens: float = 1024.0) -> None:
        self.swap_tokens = swap_tokens
        #: decided latest last; (end of the call before the pause, what is done)
        self._decided: OrderedDict[WorkflowId, tuple[float, Handling]] = OrderedDict()
        self._reserved: dict[InstanceId, _Reserved] = {}

    def of(self, session: SessionView, fleet: FleetView) -> Handling:
        """What is done about the session's present (or latest) pause."""
        known = self._decided.get(session.workflow_id)
        if known is not None and known[0] == session.ended_s:
            return known[1]
        instance = fleet.instances.get(session.instance_id)
        handling = Handling.DISCARD
        if instance is not None and session.gap_s is not None:
            handling = self.choose(float(session.context_tokens), session.gap_s, instance, fleet)
        self._decided[session.workflow_id] = (session.ended_s, handling)
        self._decided.move_to_end(session.workflow_id)
        if len(self._decided) > KEPT:
            self._decided.popitem(last=False)
        return handling

    def choose(
        self, context_tokens: float, gap_s: float, instance: InstanceView, fleet: FleetView
    ) -> Handling:
        """The least waste for a context at an instance, and a tool that takes so long."""
        offload_tokens = instance.spec.offload_tokens
        swap_s = None
        if offload_tokens is not None and context_tokens <= offload_tokens:
            swap_s = ceil(context_tokens / self.swap_tokens) * fleet.tpot_s(instance)
        wasted = waste(
            context_tokens,
            instance.in_flight_tokens,
            gap_s,
            recompute_s=fleet.prompt_s(context_tokens, instance),
            swap_s=swap_s,
        )
        return least_waste(wasted)

    def reserved_tokens(self, instance: InstanceView, fleet: FleetView, now_s: float) -> float:
        """Context of the sessions preserved there that have neither returned nor been given up.

        Where more are paused than are listed, the share of those listed stands for all.
        """
        paused_tokens = fleet.paused_tokens(instance)
        if not paused_tokens:
            return 0.0
        instance_id = instance.spec.instance_id
        known = self._reserved.get(instance_id)
        if (
            known is not None
            and known.paused_tokens == paused_tokens
            and now_s - known.looked_s < _LOOK_AGAIN_S
        ):
            return known.tokens
        listed = preserved = 0
        for session in fleet.paused(instance):
            listed += session.context_tokens
            if self.of(session, fleet) is Handling.PRESERVE:
                preserved += session.context_tokens
        tokens = preserved * paused_tokens / listed if listed else 0.0
        self._reserved[instance_id] = _Reserved(now_s, paused_tokens, tokens)
        if len(self._reserved) > len(fleet.instances):
            self._reserved = {i: r for i, r in self._reserved.items() if i in fleet.instances}
        return tokens
