"""Tempo (UIUC and Cisco), section 6: every claim beside what a simulation measures.

Setting: one engine, Llama-3.1-8B on an A100 unless said otherwise; the paper's mix of chat, whole
answers and collective requests with its SLOs (section 6.1); batch sizes of the authors' scripts.
The paper gives no rates: here load 1 is what the engine makes with every seat busy, and 1.1 where
vLLM's gain falls as far as the paper says. Every contender meets the same requests, and begins with
what an easier time has taught it. Ratios are of plays of the same requests: the mean over seeds.

In simulations prompts have no text, so lengths are told from rolling quantiles by application and
stage, and not by the forest.
"""

from __future__ import annotations

from typing import Any

from dispatcher.bench.claims import Experiment, ExperimentOptions, Findings, Summary
from dispatcher.bench.papers.tempo import experiments as of
from dispatcher.bench.papers.tempo.cases import (
    TPOT_S,
    TTFT_S,
    TTLT_S,
    Case,
    Contender,
    capacity_tokens_per_s,
)
from dispatcher.bench.papers.tempo.claims import claims_of
from dispatcher.bench.papers.tempo.pictures import draw
from dispatcher.bench.papers.tempo.play import WARM_UP_LOAD, WARM_UP_S
from dispatcher.bench.papers.tempo.results import GAIN, GOODPUT, TOKENS, Results
from dispatcher.bench.run import WARM_UP_POLICY

_FIGURES = (GOODPUT, GAIN, TOKENS, "requests_per_s", "attainment", "worth_per_s")


def run(options: ExperimentOptions) -> Findings:
    """All experiments of section 6 that a simulation can repeat."""
    results = Results(options)
    tables = {
        "setting": _setting(),
        "plays": [_row(results, case, contender) for case, contender in results.pairs],
    }
    return Findings(claims_of(results), tables, _summaries(results))


def _setting() -> dict[str, Any]:
    """What holds for every play, unless its row says otherwise."""
    return {
        "slo": {"ttft_s": TTFT_S, "tpot_s": TPOT_S, "ttlt_s": TTLT_S, "per_stage_s": TTLT_S},
        "mix": list(of.MAIN.weights),
        "load_1_tokens_per_s": {
            f"{case.model}, {case.seats}": capacity_tokens_per_s(case) for case in of.BATCH_CASES
        },
        "warm_up": f"{WARM_UP_S:g} s at load {WARM_UP_LOAD:g} from another seed, played under"
        f" {WARM_UP_POLICY}",
        "lengths": "rolling quantiles by model, application and stage",
    }


def _row(results: Results, case: Case, contender: Contender) -> dict[str, Any]:
    """Means over seeds, and the spread of the two main figures; by class of the first seed."""
    measured = {name: results.measured(case, contender, name) for name in _FIGURES}
    every = results.figures(case, contender)
    windows = zip(*(found["gain_over_time"] for found in every), strict=True)
    return {
        "case": case.key,
        "setting": case.label,
        "contender": contender.label,
        **{name: one.mean for name, one in measured.items()},
        "spread": {name: measured[name].deviation for name in (GOODPUT, GAIN)},
        "gain_by_penalty": every[0]["gain_by_penalty"],
        "gain_over_time": [sum(window) / len(every) for window in windows],
        "classes": every[0]["classes"],
    }


def _summaries(results: Results) -> list[Summary]:
    columns = ("requests in time/s", "gain/s", "tokens/s", "attained")
    contenders = (*of.COMPARED, of.VTC, of.SLACK, of.PRECISE)
    return [
        Summary(
            "one hour, load 1.1",
            ("requests", "scheduler", *columns),
            [
                [case.lengths, contender.label, *_cells(results, case, contender)]
                for case in of.HOUR_CASES
                for contender in contenders
                if (case, contender) in results.pairs
            ],
        ),
        Summary(
            "fifteen minutes, 8B, batch 16",
            ("load", "scheduler", *columns),
            [
                [f"{case.load:g}", contender.label, *_cells(results, case, contender)]
                for case in sorted(of.LOAD_CASES, key=lambda case: case.load)
                for contender in (*of.COMPARED, of.SLACK)
            ],
        ),
        Summary(
            "parts of Tempo, fifteen minutes, 8B, batch 16, load 1.1",
            ("variant", *columns),
            [
                [contender.label, *_cells(results, of.MAIN, contender)]
                for contender in (of.TEMPO, *of.VARIANTS)
            ],
        ),
    ]


def _cells(results: Results, case: Case, contender: Contender) -> list[str]:
    goodput, gain = (results.measured(case, contender, name) for name in (GOODPUT, GAIN))
    return [
        f"{goodput.mean:.3f} ± {goodput.deviation:.3f}",
        f"{gain.mean:.0f} ± {gain.deviation:.0f}",
        f"{results.measured(case, contender, TOKENS).mean:.0f}",
        f"{results.measured(case, contender, 'attainment').mean:.2f}",
    ]


EXPERIMENT = Experiment("tempo", "Tempo (UIUC and Cisco), section 6", run, draw)
