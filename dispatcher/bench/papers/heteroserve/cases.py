"""Where schedulers are compared in HeteroServe's section 4, and with what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from dispatcher.bench.fleets import Fleet, Hardware
from dispatcher.bench.mean_work import SAMPLE_SEED, MeanWork, decode_s, mean_work
from dispatcher.core.gpu_profiles import gpu_profile, model_profile
from dispatcher.engine_model import Roofline
from dispatcher.simulator import SimulatedEngine
from dispatcher.simulator.workloads import ARRIVALS, make_trace
from dispatcher.simulator.workloads.heteroserve import HETEROSERVE, MixedLengths, PromptLaw
from dispatcher.traces import TraceWorkflow

SLO_TTFT_S = 0.5
"""Section 4.1; what is asked of every request, and what attainment is the share of."""
SIZE = "13b"
SEATS = 256
"""`max_num_seqs`, vLLM's own default: memory is what bounds the batch of a 13B model here."""

PAPER_TOKENS_PER_S: Mapping[str, float] = {"H100": 31_700.0, "A100-80G": 10_000.0, "L40S": 11_600.0}
"""Prefill of one GPU (Table 4)."""
MIX = ("H100", "A100-80G", "A100-80G", "L40S")
"""A quarter of the fleet's kinds: 1 : 2 : 1 (section 4.7)."""

Rates = Literal["roofline", "paper"]


@dataclass(frozen=True, slots=True)
class Case:
    """Where schedulers are compared: a fleet, and what comes to it."""

    load: float = 1.0
    """Requests per second over those that the fleet can serve: see `saturation_per_s`."""
    law: PromptLaw = "lognormal"
    median_prompt_tokens: float = 512.0
    mean_output_tokens: float = 256.0
    devices: int = 8
    """A multiple of four."""
    count: int = 10_000
    """Requests."""
    rates: Rates = "roofline"
    """Of prefill: the engine model's own, or those of the paper's Table 4."""

    @property
    def workload(self) -> MixedLengths:
        """What comes."""
        return replace(
            HETEROSERVE,
            law=self.law,
            median_prompt_tokens=self.median_prompt_tokens,
            mean_output_tokens=self.mean_output_tokens,
        )

    @property
    def fleet(self) -> Fleet:
        """As schedulers know it."""
        quarter = self.devices // len(MIX)
        kinds = dict.fromkeys(MIX)
        hardware = [Hardware(gpu) for gpu in kinds for _ in range(quarter * MIX.count(gpu))]
        return Fleet(f"heteroserve-{self.devices}", SIZE, tuple(hardware), SEATS)

    def engines(self) -> list[SimulatedEngine]:
        """The fleet as it is played."""
        engines = self.fleet.engines()
        return engines if self.rates == "roofline" else [_at_paper_rates(e) for e in engines]

    @property
    def rate_per_s(self) -> float:
        """Requests per second."""
        return self.load * saturation_per_s(self)

    @property
    def mix(self) -> str:
        """Lengths, in words."""
        if self.law == "bimodal":
            return "bimodal"
        return f"prompts {self.median_prompt_tokens:g}, answers {self.mean_output_tokens:g}"

    @property
    def label(self) -> str:
        """For tables and settings."""
        rates = ", the paper's prefill rates" if self.rates == "paper" else ""
        return (
            f"{self.devices} devices, {self.mix}, load {self.load:g} ({self.rate_per_s:.1f}"
            f" requests/s), {self.count:,} requests{rates}"
        )

    @property
    def key(self) -> str:
        """Unique."""
        return f"{self.devices} {self.mix} {self.load:g} {self.count} {self.rates}"

    def trace(self, seed: int) -> list[TraceWorkflow]:
        """What comes, each with the SLO; the same to every contender."""
        drawn = make_trace(
            self.workload,
            ARRIVALS["poisson"],
            rate_per_s=self.rate_per_s,
            seed=seed,
            count=self.count,
        )
        return [
            replace(one, calls=tuple(replace(c, slo_ttft_s=SLO_TTFT_S) for c in one.calls))
            for one in drawn
        ]


def _at_paper_rates(engine: SimulatedEngine) -> SimulatedEngine:
    """The engine with matrix products as fast as Table 4 has them; memory stays as it is."""
    gpu, model = gpu_profile(engine.spec.gpu or ""), model_profile(SIZE)
    flops_per_s = PAPER_TOKENS_PER_S[gpu.name] * model.flops_per_token
    faster = replace(gpu, compute_efficiency=flops_per_s / (gpu.bf16_dense_tflops * 1e12))
    config = replace(engine.config, timing=Roofline(faster, model))
    profile = engine.spec.profile
    if profile is not None:
        per_token_s = profile.prefill_s_per_token * gpu.flops_per_s / faster.flops_per_s
        profile = replace(profile, prefill_s_per_token=per_token_s)
    return replace(engine, config=config, spec=replace(engine.spec, profile=profile))


_SAMPLE = 20_000


@lru_cache(maxsize=64)
def work_of(workload: MixedLengths) -> MeanWork:
    """Means of a workload, from a sample."""
    return mean_work(
        make_trace(workload, ARRIVALS["poisson"], rate_per_s=1.0, seed=SAMPLE_SEED, count=_SAMPLE)
    )


def saturation_per_s(case: Case) -> float:
    """Requests per second that the fleet serves with every engine's KV cache full of requests.

    One engine holds n of them. While each of the n makes its answer, n others' prompts have to be
    computed, between whose chunks the n decode: so n requests take `answer` decode iterations and n
    prefills. Iterations that compute prompts are bound by computing, the others by memory, so
    neither hides the other.
    """
    work = work_of(case.workload)
    return sum(_engine_rate_per_s(engine, work) for engine in case.engines())


def _engine_rate_per_s(engine: SimulatedEngine, work: MeanWork) -> float:
    config = engine.config
    context = work.context_tokens + config.block_size / 2.0
    running = min(float(config.max_num_seqs), config.kv_capacity_tokens / context)
    decoding_s = work.output_tokens * decode_s(config, running, work.context_tokens)
    return running / (decoding_s + running * work.prompt_tokens / prefill_tokens_per_s(engine))


def prefill_tokens_per_s(engine: SimulatedEngine) -> float:
    """Prompt tokens per second of prompts computed one after another, in whole chunks."""
    chunk = engine.config.max_num_batched_tokens
    tokens = min(chunk, 2048)
    return tokens / engine.config.timing.iteration_s(1, tokens, tokens, tokens * tokens / 2.0, 1)


Lengths = Literal["rolling", "oracle"]
"""What tells of answers' lengths: rolling quantiles, as the gateway begins, or the truth."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A scheduler with what it knows."""

    label: str
    policy: str
    params: tuple[tuple[str, str | float | bool], ...] = ()
    lengths: Lengths = "rolling"
