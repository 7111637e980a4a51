"""LLMSched, section V: every claim beside what a simulation measures.

Setting: six compound applications in four mixes (`simulator.workloads.llmsched`), Poisson arrivals
of 0.9 jobs a second, 300 jobs; Llama-3.1-8B on H800-like GPUs, as many seats as bring a mix to 85 %
of what they can do. Regular stages run at clients, as many as there are. Every contender meets the
same jobs, and begins with what 200 jobs of each application have taught it at half the rate:
lengths, times, and a Bayesian network over each application's stages. Parts saved are of plays of
the same jobs: the mean over seeds.
"""

from __future__ import annotations

from typing import Any

from dispatcher.bench.claims import Experiment, ExperimentOptions, Findings, Summary
from dispatcher.bench.papers.llmsched import experiments as of
from dispatcher.bench.papers.llmsched import play
from dispatcher.bench.papers.llmsched.cases import ENGINES, LOAD, Case, Contender, work_of
from dispatcher.bench.papers.llmsched.claims import claims_of
from dispatcher.bench.papers.llmsched.pictures import draw
from dispatcher.bench.papers.llmsched.results import JCT, Results
from dispatcher.simulator.workloads.llmsched import ALONE_S_PER_TOKEN

_FIGURES = (
    JCT,
    "jct_p50_s",
    "jct_p95_s",
    "jct_max_s",
    "busy",
    "utilisation",
    "makespan_s",
    "failed",
)


def run(options: ExperimentOptions) -> Findings:
    """All experiments of section V that a simulation can repeat."""
    results = Results(options)
    tables = {
        "setting": _setting(),
        "plays": [_row(results, case, contender) for case, contender in results.pairs],
        "overheads": [
            {
                "case": case.key,
                "contender": one.label,
                "invocations": found.invocations,
                "mean_ms": found.mean_ms,
            }
            for (case, one), found in results.overheads.items()
        ],
    }
    return Findings(claims_of(results), tables, _summaries(results))


def _setting() -> dict[str, Any]:
    """What holds for every play, unless its row says otherwise."""
    return {
        "load": LOAD,
        "mixes": {
            case.mix: {
                "fleet": case.fleet.described(),
                "load": ENGINES[case.mix].load,
                "output_tokens_per_job": work_of(case.mix).output_tokens,
                "prompt_tokens_per_job": work_of(case.mix).prompt_tokens,
            }
            for case in of.MAIN_CASES
        },
        "alone_s_per_token": ALONE_S_PER_TOKEN,
        "warm_up": f"{play.WARM_UP_PER_APPLICATION} jobs of each application from another seed, at"
        f" {play.WARM_UP_LOAD:g} of the rate, played under {play.WARM_UP_POLICY}",
        "regular_stages": "at clients, as many at a time as there are",
        "left_out": "Decima",
    }


def _row(results: Results, case: Case, contender: Contender) -> dict[str, Any]:
    """Means over seeds; of completion times each seed's, too."""
    measured = {name: results.measured(case, contender, name) for name in _FIGURES}
    every = results.figures(case, contender)
    applications = sorted({name for found in every for name in found["applications"]})
    return {
        "case": case.key,
        "setting": case.label,
        "contender": contender.label,
        "policy": contender.policy,
        "params": dict(contender.params),
        **{name: one.mean for name, one in measured.items()},
        "spread": measured[JCT].deviation,
        "by_seed": list(measured[JCT].values),
        "applications": {
            name: sum(found["applications"].get(name, 0.0) for found in every) / len(every)
            for name in applications
        },
    }


def _summaries(results: Results) -> list[Summary]:
    columns = ("scheduler", "mean JCT, s", "P95, s", "longest, s", "seats used")
    every = (
        ("main", of.MAIN_CASES, (of.LLMSCHED, *of.BASELINES, *of.VARIANTS)),
        ("rates", of.RATE_CASES, (of.LLMSCHED, of.FCFS, of.FAIR)),
        ("jobs", of.COUNT_CASES, (of.LLMSCHED, *of.BASELINES)),
    )
    return [
        Summary(
            title,
            ("case", *columns),
            [
                [case.key, contender.label, *_cells(results, case, contender)]
                for case in cases
                for contender in contenders
            ],
        )
        for title, cases, contenders in every
    ]


def _cells(results: Results, case: Case, contender: Contender) -> list[str]:
    jct, p95, longest, busy = (
        results.measured(case, contender, name) for name in (JCT, "jct_p95_s", "jct_max_s", "busy")
    )
    return [
        f"{jct.mean:.2f} ± {jct.deviation:.2f}",
        f"{p95.mean:.1f}",
        f"{longest.mean:.0f}",
        f"{busy.mean:.2f}",
    ]


EXPERIMENT = Experiment("llmsched", "LLMSched, section V", run, draw)
