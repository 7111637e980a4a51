"""Where schedulers are compared in Tempo's section 6, and with what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from dispatcher.bench.fleets import Fleet, fleet_named
from dispatcher.bench.mean_work import SAMPLE_SEED, MeanWork, decode_s, mean_work
from dispatcher.core.types import CallClass
from dispatcher.simulator.workloads import ARRIVALS, make_trace
from dispatcher.simulator.workloads.tempo import CHATBOT, LONG, tempo_mix
from dispatcher.traces import Trace, TraceWorkflow
from workflows.settings import Structure

TTFT_S, TPOT_S, TTLT_S = 2.0, 0.1, 20.0
"""SLOs (section 6.1); of a collective request `TTLT_S` for each of its stages."""

MAIN_LOAD = 1.1
"""The paper gives no rates. Here vLLM's service gain falls over an hour as far as the paper says it
does, by 43 to 94 %, from every seed and for both lengths; at load 1 chance decides."""

Weights = tuple[float, float, float, float]
"""Latency, throughput, collective, best effort."""
PAPER_MIX: Weights = (3.0, 1.0, 1.0, 0.0)
LENGTHS = {lengths.name: lengths for lengths in (CHATBOT, LONG)}
MODELS: Mapping[str, str] = {"8b": "A100-80G", "13b": "A100-80G", "70b": "A100-80G:tp4"}
"""Hardware of one engine by the model's size."""


@dataclass(frozen=True, slots=True)
class Case:
    """Where schedulers are compared: one engine, and what comes to it."""

    load: float = MAIN_LOAD
    """Output tokens asked for over those that the engine makes with every seat busy."""
    seats: int = 16
    """Batch size: calls in flight, and the engine's `max_num_seqs`."""
    model: str = "8b"
    lengths: str = CHATBOT.name
    weights: Weights = PAPER_MIX
    arrivals: str = "poisson"
    slo_scale: float = 1.0
    span_s: float = 900.0
    """Time that is looked at."""

    @property
    def fleet(self) -> Fleet:
        """The engine."""
        return fleet_named(MODELS[self.model], size=self.model, seats=self.seats)

    @property
    def rate_per_s(self) -> float:
        """Requests per second, a collective one counted once."""
        work = _mean_work(self.lengths, self.weights)
        return self.load * capacity_tokens_per_s(self) / work.output_tokens

    @property
    def label(self) -> str:
        """For tables and settings."""
        return (
            f"{self.model}, {self.seats} seats, load {self.load:g}"
            f" ({self.rate_per_s:.2f} requests/s), {self.arrivals}"
        )

    @property
    def mix(self) -> str:
        """`3:1:1`; with best effort `3:1:1:1`."""
        weights = self.weights if self.weights[3] else self.weights[:3]
        return ":".join(f"{weight:g}" for weight in weights)

    @property
    def brief(self) -> str:
        """What sets it apart from 8B, batch 16, the paper's mix and SLOs, Poisson arrivals."""
        usual = Case()
        told = [f"load {self.load:g}"]
        told += [f"{self.seats} seats"] if self.seats != usual.seats else []
        told += [self.model] if self.model != usual.model else []
        told += ["long answers"] if self.lengths != usual.lengths else []
        told += [self.mix] if self.weights != usual.weights else []
        told += [self.arrivals] if self.arrivals != usual.arrivals else []
        told += [f"SLO x{self.slo_scale:g}"] if self.slo_scale != usual.slo_scale else []
        told += [f"{self.span_s / 60.0:g} min"] if self.span_s != usual.span_s else []
        return ", ".join(told)

    @property
    def key(self) -> str:
        """Unique."""
        return (
            f"{self.model} {self.seats} {self.load:g} {self.lengths} {self.mix}"
            f" {self.arrivals} x{self.slo_scale:g} {self.span_s:g}s"
        )

    def trace(self, seed: int) -> list[TraceWorkflow]:
        """What comes within the span, with SLOs."""
        latency, throughput, collective, best_effort = self.weights
        mix = tempo_mix(
            LENGTHS[self.lengths],
            latency=latency,
            throughput=throughput,
            collective=collective,
            best_effort=best_effort,
        )
        drawn = make_trace(
            mix,
            ARRIVALS[self.arrivals],
            rate_per_s=self.rate_per_s,
            seed=seed,
            duration_s=self.span_s,
        )
        return with_slos(drawn, self.slo_scale)


_SAMPLE = 4000


@lru_cache(maxsize=64)
def _mean_work(lengths: str, weights: Weights) -> MeanWork:
    """Means of a mix, from a sample."""
    latency, throughput, collective, best_effort = weights
    mix = tempo_mix(
        LENGTHS[lengths],
        latency=latency,
        throughput=throughput,
        collective=collective,
        best_effort=best_effort,
    )
    return mean_work(
        make_trace(mix, ARRIVALS["poisson"], rate_per_s=1.0, seed=SAMPLE_SEED, count=_SAMPLE)
    )


def capacity_tokens_per_s(case: Case) -> float:
    """Output tokens per second of the case's engine with every seat decoding."""
    (engine,) = case.fleet.engines()
    context_tokens = _mean_work(case.lengths, case.weights).context_tokens
    return case.seats / decode_s(engine.config, case.seats, context_tokens)


def with_slos(trace: Trace, scale: float = 1.0) -> list[TraceWorkflow]:
    """Promise what the paper promises, by class; to best effort nothing."""
    return [_promised(workflow, scale) for workflow in trace]


def _promised(workflow: TraceWorkflow, scale: float) -> TraceWorkflow:
    call_class = workflow.calls[0].call_class
    if call_class is CallClass.BEST_EFFORT:
        return workflow
    if call_class is CallClass.LATENCY:
        streams = tuple(
            replace(call, slo_ttft_s=TTFT_S * scale, slo_tpot_s=TPOT_S * scale)
            for call in workflow.calls
        )
        return replace(workflow, calls=streams)
    return replace(workflow, slo_s=TTLT_S * scale * stages_of(workflow))


def stages_of(workflow: TraceWorkflow) -> int:
    """Stages one after another: calls side by side are one, a repeated stage counts each time."""
    depth: dict[str, int] = {}
    for call in workflow.calls:
        depth[call.call_id] = 1 + max((depth[parent] for parent in call.parents), default=0)
    return max(depth.values())


Lengths = Literal["rolling", "oracle", "none"]
"""What tells of lengths: rolling quantiles, as the gateway begins; the truth; a prior alone."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A scheduler with what it knows."""

    label: str
    policy: str
    params: tuple[tuple[str, str | float | bool], ...] = ()
    lengths: Lengths = "rolling"
    structure: Structure = Structure.GRAPHS
    """What tells of the rest of a request."""
