"""Simulates a workload under each policy, at each rate, from each seed.

Every policy meets the same traces, and knows the same when they begin: what predictors and the
workflow tracker learn from an earlier trace of the same workload, played under `vllm`.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from dispatcher.bench.fleets import Fleet
from dispatcher.bench.policies import PolicyChoice
from dispatcher.bench.provenance import provenance
from dispatcher.bench.report import Figures, figures, spread
from dispatcher.bench.work import Work, prepared, rate_of, warm_up
from dispatcher.core.errors import HeadwayError
from dispatcher.simulator import Experience, simulate
from dispatcher.traces import Played

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

WARM_UP_POLICY = "vllm"
_WARMED_KEPT = 4


class WorkerLostError(HeadwayError):
    """A worker process ended before its work did (killed, or out of memory)."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One play."""

    work: Work
    fleet: Fleet
    policy: PolicyChoice
    rate_per_s: float | None
    """`None`: as recorded."""
    seed: int
    """Of the workload, and of whatever chance the policy uses."""
    warm: bool = True


@dataclass(frozen=True, slots=True)
class Comparison:
    """All that is compared in one run.

    Raises:
        HeadwayError: Nothing to compare.
    """

    work: Work
    fleets: tuple[Fleet, ...]
    """One, or the same with different seats."""
    policies: tuple[PolicyChoice, ...]
    rates_per_s: tuple[float | None, ...]
    seeds: tuple[int, ...]
    warm: bool = True

    def settings(self) -> list[Setting]:
        """Every play, in the order of results."""
        return [
            Setting(self.work, fleet, policy, rate, seed, self.warm)
            for fleet, policy, rate, seed in itertools.product(
                self.fleets, self.policies, self.rates_per_s, self.seeds
            )
        ]


@lru_cache(maxsize=_WARMED_KEPT)
def _learned(work: Work, fleet: Fleet, rate_per_s: float | None, seed: int) -> Experience | None:
    earlier = warm_up(work, fleet, rate_per_s, seed)
    if earlier is None:
        return None
    return simulate(earlier.trace, fleet.engines(), policy=WARM_UP_POLICY, seed=seed).learned


def play(setting: Setting) -> Played:
    """Simulate one setting. The same setting gives the same, bit by bit.

    Raises:
        HeadwayError: What it names does not exist, or does not fit together.
    """
    fleet, rate, seed = setting.fleet, setting.rate_per_s, setting.seed
    ready = prepared(setting.work, fleet, rate, seed)
    return simulate(
        ready.trace,
        fleet.engines(),
        policy=setting.policy.name,
        params=dict(setting.policy.params),
        seed=seed,
        learned=_learned(setting.work, fleet, rate, seed) if setting.warm else None,
    ).played


def result_of(setting: Setting) -> Figures:
    """Simulate one setting and work its figures out."""
    ready = prepared(setting.work, setting.fleet, setting.rate_per_s, setting.seed)
    found = figures(
        play(setting),
        ready.alone_s,
        slo_scale=setting.work.slo_scale,
        tenant_scales=setting.work.tenant_scales,
    )
    rate = setting.rate_per_s if setting.rate_per_s is not None else rate_of(ready.trace)
    head = {"policy": setting.policy.label, "rate": rate, "seed": setting.seed}
    return head | {"seats": setting.fleet.seats} | found


def results_of(
    settings: Sequence[Setting],
    *,
    jobs: int | None = None,
    on_result: Callable[[], None] = lambda: None,
) -> list[Figures]:
    """Simulate settings in worker processes; results come in the order of settings.

    Raises:
        HeadwayError: As `result_of`; what has not begun by then never will.
        WorkerLostError: A worker process ended early.
    """
    return in_workers(result_of, settings, jobs=jobs, on_result=on_result)


def in_workers(
    work: Callable[[_Item], _Result],
    items: Sequence[_Item],
    *,
    jobs: int | None = None,
    on_result: Callable[[], None] = lambda: None,
) -> list[_Result]:
    """Do the same to each item, in worker processes; results come in the order of items.

    Args:
        work: A function that can be pickled by its name.
        items: What can be pickled.
        jobs: Worker processes; `None`: as many as there are cores; 1: in this process.
        on_result: Called after each, in any order.

    Raises:
        HeadwayError: As `work`; what has not begun by then never will.
        WorkerLostError: A worker process ended early.
    """
    jobs = min(jobs or os.cpu_count() or 1, len(items))
    if jobs <= 1:
        return list(_here(work, items, on_result))
    with ProcessPoolExecutor(
        jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_end_with_parent
    ) as pool:
        futures: list[Future[_Result]] = [pool.submit(work, item) for item in items]
        try:
            for future in as_completed(futures):
                future.result()
                on_result()
        except BrokenProcessPool as error:
            raise WorkerLostError("a worker process ended before its work did") from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return [future.result() for future in futures]


def _here(
    work: Callable[[_Item], _Result], items: Sequence[_Item], on_result: Callable[[], None]
) -> Iterator[_Result]:
    for item in items:
        result = work(item)
        on_result()
        yield result


def _end_with_parent() -> None:
    """Let a worker outlive nobody, however the first process ends.

    Ctrl-C reaches the whole process group; only the first process has something to say. Where that
    one is killed, a worker would wait for its next item for ever.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    assert parent is not None  # noqa: S101 - it is a worker

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()


def document(comparison: Comparison, results: Sequence[Figures]) -> dict[str, Any]:
    """All of a run as plain JSON values; nothing in it depends on the clock."""
    return {
        "scenario": comparison.work.name,
        "fleet": comparison.fleets[0].name,
        **provenance(),
        "seeds": list(comparison.seeds),
        "configuration": {
            "work": comparison.work.described(),
            "fleets": [fleet.described() for fleet in comparison.fleets],
            "policies": {c.label: {"name": c.name, **dict(c.params)} for c in comparison.policies},
            "rates": list(comparison.rates_per_s),
            "warm_up": warm_up_told(comparison.work, warm=comparison.warm),
        },
        "results": list(results),
        "summary": summaries(results),
    }


def warm_up_told(work: Work, *, warm: bool) -> str:
    """What schedulers know when a trace begins, in words."""
    if not warm or (work.trace is not None and work.warm_trace is None):
        return "none: predictors and templates begin empty"
    source = (
        "the trace of the same workload and rate that another seed gives"
        if work.warm_trace is None
        else str(work.warm_trace)
    )
    return f"predictors and templates have learned from {source}, played under {WARM_UP_POLICY}"


def summaries(results: Sequence[Figures]) -> list[Figures]:
    """Mean and spread over seeds of each policy, rate and number of seats."""
    by_setting: dict[tuple[Any, ...], list[Figures]] = {}
    for result in results:
        key = (result["policy"], result["rate"], result["seats"])
        by_setting.setdefault(key, []).append(result)
    return [
        {"policy": policy, "rate": rate, "seats": seats, "seeds": len(found)} | spread(found)
        for (policy, rate, seats), found in by_setting.items()
    ]
