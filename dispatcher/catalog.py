"""The one registry: every algorithm by name, with its parameters and its paper.

Only this module imports algorithms. An entry is a line in a table below, not a decorator that runs
on import: what is registered can be read in one place, and a name given twice raises.

`python -m dispatcher.catalog` prints the table of docs/policies.md.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from dispatcher.core.ports import CostModel, LengthPredictor, Observer, Policy, Routing
from dispatcher.registry import Entry, Params, PolicyServices, Registry, entry
from policies.fcfs import Fcfs
from policies.least_backlog import LeastBacklog
from policies.qlm import Qlm
from policies.round_robin import RoundRobin
from policies.seats import SeatAdmission
from policies.token_counters import TokenCounters
from policies.urgency import Scope, Urgency
from policies.vtc import Vtc
from policies.workload_balance import ScoreMode, WorkloadBalance
from predictors.linear_cost import LinearCost, LinearCostSettings
from predictors.prompt_tokens import PromptTokens
from predictors.rolling_quantiles import RollingQuantiles, RollingQuantilesSettings

DEFAULT_POLICY = "hexgen-flow"
DEFAULT_LENGTH_PREDICTOR = "rolling-quantiles"
DEFAULT_COST_MODEL = "linear"
DEFAULT_PROMPT_COUNTER = "bytes"

_AUTO_ALPHA_START = 0.0
"""HexGen-Flow, section 4.3: alpha starts at 0 and is tuned from there."""


PolicyEntry = Entry[Policy]

# --- policies -----------------------------------------------------------------------------------

_HEXGEN = "HexGen-Flow"


class NoParams(Params):
    """Nothing to set."""


class BalanceParams(Params):
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


class UrgencyParams(Params):
    """Parameters of the urgency queue."""

    scope: Scope = Field(
        "stage", description="whose slack orders: the stage's budget or the whole workflow's"
    )
    shed_doomed: bool = Field(
        False, description="calls that can no longer be in time come after all that can"
    )


class HexGenFlowParams(UrgencyParams, BalanceParams):
    """Both levels."""


class LeastBacklogParams(Params):
    """Parameters of least-backlog routing."""

    binding: Literal["late", "early"] = Field(
        "late", description="bind when a seat frees, from one central queue, or on arrival"
    )


class BaselineParams(Params):
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


def _routing(params: BaselineParams) -> Routing:
    if params.routing == "round-robin":
        return RoundRobin()
    return LeastBacklog(late_binding=False)


def _balance(params: BalanceParams) -> WorkloadBalance:
    alpha = _AUTO_ALPHA_START if params.alpha == "auto" else params.alpha
    return WorkloadBalance(alpha=alpha, mode=params.mode, beta=params.beta)


def _urgency(params: UrgencyParams) -> Urgency:
    return Urgency(scope=params.scope, shed_doomed=params.shed_doomed)


def _vllm(params: NoParams, services: PolicyServices) -> Policy:
    return Policy("vllm", RoundRobin(), Fcfs(), SeatAdmission(), params.model_dump())


def _hexgen_flow(params: HexGenFlowParams, services: PolicyServices) -> Policy:
    routing = _balance(params)
    return Policy(
        "hexgen-flow",
        routing,
        _urgency(params),
        SeatAdmission(),
        params.model_dump(),
        # an alpha that was asked for by value stays what it is
        tunable=routing if params.alpha == "auto" else None,
        alpha=lambda: routing.alpha,
    )


def _rr_pq(params: UrgencyParams, services: PolicyServices) -> Policy:
    return Policy("rr-pq", RoundRobin(), _urgency(params), SeatAdmission(), params.model_dump())


def _wb_fcfs(params: BalanceParams, services: PolicyServices) -> Policy:
    routing = _balance(params)
    return Policy(
        "wb-fcfs",
        routing,
        Fcfs(),
        SeatAdmission(),
        params.model_dump(),
        tunable=routing if params.alpha == "auto" else None,
        alpha=lambda: routing.alpha,
    )


def _least_backlog(params: LeastBacklogParams, services: PolicyServices) -> Policy:
    routing = LeastBacklog(late_binding=params.binding == "late")
    return Policy("least-backlog", routing, Fcfs(), SeatAdmission(), params.model_dump())


def _vtc(params: BaselineParams, services: PolicyServices) -> Policy:
    ordering = Vtc(services.observer(TokenCounters))
    return Policy("vtc", _routing(params), ordering, SeatAdmission(), params.model_dump())


def _qlm(params: QlmParams, services: PolicyServices) -> Policy:
    ordering = Qlm(slo_ratio=params.slo_ratio)
    return Policy("qlm", _routing(params), ordering, SeatAdmission(), params.model_dump())


_OBSERVERS: tuple[type[Observer], ...] = (TokenCounters,)

_POLICIES: Registry[Policy] = Registry(
    "policy",
    (
        entry(
            "vllm",
            "Round robin over the engines, first come first served at each.",
            f"{_HEXGEN}, section 5.1, baseline",
            NoParams,
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
            "least-backlog",
            "The engine where a call would end first, chosen when a seat frees; in order of "
            "arrival.",
            None,
            LeastBacklogParams,
            _least_backlog,
        ),
    ),
)


def policy_entries() -> Mapping[str, PolicyEntry]:
    """All policies by name, in the order in which to show them."""
    return _POLICIES.entries


def build_policy(name: str, params: Mapping[str, object], services: PolicyServices) -> Policy:
    """A new policy.

    Args:
        name: As in `policy_entries()`.
        params: Raw, as configuration or a request body gives them; what is absent has a default.
        services: What it may draw on.

    Raises:
        UnknownNameError: no such policy; the message lists those there are.
        BadParameterError: an unknown parameter, or a value outside its schema.

    Example:
        >>> import random
        >>> services = PolicyServices(random=random.Random(0))
        >>> build_policy("hexgen-flow", {"alpha": 0.2}, services).params["alpha"]
        0.2
        >>> build_policy("vllm", {"alpha": 2.0}, services)
        Traceback (most recent call last):
        dispatcher.core.errors.BadParameterError: vllm: alpha = 2.0: no such parameter (known: none)
    """
    return _POLICIES.build(name, params, services)


def observers(services: PolicyServices) -> tuple[Observer, ...]:
    """State that policies built with these services read: for the coordinator, which feeds it.

    It runs whatever policy is active, so that a switch starts warm.

    Example:
        >>> import random
        >>> services = PolicyServices(random=random.Random(0))
        >>> policy = build_policy("vtc", {}, services)
        >>> policy.ordering.counters in observers(services)
        True
    """
    return tuple(services.observer(kind) for kind in _OBSERVERS)


# --- predictors ---------------------------------------------------------------------------------


class RollingQuantilesParams(Params):
    """As `RollingQuantilesSettings`."""

    window: int = Field(128, ge=1, description="latest lengths kept per key")
    min_samples: int = Field(5, ge=1, description="a key with fewer does not speak")
    prior_tokens: float = Field(256.0, ge=1.0, description="mean length before anything is known")


class LinearCostParams(Params):
    """As `LinearCostSettings`."""

    memory_samples: float = Field(
        300.0, gt=1.0, description="attempts after which evidence has lost two thirds of its weight"
    )


class PromptTokensParams(Params):
    """As `PromptTokens`."""

    memory_samples: float = Field(
        300.0, gt=1.0, description="calls after which evidence has lost two thirds of its weight"
    )


def _rolling_quantiles(
    params: RollingQuantilesParams, services: PolicyServices
) -> RollingQuantiles:
    return RollingQuantiles(RollingQuantilesSettings(**params.model_dump()))


def _linear_cost(params: LinearCostParams, services: PolicyServices) -> LinearCost:
    return LinearCost(LinearCostSettings(**params.model_dump()))


def _prompt_tokens(params: PromptTokensParams, services: PolicyServices) -> PromptTokens:
    return PromptTokens(**params.model_dump())


_LENGTH_PREDICTORS: Registry[LengthPredictor] = Registry(
    "length predictor",
    (
        entry(
            "rolling-quantiles",
            "Output length from the latest calls of the same stage, else application, else model.",
            None,
            RollingQuantilesParams,
            _rolling_quantiles,
        ),
    ),
)

_COST_MODELS: Registry[CostModel] = Registry(
    "cost model",
    (
        entry(
            "linear",
            "Linear prefill and linear time per token, fitted per instance from its GPU's profile.",
            f"{_HEXGEN}, Eq. 2",
            LinearCostParams,
            _linear_cost,
        ),
    ),
)

_PROMPT_COUNTERS: Registry[PromptTokens] = Registry(
    "prompt counter",
    (
        entry(
            "bytes",
            "Prompt tokens from the bytes of the body, calibrated by the usage engines report.",
            None,
            PromptTokensParams,
            _prompt_tokens,
        ),
    ),
)


def length_predictors() -> Registry[LengthPredictor]:
    """Predictors of output length."""
    return _LENGTH_PREDICTORS


def cost_models() -> Registry[CostModel]:
    """Models of time on an instance."""
    return _COST_MODELS


def prompt_counters() -> Registry[PromptTokens]:
    """Estimators of prompt tokens."""
    return _PROMPT_COUNTERS


# --- as a table ---------------------------------------------------------------------------------


def policy_table() -> str:
    """The policies as a Markdown table, one line each, ending with a newline."""
    lines = ["| policy | does | from | parameters |", "|---|---|---|---|"]
    for policy in policy_entries().values():
        params = "<br>".join(
            f"`{name}` = `{field.default}`: {field.description}"
            for name, field in policy.params.model_fields.items()
        )
        cells = (f"`{policy.name}`", policy.summary, policy.paper or "-", params or "-")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(policy_table())
