"""The words of the scheduler: calls, instances, estimates, outcomes. Times are seconds."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import log
from typing import NewType

from dispatcher.core.gpu_profiles import Capability, CostProfile

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

    def longer_than(self, tokens: float) -> LengthEstimate:
        """The same for a call that has so many tokens already and goes on: Q(L | L > g).

        Each quantile p becomes that of F(g) + p (1 - F(g)); the mean is that of the conditional
        law. Beyond the last known quantile the tail is exponential, fitted to the last two. Without
        quantiles only the mean is moved up. (Tempo, section 4.1, settled: refined while tokens
        come, every quantile of it at once.)

        Example:
            >>> known = LengthEstimate(100.0, ((0.25, 50.0), (0.5, 100.0), (0.75, 150.0)))
            >>> [round(v) for _, v in known.longer_than(100).quantiles]
            [125, 150, 200]
        """
        known = self.quantiles
        if known and tokens < known[0][1]:
            return self
        least = tokens + 1.0
        scale = _tail_scale(known)
        at = bisect_right(known, tokens, key=_tokens_of)
        if at == len(known):
            # an exponential tail has no memory; without one the call is about to end
            values = [tokens - scale * log(1.0 - p) for p, _ in known]
            mean = tokens + scale if known else self.expected_tokens
        else:
            values, mean = _conditional(known, at, tokens, scale)
        quantiles = tuple((p, max(least, v)) for (p, _), v in zip(known, values, strict=True))
        return replace(self, expected_tokens=max(least, mean), quantiles=quantiles)

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


def _tokens_of(point: tuple[float, float]) -> float:
    return point[1]


def _tail_scale(known: Sequence[tuple[float, float]]) -> float:
    """Mean of what lies beyond the last quantile, in tokens, as the last two tell."""
    if len(known) < 2:
        return 0.0
    (p0, v0), (p1, v1) = known[-2:]
    return (v1 - v0) / log((1.0 - p0) / (1.0 - p1))


def _conditional(
    known: Sequence[tuple[float, float]], at: int, tokens: float, scale: float
) -> tuple[list[float], float]:
    """Quantiles (of the known probabilities) and mean of what is longer than `tokens`.

    Args:
        known: (probability, tokens), both ascending.
        at: Index of the first that is longer; at least 1, and there is one.
        tokens: Generated so far.
        scale: Mean of the exponential tail.
    """
    (p0, v0), (p1, v1) = known[at - 1], known[at]
    below = p0 + (p1 - p0) * (tokens - v0) / (v1 - v0)
    above = 1.0 - below
    last_p, last_v = known[-1]
    # the piece of the old quantile function that the next wanted probability lies in
    left_p, left_v = below, tokens
    right = at
    values = []
    for p, _ in known:
        wanted = below + p * above
        while right < len(known) and known[right][0] < wanted:
            left_p, left_v = known[right]
            right += 1
        if right < len(known):
            right_p, right_v = known[right]
            values.append(left_v + (right_v - left_v) * (wanted - left_p) / (right_p - left_p))
        else:
            values.append(last_v + scale * log((1.0 - last_p) / ((1.0 - p) * above)))
    total = (1.0 - last_p) * (last_v + scale)
    left_p, left_v = below, tokens
    for right_p, right_v in known[at:]:
        total += (right_p - left_p) * (left_v + right_v) / 2.0
        left_p, left_v = right_p, right_v
    return values, total / above


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
    offload_tokens: int | None = None
    """Room of its offload tier, to which it can move contexts; `None`: it has none."""
    capability: Capability | None = None
    """Of all its GPUs together, from datasheets; `None`: nobody said what it runs on."""
    weight_bytes: int | None = None
    """Of the model it serves, over all its GPUs."""
    kv_bytes_per_token: int | None = None
    """Keys and values of one token, over all layers and GPUs."""
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
