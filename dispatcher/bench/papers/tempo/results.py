"""Plays every case under every contender from every seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from dispatcher.bench.claims import ExperimentOptions
from dispatcher.bench.papers.tempo import experiments
from dispatcher.bench.papers.tempo.cases import Case, Contender
from dispatcher.bench.papers.tempo.play import figures_of
from dispatcher.bench.report import Figures
from dispatcher.bench.run import in_workers

GOODPUT, GAIN = "goodput_per_s", "gain_per_s"
TOKENS = "output_tokens_per_s"


class Measured:
    """A figure, once for each seed."""

    def __init__(self, values: Sequence[float]) -> None:
        self.values = tuple(values)
        self.mean = statistics.fmean(values)
        self.deviation = statistics.stdev(values) if len(values) > 1 else 0.0


class Results:
    """Figures of every play, by case, contender and seed."""

    def __init__(self, options: ExperimentOptions) -> None:
        self.seeds = options.seeds
        self.pairs = experiments.every_pair()
        plays = [(case, one, seed) for case, one in self.pairs for seed in self.seeds]
        # the longest first, so that no worker is left with one in the end
        plays.sort(key=lambda play: -play[0].span_s)
        options.on_steps(len(plays))
        tasks = [(case, one, seed, experiments.PENALTIES) for case, one, seed in plays]
        found = in_workers(figures_of, tasks, jobs=options.jobs, on_result=options.on_step)
        self._of = dict(zip(plays, found, strict=True))

    def figures(self, case: Case, contender: Contender) -> list[Figures]:
        """One for each seed."""
        return [self._of[case, contender, seed] for seed in self.seeds]

    def measured(
        self, case: Case, contender: Contender, of: str | Callable[[Figures], float]
    ) -> Measured:
        """A figure of a contender, by name or by what finds it."""
        return Measured([_value(found, of) for found in self.figures(case, contender)])

    def ratio(
        self,
        case: Case,
        over: Contender,
        under: Contender,
        of: str | Callable[[Figures], float],
    ) -> Measured:
        """One contender's figure over another's, of the same traces."""
        pairs = zip(self.figures(case, over), self.figures(case, under), strict=True)
        return Measured([_over(_value(a, of), _value(b, of)) for a, b in pairs])


def _value(found: Figures, of: str | Callable[[Figures], float]) -> float:
    if not isinstance(of, str):
        return of(found)
    value = found[of]
    return math.nan if value is None else float(value)


def _over(over: float, under: float) -> float:
    """A ratio to nothing says no more than that it is large."""
    return over / under if under > 0.0 else float("inf")


def drop(found: Figures) -> float:
    """What gain loses from the first sixth of the time to the last: ten minutes of an hour."""
    over_time = found["gain_over_time"]
    span = max(1, len(over_time) // 6)
    return 1.0 - float(sum(over_time[-span:]) / sum(over_time[:span]))
