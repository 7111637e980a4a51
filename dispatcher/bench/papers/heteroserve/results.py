"""Plays every case under every contender from every seed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from dispatcher.bench.claims import ExperimentOptions
from dispatcher.bench.over_seeds import PairedPlays
from dispatcher.bench.papers.heteroserve import experiments
from dispatcher.bench.papers.heteroserve.cases import Case, Contender
from dispatcher.bench.papers.heteroserve.decisions import DecisionTimes, decision_times
from dispatcher.bench.papers.heteroserve.play import figures_of
from dispatcher.bench.run import in_workers

TOKENS, ATTAINMENT, P95 = "tokens_per_s", "attainment", "ttft_p95_s"
STEADY = "steady_tokens_per_s"


class Results(PairedPlays[Case, Contender]):
    """Figures of every play, by case, contender and seed; and what decisions take."""

    def __init__(self, options: ExperimentOptions) -> None:
        pairs = experiments.every_pair()
        plays = [
            (case, one, seed) for case, one in pairs for seed in _seeds_of(case, options.seeds)
        ]
        # the longest first, so that no worker is left with one in the end
        plays.sort(key=lambda play: -play[0].count)
        fleets = experiments.DECISION_DEVICES
        options.on_steps(len(plays) + len(fleets))
        # before there is other work for the processor: these are times
        self.decisions: dict[int, DecisionTimes] = {}
        for devices in fleets:
            self.decisions[devices] = decision_times(experiments.HETEROSERVE, devices)
            options.on_step()
        found = in_workers(figures_of, plays, jobs=options.jobs, on_result=options.on_step)
        super().__init__(pairs, dict(zip(plays, found, strict=True)))


def _seeds_of(case: Case, seeds: tuple[int, ...]) -> tuple[int, ...]:
    """What a case is played from."""
    return seeds if case == experiments.MAIN else seeds[: experiments.FEWER_SEEDS]


def linear_fit(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Slope of the least-squares line through points, and R^2, the share of variance it explains.

    Args:
        points: At least two of different x.

    Example:
        >>> linear_fit([(1.0, 2.0), (2.0, 4.0), (3.0, 6.0)])
        (2.0, 1.0)
    """
    mean_x = statistics.fmean(x for x, _ in points)
    mean_y = statistics.fmean(y for _, y in points)
    xx = sum((x - mean_x) ** 2 for x, _ in points)
    xy = sum((x - mean_x) * (y - mean_y) for x, y in points)
    yy = sum((y - mean_y) ** 2 for _, y in points)
    return xy / xx, 1.0 if yy == 0.0 else xy * xy / (xx * yy)
