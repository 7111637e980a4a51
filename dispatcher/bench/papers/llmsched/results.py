"""Plays every case under every contender from every seed."""

from __future__ import annotations

from dispatcher.bench.claims import ExperimentOptions
from dispatcher.bench.over_seeds import PairedPlays
from dispatcher.bench.papers.llmsched import experiments
from dispatcher.bench.papers.llmsched.cases import Case, Contender
from dispatcher.bench.papers.llmsched.overhead import Overhead, overhead_of
from dispatcher.bench.papers.llmsched.play import figures_of
from dispatcher.bench.run import in_workers

JCT = "jct_s"


class Results(PairedPlays[Case, Contender]):
    """Figures of every play, by case, contender and seed; and what decisions take."""

    def __init__(self, options: ExperimentOptions) -> None:
        pairs = experiments.every_pair()
        plays = [
            (case, one, seed) for case, one in pairs for seed in _seeds_of(case, options.seeds)
        ]
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
        super().__init__(pairs, dict(zip(plays, found, strict=True)))


def _seeds_of(case: Case, seeds: tuple[int, ...]) -> tuple[int, ...]:
    """What a case is played from."""
    return seeds if case in experiments.MAIN_CASES else seeds[: experiments.FEWER_SEEDS]
