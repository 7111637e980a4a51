"""The claims of AugServe's section 5.3 and appendix B, each beside what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dispatcher.bench.claims import Better, Claim
from dispatcher.bench.measured_claims import claim_of_several
from dispatcher.bench.papers.augserve import experiments as of
from dispatcher.bench.papers.augserve import reasons
from dispatcher.bench.papers.augserve.cases import Case
from dispatcher.bench.papers.augserve.results import GOODPUT, Results, of_each, part_of

_ATTAINMENT = {
    # Table 7: workload to attainment at three loads, by contender
    "merge": {
        "vllm": (0.195, 0.138, 0.097),
        "infercept": (0.283, 0.191, 0.142),
        "augserve": (0.543, 0.513, 0.458),
    },
    "toolbench": {
        "vllm": (0.984, 0.227, 0.178),
        "infercept": (0.283, 0.140, 0.093),
        "augserve": (1.000, 0.638, 0.501),
    },
}


def of_counts(results: Results) -> Iterable[Claim]:
    """A fixed count of requests (Tables 3 and 7)."""
    for workload, claimed in _ATTAINMENT.items():
        cases = [case for case in of.W2_CASES if case.workload == workload]
        ours = [results.measured(case, of.AUGSERVE, "of_all") for case in cases]
        others = {
            one.label: [results.measured(case, one, "of_all").mean for case in cases]
            for one in (of.VLLM, of.INFERCEPT)
        }
        rivals = "; ".join(
            f"{name} {', '.join(f'{value:.0%}' for value in values)}"
            for name, values in others.items()
        )
        yield claim_of_several(
            f"count-{workload}",
            "share of a fixed count of requests that AugServe serves within SLOs",
            f"{of.W2_COUNT} requests, {workload}, at {_rates(cases)} requests/s",
            (min(claimed["augserve"]), max(claimed["augserve"])),
            ours,
            unit="share",
            note=f"{rivals}; {reasons.COUNT}",
        )
        for under in (of.VLLM, of.INFERCEPT):
            paper = [a / b for a, b in zip(claimed["augserve"], claimed[under.policy], strict=True)]
            ratios = [results.ratio(case, of.AUGSERVE, under, "of_all") for case in cases]
            yield claim_of_several(
                f"count-{workload}-{under.policy}",
                f"the same over {under.label}'s",
                f"{of.W2_COUNT} requests, {workload}, at {_rates(cases)} requests/s",
                (round(min(paper), 2), round(max(paper), 2)),
                ratios,
                note=f"{of_each(ratios, cases)}; {reasons.COUNT}",
            )


def _rates(cases: Sequence[Case]) -> str:
    return ", ".join(f"{case.rate_per_s:g}" for case in cases)


def of_bursts(results: Results) -> Iterable[Claim]:
    """Bursts (Table 6)."""
    for under in (of.VLLM, of.INFERCEPT):
        ratios = [results.ratio(case, of.AUGSERVE, under, GOODPUT) for case in of.W3_CASES]
        yield claim_of_several(
            f"bursts-{under.policy}",
            f"requests within their SLOs per second under bursts, AugServe's over {under.label}'s",
            f"Gamma gaps with CV {', '.join(f'{cv:g}' for cv in of.W3_CVS)}; 13B on an H800,"
            " 10 minutes",
            1.0,
            ratios,
            note=f"{of_each(ratios, of.W3_CASES)}; {reasons.BURSTS}",
        )


def of_other_measures(results: Results) -> Iterable[Claim]:
    """Looser SLOs (Fig. 12), the tail of first tokens (Fig. 13), time per token (Fig. 15)."""
    where = "13B on an H800, Poisson, 10 minutes; where vLLM is overrun"
    cases = results.overrun(of.W1_CASES)
    for under in (of.VLLM, of.INFERCEPT):
        for name, what, figure, better, reason in (
            (
                "loose",
                "requests within five times their SLOs per second",
                "goodput_loose_per_s",
                Better.HIGHER,
                reasons.LOOSE,
            ),
            (
                "tail",
                "95th percentile of the time to the first token",
                part_of("ttft_s", "p95"),
                Better.LOWER,
                reasons.TAIL,
            ),
            ("tpot", "mean time per output token", "tpot_s", Better.LOWER, reasons.TPOT),
        ):
            ratios = [results.ratio(case, of.AUGSERVE, under, figure) for case in cases]
            yield claim_of_several(
                f"{name}-{under.policy}",
                f"{what}, AugServe's over {under.label}'s",
                where,
                1.0,
                ratios,
                better=better,
                note=f"claimed in pictures; {of_each(ratios, cases)}; {reason}",
            )
