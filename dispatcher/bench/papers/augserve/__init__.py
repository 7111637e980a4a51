"""AugServe (Zhejiang University, Alibaba), section 5 and appendix B: claims beside simulations.

Setting: one engine with a 13B model on an H800-like GPU; InferCept's mix of augmented tasks and
ToolBench's questions, as far as they are published. Every contender meets the same requests, and
begins with what an easier time has taught it: lengths and tools' times. A request is whole when its
last call is over; it is served well where its first token came within a second and its latency,
without tools' time, is at most ten iterations per generated token. Ratios are of plays of the same
requests: the mean over seeds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from dispatcher.bench.claims import Experiment, ExperimentOptions, Findings, Summary
from dispatcher.bench.papers.augserve import experiments as of
from dispatcher.bench.papers.augserve.cases import (
    BATCH_TOKENS,
    HOST_GB,
    ITERATIONS,
    SEATS,
    Case,
    Contender,
)
from dispatcher.bench.papers.augserve.claims import claims_of
from dispatcher.bench.papers.augserve.pictures import draw
from dispatcher.bench.papers.augserve.play import WARM_UP_RATE_PER_S, WARM_UP_S
from dispatcher.bench.papers.augserve.results import GOODPUT, Results
from dispatcher.bench.papers.augserve.scoring import LOOSE_SCALE, TTFT_S
from dispatcher.bench.run import WARM_UP_POLICY

_FIGURES = (
    GOODPUT,
    "goodput_loose_per_s",
    "goodput_strict_per_s",
    "requests_per_s",
    "attainment",
    "of_all",
    "ttft_met",
    "normalised_met",
    "tpot_s",
    "served_s",
    "queue_share",
    "busy",
    "prefix_hit_rate",
    "preemptions",
)


def run(options: ExperimentOptions) -> Findings:
    """All experiments of section 5 that a simulation can repeat."""
    results = Results(options)
    tables = {
        "setting": _setting(results),
        "plays": [_row(results, case, contender) for case, contender in results.pairs],
    }
    return Findings(claims_of(results), tables, _summaries(results))


def _setting(results: Results) -> dict[str, Any]:
    """What holds for every play, unless its row says otherwise."""
    cases = {f"{case.hardware.label}, {case.workload}": case for case, _ in results.pairs}
    return {
        "slo": {
            "ttft_s": TTFT_S,
            "iterations": ITERATIONS,
            "token_s": {name: case.token_s for name, case in cases.items()},
            "strict_token_s": {name: case.strict_token_s for name, case in cases.items()},
            "loose_scale": LOOSE_SCALE,
        },
        "engine": {"seats": SEATS, "batch_tokens": BATCH_TOKENS, "host_memory_gb": HOST_GB},
        "contenders": {one.label: one.described() for _, one in results.pairs},
        "warm_up": f"{WARM_UP_S:g} s at {WARM_UP_RATE_PER_S:g} requests/s from another seed, played"
        f" under {WARM_UP_POLICY}",
        "lengths": "rolling quantiles by model, application and stage",
    }


def _row(results: Results, case: Case, contender: Contender) -> dict[str, Any]:
    """Means over seeds, and the spread of goodput; spreads and tasks of the first seed."""
    measured = {name: results.measured(case, contender, name) for name in _FIGURES}
    first = results.figures(case, contender)[0]
    return {
        "case": case.key,
        "setting": case.brief,
        "contender": contender.label,
        **{name: one.mean for name, one in measured.items()},
        "spread": measured[GOODPUT].deviation,
        "ttft_s": _mean_spread(results, case, contender, "ttft_s"),
        "normalised_s": _mean_spread(results, case, contender, "normalised_s"),
        "tasks": first["tasks"],
    }


def _mean_spread(results: Results, case: Case, contender: Contender, name: str) -> dict[str, float]:
    every = [found[name] for found in results.figures(case, contender)]
    return {part: _mean([one[part] for one in every]) for part in ("mean", "p50", "p95")}


def _mean(values: Sequence[float | None]) -> float:
    """Not a number where a seed has nothing to measure."""
    return statistics.fmean(math.nan if value is None else value for value in values)


def _summaries(results: Results) -> list[Summary]:
    columns = ("within SLOs/s", "done/s", "of all", "first token, s", "s/token")
    return [
        Summary(
            f"{name}: 13B on an H800, 10 minutes",
            ("requests/s", "scheduler", *columns),
            [
                [f"{case.rate_per_s:g}", one.label, *_cells(results, case, one)]
                for case in cases
                for one in (*of.MAIN, of.NO_HOST, *of.PARTS)
                if (case, one) in results.pairs
            ],
        )
        for name, cases in (("Merge", of.MERGE_CASES), ("ToolBench", of.TOOLBENCH_CASES))
    ]


def _cells(results: Results, case: Case, contender: Contender) -> list[str]:
    goodput = results.measured(case, contender, GOODPUT)
    row = _row(results, case, contender)
    return [
        f"{goodput.mean:.3f} ± {goodput.deviation:.3f}",
        f"{row['requests_per_s']:.2f}",
        f"{row['of_all']:.2f}",
        f"{row['ttft_s']['mean']:.2f}",
        f"{row['normalised_s']['mean']:.3f}",
    ]


EXPERIMENT = Experiment("augserve", "AugServe (Zhejiang University, Alibaba), section 5", run, draw)
