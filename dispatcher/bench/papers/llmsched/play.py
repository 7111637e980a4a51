"""Simulates one contender on one case from one seed."""

from __future__ import annotations

import math
from functools import lru_cache

from dispatcher.bench.papers.llmsched.cases import DECLARED, RATE_PER_S, Case, Contender
from dispatcher.bench.report import Figures, percentile, plain
from dispatcher.bench.work import WARM_UP_SEED_AFTER
from dispatcher.core.types import Outcome
from dispatcher.simulator import Experience, simulate
from dispatcher.simulator.workloads.llmsched import APPLICATIONS
from dispatcher.stage_models import stage_fitter
from dispatcher.traces import Played, Trace
from workflows.settings import TrackerSettings
from workflows.stage_profiles import StageModelSettings

WARM_UP_PER_APPLICATION = 200
"""Jobs of each application that schedulers have seen before they are compared."""
WARM_UP_LOAD = 0.5
"""Of the case's: a time in which nothing piles up."""
WARM_UP_POLICY = "fcfs-jobs"
_SEED = WARM_UP_SEED_AFTER
LEARNER = "predictors.bayesian_network:learn_network"


def tracker_settings() -> TrackerSettings:
    """Declared stages; application models fitted as workflows end."""
    models = StageModelSettings(
        declared=DECLARED, refit_after=WARM_UP_PER_APPLICATION, fitter=stage_fitter(LEARNER)
    )
    return TrackerSettings(stage_models=models)


@lru_cache(maxsize=8)
def learned_before(mix: str, per_application: int) -> Experience:
    """What is known when a case begins, whatever its seed: profiles are made once."""
    count = per_application * (len(APPLICATIONS) if mix == "mixed" else 2)
    case = Case(mix, RATE_PER_S * WARM_UP_LOAD, count)
    return simulate(
        case.trace(_SEED),
        case.fleet.engines(),
        policy=WARM_UP_POLICY,
        seed=_SEED,
        tracker=tracker_settings(),
    ).learned


def play(case: Case, contender: Contender, seed: int) -> tuple[Trace, Played]:
    """Simulate; the same arguments give the same, bit by bit."""
    trace = case.trace(seed)
    played = simulate(
        trace,
        case.fleet.engines(),
        policy=contender.policy,
        params=dict(contender.params),
        seed=seed,
        learned=learned_before(case.mix, WARM_UP_PER_APPLICATION),
        tracker=tracker_settings(),
    ).played
    return trace, played


def figures_of(task: tuple[Case, Contender, int]) -> Figures:
    """Figures of one play."""
    return score(*play(*task))


def score(trace: Trace, played: Played) -> Figures:
    """What a play came to, as plain JSON values.

    `jct_s` is a job's time from its arrival to the end of its last call, what ran at its client
    included. `busy` is the share of seats that calls had until the last job came, `utilisation`
    until the last one ended.
    """
    done = [workflow for workflow in played.workflows if workflow.ok]
    times = [workflow.latency_s for workflow in done]
    by_application: dict[str, list[float]] = {}
    for workflow in done:
        by_application.setdefault(workflow.application, []).append(workflow.latency_s)
    last_s = trace[-1].arrival_s
    seats = sum(one.seats for one in played.instances.values())
    had_s = _seat_s(played, last_s)
    found: Figures = {
        "jobs": len(trace),
        "failed": len(trace) - len(done),
        "jct_s": sum(times) / len(times),
        "jct_p50_s": percentile(times, 0.50),
        "jct_p95_s": percentile(times, 0.95),
        "jct_max_s": max(times),
        "busy": had_s / (seats * last_s),
        "utilisation": _seat_s(played) / (seats * played.makespan_s),
        "makespan_s": played.makespan_s,
        "applications": {
            name: sum(values) / len(values) for name, values in sorted(by_application.items())
        },
    }
    return {key: plain(value) for key, value in found.items()}


def _seat_s(played: Played, until_s: float = math.inf) -> float:
    """Seconds for which calls had seats, of all of them."""
    return sum(
        max(0.0, min(call.ended_s, until_s) - call.sent_s - (call.queue_s or 0.0))
        for call in played.calls
        if call.outcome is Outcome.OK
    )
