"""Plays every case under every contender from every seed."""

from __future__ import annotations

from dispatcher.bench.claims import ExperimentOptions
from dispatcher.bench.over_seeds import PairedPlays
from dispatcher.bench.papers.tempo import experiments
from dispatcher.bench.papers.tempo.cases import Case, Contender
from dispatcher.bench.papers.tempo.play import figures_of
from dispatcher.bench.report import Figures
from dispatcher.bench.run import in_workers

GOODPUT, GAIN = "goodput_per_s", "gain_per_s"
TOKENS = "output_tokens_per_s"


class Results(PairedPlays[Case, Contender]):
    """Figures of every play, by case, contender and seed."""

    def __init__(self, options: ExperimentOptions) -> None:
        pairs = experiments.every_pair()
        plays = [(case, one, seed) for case, one in pairs for seed in options.seeds]
        # the longest first, so that no worker is left with one in the end
        plays.sort(key=lambda play: -play[0].span_s)
        options.on_steps(len(plays))
        tasks = [(case, one, seed, experiments.PENALTIES) for case, one, seed in plays]
        found = in_workers(figures_of, tasks, jobs=options.jobs, on_result=options.on_step)
        super().__init__(pairs, dict(zip(plays, found, strict=True)))


def drop(found: Figures) -> float:
    """What gain loses from the first sixth of the time to the last: ten minutes of an hour."""
    over_time = found["gain_over_time"]
    span = max(1, len(over_time) // 6)
    return 1.0 - float(sum(over_time[-span:]) / sum(over_time[:span]))
