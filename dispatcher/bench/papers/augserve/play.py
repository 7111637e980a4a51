"""Simulates one contender on one case from one seed."""

from __future__ import annotations

import time
from functools import lru_cache

from dispatcher.bench.papers.augserve.cases import Abilities, Case, Contender, Hardware
from dispatcher.bench.papers.augserve.scoring import requests_of, score
from dispatcher.bench.report import Figures
from dispatcher.bench.run import WARM_UP_POLICY
from dispatcher.bench.work import WARM_UP_SEED_AFTER
from dispatcher.core.types import CallId, CallSpec, WorkflowId
from dispatcher.simulator import Experience, simulate
from dispatcher.traces import Played, Trace
from predictors.rolling_quantiles import RollingQuantiles

WARM_UP_S = 300.0
WARM_UP_RATE_PER_S = 0.5
"""What schedulers have learned from before they are compared: lengths and tools' times, at a rate
at which nothing piles up."""


@lru_cache(maxsize=8)
def learned_before(hardware: Hardware, workload: str, seed: int) -> Experience:
    """What is known when a case begins."""
    easy = Case(workload, WARM_UP_RATE_PER_S, span_s=WARM_UP_S, hardware=hardware)
    other = seed + WARM_UP_SEED_AFTER
    trace = easy.trace(other)
    engine = easy.engine(Abilities())
    return simulate(trace, [engine], policy=WARM_UP_POLICY, seed=other).learned


def play(case: Case, contender: Contender, seed: int) -> tuple[Trace, Played]:
    """Simulate; the same arguments give the same, bit by bit."""
    trace = case.trace(seed)
    played = simulate(
        trace,
        [case.engine(contender.abilities)],
        policy=contender.policy,
        params=dict(contender.params),
        seed=seed,
        learned=learned_before(case.hardware, case.workload, seed),
        until_s=None if case.count is not None else case.span_s,
    ).played
    return trace, played


def figures_of(task: tuple[Case, Contender, int]) -> Figures:
    """Figures of one play: see `score`; of its engine beside them."""
    case, contender, seed = task
    trace, played = play(case, contender, seed)
    span_s = case.span_s
    if case.count is not None:
        span_s = max(workflow.ended_s for workflow in played.workflows)
    found = score(
        requests_of(trace, played), case.token_s, span_s, strict_token_s=case.strict_token_s
    )
    (engine,) = played.instances.values()
    asked = engine.prefix_queries_tokens
    found["span_s"] = span_s
    found["busy"] = engine.busy_s / span_s
    found["prefix_hit_rate"] = engine.prefix_hits_tokens / asked if asked else 0.0
    found["preemptions"] = engine.preemptions
    found["calls_per_request"] = sum(len(workflow.calls) for workflow in trace) / len(trace)
    return found


_PREDICTIONS = 2000


def predict_s(case: Case) -> float:
    """Process time of one prediction of a call's length, of one that has learned."""
    lengths = RollingQuantiles()
    lengths.load(learned_before(case.hardware, case.workload, 0).predictors["lengths"])
    specs = [
        CallSpec(
            CallId(workflow.workflow_id),
            WorkflowId(workflow.workflow_id),
            "model",
            workflow.calls[0].prompt_tokens,
            application=workflow.application,
            stage=workflow.calls[0].stage,
        )
        for workflow in case.trace(0)
    ]
    began_s = time.process_time()
    for number in range(_PREDICTIONS):
        lengths.predict(specs[number % len(specs)])
    return (time.process_time() - began_s) / _PREDICTIONS
