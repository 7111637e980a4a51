"""HeteroServe and its baselines: parameters and entries.

What is described here is what `docs/policies.md`, `GET /admin/policies` and error messages say.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dispatcher.catalog.shared_parts import RoutedParams
from dispatcher.core.ports import Ordering, Policy, Routing
from dispatcher.registry import PolicyServices, entry
from policies.affinity import with_affinity
from policies.batch_limits import BatchAdmission, BatchLimits, BatchScope, BatchUnit, FleetSpecs
from policies.capability_score import CapabilityScore, PromptWindow, RegimeChoice
from policies.context_footprints import ContextFootprints
from policies.fcfs import Fcfs
from policies.heteroserve import Feedback, HeteroServe, LatencyTest
from policies.latency_aware import LatencyAware
from policies.length_bins import LengthBins
from policies.proportional_routing import ProportionalRouting, bandwidth, memory, peak_rate
from policies.queue_depth import Counters, QueueDepth
from policies.round_robin import RoundRobin
from policies.shortest_prefill import ShortestPrefill
from policies.weighted_choice import ChoiceMode, WeightedChoice

_PAPER = "HeteroServe"

_LIST = r"^(\d{1,9}(,\d{1,9})*)?$"

QueueOrder = Literal["shortest-first", "fcfs"]

_PAPER_DAMPENING = 2.0
_SECONDS_DAMPENING = 24.0
"""An A100 starts 13 ms behind an H100: with the paper's, 0.15 s of an SLO of 0.5."""
_SECONDS_MEMORY = 8.0
"""An A100 begins to be used when an H100 is 8 % fuller."""


class BatchParams(RoutedParams):
    """How much an engine may hold in flight."""

    batch: BatchUnit = Field(
        "tokens",
        description="what the batch size by memory limits beside the seats: tokens in flight, "
        "calls (requests), both, or nothing (none)",
    )
    delta: float = Field(
        0.1, ge=0.0, lt=1.0, description="share of an engine's memory that is left free"
    )


class LatencyAwareParams(BatchParams):
    """Parameters of the least estimated TTFT."""

    counters: Counters = Field(
        "instant", description="queues as they are now, or as of the last epoch (snapshot)"
    )
    epoch_s: float = Field(0.1, gt=0.0, description="between two snapshots, and two ticks")


class LengthOracleParams(BatchParams):
    """Parameters of the length-aware oracle."""

    long_from_tokens: int = Field(
        512, ge=1, description="prompts of more tokens go in proportion to the peak rate"
    )


class HeteroServeParams(LatencyAwareParams):
    """Parameters of capability-weighted dispatch."""

    form: Literal["settled", "paper"] = Field(
        "settled",
        description="what feedback, order and latency_test are where they are null: backlog, "
        "shortest-first, call; or as published: requests, fcfs, none",
    )
    feedback: Feedback | None = Field(
        None,
        description="what counts against an engine: seconds until a call's prefill would begin "
        "(backlog), calls that wait (requests), nothing (none)",
    )
    order: QueueOrder | None = Field(
        None, description="at each engine: the shortest prefill first, the late last; or by arrival"
    )
    latency_test: LatencyTest | None = Field(
        None,
        description="prefer engines where the first token would be in time: of the bin's p90 "
        "prompt, of the call's own, or do not ask (none); only with feedback in seconds (backlog), "
        "where null is as form has it, elsewhere none",
    )
    mode: ChoiceMode = Field(
        "argmax", description="the highest weight, a draw by weight, or smooth weighted turns"
    )
    regime: RegimeChoice = Field(
        "auto", description="exponents of compute, memory, bandwidth: by the median prompt, or one"
    )
    bins: list[Annotated[int, Field(ge=1)]] | Annotated[str, Field(pattern=_LIST)] = Field(
        "256,512,2048",
        description="longest prompt of each length bin but the last, tokens; empty: one bin",
    )
    dampening: Annotated[float, Field(ge=0.0)] | None = Field(
        None,
        description="lambda: how much a queue counts; null: 24 with feedback in seconds, else the "
        "paper's 2",
    )
    memory: Annotated[float, Field(ge=0.0)] | None = Field(
        None,
        description="mu: how much an engine's memory in use counts; null: 8 with feedback in "
        "seconds, else 0, as published",
    )
    queue_max: int = Field(32, ge=1, description="calls that make an engine full (requests)")
    slo_ttft_s: float = Field(
        0.5, gt=0.0, description="SLO on the first token of calls that ask for none, seconds"
    )
    overdue_s: float = Field(
        30.0, ge=0.0, description="wait from which a call may have a turn of the overdue"
    )
    overdue_share: float = Field(
        0.01,
        ge=0.0,
        lt=1.0,
        description="part of what leaves a queue that is the oldest overdue call; 0: none, calls "
        "may starve",
    )

    @property
    def feedback_used(self) -> Feedback:
        """As asked for, else as the form has it."""
        return self.feedback or ("backlog" if self.form == "settled" else "requests")

    @property
    def latency_test_used(self) -> LatencyTest:
        """As asked for, else as form and feedback allow."""
        own = self.form == "settled" and self.feedback_used == "backlog"
        return self.latency_test or ("call" if own else "none")

    @property
    def order_used(self) -> QueueOrder:
        """As asked for, else as the form has it."""
        return self.order or ("shortest-first" if self.form == "settled" else "fcfs")

    @property
    def dampening_used(self) -> float:
        """As asked for, else as goes with the unit of feedback."""
        seconds = self.feedback_used == "backlog"
        usual = _SECONDS_DAMPENING if seconds else _PAPER_DAMPENING
        return usual if self.dampening is None else self.dampening

    @property
    def memory_used(self) -> float:
        """As asked for, else as goes with the unit of feedback."""
        usual = _SECONDS_MEMORY if self.feedback_used == "backlog" else 0.0
        return usual if self.memory is None else self.memory

    def effective(self) -> dict[str, object]:
        """With what goes with the form."""
        return {
            **self.model_dump(),
            "feedback": self.feedback_used,
            "order": self.order_used,
            "latency_test": self.latency_test_used,
            "dampening": self.dampening_used,
            "memory": self.memory_used,
        }

    @model_validator(mode="after")
    def _test_in_seconds(self) -> Self:
        feedback = self.feedback_used
        if self.latency_test_used != "none" and feedback != "backlog":
            raise ValueError(
                f"latency_test {self.latency_test}: expected none or null with feedback {feedback},"
                " which does not tell how long a call would wait"
            )
        return self


