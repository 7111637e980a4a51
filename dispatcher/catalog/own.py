"""Policies of our own: parameters and entries.

What is described here is what `docs/policies.md`, `GET /admin/policies` and error messages say.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dispatcher.catalog.shared_parts import SeatParams, by_seats
from dispatcher.core.ports import Policy
from dispatcher.registry import Entry, PolicyServices, entry
from policies.affinity import with_affinity
from policies.fcfs import Fcfs
from policies.least_backlog import LeastBacklog


class LeastBacklogParams(SeatParams):
    """Parameters of least-backlog routing."""

    binding: Literal["late", "early"] = Field(
        "late", description="bind when a seat frees, from one central queue, or on arrival"
    )


def _least_backlog(params: LeastBacklogParams, services: PolicyServices) -> Policy:
    routing = with_affinity(LeastBacklog(late_binding=params.binding == "late"), params.affinity)
    return by_seats("least-backlog", routing, Fcfs(), params, services)


OWN_ENTRIES: tuple[Entry[Policy], ...] = (
    entry(
        "least-backlog",
        "The engine where a call would end first, chosen when a seat frees; in order of arrival.",
        None,
        LeastBacklogParams,
        _least_backlog,
    ),
)
