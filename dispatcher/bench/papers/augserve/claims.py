"""The claims of AugServe's section 5, each beside what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from dispatcher.bench.claims import Better, Claim
from dispatcher.bench.measured_claims import claim_of_one, claim_of_several
from dispatcher.bench.over_seeds import Measured, span
from dispatcher.bench.papers.augserve import experiments as of
from dispatcher.bench.papers.augserve import reasons
from dispatcher.bench.papers.augserve.appendix import of_bursts, of_counts, of_other_measures
from dispatcher.bench.papers.augserve.cases import Case, Contender
from dispatcher.bench.papers.augserve.play import predict_s
from dispatcher.bench.papers.augserve.results import GOODPUT, Results, of_each, part_of

VLLM_FLOOR, INFERCEPT_FLOOR = 2.0, 1.5
TTFT, NORMALISED = part_of("ttft_s"), part_of("normalised_s")


def claims_of(results: Results) -> list[Claim]:
    """All of them, in the paper's order."""
    return [
        *_goodput(results),
        *floors(results),
        *_reductions(results),
        *of_counts(results),
        *_ablation(results),
        *_breakdown(results),
        *_for_tools(results),
        *_small(results),
        *of_bursts(results),
        *of_other_measures(results),
    ]


# --- section 5.2 --------------------------------------------------------------------------------

_W1 = "13B on an H800, Poisson, 10 minutes"


def _goodput(results: Results) -> Iterable[Claim]:
    for name, cases, claimed in (
        ("all", of.W1_CASES, (4.7, 3.3)),
        ("merge", of.MERGE_CASES, (5.9, 3.4)),
    ):
        crowded = results.overrun(cases)
        for under, number in zip((of.VLLM, of.INFERCEPT), claimed, strict=True):
            ratios = [results.ratio(case, of.AUGSERVE, under, GOODPUT) for case in crowded]
            yield Claim(
                f"goodput-{name}-{under.policy}",
                f"requests within their SLOs per second, AugServe's over {under.label}'s, mean over"
                " loads",
                f"{_W1}, {'both workloads' if name == 'all' else 'Merge'}, where vLLM is overrun",
                "ratio",
                number,
                round(statistics.fmean(one.mean for one in ratios), 3) if ratios else None,
                spread=span(ratios) if ratios else None,
                note=f"{of_each(ratios, crowded)}; {reasons.GOODPUT}",
            )
    yield from _toolbench(results)


def _toolbench(results: Results) -> Iterable[Claim]:
    case = of.TOOLBENCH_MATCH
    for under, claimed in ((of.VLLM, 2.35 / 0.25), (of.INFERCEPT, 2.35 / 0.21)):
        ratio = results.ratio(case, of.AUGSERVE, under, GOODPUT)
        ours, theirs = (results.measured(case, one, GOODPUT).mean for one in (of.AUGSERVE, under))
        yield claim_of_one(
            f"goodput-toolbench-{under.policy}",
            f"requests within their SLOs per second, AugServe's over {under.label}'s",
            f"ToolBench, {case.rate_per_s:g} requests/s for the paper's 5; {_W1}",
            round(claimed, 2),
            ratio,
            note=f"{ours:.2f} against {theirs:.2f} per second; {reasons.TOOLBENCH}",
        )


def floors(results: Results) -> Iterable[Claim]:
    """Wherever vLLM is overrun, of all cases that it plays."""
    cases = [case for case, contender in results.pairs if contender == of.VLLM]
    crowded = results.overrun(cases)
    about = f"a floor, not the paper's number; {len(crowded)} of {len(cases)} cases"
    for over, cases_of, name, where in (
        (of.AUGSERVE, crowded, "", "every case of every experiment"),
        (
            of.NO_HOST,
            [case for case in crowded if (case, of.NO_HOST) in results.pairs],
            "-no-host",
            f"{_W1}, on an engine without host memory",
        ),
    ):
        for under, floor in ((of.VLLM, VLLM_FLOOR), (of.INFERCEPT, INFERCEPT_FLOOR)):
            ratios = [results.ratio(case, over, under, GOODPUT) for case in cases_of]
            found = list(zip(cases_of, ratios, strict=True))
            yield claim_of_several(
                f"floor-{under.policy}{name}",
                f"requests within their SLOs per second, AugServe's over {under.label}'s wherever"
                " vLLM serves less than half so",
                where,
                floor,
                ratios,
                note=f"{about}; {_below(results, under, floor, found)}",
            )


def _below(
    results: Results, under: Contender, floor: float, found: Sequence[tuple[Case, Measured]]
) -> str:
    """Which cases a floor is missed in, and what is the most that could be reached there."""
    missed = [(case, one) for case, one in found if one.mean < floor]
    if not missed:
        return "in all"
    where = "; ".join(
        f"{case.brief}: {one.mean:.2f} of at most"
        f" {1.0 / results.measured(case, under, 'of_all').mean:.2f}"
        for case, one in missed
    )
    others = [one.mean for _, one in found if one.mean >= floor]
    rest = f", in the others at least {min(others):.2f}" if others else ""
    return f"below in {len(missed)} ({where}){rest}; {reasons.FLOOR}"


