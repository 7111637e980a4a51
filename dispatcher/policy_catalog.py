"""The policies: what each name is made of. Part of `dispatcher.catalog`, through which to ask."""

from __future__ import annotations

from dataclasses import replace

from dispatcher.augserve_policies import AUGSERVE_ENTRIES, AUGSERVE_OBSERVERS
from dispatcher.core.ports import Observer, Ordering, Policy, Routing
from dispatcher.core.service_gain import GainWeights
from dispatcher.heteroserve_policies import HETEROSERVE_ENTRIES, HETEROSERVE_OBSERVERS
from dispatcher.llmsched_policies import LLMSCHED_ENTRIES, LLMSCHED_OBSERVERS
from dispatcher.policy_params import (
    BalanceParams,
    BaselineParams,
    HexGenFlowParams,
    LeastBacklogParams,
    PlasParams,
    QlmParams,
    SeatParams,
    ShortestFirstParams,
    TempoParams,
    UrgencyParams,
)
from dispatcher.registry import PolicyServices, Registry, entry
from policies.affinity import with_affinity
from policies.attained_service import AttainedService
from policies.fcfs import Fcfs
from policies.kv_books import KvBooks
from policies.least_backlog import LeastBacklog
from policies.least_dense_preemption import LeastDensePreemption
from policies.lsdf import Lsdf
from policies.plas import Plas
from policies.qlm import Qlm
from policies.reserve import ReserveAdmission, ReserveTurns
from policies.round_robin import RoundRobin
from policies.seats import SeatAdmission
from policies.sjf import ShortestFirst
from policies.token_budget import TokenBudget
from policies.token_counters import TokenCounters
from policies.urgency import Urgency
from policies.vtc import Vtc
from policies.workload_balance import WorkloadBalance

_HEXGEN = "HexGen-Flow"
_TEMPO = "Tempo"

_AUTO_ALPHA_START = 0.0
"""HexGen-Flow, section 4.3: alpha starts at 0 and is tuned from there."""

_PLAS_TICK_S = 0.5
"""How soon a program that has waited long is found."""


def _routing(params: BaselineParams) -> Routing:
    routing = RoundRobin() if params.routing == "round-robin" else LeastBacklog(late_binding=False)
    return with_affinity(routing, params.affinity)


def _balance(params: BalanceParams) -> WorkloadBalance:
    alpha = _AUTO_ALPHA_START if params.alpha == "auto" else params.alpha
    return WorkloadBalance(alpha=alpha, mode=params.mode, beta=params.beta)


def _urgency(params: UrgencyParams) -> Urgency:
    return Urgency(scope=params.scope, shed_doomed=params.shed_doomed)


def _by_seats(
    name: str, routing: Routing, ordering: Ordering, params: SeatParams, services: PolicyServices
) -> Policy:
    """Admission by seats, and by tokens where a share of the KV cache is set."""
    budget = params.kv_share is not None
    admission = SeatAdmission()
    if budget:
        admission = TokenBudget(services.observer(KvBooks), share=params.kv_share)
    return Policy(name, routing, ordering, admission, params.model_dump(), reads_gauges=budget)


def _vllm(params: SeatParams, services: PolicyServices) -> Policy:
    routing = with_affinity(RoundRobin(), params.affinity)
    return _by_seats("vllm", routing, Fcfs(), params, services)


def _hexgen_flow(params: HexGenFlowParams, services: PolicyServices) -> Policy:
    return _balanced("hexgen-flow", _urgency(params), params, services)


def _rr_pq(params: UrgencyParams, services: PolicyServices) -> Policy:
    routing = with_affinity(RoundRobin(), params.affinity)
    return _by_seats("rr-pq", routing, _urgency(params), params, services)


def _wb_fcfs(params: BalanceParams, services: PolicyServices) -> Policy:
    return _balanced("wb-fcfs", Fcfs(), params, services)


def _balanced(
    name: str, ordering: Ordering, params: BalanceParams, services: PolicyServices
) -> Policy:
    routing = _balance(params)
    policy = _by_seats(name, with_affinity(routing, params.affinity), ordering, params, services)
    return replace(
        policy,
        # an alpha that was asked for by value stays what it is
        tunable=routing if params.alpha == "auto" else None,
        alpha=lambda: routing.alpha,
    )


