"""Where schedulers are compared in LLMSched's section V, and with what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from dispatcher.bench.fleets import Fleet, Hardware
from dispatcher.bench.mean_work import SAMPLE_SEED, MeanWork, mean_work
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
"""Share of seats in use, on average, that section V configures executors for."""
GPU = "H100"
"""An H800 computes as an H100 does; only its links are slower, and one GPU has none."""
SIZE = "7b"
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
class Engines:
    """What a mix comes to."""

    count: int
    seats: int
    """Of each."""
    load: float
    """Share of seats in use over `LONG_RUN` jobs at `RATE_PER_S`, first come, first served."""


LONG_RUN = 1_500
LONG_RUN_SEED = 7_000_003
"""Another than any that schedulers are compared on."""
ENGINES: Mapping[str, Engines] = {
    "mixed": Engines(4, 2, 0.87),
    "predefined": Engines(4, 6, 0.85),
    "chain-like": Engines(3, 1, 0.81),
    "planning": Engines(2, 1, 0.86),
}
"""Those of two to five engines, of at most 16 seats each, with whose load `LOAD` was met best."""


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
        engines = ENGINES[self.mix]
        hardware = (Hardware(GPU),) * engines.count
        return Fleet(f"llmsched-{self.mix}", SIZE, hardware, engines.seats)

    @property
    def label(self) -> str:
        """For tables and settings."""
        engines = ENGINES[self.mix]
        return (
            f"{self.mix}: {self.jobs} jobs, Poisson {self.rate_per_s:g}/s, {engines.count} x"
            f" Llama-3.1-8B on H800 with {engines.seats} seats each"
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


@dataclass(frozen=True, slots=True)
class Contender:
    """A scheduler."""

    label: str
    policy: str
    params: tuple[tuple[str, str | float | bool], ...] = ()
