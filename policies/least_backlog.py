"""Least backlog: send a call to where it would end first, as late as possible.

No paper; the simple rule that better ones must beat: "join the shortest queue", measured in seconds
of work instead of calls, so that unequal GPUs and unequal calls count for what they are.

The instance with the least W + t_comp wins, where W is its backlog and t_comp the call's own time
there (`FleetView.backlog_s`, `FleetView.compute_s`): the moment at which the call would be done if
the backlog were worked off first.

Late binding (default): every call waits in one central queue and is bound when a seat frees, so
that no instance idles beside another's queue; with several seats free at once the rule above picks
among them. Early binding: the rule picks on arrival, and each instance has a queue of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher.core.types import InstanceId
from dispatcher.core.views import CallView, FleetView, InstanceView


class LeastBacklog:
    """Least W + t_comp, seconds; O(N) per call.

    Args:
        late_binding: Hold calls centrally until a seat frees.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> idle = Fake(spec=Fake(instance_id="idle"), compute_s=6.0, backlog_s=0.0)
        >>> busy = Fake(spec=Fake(instance_id="busy"), compute_s=2.0, backlog_s=3.0)
        >>> fleet = Fake(compute_s=lambda _, i: i.compute_s, backlog_s=lambda i: i.backlog_s)
        >>> LeastBacklog().route(Fake(), [idle, busy], fleet, 0.0)
        'busy'
    """

    def __init__(self, *, late_binding: bool = True) -> None:
        self.late_binding = late_binding

    def route(
        self, call: CallView, candidates: Sequence[InstanceView], fleet: FleetView, now_s: float
    ) -> InstanceId | None:
        """The candidate where the call would be done first; ties: lower t_comp, then id."""

        def done(instance: InstanceView) -> tuple[float, float, InstanceId]:
            own_s = fleet.compute_s(call, instance)
            return (fleet.backlog_s(instance) + own_s, own_s, instance.spec.instance_id)

        return min(candidates, key=done).spec.instance_id
