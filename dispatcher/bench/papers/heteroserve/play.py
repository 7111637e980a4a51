"""Simulates one contender on one case from one seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from dispatcher.bench.papers.heteroserve.cases import SLO_TTFT_S, Case, Contender
from dispatcher.bench.report import Figures, percentile, plain
from dispatcher.bench.work import WARM_UP_SEED_AFTER
from dispatcher.core.types import Outcome
from dispatcher.simulator import Experience, simulate
from dispatcher.simulator.oracle import Oracle
from dispatcher.traces import Played, PlayedCall, Trace

WARM_UP_POLICY = "least-backlog"
WARM_UP_LOAD = 0.6
WARM_UP_COUNT = 600
"""What schedulers have learned from before they are compared: a time in which nothing piles up."""

LENGTH_BINS = (256, 512, 2048)
"""Prompt lengths, the paper's: figures are told apart by them."""
TTFT_SHARES = tuple(number / 100.0 for number in range(1, 100))
"""Of which the distribution of TTFT is told."""


@lru_cache(maxsize=64)
def _learned(case: Case, seed: int) -> Experience:
    trace = case.trace(seed)
    return simulate(trace, case.engines(), policy=WARM_UP_POLICY, seed=seed).learned


def learned_before(case: Case, seed: int) -> Experience:
    """What is known when a case begins: of its engines and of answers, at an easy load."""
    easy = replace(case, load=WARM_UP_LOAD, count=WARM_UP_COUNT)
    return _learned(easy, seed + WARM_UP_SEED_AFTER)


def play(case: Case, contender: Contender, seed: int) -> tuple[Trace, Played]:
    """Simulate; the same arguments give the same, bit by bit."""
    trace = case.trace(seed)
    played = simulate(
        trace,
        case.engines(),
        policy=contender.policy,
        params=dict(contender.params),
        seed=seed,
        learned=learned_before(case, seed),
        lengths=Oracle(trace) if contender.lengths == "oracle" else None,
    ).played
    return trace, played


def figures_of(task: tuple[Case, Contender, int]) -> Figures:
    """Figures of one play."""
    return score(*play(*task))


def score(trace: Trace, played: Played) -> Figures:
    """What a play came to, as plain JSON values.

    Throughput is, as in the paper, prompt and output tokens over the time from the first arrival to
    the last end: who leaves a slow device behind with work pays for it. `steady_tokens_per_s`
    counts what ended before the last arrival, over the time until then. Attainment is the share of
    all requests; one that failed is late.
    """
    done = [call for call in played.calls if call.outcome is Outcome.OK]
    ttfts = [_ttft_s(call) for call in done]
    last_s = trace[-1].arrival_s
    tokens = sum(_tokens(call) for call in done)
    in_span = sum(_tokens(call) for call in done if call.ended_s <= last_s)
    found: Figures = {
        "requests": len(trace),
        "failed": len(trace) - len(done),
        "makespan_s": played.makespan_s,
        "arrivals_s": last_s,
        "tokens_per_s": tokens / played.makespan_s,
        "steady_tokens_per_s": in_span / last_s if last_s > 0.0 else None,
        "attainment": sum(ttft_s <= SLO_TTFT_S for ttft_s in ttfts) / len(trace),
        "ttft_p50_s": percentile(ttfts, 0.50),
        "ttft_p95_s": percentile(ttfts, 0.95),
        "ttft_p99_s": percentile(ttfts, 0.99),
        "ttft_s": [percentile(ttfts, share) for share in TTFT_SHARES],
        "latency_mean_s": sum(call.ended_s - call.sent_s for call in done) / max(1, len(done)),
        "bins": _by_length(done),
        "devices": _by_device(played, done),
        "preemptions": sum(one.preemptions for one in played.instances.values()),
    }
    return {key: plain(value) for key, value in found.items()}


def _tokens(call: PlayedCall) -> int:
    return call.prompt_tokens + call.output_tokens


def _ttft_s(call: PlayedCall) -> float:
    return (call.ended_s if call.first_token_s is None else call.first_token_s) - call.sent_s


def _by_length(done: Sequence[PlayedCall]) -> list[dict[str, float]]:
    """Requests and attainment, from the shortest prompts to the longest."""
    bins: list[list[PlayedCall]] = [[] for _ in range(len(LENGTH_BINS) + 1)]
    for call in done:
        bins[sum(call.prompt_tokens >= edge for edge in LENGTH_BINS)].append(call)
    return [
        {
            "requests": len(calls),
            "attainment": sum(_ttft_s(call) <= SLO_TTFT_S for call in calls) / max(1, len(calls)),
        }
        for calls in bins
    ]


def _by_device(played: Played, done: Sequence[PlayedCall]) -> dict[str, dict[str, float]]:
    """By kind: share of the requests, and of the time that its devices computed."""
    served = Counter(_kind(call.instance or "") for call in done)
    kinds: dict[str, list[float]] = {}
    for name, instance in played.instances.items():
        kinds.setdefault(_kind(name), []).append(instance.busy_s / played.makespan_s)
    return {
        kind: {"requests": served[kind] / max(1, len(done)), "busy": sum(busy) / len(busy)}
        for kind, busy in kinds.items()
    }


def _kind(instance_id: str) -> str:
    return instance_id.rpartition("-")[0]
