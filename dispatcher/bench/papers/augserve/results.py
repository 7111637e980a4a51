"""Plays every case under every contender from every seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from dispatcher.bench.claims import ExperimentOptions
from dispatcher.bench.over_seeds import Measured, PairedPlays, means_told
from dispatcher.bench.papers.augserve import experiments
from dispatcher.bench.papers.augserve.cases import Case, Contender
from dispatcher.bench.papers.augserve.play import figures_of
from dispatcher.bench.report import Figures
from dispatcher.bench.run import in_workers

GOODPUT = "goodput_per_s"
CROWDED = 0.5
"""Share of what came that is served well, below which vLLM counts as overrun."""


class Results(PairedPlays[Case, Contender]):
    """Figures of every play, by case, contender and seed."""

    def __init__(self, options: ExperimentOptions) -> None:
        pairs = experiments.every_pair()
        plays = [(case, one, seed) for case, one in pairs for seed in options.seeds]
        # the largest first, so that no worker is left with one in the end
        plays.sort(key=_work, reverse=True)
        options.on_steps(len(plays))
        found = in_workers(figures_of, plays, jobs=options.jobs, on_result=options.on_step)
        super().__init__(pairs, dict(zip(plays, found, strict=True)))

    def overrun(self, cases: Iterable[Case]) -> list[Case]:
        """Those in which vLLM serves less than half of what comes as it should."""
        return [
            case for case in cases if self.measured(case, experiments.VLLM, "of_all").mean < CROWDED
        ]


def _work(play: tuple[Case, Contender, int]) -> float:
    """Requests, about."""
    case = play[0]
    return case.rate_per_s * case.span_s if case.count is None else float(case.count)


def of_each(found: Sequence[Measured], cases: Sequence[Case]) -> str:
    """What each case came to, in words."""
    return means_told(found, (case.brief for case in cases))


def part_of(name: str, part: str = "mean") -> Callable[[Figures], float]:
    """The mean of a figure that has a spread, or another part of it."""

    def found(figures: Figures) -> float:
        value = figures[name][part]
        return math.nan if value is None else float(value)

    return found
