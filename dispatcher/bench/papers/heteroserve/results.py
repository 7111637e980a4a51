"""Plays every case under every contender from every seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from dispatcher.bench.claims import ExperimentOptions
from dispatcher.bench.papers.heteroserve import experiments
from dispatcher.bench.papers.heteroserve.cases import Case, Contender
from dispatcher.bench.papers.heteroserve.decisions import DecisionTimes, decision_times
from dispatcher.bench.papers.heteroserve.play import figures_of
from dispatcher.bench.report import Figures
from dispatcher.bench.run import in_workers

TOKENS, ATTAINMENT, P95 = "tokens_per_s", "attainment", "ttft_p95_s"
STEADY = "steady_tokens_per_s"


class Measured:
    """A figure, once for each seed."""

    def __init__(self, values: Sequence[float]) -> None:
        self.values = tuple(values)
        self.mean = statistics.fmean(values)
        self.deviation = statistics.stdev(values) if len(values) > 1 else 0.0


class Results:
    """Figures of every play, by case, contender and seed; and what decisions take."""

    def __init__(self, options: ExperimentOptions) -> None:
        self.seeds = options.seeds
        self.pairs = experiments.every_pair()
        plays = [(case, one, seed) for case, one in self.pairs for seed in self.seeds_of(case)]
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
        self._of = dict(zip(plays, found, strict=True))

    def seeds_of(self, case: Case) -> tuple[int, ...]:
        """What a case is played from."""
        return self.seeds if case == experiments.MAIN else self.seeds[: experiments.FEWER_SEEDS]

    def figures(self, case: Case, contender: Contender) -> list[Figures]:
        """One for each seed."""
        return [self._of[case, contender, seed] for seed in self.seeds_of(case)]

    def measured(self, case: Case, contender: Contender, of: str) -> Measured:
        """A figure of a contender."""
        return Measured([_value(found[of]) for found in self.figures(case, contender)])

    def mean(self, case: Case, contender: Contender, of: str) -> float:
        """Over seeds."""
        return self.measured(case, contender, of).mean

    def ratio(self, case: Case, over: Contender, under: Contender, of: str) -> Measured:
        """One contender's figure over another's, of the same requests."""
        pairs = zip(self.figures(case, over), self.figures(case, under), strict=True)
        return Measured([_over(_value(a[of]), _value(b[of])) for a, b in pairs])

    def difference(self, case: Case, more: Contender, less: Contender, of: str) -> Measured:
        """One contender's figure less another's, of the same requests."""
        pairs = zip(self.figures(case, more), self.figures(case, less), strict=True)
        return Measured([_value(a[of]) - _value(b[of]) for a, b in pairs])


def _value(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _over(over: float, under: float) -> float:
    """A ratio to nothing says no more than that it is large."""
    return over / under if under > 0.0 else float("inf")


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
