"""The words of the scheduler: calls, instances, estimates, outcomes. Times are seconds."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NewType

from dispatcher.core.gpu_profiles import CostProfile

CallId = NewType("CallId", str)
AttemptId = NewType("AttemptId", int)
InstanceId = NewType("InstanceId", str)
WorkflowId = NewType("WorkflowId", str)

SeatTag = NewType("SeatTag", str)
"""What a seat is for; a policy with a reserve tags some of its seats."""

PLAIN_SEAT = SeatTag("")

Key = tuple[float, ...]
"""What orders a queue: smaller first, compared like a tuple; the last entries break ties."""


class CallClass(StrEnum):
    """What the client of a call waits for (Tempo, section 3)."""

    LATENCY = "latency"
    """Somebody reads the stream: TTFT and TPOT matter."""
    THROUGHPUT = "throughput"
    """The whole answer matters, by a deadline."""
    COLLECTIVE = "collective"
    """A part of a workflow: the end of the workflow matters."""
    BEST_EFFORT = "best-effort"
    """No deadline; must not starve."""


class Task(StrEnum):
    """What an instance is asked to do."""

    GENERATE = "generate"
    EMBED = "embed"
    RERANK = "rerank"
    SCORE = "score"


@dataclass(frozen=True, slots=True)
class Slo:
    """What was asked for. `None` where nothing was."""

    end_to_end_s: float | None = None
    """Of the whole workflow, from its first call."""
    ttft_s: float | None = None
    tpot_s: float | None = None


@dataclass(frozen=True, slots=True)
class CallSpec:
    """What is known of a call when it arrives; never changes afterwards."""

    call_id: CallId
    workflow_id: WorkflowId
    model: str
    prompt_tokens: int
    """Of one prompt (the mean of several); estimated by the gateway, exact in the simulator."""
    application: str = "default"
    """The template the workflow follows (`x-headway-workflow`)."""
    stage: str | None = None
    """`None`: the tracker names it by observed order."""
    stage_width: int | None = None
    """Calls of this stage that run side by side, where the client says so."""
    tenant: str = "default"
    call_class: CallClass = CallClass.COLLECTIVE
    slo: Slo = field(default_factory=Slo)
    max_tokens: int | None = None
    seats: int = 1
    """Engine sequences the call takes: `n` times the number of prompts; at least 1."""
    prompts: int = 1
    """Prompts in the call (`/v1/completions` takes a list); at least 1."""
    task: Task = Task.GENERATE
    modalities: frozenset[str] = frozenset()
    """Beyond text: `image`, `audio`, `video`."""
    pinned_to: InstanceId | None = None
    """The one instance that can serve it (it holds the response this call goes on from)."""
    tool: str | None = None
    """The tool the workflow ran just before this call."""
    final: bool = False
    """Last call of its workflow."""
    client_priority: int = 0
    """The client's own `priority`, clamped by its tenant; lower first, breaks ties only."""
    tenant_weight: float = 1.0
    streaming: bool = False
    reject_late: bool = False
    """Turn the call away (408) once its workflow's deadline has gone."""
    dedupe_key: str | None = None
    """Equal for a call and the same call sent again by an SDK; `None` where unknown."""
    features: Mapping[str, float] = field(default_factory=dict)
    """Bounded numeric features for length predictors (no text)."""


@dataclass(frozen=True, slots=True)
class LengthEstimate:
    """Predicted output tokens of one call, as quantiles.

    `quantiles` maps probabilities in (0, 1), ascending, to tokens, ascending.
    """

    expected_tokens: float
    """Mean; at least 1."""
    quantiles: tuple[tuple[float, float], ...] = ()
    source: str = "prior"
    """Which predictor, and which of its fallback steps, spoke."""

    def capped(self, most_tokens: float) -> LengthEstimate:
        """The same where no more than that can come; what is no number becomes that."""
        if self.expected_tokens <= most_tokens and all(t <= most_tokens for _, t in self.quantiles):
            return self
        expected = self.expected_tokens if self.expected_tokens <= most_tokens else most_tokens
        quantiles = tuple((p, t if t <= most_tokens else most_tokens) for p, t in self.quantiles)
        return replace(self, expected_tokens=expected, quantiles=quantiles)

    def quantile_tokens(self, probability: float) -> float:
        """Linear between the known quantiles, flat beyond them; the mean when none is known."""
        if not self.quantiles:
            return self.expected_tokens
        probabilities = [p for p, _ in self.quantiles]
        at = bisect_left(probabilities, probability)
        if at == 0:
            return self.quantiles[0][1]
        if at == len(probabilities):
            return self.quantiles[-1][1]
        (p0, v0), (p1, v1) = self.quantiles[at - 1], self.quantiles[at]
        return v0 + (v1 - v0) * (probability - p0) / (p1 - p0)


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """One engine behind one URL, as far as scheduling cares."""

    instance_id: InstanceId
    models: frozenset[str]
    """Names it serves, LoRA adapters included."""
    max_model_len: int = 1 << 20
    """Context length in tokens."""
    gpu: str | None = None
    seats: int | None = None
    """Fixed seats, or `None`: found by the seat controller."""
    profile: CostProfile | None = None
    """Where the cost model starts before it has seen traffic."""
    kv_capacity_tokens: int | None = None
    tasks: frozenset[Task] = frozenset({Task.GENERATE})
    modalities: frozenset[str] = frozenset()
    takes_priority: bool = True


@dataclass(frozen=True, slots=True)
class EngineGauges:
    """What an engine says of itself; older than the coordinator's own counters."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    """Share of KV blocks in use, 0 to 1."""
    preemptions_total: int = 0
    output_tokens_total: int | None = None
    """Generated since the engine started; `None` where it does not say."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the engine counted them."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0


class Outcome(StrEnum):
    """How an attempt or a call ended; also a metric label, so the set stays small."""

    OK = "ok"
    CLIENT_ERROR = "client_error"
    """The engine refused the call (4xx); nobody else would take it."""
    ENGINE_ERROR = "engine_error"
    CANCELLED = "cancelled"
    """The client went away, or the workflow was cancelled."""
    PREEMPTED = "preempted"
    """Attempts only: stopped by us, the call goes on."""
    REJECTED = "rejected"
    """Calls only: never ran."""


class RejectReason(StrEnum):
    """Why a call was turned away; sent as `x-headway-dropped-reason`."""

    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    NO_ENGINE = "no_engine"
    """No instance that fits is up."""
    ENGINE_FAILED = "engine_failed"
    """Every allowed attempt failed."""
    DEADLINE = "deadline_gone"
    SHUTDOWN = "shutting_down"
