"""HeteroServe, section 4: every claim beside what a simulation measures.

Setting: 2 H100, 4 A100 and 2 L40S, each with Llama-2-13B by itself; prompts lognormal (median 512
tokens, sigma 1.2, no more than 4K), answers exponential (mean 256), Poisson arrivals, a TTFT of
500 ms asked of each. Load 1 is what this fleet can serve: see `cases.saturation_per_s`. Every
contender meets the same requests, and begins with what an easier time has taught it.
"""

from __future__ import annotations

from typing import Any

from dispatcher.bench.claims import Experiment, ExperimentOptions, Findings, Summary
from dispatcher.bench.papers.heteroserve import experiments as of
from dispatcher.bench.papers.heteroserve.cases import (
    PAPER_TOKENS_PER_S,
    SLO_TTFT_S,
    Case,
    Contender,
    prefill_tokens_per_s,
    saturation_per_s,
    work_of,
)
from dispatcher.bench.papers.heteroserve.claims import claims_of
from dispatcher.bench.papers.heteroserve.decisions import described
from dispatcher.bench.papers.heteroserve.pictures import draw
from dispatcher.bench.papers.heteroserve.play import (
    LENGTH_BINS,
    WARM_UP_COUNT,
    WARM_UP_LOAD,
    WARM_UP_POLICY,
)
from dispatcher.bench.papers.heteroserve.results import ATTAINMENT, P95, STEADY, TOKENS, Results

_FIGURES = (
    TOKENS,
    STEADY,
    ATTAINMENT,
    "ttft_p50_s",
    P95,
    "ttft_p99_s",
    "latency_mean_s",
    "makespan_s",
    "preemptions",
    "failed",
)


def run(options: ExperimentOptions) -> Findings:
    """All experiments of section 4 that a simulation can repeat."""
    results = Results(options)
    tables = {
        "setting": _setting(),
        "plays": [_row(results, case, contender) for case, contender in results.pairs],
        "decisions": described(results.decisions),
    }
    return Findings(claims_of(results), tables, _summaries(results))


def _setting() -> dict[str, Any]:
    """What holds for every play, unless its row says otherwise."""
    work = work_of(of.MAIN.workload)
    rates = {engine.spec.gpu or "": prefill_tokens_per_s(engine) for engine in of.MAIN.engines()}
    return {
        "slo_ttft_s": SLO_TTFT_S,
        "fleet": of.MAIN.fleet.described(),
        "mean_prompt_tokens": work.prompt_tokens,
        "mean_output_tokens": work.output_tokens,
        "load_1_per_s": {
            case.mix: saturation_per_s(case) for case in (of.MAIN, *of.MIX_CASES, of.BIMODAL)
        }
        | {"at the paper's prefill rates": saturation_per_s(of.PAPER_RATES)},
        "prefill_tokens_per_s": rates,
        "paper_prefill_tokens_per_s": dict(PAPER_TOKENS_PER_S),
        "length_bins": list(LENGTH_BINS),
        "warm_up": f"{WARM_UP_COUNT} requests at load {WARM_UP_LOAD:g} from another seed, played"
        f" under {WARM_UP_POLICY}",
    }


def _row(results: Results, case: Case, contender: Contender) -> dict[str, Any]:
    """Means over seeds, and the spread of the three main figures; TTFTs of all seeds together."""
    measured = {name: results.measured(case, contender, name) for name in _FIGURES}
    every = results.figures(case, contender)
    ttfts = zip(*(found["ttft_s"] for found in every), strict=True)
    return {
        "case": case.key,
        "setting": case.label,
        "contender": contender.label,
        "policy": contender.policy,
        "params": dict(contender.params),
        **{name: one.mean for name, one in measured.items()},
        "spread": {name: measured[name].deviation for name in (TOKENS, ATTAINMENT, P95)},
        "by_seed": {name: list(measured[name].values) for name in (TOKENS, ATTAINMENT, P95)},
        "ttft_s": [sum(values) / len(values) for values in ttfts],
        "bins": every[0]["bins"],
        "devices": every[0]["devices"],
    }


def _summaries(results: Results) -> list[Summary]:
    columns = ("scheduler", "tokens/s", "attained", "P95 TTFT, s")
    every = (
        ("main table", [of.MAIN], of.COMPARED),
        ("at 0.9 of saturation", [of.ABLATION], (*of.FEW, *of.ABLATIONS, *of.PAPER_ABLATIONS)),
        ("load", of.LOAD_CASES, of.FEW),
        ("lengths", (*of.MIX_CASES, *of.BIMODAL_CASES), of.FEW),
        ("readings", of.VARIANT_CASES, (of.HETEROSERVE, *of.VARIANTS)),
        (
            "modes and bins",
            [of.SATURATED],
            (of.HETEROSERVE, *of.BY_MODE.values(), *of.BY_BINS.values()),
        ),
        ("fleets", of.SCALING_CASES, (of.HETEROSERVE, of.UNIFORM)),
        ("the paper's prefill rates", [of.PAPER_RATES], of.FEW),
    )
    return [
        Summary(
            title,
            ("case", *columns),
            [
                [_brief(case), contender.label, *_cells(results, case, contender)]
                for case in cases
                for contender in contenders
            ],
        )
        for title, cases, contenders in every
    ]


def _brief(case: Case) -> str:
    return f"{case.devices} devices, {case.mix}, load {case.load:g}"


def _cells(results: Results, case: Case, contender: Contender) -> list[str]:
    tokens, attained, p95 = (
        results.measured(case, contender, name) for name in (TOKENS, ATTAINMENT, P95)
    )
    return [
        f"{tokens.mean:,.0f} ± {tokens.deviation:,.0f}",
        f"{attained.mean:.3f} ± {attained.deviation:.3f}",
        f"{p95.mean:.2f} ± {p95.deviation:.2f}",
    ]


EXPERIMENT = Experiment("heteroserve", "HeteroServe, section 4", run, draw, seeds=(0, 1, 2, 3, 4))
