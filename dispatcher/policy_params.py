"""Parameters of the policies: their schemas, with defaults and what each of them means.

What is described here is what `docs/policies.md`, `GET /admin/policies` and error messages say.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dispatcher.registry import Params
from policies.service_density import Reading
from policies.urgency import Scope
from policies.workload_balance import ScoreMode


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


class BalanceParams(SeatParams):
    """Parameters of workload-balanced routing."""

    alpha: Literal["auto"] | Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        "auto",
        description="0 weighs the queue only, 1 the call's own speed only; "
        "auto starts at 0 and is left to the tuner",
    )
    mode: ScoreMode = Field(
        "settled", description="the score: settled, as printed (paper), or the authors' code (repo)"
    )
    beta: float = Field(1.0, gt=0.0, description="weight of the queue in mode paper, s^2")


class UrgencyParams(SeatParams):
    """Parameters of the urgency queue."""

    scope: Scope = Field(
        "stage", description="whose slack orders: the stage's budget or the whole workflow's"
    )
    shed_doomed: bool = Field(
        False, description="calls that can no longer be in time come after all that can"
    )


class HexGenFlowParams(UrgencyParams, BalanceParams):
    """Both levels."""


class LeastBacklogParams(SeatParams):
    """Parameters of least-backlog routing."""

    binding: Literal["late", "early"] = Field(
        "late", description="bind when a seat frees, from one central queue, or on arrival"
    )


class BaselineParams(SeatParams):
    """Parameters of queues that are compared under a dispatcher that is not theirs."""

    routing: Literal["round-robin", "least-backlog"] = Field(
        "round-robin",
        description="every engine in turn, or the one where the call would end first",
    )


class QlmParams(BaselineParams):
    """Parameters of the group queue."""

    slo_ratio: float = Field(
        1.25, gt=1.0, description="SLOs that differ by less than about this factor share a group"
    )


class ShortestFirstParams(BaselineParams):
    """Parameters of shortest first."""

    quantile: Annotated[float, Field(gt=0.0, lt=1.0)] | None = Field(
        0.95, description="of the predicted output length; null: its mean"
    )


class PlasParams(BaselineParams):
    """Parameters of least attained service."""

    level_tokens: float = Field(400.0, gt=0.0, description="width of a level, output tokens")
    promote_ratio: Annotated[float, Field(gt=0.0)] | None = Field(
        10.0,
        description="a program that has waited so many times as long as it was served goes to the "
        "first level; null: none does",
    )


class TempoParams(RoutedParams):
    """Parameters of service density and what comes with it."""

    reading: Reading = Field(
        "definition",
        description="what density divides and by what: as defined, as Eq. 4 is printed, or by the "
        "slack that is left",
    )
    quantile: Annotated[float, Field(gt=0.0, lt=1.0)] | None = Field(
        0.95, description="of the length estimate, taken for a call's length; null: its mean"
    )
    scope: Scope = Field(
        "stage", description="whose deadline a collective call has, its stage's or its workflow's"
    )
    output_weight: float = Field(
        2.0, gt=0.0, description="worth of an output token; a prompt token's is 1"
    )
    penalty: float = Field(
        1.0, gt=0.0, description="exponent of what lateness costs; the larger, the more"
    )
    accrued: bool = Field(False, description="count what a stream has gained already")
    window: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="take calls of similar length together: the best batch among so many batches "
        "of the densest; null: off",
    )
    reserve: float = Field(
        0.1,
        ge=0.0,
        lt=1.0,
        description="part of an engine's seats, at least one, that is kept for best-effort calls; "
        "0: none",
    )
    overdue_s: float = Field(
        30.0, ge=0.0, description="wait from which a call may have a turn of the overdue"
    )
    overdue_share: float = Field(
        0.01,
        ge=0.0,
        lt=1.0,
        description="part of an engine's dispatches that goes to the oldest call that is overdue; "
        "0: none, calls may starve",
    )
    fairness: float = Field(
        0.0,
        ge=0.0,
        le=1.0,
        description="weight of what workflows have been served against density",
    )
    preemption: bool = Field(
        False, description="stop the least dense call where a denser one gains more than is lost"
    )
    quantum_tokens: int = Field(20, ge=1, description="decode steps between two such decisions")
    routing: Literal["least-backlog", "least-backlog-late", "round-robin"] = Field(
        "least-backlog",
        description="the engine where a call would end first, on arrival or when a seat frees, or "
        "every engine in turn",
    )
    tick_s: float = Field(0.1, gt=0.0, description="how often densities are looked at anew")
