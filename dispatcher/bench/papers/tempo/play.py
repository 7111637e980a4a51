"""Simulates one contender on one case from one seed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from dispatcher.bench.papers.tempo.cases import Case, Contender
from dispatcher.bench.papers.tempo.scoring import Request, requests_of, score
from dispatcher.bench.report import Figures
from dispatcher.bench.run import WARM_UP_POLICY
from dispatcher.bench.work import WARM_UP_SEED_AFTER
from dispatcher.core.ports import LengthPredictor
from dispatcher.simulator import Experience, simulate
from dispatcher.simulator.oracle import Oracle
from dispatcher.traces import Played, Trace
from predictors.rolling_quantiles import RollingQuantiles, RollingQuantilesSettings
from workflows.settings import Structure, TrackerSettings

WARM_UP_S = 600.0
WARM_UP_LOAD = 0.7
"""What schedulers have learned from before they are compared: a time in which nothing piles up."""
_NEVER = 2**62
"""Samples after which a predictor that only knows its prior would speak of what it has seen."""


@lru_cache(maxsize=8)
def _learned(case: Case, seed: int) -> Experience:
    trace = case.trace(seed)
    graphs = TrackerSettings(structure=Structure.GRAPHS)
    engines = case.fleet.engines()
    return simulate(trace, engines, policy=WARM_UP_POLICY, seed=seed, tracker=graphs).learned


def learned_before(case: Case, seed: int) -> Experience:
    """What is known when a case begins: of its engine, lengths and structures, at an easy load."""
    easy = Case(
        load=WARM_UP_LOAD,
        seats=case.seats,
        model=case.model,
        lengths=case.lengths,
        weights=case.weights,
        span_s=WARM_UP_S,
    )
    return _learned(easy, seed + WARM_UP_SEED_AFTER)


def predictor_of(contender: Contender, trace: Trace) -> LengthPredictor | None:
    """What tells it of lengths; `None`: the gateway's usual one."""
    if contender.lengths == "oracle":
        return Oracle(trace)
    if contender.lengths == "none":
        return RollingQuantiles(RollingQuantilesSettings(min_samples=_NEVER))
    return None


def play(case: Case, contender: Contender, seed: int) -> tuple[Trace, Played]:
    """Simulate; the same arguments give the same, bit by bit."""
    trace = case.trace(seed)
    played = simulate(
        trace,
        case.fleet.engines(),
        policy=contender.policy,
        params=dict(contender.params),
        seed=seed,
        learned=learned_before(case, seed),
        lengths=predictor_of(contender, trace),
        tracker=TrackerSettings(structure=contender.structure),
        until_s=case.span_s,
    ).played
    return trace, played


def requests(case: Case, contender: Contender, seed: int, penalty: float = 1.0) -> list[Request]:
    """What became of every request."""
    trace, played = play(case, contender, seed)
    return requests_of(trace, played, penalty=penalty)


def figures_of(task: tuple[Case, Contender, int, Sequence[float]]) -> Figures:
    """Figures of one play; gains under further penalties beside them.

    Args:
        task: Case, contender, seed, and penalties of the degradation function beside 1.
    """
    case, contender, seed, penalties = task
    trace, played = play(case, contender, seed)
    found = score(requests_of(trace, played), played.calls, case.span_s)
    found["gain_by_penalty"] = {
        f"{penalty:g}": score(
            requests_of(trace, played, penalty=penalty), played.calls, case.span_s
        )["gain_per_s"]
        for penalty in penalties
    }
    return found
