"""HexGen-Flow, its ablations and its baselines: parameters and entries.

What is described here is what `docs/policies.md`, `GET /admin/policies` and error messages say.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from dispatcher.catalog.shared_parts import BaselineParams, SeatParams, baseline_routing, by_seats
from dispatcher.core.ports import Observer, Ordering, Policy
from dispatcher.registry import Entry, PolicyServices, entry
from policies.affinity import with_affinity
from policies.fcfs import Fcfs
from policies.qlm import Qlm
from policies.round_robin import RoundRobin
from policies.token_counters import TokenCounters
from policies.urgency import Scope, Urgency
from policies.vtc import Vtc
from policies.workload_balance import ScoreMode, WorkloadBalance

_PAPER = "HexGen-Flow"

_AUTO_ALPHA_START = 0.0
"""HexGen-Flow, section 4.3: alpha starts at 0 and is tuned from there."""


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


class QlmParams(BaselineParams):
    """Parameters of the group queue."""

    slo_ratio: float = Field(
        1.25, gt=1.0, description="SLOs that differ by less than about this factor share a group"
    )


def _balance(params: BalanceParams) -> WorkloadBalance:
    alpha = _AUTO_ALPHA_START if params.alpha == "auto" else params.alpha
    return WorkloadBalance(alpha=alpha, mode=params.mode, beta=params.beta)


def _urgency(params: UrgencyParams) -> Urgency:
    return Urgency(scope=params.scope, shed_doomed=params.shed_doomed)


def _vllm(params: SeatParams, services: PolicyServices) -> Policy:
    routing = with_affinity(RoundRobin(), params.affinity)
    return by_seats("vllm", routing, Fcfs(), params, services)


def _hexgen_flow(params: HexGenFlowParams, services: PolicyServices) -> Policy:
    return _balanced("hexgen-flow", _urgency(params), params, services)


def _rr_pq(params: UrgencyParams, services: PolicyServices) -> Policy:
    routing = with_affinity(RoundRobin(), params.affinity)
    return by_seats("rr-pq", routing, _urgency(params), params, services)


def _wb_fcfs(params: BalanceParams, services: PolicyServices) -> Policy:
    return _balanced("wb-fcfs", Fcfs(), params, services)


def _balanced(
    name: str, ordering: Ordering, params: BalanceParams, services: PolicyServices
) -> Policy:
    routing = _balance(params)
    policy = by_seats(name, with_affinity(routing, params.affinity), ordering, params, services)
    return replace(
        policy,
        # an alpha that was asked for by value stays what it is
        tunable=routing if params.alpha == "auto" else None,
        alpha=lambda: routing.alpha,
    )


def _vtc(params: BaselineParams, services: PolicyServices) -> Policy:
    ordering = Vtc(services.observer(TokenCounters))
    return by_seats("vtc", baseline_routing(params), ordering, params, services)


def _qlm(params: QlmParams, services: PolicyServices) -> Policy:
    ordering = Qlm(slo_ratio=params.slo_ratio)
    return by_seats("qlm", baseline_routing(params), ordering, params, services)


HEXGEN_FLOW_OBSERVERS: tuple[type[Observer], ...] = (TokenCounters,)

HEXGEN_FLOW_ENTRIES: tuple[Entry[Policy], ...] = (
    entry(
        "vllm",
        "Round robin over the engines, first come first served at each.",
        f"{_PAPER}, section 5.1, baseline",
        SeatParams,
        _vllm,
    ),
    entry(
        "hexgen-flow",
        "Routes by balance and speed, and serves the call that must start first.",
        f"{_PAPER}, sections 4.1-4.2, Eqs. 2-8",
        HexGenFlowParams,
        _hexgen_flow,
    ),
    entry(
        "rr-pq",
        "Round robin with the urgency queue: hexgen-flow without its routing.",
        f"{_PAPER}, section 5.3, ablation",
        UrgencyParams,
        _rr_pq,
    ),
    entry(
        "wb-fcfs",
        "Balanced routing, first come first served: hexgen-flow without its queue.",
        f"{_PAPER}, section 5.3, ablation",
        BalanceParams,
        _wb_fcfs,
    ),
    entry(
        "vtc",
        "Fair shares of tokens: the workflow that has been served least goes first.",
        f"Sheng et al., OSDI '24, Algorithm 2; {_PAPER}, section 5.1, baseline",
        BaselineParams,
        _vtc,
    ),
    entry(
        "qlm",
        "Groups of calls with like SLOs, in turn; by deadline as soon as one would be late.",
        f"Patke et al., SoCC '24; {_PAPER}, section 5.1, baseline",
        QlmParams,
        _qlm,
    ),
)
