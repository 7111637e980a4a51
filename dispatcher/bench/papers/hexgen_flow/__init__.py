"""HexGen-Flow (arXiv:2505.05286), section 5: every claim beside what a simulation measures.

Setting: Llama-3.1-70B on four engines of four GPUs each, CHESS queries by Poisson arrivals, about a
hundred a trace, SLO scale 5 when scheduling, other scales scored afterwards (section 5.1). A ratio
is the baseline's figure over HexGen-Flow's (for throughput the other way round), of runs on the
same trace: the mean over seeds. The paper's "reduction by x %" is that ratio less 1: its own
example, 5.4 against 3.5 scales, is called 54 %.

HexGen-Flow runs with alpha 0.2, from the middle of what the paper finds best; the curves over
alpha, and what its tuning costs and finds, are experiments of their own.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from dispatcher.bench.claims import Experiment, ExperimentOptions, Findings, Summary
from dispatcher.bench.fleets import FLEETS
from dispatcher.bench.papers.hexgen_flow.cases import (
    ALPHA,
    EVERY,
    HETERO_CASES,
    QUERIES,
    SCALE,
    SEATS,
    SEATS_CASES,
    TENANTS,
    THROUGHPUT,
    TUNE_SEED_AFTER,
    WB_FCFS,
    Case,
)
from dispatcher.bench.papers.hexgen_flow.claims import claims_of
from dispatcher.bench.papers.hexgen_flow.pictures import draw
from dispatcher.bench.papers.hexgen_flow.results import Results, policy_named
from dispatcher.bench.policies import PolicyChoice
from dispatcher.bench.run import warm_up_told


def run(options: ExperimentOptions) -> Findings:
    """All experiments of section 5."""
    results = Results(options)
    tables = {
        "setting": _setting(results),
        "tunes": [{"case": case.label, **asdict(t)} for case, t in results.tuned.items()],
        "plays": [_row(results, case, policy) for case, policy in results.pairs],
    }
    return Findings(claims_of(results), tables, _summaries(results))


def _summaries(results: Results) -> list[Summary]:
    """Every play but the curves over alpha, and what seats do."""
    columns = ("SLO scale at 95 %", "queries/s", "utilisation", "prefix hits")
    compared = [
        (case, policy_named(n)) for case in HETERO_CASES for n in (*EVERY, "rr-pq", WB_FCFS)
    ]
    seats = [(case, policy_named(n)) for case in SEATS_CASES for n in (*EVERY, WB_FCFS)]
    return [
        Summary(
            f"mixed fleets, {SEATS} seats",
            ("setting", "policy", *columns),
            [
                [case.label, policy.label, *_cells(results, case, policy)]
                for case, policy in compared
            ],
        ),
        Summary(
            f"seats, {SEATS_CASES[0].label}",
            ("seats", "policy", *columns),
            [
                [str(case.seats), policy.label, *_cells(results, case, policy)]
                for case, policy in seats
            ],
        ),
    ]


def _cells(results: Results, case: Case, policy: PolicyChoice) -> list[str]:
    return [
        f"{results.mean(case, policy, SCALE):.2f}",
        f"{results.mean(case, policy, THROUGHPUT):.3f}",
        f"{results.mean(case, policy, 'utilisation'):.2f}",
        f"{results.mean(case, policy, 'prefix_hit_rate'):.2f}",
    ]


def _setting(results: Results) -> dict[str, Any]:
    """What holds for every play, unless its row says otherwise."""
    case, policy = results.pairs[0]
    work = case.setting(policy, results.seeds[0]).work
    return {
        "seats": SEATS,
        "alpha": ALPHA,
        "queries": QUERIES,
        "tenants": dict(TENANTS),
        "slo_scale": work.slo_scale,
        "arrivals": work.arrivals,
        "warm_up": warm_up_told(work, warm=True),
        "tune_seed": results.seeds[0] + TUNE_SEED_AFTER,
        "fleets": [
            FLEETS[name].described()
            for name in dict.fromkeys(case.fleet for case, _ in results.pairs)
        ],
    }


def _row(results: Results, case: Case, policy: PolicyChoice) -> dict[str, Any]:
    figures = (SCALE, THROUGHPUT, "utilisation", "prefix_hit_rate", "makespan_s")
    return {
        "case": case.label,
        "seats": case.seats,
        "tenants": bool(case.tenants),
        "policy": policy.label,
        **{figure: round(results.mean(case, policy, figure), 4) for figure in figures},
    }


EXPERIMENT = Experiment("hexgen-flow", "HexGen-Flow (arXiv:2505.05286), section 5", run, draw)
