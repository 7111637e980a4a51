"""HeteroServe: to the engine whose hardware is worth most, less the longer its queue is.

HeteroServe, sections 3.3-3.4. For a call with a prompt of length bin b, among the engines i that
admit b (Eq. 4) and whose queue q_i is below Q_max, the one with the highest weight

    kappa~_i = kappa^_i exp(-lambda q_i / Q_max)                                        (Eq. 5)

gets it, with kappa^ the capability score (`policies.capability_score`, Eq. 2). The largest weight
means the shortest queue with fixed handicaps: engine i is preferred to j until its queue is

    q_i - q_j = (Q_max / lambda) ln(kappa_i / kappa_j)

longer; with the paper's Q_max = 32 and lambda = 2 an A100 starts 9.9 calls behind an H100, an L40S
15.4 (medium prompts).

Settled:

1. `feedback="requests"` is the paper: q counts calls that wait, Q_max = 32. A prompt of 3,000
   tokens then weighs like one of 60, which is the likely cause of the paper's own failure on
   bimodal traffic. `feedback="backlog"` (default) counts seconds: q = W, the wait until a call's
   prefill would begin (`policies.seat_wait`), and Q_max is its SLO on the first token.
   lambda is 24 then: with 2 an H100 would be worth waiting 0.15 s for beside an idle A100, three
   tenths of the SLO, and be full while others stand idle (docs/heteroserve.md).
2. `memory` adds the memory in use, u = tokens in flight / B_tok (Eq. 6), to what counts against an
   engine: the weight is kappa^ exp(-lambda q / Q_max - mu u), mu = 8 with feedback in seconds and 0
   in the paper's form. q alone sees memory when it is full, which is too late: prefill that is
   short fills the best engines to the last block, each of their iterations then is as slow as it
   can be, and whoever comes next waits for others to end while other engines have room. (The paper
   names KV-cache pressure as a signal in section 1 and has none in Eq. 5.)
3. At q = Q_max the weight is exp(-2) = 0.14 of the full one and not "near zero": the gate is hard.
   Where all are full a call is held, and goes when one frees.
4. `latency_test`: of these engines, those where the call would be in time go first,

        t_pre + W_i <= SLO_TTFT

   since Eq. 4 admits every bin everywhere on the paper's own fleet. `bin` asks of the p90 prompt of
   b instead, which near the SLO keeps calls off engines that would do. No bin is tied to engines:
   where no engine passes, all that are open stand; where none that admits the bin is open, those
   do that hold the call itself.
5. The gateway's own counters are instant. The paper's broadcast every 100 ms, with five arrivals in
   between, makes calls herd; it is there for comparison (`policies.queue_depth`).
6. `mode`: argmax; weighted sampling and smooth round robin as options (`policies.weighted_choice`).

`feedback="none"` is the paper's ablation: argmax then sends everything to the best engine.

Exact at a gateway. Ties: fleet order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from dispatcher.core.types import InstanceId
from dispatcher.core.views import CallView, FleetView, InstanceView
from policies.batch_limits import BatchLimits
from policies.capability_score import CapabilityScore
from policies.length_bins import LengthBins
from policies.queue_depth import QueueDepth
from policies.weighted_choice import WeightedChoice

Feedback = Literal["backlog", "requests", "none"]
LatencyTest = Literal["bin", "call", "none"]


class _Open(NamedTuple):
    """An engine that is not full."""

    depth: float
    """q, in seconds or calls."""
    engine: InstanceView
    limit_tokens: int | None
    """That it keeps safely; `None`: unknown."""


class HeteroServe:
    """Routing by Eq. 5; O(N) per call. Binds early, holds where all engines are full.

    Args:
        score: kappa of the engines.
        bins: Length bins; how large their calls are.
        limits: Tokens that each engine keeps safely: Eq. 4.
        depth: q, in the unit of `feedback`.
        choice: What becomes of the weights.
        feedback: Whether and in what q counts.
        dampening: lambda, at least 0.
        memory: mu, at least 0.
        queue_max: Q_max with feedback in requests.
        slo_ttft_s: SLO on the first token of calls that ask for none, seconds.
        latency_test: Prefer engines where the bin's p90 prompt, or the call's own, would be in
            time; takes q in seconds.

    Example:
        >>> import random
        >>> from types import SimpleNamespace as Fake
        >>> from dispatcher.core.gpu_profiles import A100_80G, H100
        >>> from policies.batch_limits import FleetSpecs
        >>> from policies.capability_score import PromptWindow
        >>> from policies.context_footprints import ContextFootprints
        >>> def engine(gpu, queued):
        ...     known = {"capability": gpu.capability, "kv_capacity_tokens": None}
        ...     spec = Fake(instance_id=gpu.name, weight_bytes=None, **known)
        ...     return Fake(spec=spec, queued=queued, gauges=Fake(waiting=0))
        >>> routing = HeteroServe(
        ...     CapabilityScore(PromptWindow()),
        ...     LengthBins([256, 512, 2048], ContextFootprints()),
        ...     BatchLimits(FleetSpecs()),
        ...     QueueDepth("requests"),
        ...     WeightedChoice("argmax", random.Random(0)),
        ...     feedback="requests",
        ... )
        >>> spec = Fake(prompt_tokens=400, slo=Fake(ttft_s=None), prompts=1, seats=1)
        >>> length = Fake(quantile_tokens=lambda p: 300.0, expected_tokens=100.0)
        >>> call = Fake(spec=spec, length=length)
        >>> for ahead in (9, 10):
        ...     fleet = [engine(H100, ahead), engine(A100_80G, 0)]
        ...     routing.route(call, fleet, Fake(), 0.0)
        'H100'
        'A100-80G'
    """

    late_binding = False

    def __init__(
        self,
        score: CapabilityScore,
        bins: LengthBins,
        limits: BatchLimits,
        depth: QueueDepth,
        choice: WeightedChoice,
        *,
        feedback: Feedback = "backlog",
        dampening: float = 2.0,
        memory: float = 0.0,
        queue_max: int = 32,
        slo_ttft_s: float = 0.5,
        latency_test: LatencyTest = "none",
    ) -> None:
        self._score = score
        self._bins = bins
        self._limits = limits
        self._depth = depth
        self._choice = choice
        self._feedback = feedback
        self._dampening = dampening
        self._memory = memory
        self._queue_max = float(queue_max)
        self._slo_ttft_s = slo_ttft_s
        self._latency_test = latency_test if feedback == "backlog" else "none"

    def route(
        self, call: CallView, candidates: Sequence[InstanceView], fleet: FleetView, now_s: float
    ) -> InstanceId | None:
        """The open engine with the highest weight; `None` where all are full."""
        slo_s = call.spec.slo.ttft_s or self._slo_ttft_s
        limit = slo_s if self._feedback == "backlog" else self._queue_max
        open_to = self._open(candidates, limit, fleet, now_s)
        prompt_p90, context_p90 = self._bins.p90_tokens(call)
        kept = self._fitting(call, open_to, candidates, context_p90)
        # no bin is tied to an engine: where none is in time, all stay
        if self._latency_test == "bin":
            kept = [
                one for one in kept if fleet.prompt_s(prompt_p90, one.engine) + one.depth <= slo_s
            ] or kept
        elif self._latency_test == "call":
            kept = [
                one for one in kept if fleet.prefill_s(call, one.engine) + one.depth <= slo_s
            ] or kept
        if not kept:
            return None
        engines = [one.engine for one in kept]
        logs = self._score.log_kappas(engines, call.spec.prompt_tokens)
        per_unit = self._dampening / limit
        weights = [log - per_unit * one.depth for log, one in zip(logs, kept, strict=True)]
        if self._memory > 0.0:
            mu = self._memory
            weights = [w - mu * _used(one) for w, one in zip(weights, kept, strict=True)]
        return self._choice.pick([engine.spec.instance_id for engine in engines], weights)

    def _open(
        self, candidates: Sequence[InstanceView], limit: float, fleet: FleetView, now_s: float
    ) -> list[_Open]:
        """Engines that are not full, with their queues."""
        limit_of = self._limits.tokens
        if self._feedback == "none":
            return [_Open(0.0, engine, limit_of(engine.spec)) for engine in candidates]
        depths = self._depth.each(candidates, fleet, now_s, limit)
        return [
            _Open(depth, engine, limit_of(engine.spec))
            for depth, engine in zip(depths, candidates, strict=True)
            if depth < limit
        ]

    def _fitting(
        self,
        call: CallView,
        open_to: list[_Open],
        candidates: Sequence[InstanceView],
        context_p90: float,
    ) -> list[_Open]:
        """Those of them that admit the call's bin (Eq. 4), or hold at least the call itself."""
        spec = call.spec
        context = spec.prompt_tokens * spec.prompts + call.length.expected_tokens * spec.seats
        for least in (context_p90, context):
            kept = [one for one in open_to if one.limit_tokens is None or one.limit_tokens >= least]
            if kept:
                return kept
        every = [self._limits.tokens(engine.spec) for engine in candidates]
        if any(limit is None or limit >= context for limit in every):
            return []  # one that is full now holds it
        return open_to


def _used(one: _Open) -> float:
    """Share of its memory that calls keep, of its seats where nobody knows what it holds."""
    engine, limit = one.engine, one.limit_tokens
    return engine.seats_in_use / engine.seats if limit is None else engine.in_flight_tokens / limit