def _least_backlog(params: LeastBacklogParams, services: PolicyServices) -> Policy:
    routing = with_affinity(LeastBacklog(late_binding=params.binding == "late"), params.affinity)
    return _by_seats("least-backlog", routing, Fcfs(), params, services)


def _vtc(params: BaselineParams, services: PolicyServices) -> Policy:
    ordering = Vtc(services.observer(TokenCounters))
    return _by_seats("vtc", _routing(params), ordering, params, services)


def _sarathi_fcfs(params: BaselineParams, services: PolicyServices) -> Policy:
    return _by_seats("sarathi-fcfs", _routing(params), Fcfs(), params, services)


def _sjf(params: ShortestFirstParams, services: PolicyServices) -> Policy:
    ordering = ShortestFirst(params.quantile)
    return _by_seats("sjf", _routing(params), ordering, params, services)


def _plas(params: PlasParams, services: PolicyServices) -> Policy:
    ordering = Plas(
        services.observer(AttainedService),
        level_tokens=params.level_tokens,
        promote_ratio=params.promote_ratio,
    )
    policy = _by_seats("plas", _routing(params), ordering, params, services)
    return replace(policy, tick_s=_PLAS_TICK_S)


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


def _qlm(params: QlmParams, services: PolicyServices) -> Policy:
    ordering = Qlm(slo_ratio=params.slo_ratio)
    return _by_seats("qlm", _routing(params), ordering, params, services)


OBSERVERS: tuple[type[Observer], ...] = (
    TokenCounters,
    AttainedService,
    ReserveTurns,
    *HETEROSERVE_OBSERVERS,
    *AUGSERVE_OBSERVERS,
    *LLMSCHED_OBSERVERS,
)
"""State that policies read, kept warm whatever policy is active."""

POLICIES: Registry[Policy] = Registry(
    "policy",
    (
        entry(
            "vllm",
            "Round robin over the engines, first come first served at each.",
            f"{_HEXGEN}, section 5.1, baseline",
            SeatParams,
            _vllm,
        ),
        entry(
            "hexgen-flow",
            "Routes by balance and speed, and serves the call that must start first.",
            f"{_HEXGEN}, sections 4.1-4.2, Eqs. 2-8",
            HexGenFlowParams,
            _hexgen_flow,
        ),
        entry(
            "rr-pq",
            "Round robin with the urgency queue: hexgen-flow without its routing.",
            f"{_HEXGEN}, section 5.3, ablation",
            UrgencyParams,
            _rr_pq,
        ),
        entry(
            "wb-fcfs",
            "Balanced routing, first come first served: hexgen-flow without its queue.",
            f"{_HEXGEN}, section 5.3, ablation",
            BalanceParams,
            _wb_fcfs,
        ),
        entry(
            "vtc",
            "Fair shares of tokens: the workflow that has been served least goes first.",
            f"Sheng et al., OSDI '24, Algorithm 2; {_HEXGEN}, section 5.1, baseline",
            BaselineParams,
            _vtc,
        ),
        entry(
            "qlm",
            "Groups of calls with like SLOs, in turn; by deadline as soon as one would be late.",
            f"Patke et al., SoCC '24; {_HEXGEN}, section 5.1, baseline",
            QlmParams,
            _qlm,
        ),
        entry(
            "tempo",
            "The call that gains most per second of serving it; seats kept for what would starve.",
            f"{_TEMPO}, sections 3-4, Eqs. 1-4, Algorithm 1",
            TempoParams,
            _tempo,
        ),
        entry(
            "sarathi-fcfs",
            "First come, first served on engines with chunked prefill: vllm, as engines are now.",
            f"Agrawal et al., OSDI '24; {_TEMPO}, section 6.1, baseline",
            BaselineParams,
            _sarathi_fcfs,
        ),
        entry(
            "plas",
            "The workflow that has been served least goes first, in levels.",
            f"Luo et al., Autellix; {_TEMPO}, section 6.1, baseline",
            PlasParams,
            _plas,
        ),
        entry(
            "sjf",
            "The shortest answer first, by predicted length.",
            f"{_TEMPO}, section 6.1, baseline",
            ShortestFirstParams,
            _sjf,
        ),
        *HETEROSERVE_ENTRIES,
        *AUGSERVE_ENTRIES,
        *LLMSCHED_ENTRIES,
        entry(
            "least-backlog",
            "The engine where a call would end first, chosen when a seat frees; in order of "
            "arrival.",
            None,
            LeastBacklogParams,
            _least_backlog,
        ),
    ),
)
