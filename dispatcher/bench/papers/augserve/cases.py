"""Where AugServe is compared in its section 5, and with what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import median

from dispatcher.bench.mean_work import SAMPLE_SEED, decode_s, mean_work
from dispatcher.bench.papers.augserve.engine_control import BETA_HIGH, ContextControl
from dispatcher.core.gpu_profiles import model_profile
from dispatcher.simulator import EnginePlayer, SimulatedEngine, simulated_engine
from dispatcher.simulator.fleet import BLOCK_TOKENS
from dispatcher.simulator.workloads import WORKLOADS, Gamma, Poisson, make_trace, scaled
from dispatcher.traces import TraceWorkflow

SEATS = 256
"""vLLM's `max_num_seqs`: memory ends a batch long before. No scheduler here is held back by it."""
BATCH_TOKENS = 2048
"""Tokens of an iteration, of all but those that change it: the best of the paper's Table 1 lie at
500 to 1,500, and vLLM's default of that time is near 2,048."""
ITERATIONS = 10.0
"""Of the engine: SLO of a token's normalised latency (section 5.1)."""


HOST_GB = 64.0
"""Memory that contexts are swapped to, 10^9 bytes: as in InferCept's scripts for 13B."""


@dataclass(frozen=True, slots=True)
class Abilities:
    """What an engine can do with the context of a request whose tool runs.

    Without a prefix cache every answer's context is discarded, as by the vLLM of the paper; with
    one it stays until its room is needed, and with host memory it falls there then. vLLM of today
    has both (`--kv-offloading-size`). What is made for tools decides itself (`engine_control`),
    which no engine of today does.
    """

    prefix_cache: bool = True
    host_memory: bool = False
    for_tools: bool = False
    """It preserves, discards or swaps each context as wastes least."""
    token_limit: bool = False
    """It changes the tokens of an iteration with the memory that is free."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """One engine."""

    label: str
    gpu: str
    size: str


H800 = Hardware("13B on H800", "H100", "13b")
"""An H800 computes as an H100 does; only its links are slower, and one GPU has none. The model is
the 13B profile (Llama-2-13B: 40 layers of width 5,120 with 40 heads, as OPT-13B has)."""
RTX4090 = Hardware("GPT-J-6B on RTX 4090", "RTX4090", "gpt-j-6b")
"""Its window has 2,048 tokens: the lengths of longer requests are scaled down until they fit."""


@dataclass(frozen=True, slots=True)
class Case:
    """What comes to an engine."""

    workload: str
    rate_per_s: float
    cv: float = 1.0
    """Of the gaps between arrivals; 1: Poisson."""
    span_s: float = 600.0
    """Time that is looked at, and in which requests come (W1, W3)."""
    count: int | None = None
    """Requests, all of which are awaited, instead of a span (W2)."""
    hardware: Hardware = H800

    @property
    def key(self) -> str:
        """Unique."""
        how = f"{self.span_s:g}s" if self.count is None else f"{self.count} requests"
        return f"{self.hardware.gpu} {self.workload} {self.rate_per_s:g}/s cv{self.cv:g} {how}"

    @property
    def brief(self) -> str:
        """For notes."""
        told = f"{self.workload} {self.rate_per_s:g}/s"
        told += f", CV {self.cv:g}" if self.cv != 1.0 else ""
        told += f", {self.count} requests" if self.count is not None else ""
        return told if self.hardware == H800 else f"{told}, {self.hardware.label}"

    def trace(self, seed: int) -> list[TraceWorkflow]:
        """What comes."""
        drawn = make_trace(
            WORKLOADS[self.workload],
            Poisson() if self.cv == 1.0 else Gamma(self.cv),
            rate_per_s=self.rate_per_s,
            seed=seed,
            count=self.count,
            duration_s=None if self.count is not None else self.span_s,
        )
        return scaled(drawn, max_context_tokens=model_profile(self.hardware.size).max_model_len)

    def engine(self, abilities: Abilities) -> SimulatedEngine:
        """What it comes to."""
        return engine_of(self.hardware, self.workload, abilities)

    @property
    def token_s(self) -> float:
        """SLO of the normalised latency: ten iterations."""
        return ITERATIONS * iteration_s(self.hardware, self.workload)

    @property
    def strict_token_s(self) -> float:
        """The same of an engine that serves nobody else."""
        return ITERATIONS * iteration_s(self.hardware, self.workload, full=False)


def engine_of(hardware: Hardware, workload: str, abilities: Abilities) -> SimulatedEngine:
    """One engine, launched as the paper's are as far as that is told."""
    kv_bytes = model_profile(hardware.size).kv_bytes_per_token
    host_tokens = HOST_GB * 1e9 / kv_bytes if abilities.host_memory else 0.0
    engine = simulated_engine(
        "engine-0",
        hardware.gpu,
        size=hardware.size,
        seats=SEATS,
        max_num_batched_tokens=int(BATCH_TOKENS * (BETA_HIGH if abilities.token_limit else 1.0)),
        enable_prefix_caching=abilities.prefix_cache,
        enable_preserve=abilities.for_tools,
        offload_blocks=int(host_tokens / BLOCK_TOKENS),
    )
    if not abilities.for_tools:
        return engine
    gaps_s = usual_gaps_s(hardware, workload)
    batch_tokens = BATCH_TOKENS if abilities.token_limit else None

    def control(player: EnginePlayer) -> ContextControl:
        return ContextControl(player, engine.config, gaps_s, batch_tokens=batch_tokens)

    return replace(engine, control=control)


_SAMPLE = 1000


@lru_cache(maxsize=8)
def usual_gaps_s(hardware: Hardware, workload: str) -> Mapping[str, float]:
    """Median time of each tool, of another seed than any that is played."""
    found: dict[str, list[float]] = {}
    for workflow in Case(workload, 1.0, count=_SAMPLE, hardware=hardware).trace(SAMPLE_SEED):
        for call in workflow.calls:
            if call.tool is not None:
                found.setdefault(call.tool, []).append(call.gap_s)
    return {tool: median(gaps) for tool, gaps in found.items()}


@lru_cache(maxsize=8)
def mean_context_tokens(hardware: Hardware, workload: str) -> float:
    """Context of a call while it decodes, in the mean of all tokens that are generated."""
    drawn = Case(workload, 1.0, count=_SAMPLE, hardware=hardware).trace(SAMPLE_SEED)
    return mean_work(drawn).context_tokens


def iteration_s(hardware: Hardware, workload: str, *, full: bool = True) -> float:
    """Time of one iteration: the KV cache is full of requests that decode, or one is alone."""
    config = engine_of(hardware, workload, Abilities()).config
    context = mean_context_tokens(hardware, workload)
    running = min(SEATS, int(config.kv_capacity_tokens / context)) if full else 1
    return decode_s(config, running, context)


@dataclass(frozen=True, slots=True)
class Contender:
    """A scheduler, and what the engine behind it can do."""

    label: str
    policy: str
    params: tuple[tuple[str, str | float | bool], ...] = ()
    abilities: Abilities = Abilities()

    def described(self) -> Mapping[str, object]:
        """As plain JSON values."""
        return {
            "policy": self.policy,
            "params": dict(self.params),
            "prefix_cache": self.abilities.prefix_cache,
            "host_memory": self.abilities.host_memory,
            "engine_for_tools": self.abilities.for_tools,
            "token_limit": self.abilities.token_limit,
        }