def _admission(
    params: BatchParams, services: PolicyServices, scope: BatchScope
) -> tuple[BatchAdmission, BatchLimits, ContextFootprints]:
    limits = BatchLimits(services.observer(FleetSpecs), scope, delta=params.delta)
    footprints = services.observer(ContextFootprints)
    return BatchAdmission(limits, footprints, params.batch), limits, footprints


def _baseline(
    name: str, routing: Routing, params: BatchParams, services: PolicyServices, scope: BatchScope
) -> Policy:
    admission, _, _ = _admission(params, services, scope)
    routed = with_affinity(routing, params.affinity)
    return Policy(name, routed, Fcfs(), admission, params.model_dump())


def _uniform(params: BatchParams, services: PolicyServices) -> Policy:
    return _baseline("uniform", RoundRobin(), params, services, "weakest")


def _capacity_proportional(params: BatchParams, services: PolicyServices) -> Policy:
    routing = ProportionalRouting(services.random, memory)
    return _baseline("capacity-proportional", routing, params, services, "proportional")


def _latency_aware(params: LatencyAwareParams, services: PolicyServices) -> Policy:
    routing = LatencyAware(QueueDepth("prefill", params.counters, epoch_s=params.epoch_s))
    return _baseline("latency-aware", routing, params, services, "own")


def _length_oracle(params: LengthOracleParams, services: PolicyServices) -> Policy:
    routing = ProportionalRouting(
        services.random, bandwidth, peak_rate, long_from_tokens=params.long_from_tokens
    )
    return _baseline("length-oracle", routing, params, services, "own")


def _edges(bins: list[int] | str) -> list[int]:
    return [int(edge) for edge in bins.split(",") if edge] if isinstance(bins, str) else bins


def _heteroserve(params: HeteroServeParams, services: PolicyServices) -> Policy:
    feedback = params.feedback_used
    admission, limits, footprints = _admission(params, services, "own")
    routing = HeteroServe(
        CapabilityScore(services.observer(PromptWindow), params.regime),
        LengthBins(_edges(params.bins), footprints),
        limits,
        QueueDepth(
            "requests" if feedback == "requests" else "backlog",
            params.counters,
            epoch_s=params.epoch_s,
            admission=admission,
        ),
        WeightedChoice(params.mode, services.random),
        feedback=feedback,
        dampening=params.dampening_used,
        memory=params.memory_used,
        queue_max=params.queue_max,
        slo_ttft_s=params.slo_ttft_s,
        latency_test=params.latency_test_used,
    )
    shortest = ShortestPrefill(
        slo_ttft_s=params.slo_ttft_s,
        overdue_s=params.overdue_s,
        overdue_share=params.overdue_share,
    )
    ordering: Ordering = shortest if params.order_used == "shortest-first" else Fcfs()
    return Policy(
        "heteroserve",
        with_affinity(routing, params.affinity),
        ordering,
        admission,
        params.model_dump(),
        # calls that are held because all engines were full are looked at again
        tick_s=params.epoch_s,
    )


HETEROSERVE_OBSERVERS = (PromptWindow, ContextFootprints, FleetSpecs)

HETEROSERVE_ENTRIES = (
    entry(
        "heteroserve",
        "The engine whose hardware is worth most to such a prompt, less what waits there.",
        f"{_PAPER}, sections 3.1-3.5, Eqs. 1-6",
        HeteroServeParams,
        _heteroserve,
    ),
    entry(
        "uniform",
        "Round robin, and one batch size for all engines: that of the one that holds least.",
        f"{_PAPER}, section 4.1, baseline",
        BatchParams,
        _uniform,
    ),
    entry(
        "capacity-proportional",
        "Engines at random in proportion to their memory, batches likewise.",
        f"{_PAPER}, section 4.1, baseline",
        BatchParams,
        _capacity_proportional,
    ),
    entry(
        "latency-aware",
        "The engine where the first token would come soonest: queued prompts by prefill rate.",
        f"{_PAPER}, section 4.1, baseline",
        LatencyAwareParams,
        _latency_aware,
    ),
    entry(
        "length-oracle",
        "Engines at random by bandwidth for short prompts, by peak rate for long; no feedback.",
        f"{_PAPER}, section 4.1, baseline",
        LengthOracleParams,
        _length_oracle,
    ),
)
