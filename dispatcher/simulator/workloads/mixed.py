"""Several workloads in one trace: mixes, and tenants side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from dispatcher.simulator.workloads.base import Workload
from dispatcher.traces import TraceWorkflow


@dataclass(frozen=True, slots=True)
class Part:
    """A workload within a mix."""

    workload: Workload
    weight: float = 1.0
    """Above 0: how many of its workflows come, relative to the other parts."""
    tenant: str = "default"
    """Whose they are; whoever plays the trace may give each tenant its own SLO."""


@dataclass(frozen=True, slots=True)
class Mixed:
    """Each workflow is drawn from one of the parts, by their weights.

    Raises:
        ValueError: There is no part, or a weight is not above 0.
    """

    name: str
    summary: str
    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        if not self.parts or any(not part.weight > 0.0 for part in self.parts):
            raise ValueError(f"expected parts with weights above 0, not {self.parts}")

    @property
    def tenants(self) -> tuple[str, ...]:
        """Each once, in the order of the parts."""
        return tuple(dict.fromkeys(part.tenant for part in self.parts))

    def workflow(self, number: int, arrival_s: float, random: Random) -> TraceWorkflow:
        """See `Workload`; the application is the part's, so that each has its own history."""
        (part,) = random.choices(self.parts, [part.weight for part in self.parts])
        return replace(part.workload.workflow(number, arrival_s, random), tenant=part.tenant)


def mixed(name: str, parts: Sequence[Part], summary: str = "") -> Mixed:
    """Return a mix; without a summary it tells its parts.

    Example:
        >>> from dispatcher.simulator.workloads.azure import CHAT, CODE
        >>> mixed("editor", [Part(CODE, weight=3, tenant="ide"), Part(CHAT)]).summary
        'Mix: 3 code (ide), 1 chat'
    """
    told = ", ".join(
        f"{part.weight:g} {part.workload.name}"
        + (f" ({part.tenant})" if part.tenant != "default" else "")
        for part in parts
    )
    return Mixed(name=name, summary=summary or f"Mix: {told}", parts=tuple(parts))
