"""Plays every case under every contender from every seed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from dispatcher.bench.claims import ExperimentOptions
from dispatcher.bench.papers.llmsched import experiments
from dispatcher.bench.papers.llmsched.cases import Case, Contender
from dispatcher.bench.papers.llmsched.overhead import Overhead, overhead_of
from dispatcher.bench.papers.llmsched.play import figures_of
from dispatcher.bench.report import Figures
from dispatcher.bench.run import in_workers

JCT = "jct_s"


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
        # those of one mix together: each worker learns a mix once
        plays.sort(key=lambda play: (play[0].mix != "predefined", play[0].mix != "mixed"))
        mixes = experiments.MAIN_CASES
        timed = (experiments.LLMSCHED, experiments.FCFS, experiments.CARBYNE)
        options.on_steps(len(plays) + len(mixes) * len(timed))
        # before there is other work for the processor: these are times
        self.overheads: dict[tuple[Case, Contender], Overhead] = {}
        for case in mixes:
            for one in timed:
                self.overheads[case, one] = overhead_of(case, one)
                options.on_step()
        found = in_workers(figures_of, plays, jobs=options.jobs, on_result=options.on_step)
        self._of = dict(zip(plays, found, strict=True))

    def seeds_of(self, case: Case) -> tuple[int, ...]:
        """What a case is played from."""
        main = case in experiments.MAIN_CASES
        return self.seeds if main else self.seeds[: experiments.FEWER_SEEDS]

    def figures(self, case: Case, contender: Contender) -> list[Figures]:
        """One for each seed."""
        return [self._of[case, contender, seed] for seed in self.seeds_of(case)]

    def measured(self, case: Case, contender: Contender, of: str = JCT) -> Measured:
        """A figure of a contender."""
        return Measured([float(found[of]) for found in self.figures(case, contender)])

    def cut(self, case: Case, ours: Contender, theirs: Contender) -> Measured:
        """Part of one contender's mean completion time that another one saves, job for job.

        Paired: each seed's against the same seed's.
        """
        pairs = zip(self.figures(case, ours), self.figures(case, theirs), strict=True)
        return Measured([1.0 - float(a[JCT]) / float(b[JCT]) for a, b in pairs])

    def excess(self, case: Case, other: Contender, ours: Contender) -> Measured:
        """How much longer jobs take under another contender, as a part of ours."""
        pairs = zip(self.figures(case, other), self.figures(case, ours), strict=True)
        return Measured([float(a[JCT]) / float(b[JCT]) - 1.0 for a, b in pairs])
