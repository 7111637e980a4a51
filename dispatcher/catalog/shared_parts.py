"""What many policies share: parameters, and how their parts are put together.

What is described here is what `docs/policies.md`, `GET /admin/policies` and error messages say.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dispatcher.core.ports import Ordering, Policy, Routing
from dispatcher.registry import Params, PolicyServices
from policies.affinity import with_affinity
from policies.kv_books import KvBooks
from policies.least_backlog import LeastBacklog
from policies.round_robin import RoundRobin
from policies.seats import SeatAdmission
from policies.token_budget import TokenBudget


class RoutedParams(Params):
    """What every policy that routes has."""

    affinity: float = Field(
        0.0,
        ge=0.0,
        allow_inf_nan=False,
        description="seconds of longer backlog that a second of prefill is worth which the prefix "
        "left by a call's session spares; 0: as the routing itself says",
    )


class SeatParams(RoutedParams):
    """What every policy that admits by seats has."""

    kv_share: Annotated[float, Field(gt=0.0, le=1.0)] | None = Field(
        None,
        description="part of an engine's KV cache that calls in flight may fill; null: seats alone "
        "decide",
    )


class BaselineParams(SeatParams):
    """Parameters of queues that are compared under a dispatcher that is not theirs."""

    routing: Literal["round-robin", "least-backlog"] = Field(
        "round-robin",
        description="every engine in turn, or the one where the call would end first",
    )


def early_routing(name: Literal["round-robin", "least-backlog"]) -> Routing:
    """Bound on arrival."""
    return RoundRobin() if name == "round-robin" else LeastBacklog(late_binding=False)


def baseline_routing(params: BaselineParams) -> Routing:
    """The dispatcher under which queues are compared."""
    return with_affinity(early_routing(params.routing), params.affinity)


def by_seats(
    name: str, routing: Routing, ordering: Ordering, params: SeatParams, services: PolicyServices
) -> Policy:
    """Admission by seats, and by tokens where a share of the KV cache is set."""
    budget = params.kv_share is not None
    admission = SeatAdmission()
    if budget:
        admission = TokenBudget(services.observer(KvBooks), share=params.kv_share)
    return Policy(name, routing, ordering, admission, params.model_dump(), reads_gauges=budget)