def _reductions(results: Results) -> Iterable[Claim]:
    for figure, name, what, claimed, reason in (
        (TTFT, "ttft", "mean time to the first token", (0.963, 0.950), reasons.TTFT),
        (
            NORMALISED,
            "normalised",
            "mean normalised latency of what is over",
            (0.803, 0.627),
            reasons.NORMALISED,
        ),
    ):
        for under, number in zip((of.VLLM, of.INFERCEPT), claimed, strict=True):
            best, case = max(
                ((results.cut(case, of.AUGSERVE, under, figure), case) for case in of.W1_CASES),
                key=lambda one: one[0].mean,
            )
            ours, theirs = (
                results.measured(case, one, figure).mean for one in (of.AUGSERVE, under)
            )
            yield claim_of_one(
                f"{name}-{under.policy}",
                f"{what}, the most that AugServe takes off {under.label}'s",
                f"{_W1}, {case.brief}",
                number,
                best,
                unit="share",
                note=f"{ours:.3g} s against {theirs:.3g} s; {reason}",
            )


# --- section 5.4 --------------------------------------------------------------------------------


def _ablation(results: Results) -> Iterable[Claim]:
    case = of.ABLATION
    goodputs = {
        one.label: results.measured(case, one, GOODPUT).mean
        for one in (of.VLLM, of.INFERCEPT, of.BATCHING, of.AUGSERVE)
    }
    steps = " -> ".join(f"{label} {value:.2f}" for label, value in goodputs.items())
    for over, under, claimed, reason in (
        (of.BATCHING, of.VLLM, 0.35 / 0.22, reasons.BATCHING),
        (of.BATCHING, of.INFERCEPT, 0.35 / 0.28, reasons.BATCHING),
        (of.AUGSERVE, of.BATCHING, 0.87 / 0.35, reasons.SCHEDULING),
    ):
        ratio = results.ratio(case, over, under, GOODPUT)
        yield claim_of_one(
            f"ablation-{'scheduling' if over == of.AUGSERVE else 'batching-' + under.policy}",
            f"requests within their SLOs per second, {over.label}'s over {under.label}'s",
            f"Merge, {case.rate_per_s:g} requests/s; {_W1}",
            round(claimed, 2),
            ratio,
            note=f"{steps}; {reason}",
        )


def _breakdown(results: Results) -> Iterable[Claim]:
    for case, queueing, predicting in (
        (of.MERGE_MATCH, 0.1088, 0.0055),
        (of.TOOLBENCH_MATCH, 0.0857, 0.0014),
    ):
        share = results.measured(case, of.AUGSERVE, "queue_share")
        yield claim_of_one(
            f"queueing-{case.workload}",
            "share of the time of what is over that it waits for an engine, AugServe's",
            f"{case.brief}; {_W1}",
            queueing,
            share,
            unit="share",
            better=Better.LOWER,
            note=f"the rest is executing; {reasons.QUEUEING}",
        )
        served = results.measured(case, of.AUGSERVE, "served_s").mean
        calls = results.measured(case, of.AUGSERVE, "calls_per_request").mean
        predicted_s = calls * predict_s(case)
        yield Claim(
            f"predicting-{case.workload}",
            "share of the time of what is over in which its lengths are predicted",
            f"{case.brief}; {_W1}",
            "share",
            predicting,
            round(predicted_s / served, 7),
            better=Better.LOWER,
            note=f"{1e6 * predicted_s:.0f} us of {served:.1f} s; {reasons.PREDICTING}",
        )


def _for_tools(results: Results) -> Iterable[Claim]:
    for case, claimed in ((of.ABLATION, 0.87 / 0.28), (of.TOOLBENCH_MATCH, 2.35 / 0.21)):
        ratio = results.ratio(case, of.AUGSERVE_ENGINE, of.INFERCEPT_ENGINE, GOODPUT)
        ours = results.measured(case, of.AUGSERVE_ENGINE, GOODPUT).mean
        gateway = results.measured(case, of.AUGSERVE, GOODPUT).mean
        yield claim_of_one(
            f"engine-{case.workload}",
            "requests within their SLOs per second, AugServe's over infercept's, both in an engine"
            " made for tools",
            f"{case.brief}; {_W1}",
            round(claimed, 2),
            ratio,
            note=f"{ours:.2f} per second; by a gateway before vLLM of today {gateway:.2f};"
            f" {reasons.ENGINE}",
        )


def _small(results: Results) -> Iterable[Claim]:
    for under in (of.VLLM, of.INFERCEPT):
        ratios = [results.ratio(case, of.AUGSERVE, under, GOODPUT) for case in of.SMALL_CASES]
        yield claim_of_several(
            f"small-{under.policy}",
            f"requests within their SLOs per second, AugServe's over {under.label}'s",
            "GPT-J-6B on an RTX 4090, Poisson, 10 minutes",
            10.0,
            ratios,
            note=f"{of_each(ratios, of.SMALL_CASES)}; {reasons.SMALL}",
        )
