"""The tuner's replay: a recent trace, played once for each alpha on engines as they were fitted.

Fit for a worker process: plain data in, plain data out. What is known of the engines is what the
scheduler has fitted, so its times are taken for true and not learned again; output lengths are
predicted by stage, as the trace has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dispatcher.core.gpu_profiles import CostProfile
from dispatcher.core.ports import AttemptTiming
from dispatcher.core.types import CallSpec, InstanceId, InstanceSpec, LengthEstimate
from dispatcher.engine_model import EngineConfig, Linear
from dispatcher.simulator.fleet import SimulatedEngine
from dispatcher.simulator.simulation import Experience, Simulated, simulate
from dispatcher.traces import Played, TraceWorkflow
from dispatcher.tuning import AlphaScore, ReplayInstance, ReplayRequest, ReplayResult, percentile

_BLOCK_TOKENS = 16
_BATCH_TOKENS = 2048
_KV_TOKENS = 1 << 20
"""Where an engine does not say how much it holds: more than its seats need."""
_TEMPLATES_FROM = 20
"""Workflows that are played once more, before all others, to learn templates from."""
_PROBABILITIES = (0.5, 0.9, 0.95)


def replay(request: ReplayRequest) -> ReplayResult:
    """Play the trace once for each alpha. The same request gives the same result.

    Raises:
        HeadwayError: The policy has no alpha, or a parameter is out of range.
    """
    fleet = [engine_of(instance, request.trace) for instance in request.fleet]
    costs = KnownCosts({i.spec.instance_id: i.profile for i in request.fleet})
    lengths = StageLengths(request.trace)

    def play(trace: Sequence[TraceWorkflow], alpha: float, learned: Experience | None) -> Simulated:
        return simulate(
            trace,
            fleet,
            policy=request.policy,
            params={**request.params, "alpha": alpha},
            seed=request.seed,
            learned=learned,
            lengths=lengths,
            costs=costs,
        )

    # all begin with the workflows' templates known, as the live scheduler does
    learned = play(request.trace[:_TEMPLATES_FROM], request.alphas[0], None).learned
    return ReplayResult(
        tuple(_score(alpha, play(request.trace, alpha, learned).played) for alpha in request.alphas)
    )


def engine_of(instance: ReplayInstance, trace: Sequence[TraceWorkflow]) -> SimulatedEngine:
    """The engine as it was fitted, with room for the longest call of the trace."""
    longest = max(
        call.prompt_tokens + call.output_tokens for workflow in trace for call in workflow.calls
    )
    kv_tokens = instance.spec.kv_capacity_tokens or _KV_TOKENS
    config = EngineConfig(
        timing=Linear(instance.profile),
        num_blocks=max(kv_tokens, longest + _BLOCK_TOKENS) // _BLOCK_TOKENS + 1,
        max_model_len=longest + 2,
        max_num_seqs=instance.seats,
        max_num_batched_tokens=max(_BATCH_TOKENS, instance.seats),
        block_size=_BLOCK_TOKENS,
        enable_prefix_caching=False,
    )
    iteration_s = instance.profile.tpot_s(1, 0)
    return SimulatedEngine(
        spec=replace(
            instance.spec,
            seats=instance.seats,
            max_model_len=max(instance.spec.max_model_len, longest + 2),
        ),
        config=config,
        overhead_s=max(0.0, instance.profile.prefill_fixed_s - iteration_s),
        cached_share=instance.cached_share,
    )


def _score(alpha: float, played: Played) -> AlphaScore:
    latencies = [w.latency_s if w.ok else float("inf") for w in played.workflows]
    ratios = [
        latency_s / workflow.slo_s
        for latency_s, workflow in zip(latencies, played.workflows, strict=True)
        if workflow.slo_s is not None
    ]
    return AlphaScore(
        alpha,
        percentile(latencies, 0.95),
        sum(ratio <= 1.0 for ratio in ratios) / len(ratios) if ratios else None,
        percentile(ratios, 0.95) if len(ratios) == len(latencies) else None,
    )


class KnownCosts:
    """Times that are known and stay so: `dispatcher.core.ports.CostModel`."""

    def __init__(self, profiles: Mapping[InstanceId, CostProfile]) -> None:
        self._profiles = profiles

    def add_instance(self, spec: InstanceSpec) -> None:
        """Nothing to begin from."""

    def remove_instance(self, instance_id: InstanceId) -> None:
        """Nothing to forget."""

    def prefill_s(self, instance_id: InstanceId, uncached_tokens: float) -> float:
        """Time to first token without queueing, seconds."""
        own = self._profiles[instance_id]
        return own.prefill_s_per_token * uncached_tokens + own.prefill_fixed_s

    def tpot_s(self, instance_id: InstanceId, running: float, resident_tokens: float) -> float:
        """Time per output token, seconds."""
        return self._profiles[instance_id].tpot_s(running, resident_tokens)

    def learn(self, timing: AttemptTiming) -> None:
        """Nothing to learn."""


class StageLengths:
    """Lengths by stage as a trace has them, known from its beginning: a `LengthPredictor`.

    A call's own length stays hidden: all calls of a stage get the same estimate.
    """

    def __init__(self, trace: Sequence[TraceWorkflow]) -> None:
        lengths: dict[tuple[str, str | None], list[int]] = {}
        for workflow in trace:
            for call in workflow.calls:
                lengths.setdefault((workflow.application, call.stage), []).append(
                    call.output_tokens
                )
        self._estimates = {key: _estimate(found) for key, found in lengths.items()}
        self._any = _estimate([tokens for found in lengths.values() for tokens in found])

    def predict(self, spec: CallSpec) -> LengthEstimate:
        """What calls of its stage are like."""
        return self._estimates.get((spec.application, spec.stage), self._any)

    def learn(self, spec: CallSpec, output_tokens: int) -> None:
        """Nothing to learn."""


def _estimate(lengths: Sequence[int]) -> LengthEstimate:
    quantiles = tuple((p, percentile(lengths, p)) for p in _PROBABILITIES)
    return LengthEstimate(sum(lengths) / len(lengths), quantiles, "trace")
