"""Tempo and its baselines: parameters and entries.

What is described here is what `docs/policies.md`, `GET /admin/policies` and error messages say.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from dispatcher.catalog.shared_parts import (
    BaselineParams,
    RoutedParams,
    baseline_routing,
    by_seats,
)
from dispatcher.core.ports import Observer, Policy
from dispatcher.core.service_gain import GainWeights
from dispatcher.registry import Entry, PolicyServices, entry
from policies.affinity import with_affinity
from policies.attained_service import AttainedService
from policies.fcfs import Fcfs
from policies.least_backlog import LeastBacklog
from policies.least_dense_preemption import LeastDensePreemption
from policies.lsdf import Lsdf
from policies.plas import Plas
from policies.reserve import ReserveAdmission, ReserveTurns
from policies.round_robin import RoundRobin
from policies.service_density import Reading
from policies.sjf import ShortestFirst
from policies.token_counters import TokenCounters
from policies.urgency import Scope

_PAPER = "Tempo"

_PLAS_TICK_S = 0.5
"""How soon a program that has waited long is found."""


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


class PlasParams(BaselineParams):
    """Parameters of least attained service."""

    level_tokens: float = Field(400.0, gt=0.0, description="width of a level, output tokens")
    promote_ratio: Annotated[float, Field(gt=0.0)] | None = Field(
        10.0,
        description="a program that has waited so many times as long as it was served goes to the "
        "first level; null: none does",
    )


class ShortestFirstParams(BaselineParams):
    """Parameters of shortest first."""

    quantile: Annotated[float, Field(gt=0.0, lt=1.0)] | None = Field(
        0.95, description="of the predicted output length; null: its mean"
    )


def _tempo(params: TempoParams, services: PolicyServices) -> Policy:
    ordering = Lsdf(
        reading=params.reading,
        quantile=params.quantile,
        scope=params.scope,
        weights=GainWeights(output=params.output_weight),
        penalty=params.penalty,
        accrued=params.accrued,
        overdue_s=params.overdue_s,
        window=params.window,
        counters=services.observer(TokenCounters),
        fairness=params.fairness,
    )
    late = params.routing == "least-backlog-late"
    routing = RoundRobin() if params.routing == "round-robin" else LeastBacklog(late_binding=late)
    stopping = LeastDensePreemption(ordering, quantum_tokens=params.quantum_tokens)
    return Policy(
        "tempo",
        with_affinity(routing, params.affinity),
        ordering,
        ReserveAdmission(
            services.observer(ReserveTurns), params.reserve, overdue_share=params.overdue_share
        ),
        params.model_dump(),
        preemption=stopping if params.preemption else None,
        held_key=ordering.held_key,
        tick_s=params.tick_s,
    )


def _sarathi_fcfs(params: BaselineParams, services: PolicyServices) -> Policy:
    return by_seats("sarathi-fcfs", baseline_routing(params), Fcfs(), params, services)


def _plas(params: PlasParams, services: PolicyServices) -> Policy:
    ordering = Plas(
        services.observer(AttainedService),
        level_tokens=params.level_tokens,
        promote_ratio=params.promote_ratio,
    )
    policy = by_seats("plas", baseline_routing(params), ordering, params, services)
    return replace(policy, tick_s=_PLAS_TICK_S)


def _sjf(params: ShortestFirstParams, services: PolicyServices) -> Policy:
    ordering = ShortestFirst(params.quantile)
    return by_seats("sjf", baseline_routing(params), ordering, params, services)


TEMPO_OBSERVERS: tuple[type[Observer], ...] = (TokenCounters, AttainedService, ReserveTurns)

TEMPO_ENTRIES: tuple[Entry[Policy], ...] = (
    entry(
        "tempo",
        "The call that gains most per second of serving it; seats kept for what would starve.",
        f"{_PAPER}, sections 3-4, Eqs. 1-4, Algorithm 1",
        TempoParams,
        _tempo,
    ),
    entry(
        "sarathi-fcfs",
        "First come, first served on engines with chunked prefill: vllm, as engines are now.",
        f"Agrawal et al., OSDI '24; {_PAPER}, section 6.1, baseline",
        BaselineParams,
        _sarathi_fcfs,
    ),
    entry(
        "plas",
        "The workflow that has been served least goes first, in levels.",
        f"Luo et al., Autellix; {_PAPER}, section 6.1, baseline",
        PlasParams,
        _plas,
    ),
    entry(
        "sjf",
        "The shortest answer first, by predicted length.",
        f"{_PAPER}, section 6.1, baseline",
        ShortestFirstParams,
        _sjf,
    ),
)
