"""Round robin: every instance in turn, whatever it is and whatever waits there.

What vLLM deployments commonly put in front of several engines, and the paper's `vLLM` baseline
(HexGen-Flow, section 5.1: "round-robin strategy"). Exact at a gateway.

Deviation: the paper cycles over one fixed list. Here the candidates differ from call to call
(models, context lengths, failed instances), and one cursor over such lists starves whoever follows
a jump. So the turn goes to the candidate that was picked longest ago: over a fixed list that is the
same cycle, and over changing ones nobody is passed over.
"""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher.core.types import InstanceId
from dispatcher.core.views import CallView, FleetView, InstanceView


class RoundRobin:
    """Cyclic choice. O(N) in the candidates; remembers one number per instance of the fleet.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> a, b, c = (Fake(spec=Fake(instance_id=name)) for name in "abc")
        >>> fleet = Fake(instances={"a": a, "b": b, "c": c})
        >>> turns = RoundRobin()
        >>> [turns.route(Fake(), [a, b, c], fleet, 0.0) for _ in range(4)]
        ['a', 'b', 'c', 'a']
        >>> turns.route(Fake(), [a, c], fleet, 0.0)
        'c'
    """

    late_binding = False

    def __init__(self) -> None:
        self._turn = 0
        #: instance -> number of the turn in which it was last picked
        self._last: dict[InstanceId, int] = {}

    def route(
        self, call: CallView, candidates: Sequence[InstanceView], fleet: FleetView, now_s: float
    ) -> InstanceId | None:
        """The candidate picked longest ago, never picked first; ties: fleet order."""
        chosen = min(candidates, key=lambda instance: self._last.get(instance.spec.instance_id, 0))
        chosen_id = chosen.spec.instance_id
        self._turn += 1
        self._last[chosen_id] = self._turn
        if len(self._last) > len(fleet.instances):
            self._last = {i: turn for i, turn in self._last.items() if i in fleet.instances}
        return chosen_id
