"""The experiments of LLMSched's section V: which contenders meet in which cases."""

from __future__ import annotations

from dispatcher.bench.papers.llmsched.cases import MIXES, RATE_PER_S, Case, Contender


def variant(label: str, **params: str | float | bool) -> Contender:
    """LLMSched by work, or so but for some parameters."""
    return Contender(label, "llmsched", (("measure", "work"), *params.items()))


LLMSCHED = variant("llmsched")
"""What is left of a job counted as work of engines."""
BY_TIME = Contender("llmsched, by time", "llmsched", (("measure", "path"),))
"""As printed: time along the critical path, what runs at clients included."""
PAPER = Contender("llmsched, paper's form", "llmsched", (("form", "paper"), ("measure", "path")))
FCFS = Contender("fcfs-jobs", "fcfs-jobs")
FAIR = Contender("fair", "fair")
SJF = Contender("sjf-jobs", "sjf-jobs")
ARGUS = Contender("argus", "argus")
CARBYNE = Contender("carbyne", "carbyne")
BASELINES = (FCFS, FAIR, SJF, ARGUS, CARBYNE)
"""Decima, a trained policy, is left out."""

NO_NETWORK = variant("llmsched, no network", profile="mean")
NO_UNCERTAINTY = variant("llmsched, no uncertainty", uncertainty=False)
GITTINS = variant("llmsched, gittins", order="gittins")
VARIANTS = (NO_NETWORK, NO_UNCERTAINTY, GITTINS, BY_TIME, PAPER)

MAIN_CASES = tuple(Case(mix) for mix in MIXES)
MIXED = MAIN_CASES[0]

RATES_PER_S = (0.6, 1.2)
"""Beside `RATE_PER_S`."""
RATE_CASES = tuple(Case(mix, rate) for mix in MIXES for rate in RATES_PER_S)
JOB_COUNTS = (100, 200, 400)
"""Beside 300."""
COUNT_CASES = tuple(Case("mixed", RATE_PER_S, jobs) for jobs in JOB_COUNTS)

EPSILONS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)
RATIOS = (0.1, 0.2, 0.3, 0.5, 1.0)
GRID_CASE = Case("mixed", RATE_PER_S, 200)
"""Fewer jobs: the grid has thirty points."""
GRID = {
    (epsilon, ratio): variant(
        f"epsilon {epsilon:g}, r {ratio:g}", epsilon=epsilon, sample_ratio=ratio
    )
    for epsilon in EPSILONS
    for ratio in RATIOS
    if epsilon or ratio == RATIOS[0]
}
"""Without exploring there is nothing to sample."""

FEWER_SEEDS = 1
"""The first one, beside the main cases."""


def every_pair() -> list[tuple[Case, Contender]]:
    """Every play apart from its seed, each once."""
    pairs = [
        *((case, one) for case in MAIN_CASES for one in (LLMSCHED, *BASELINES, *VARIANTS)),
        *((case, one) for case in RATE_CASES for one in (LLMSCHED, FCFS, FAIR)),
        *((case, one) for case in COUNT_CASES for one in (LLMSCHED, *BASELINES)),
        *((GRID_CASE, one) for one in GRID.values()),
    ]
    return list(dict.fromkeys(pairs))
