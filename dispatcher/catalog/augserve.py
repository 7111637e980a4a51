"""AugServe and InferCept: parameters and entries.

What is described here is what `docs/policies.md`, `GET /admin/policies` and error messages say.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dispatcher.catalog.shared_parts import RoutedParams, early_routing
from dispatcher.core.ports import Observer, Policy
from dispatcher.registry import Entry, PolicyServices, entry
from policies.augserve import Aging, AugServe
from policies.context_handling import ContextHandling
from policies.handled_routing import HandledRouting
from policies.kv_books import KvBooks
from policies.scheduling_value import CostForm, SchedulingValue
from policies.seats import SeatAdmission
from policies.session_fcfs import SessionFcfs
from policies.token_budget import TokenBudget
from policies.tool_habits import ToolHabits


class ContextParams(RoutedParams):
    """Parameters of what is done about contexts while tools run."""

    affinity: float = Field(
        1.0,
        ge=0.0,
        allow_inf_nan=False,
        description="seconds of longer backlog that a second of prefill is worth which a context "
        "spares that was to be preserved or swapped; 0: as the routing itself says",
    )
    routing: Literal["least-backlog", "round-robin"] = Field(
        "least-backlog",
        description="the engine where a call would end first, or every engine in turn",
    )
    swap_tokens: float = Field(
        1024.0, ge=1.0, description="tokens that an engine moves to host memory per iteration"
    )
    kv_share: Annotated[float, Field(gt=0.0, le=1.0)] | None = Field(
        0.9,
        description="part of an engine's KV cache that calls in flight and reservations may fill; "
        "null: seats alone decide",
    )
    most_reserved: float = Field(
        0.5,
        ge=0.0,
        le=1.0,
        description="most of that which is kept for preserved sessions that are away",
    )


class InferCeptParams(ContextParams):
    """The same: it limits nothing but by the room that it keeps."""

    kv_share: Annotated[float, Field(gt=0.0, le=1.0)] | None = Field(
        1.0,
        description="part of an engine's KV cache that calls in flight and reservations may fill; "
        "null: seats alone decide",
    )


class AugServeParams(ContextParams):
    """Parameters of the scheduling value and the token budget."""

    two_stage: bool = Field(
        True, description="order by scheduling value; false: first session, first served"
    )
    token_budget: bool = Field(
        True,
        description="limit tokens in flight, and prompts per second; false: seats alone decide",
    )
    batch_tokens: float = Field(
        2048.0, ge=1.0, description="prompt tokens of an iteration: N, and the limit's reference"
    )
    beta_low: float = Field(0.25, gt=0.0, description="least limit over the reference")
    beta_high: float = Field(1.25, gt=0.0, description="largest limit over the reference")
    gamma: float = Field(
        1.0, ge=0.0, le=1.0, description="part of paused contexts that counts as free memory"
    )
    costs: CostForm = Field(
        "exact", description="what bringing tokens in costs: exact, or as Eqs. 9-18 are printed"
    )
    recompute: bool = Field(
        False, description="count what a context that is to be discarded costs to compute again"
    )
    strict: bool = Field(
        False, description="calls whose context is still there before all others; false: by value"
    )
    quantile: Annotated[float, Field(gt=0.0, lt=1.0)] | None = Field(
        None, description="of the length estimate, taken for a call's length; null: its mean"
    )
    aging: Aging = Field(
        "ratio", description="waiting divides the value (ratio), or is subtracted (linear)"
    )
    tau_s: float = Field(300.0, gt=0.0, description="wait that halves a value (ratio)")
    alpha: float = Field(
        100.0, ge=0.0, description="token seconds taken off per second of waiting (linear)"
    )
    promote_s: Annotated[float, Field(ge=0.0)] | None = Field(
        30.0, description="wait after which a call may be promoted; null: never, and it may starve"
    )
    promote_share: float = Field(
        0.02,
        gt=0.0,
        le=1.0,
        description="part of what leaves a queue that is the oldest call, where it is to be "
        "promoted; 1: it goes before all others at once",
    )
    tick_s: float = Field(0.1, gt=0.0, description="how often values are looked at anew")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.beta_low > self.beta_high:
            raise ValueError(f"beta_low = {self.beta_low} is above beta_high = {self.beta_high}")
        return self


def _routing(params: ContextParams, handling: ContextHandling) -> HandledRouting:
    return HandledRouting(early_routing(params.routing), params.affinity, handling)


def _infercept(params: InferCeptParams, services: PolicyServices) -> Policy:
    handling = ContextHandling(swap_tokens=params.swap_tokens)
    admission = SeatAdmission()
    if params.kv_share is not None:
        admission = TokenBudget(
            services.observer(KvBooks),
            share=params.kv_share,
            handling=handling,
            most_reserved=params.most_reserved,
        )
    routing = _routing(params, handling)
    return Policy(
        "infercept",
        routing,
        SessionFcfs(),
        admission,
        params.model_dump(),
        reads_gauges=params.kv_share is not None,
    )


def _augserve(params: AugServeParams, services: PolicyServices) -> Policy:
    handling = ContextHandling(swap_tokens=params.swap_tokens)
    ordering = AugServe(
        services.observer(ToolHabits),
        handling,
        value=SchedulingValue(form=params.costs, recompute=params.recompute),
        batch_tokens=params.batch_tokens,
        strict=params.strict,
        quantile=params.quantile,
        aging=params.aging,
        tau_s=params.tau_s,
        alpha=params.alpha,
        promote_s=params.promote_s,
        promote_share=params.promote_share,
    )
    admission = SeatAdmission()
    if params.token_budget:
        admission = TokenBudget(
            services.observer(KvBooks),
            share=params.kv_share,
            target_tokens=params.batch_tokens,
            beta_low=params.beta_low,
            beta_high=params.beta_high,
            gamma=params.gamma,
            handling=handling,
            most_reserved=params.most_reserved,
        )
    return Policy(
        "augserve",
        _routing(params, handling),
        ordering if params.two_stage else SessionFcfs(),
        admission,
        params.model_dump(),
        tick_s=params.tick_s,
        reads_gauges=params.token_budget,
    )


AUGSERVE_OBSERVERS: tuple[type[Observer], ...] = (ToolHabits, KvBooks)

AUGSERVE_ENTRIES: tuple[Entry[Policy], ...] = (
    entry(
        "augserve",
        "The call that holds least memory for least time, pauses for tools included.",
        "AugServe, sections 4.3-4.4, Eqs. 4-32, Algorithm 1",
        AugServeParams,
        _augserve,
    ),
    entry(
        "infercept",
        "First session first; contexts are kept while tools run where that wastes least.",
        "Abhyankar et al., ICML '24; AugServe, section 5.1, baseline",
        InferCeptParams,
        _infercept,
    ),
)
