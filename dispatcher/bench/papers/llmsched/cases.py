"""Where schedulers are compared in LLMSched's section V, and with what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from dispatcher.bench.fleets import Fleet, Hardware
from dispatcher.bench.mean_work import SAMPLE_SEED, MeanWork, decode_s, mean_work
from dispatcher.core.workflow_types import StagePlan
from dispatcher.simulator.workloads import Mixed, Poisson, make_trace
from dispatcher.simulator.workloads.llmsched import (
    APPLICATIONS,
    LLMSCHED,
    LLMSCHED_CHAINS,
    LLMSCHED_PLANNING,
    LLMSCHED_PREDEFINED,
)
from dispatcher.traces import TraceWorkflow

RATE_PER_S = 0.9
"""Jobs; section V's moderately loaded cluster."""
JOBS = 300
LOAD = 0.85
"""Seconds of seats that the jobs of a second need, over seats, at `RATE_PER_S`."""
NEAR = 0.04
"""Loads that differ by less count as equally near: seats are whole."""
GPU = "H100"
"""An H800 computes as an H100 does; only its links are slower, and one GPU has none."""
SIZE = "7b"
MOST_SEATS = 16
"""Of one engine: the largest batch."""
MIXES: Mapping[str, Mixed] = {
    "mixed": LLMSCHED,
    "predefined": LLMSCHED_PREDEFINED,
    "chain-like": LLMSCHED_CHAINS,
    "planning": LLMSCHED_PLANNING,
}
DECLARED: Mapping[str, tuple[StagePlan, ...]] = {
    name: application.stages for name, application in APPLICATIONS.items()
}
"""What applications are made of (Fig. 4): known beforehand, as to the paper's schedulers."""


@dataclass(frozen=True, slots=True)
class Case:
    """What comes to the engines of a mix."""

    mix: str
    rate_per_s: float = RATE_PER_S
    """Engines are those that `RATE_PER_S` wants, whatever comes."""
    jobs: int = JOBS

    @property
    def key(self) -> str:
        """Unique."""
        return f"{self.mix} {self.rate_per_s:g}/s {self.jobs}"

    @property
    def fleet(self) -> Fleet:
        """What it comes to."""
        return fleet_of(self.mix)

    @property
    def load(self) -> float:
        """Of its engines, in the long run."""
        fleet = self.fleet
        seats = len(fleet.hardware) * fleet.seats
        return self.rate_per_s * seat_s(self.mix, fleet.seats) / seats

    @property
    def label(self) -> str:
        """For tables and settings."""
        fleet = self.fleet
        return (
            f"{self.mix}: {self.jobs} jobs, Poisson {self.rate_per_s:g}/s, {len(fleet.hardware)}"
            f" x Llama-3.1-8B on H800 with {fleet.seats} seats each (load {self.load:.2f})"
        )

    def trace(self, seed: int) -> list[TraceWorkflow]:
        """What comes; the same to every contender."""
        return make_trace(
            MIXES[self.mix], Poisson(), rate_per_s=self.rate_per_s, seed=seed, count=self.jobs
        )


_SAMPLE = 1_200


@lru_cache(maxsize=8)
def work_of(mix: str) -> MeanWork:
    """Means of a mix, from a sample."""
    return mean_work(
        make_trace(MIXES[mix], Poisson(), rate_per_s=1.0, seed=SAMPLE_SEED, count=_SAMPLE)
    )


@lru_cache(maxsize=256)
def seat_s(mix: str, seats: int) -> float:
    """Seconds for which a job of a mix has a seat, all its calls together, on full engines.

    While one call decodes, prompts of the others in its batch are computed in between.
    """
    (engine,) = Fleet("probe", SIZE, (Hardware(GPU),), seats).engines()
    work, timing = work_of(mix), engine.config.timing
    token_s = decode_s(engine.config, seats, work.context_tokens)
    chunk = 2048
    prefill_s = timing.iteration_s(1, chunk, chunk, chunk * chunk / 2.0, 1) / chunk
    return work.output_tokens * token_s + seats * work.prompt_tokens * prefill_s


@lru_cache(maxsize=8)
def fleet_of(mix: str) -> Fleet:
    """At least two engines with as many seats as bring the mix nearest to `LOAD`.

    Of those equally near, the one of fewest engines.
    """
    choices = [(count, seats) for count in range(2, 11) for seats in range(1, MOST_SEATS + 1)]

    def off(choice: tuple[int, int]) -> tuple[int, int]:
        count, seats = choice
        load = RATE_PER_S * seat_s(mix, seats) / (count * seats)
        return (round(abs(load - LOAD) / NEAR), count)

    count, seats = min(choices, key=off)
    return Fleet(f"llmsched-{mix}", SIZE, (Hardware(GPU),) * count, seats)


@dataclass(frozen=True, slots=True)
class Contender:
    """A scheduler."""

    label: str
    policy: str
    params: tuple[tuple[str, str | float | bool], ...] = ()
