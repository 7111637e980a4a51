"""Plays every case under every contender from every seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence

from dispatcher.bench.claims import ExperimentOptions
from dispatcher.bench.papers.augserve import experiments
from dispatcher.bench.papers.augserve.cases import Case, Contender
from dispatcher.bench.papers.augserve.play import figures_of
from dispatcher.bench.report import Figures
from dispatcher.bench.run import in_workers

GOODPUT = "goodput_per_s"
Figure = str | Callable[[Figures], float]
"""A figure by name, or what finds it."""


class Measured:
    """A figure, once for each seed."""

    def __init__(self, values: Sequence[float]) -> None:
        self.values = tuple(values)
        self.mean = statistics.fmean(values)
        self.deviation = statistics.stdev(values) if len(values) > 1 else 0.0


def span(found: Sequence[Measured]) -> tuple[float, float]:
    """Lowest and highest mean."""
    means = [round(one.mean, 3) for one in found]
    return min(means), max(means)


def noise(found: Sequence[Measured]) -> float:
    """The highest standard deviation over seeds."""
    return round(max(one.deviation for one in found), 3)


def told(ratios: Sequence[Measured], cases: Sequence[Case]) -> str:
    """Each of them, in words."""
    return ", ".join(
        f"{case.brief} {one.mean:.2f}" for case, one in zip(cases, ratios, strict=True)
    )


CROWDED = 0.5
"""Share of what came that is served well, below which vLLM counts as overrun."""


class Results:
    """Figures of every play, by case, contender and seed."""

    def __init__(self, options: ExperimentOptions) -> None:
        self.seeds = options.seeds
        self.pairs = experiments.every_pair()
        plays = [(case, one, seed) for case, one in self.pairs for seed in self.seeds]
        # the largest first, so that no worker is left with one in the end
        plays.sort(key=_work, reverse=True)
        options.on_steps(len(plays))
        found = in_workers(figures_of, plays, jobs=options.jobs, on_result=options.on_step)
        self._of = dict(zip(plays, found, strict=True))

    def figures(self, case: Case, contender: Contender) -> list[Figures]:
        """One for each seed."""
        return [self._of[case, contender, seed] for seed in self.seeds]

    def measured(self, case: Case, contender: Contender, of: Figure) -> Measured:
        """A figure of a contender."""
        return Measured([_value(found, of) for found in self.figures(case, contender)])

    def ratio(self, case: Case, over: Contender, under: Contender, of: Figure) -> Measured:
        """One contender's figure over another's, of the same traces."""
        pairs = zip(self.figures(case, over), self.figures(case, under), strict=True)
        return Measured([_over(_value(a, of), _value(b, of)) for a, b in pairs])

    def overrun(self, cases: Iterable[Case]) -> list[Case]:
        """Those in which vLLM serves less than half of what comes as it should."""
        return [
            case for case in cases if self.measured(case, experiments.VLLM, "of_all").mean < CROWDED
        ]


def _work(play: tuple[Case, Contender, int]) -> float:
    """Requests, about."""
    case = play[0]
    return case.rate_per_s * case.span_s if case.count is None else float(case.count)


def _value(found: Figures, of: Figure) -> float:
    if not isinstance(of, str):
        return of(found)
    value = found[of]
    return math.nan if value is None else float(value)


def _over(over: float, under: float) -> float:
    """A ratio to nothing says no more than that it is large."""
    return over / under if under > 0.0 else float("inf")


def part_of(name: str, part: str = "mean") -> Callable[[Figures], float]:
    """The mean of a figure that has a spread, or another part of it."""

    def found(figures: Figures) -> float:
        value = figures[name][part]
        return math.nan if value is None else float(value)

    return found
