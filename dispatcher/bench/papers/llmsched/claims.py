"""The claims of LLMSched's section V, each beside what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dispatcher.bench.claims import Better, Claim
from dispatcher.bench.measured_claims import claim_of_one, claim_of_several
from dispatcher.bench.over_seeds import Measured, means_told, noise
from dispatcher.bench.papers.llmsched import experiments as of
from dispatcher.bench.papers.llmsched import reasons
from dispatcher.bench.papers.llmsched.cases import RATE_PER_S, Case, Contender
from dispatcher.bench.papers.llmsched.results import JCT, Results

CUTS: Mapping[str, tuple[float, float]] = {
    "mixed": (0.36, 0.79),
    "predefined": (0.14, 0.46),
    "chain-like": (0.36, 0.67),
    "planning": (0.24, 0.52),
}
"""Of baselines' mean completion time, least and most (Fig. 7)."""
NO_NETWORK = {"mixed": 0.18, "predefined": 0.17, "chain-like": 0.20, "planning": 0.05}
NO_UNCERTAINTY = {"mixed": 0.21, "predefined": 0.12, "chain-like": 0.15, "planning": 0.13}
OVERHEAD_MS = {"mixed": 0.96, "predefined": 2.32, "chain-like": 0.70, "planning": 0.16}
"""Table I."""
FLOOR = 0.14
"""Below FCFS and Fair, everywhere; not the paper's number."""
FLOOR_MIXES = ("mixed", "chain-like")
"""Where no baseline may be better."""


def claims_of(results: Results) -> list[Claim]:
    """All of them, in the paper's order."""
    return [
        *_cuts(results),
        *_floors(results),
        *_counts(results),
        *_overheads(results),
        *_ablations(results),
        *_sensitivity(results),
        *_rates(results),
        *_variants(results),
    ]


def _rounded(measured: Measured) -> float:
    return round(measured.mean, 3)


def _told(results: Results, case: Case, contenders: Iterable[Contender]) -> str:
    """Mean completion times, in words."""
    return ", ".join(f"{one.label} {results.mean(case, one, JCT):.1f} s" for one in contenders)


def _note(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _cuts(results: Results) -> Iterable[Claim]:
    for case in of.MAIN_CASES:
        cuts = {one: results.cut(case, of.LLMSCHED, one, JCT) for one in of.BASELINES}
        yield claim_of_several(
            f"cut-{case.mix}",
            "part of baselines' mean job completion time that llmsched saves, least and most",
            case.label,
            CUTS[case.mix],
            cuts.values(),
            unit="share",
            note=_note(
                _told(results, case, (of.LLMSCHED, *of.BASELINES)),
                "Decima, a trained policy, is left out",
                reasons.CUT[case.mix],
            ),
        )
        for one, cut in cuts.items():
            yield claim_of_one(
                f"cut-{case.mix}-{one.policy}",
                f"part of {one.label}'s mean job completion time that llmsched saves",
                case.label,
                CUTS[case.mix],
                cut,
                unit="share",
                note=_note(
                    "the claimed range is over all baselines",
                    "seeds: " + ", ".join(f"{value:.3f}" for value in cut.values),
                ),
            )


def _floors(results: Results) -> Iterable[Claim]:
    for case in of.MAIN_CASES:
        if case.mix in FLOOR_MIXES:
            cuts = [results.cut(case, of.LLMSCHED, one, JCT) for one in of.BASELINES]
            yield Claim(
                f"floor-best-{case.mix}",
                "part of the best baseline's mean job completion time that llmsched saves",
                case.label,
                "share",
                0.0,
                min(_rounded(one) for one in cuts),
                spread=noise(cuts),
                note="a floor, not the paper's number: no baseline is better",
            )
        both = [results.cut(case, of.LLMSCHED, one, JCT) for one in (of.FCFS, of.FAIR)]
        yield claim_of_several(
            f"floor-fcfs-fair-{case.mix}",
            "part of FCFS's and Fair's mean job completion time that llmsched saves",
            case.label,
            FLOOR,
            both,
            unit="share",
            note=_note("a floor, not the paper's number", reasons.FLOOR),
        )


def _counts(results: Results) -> Iterable[Claim]:
    cases = sorted({*of.COUNT_CASES, of.MIXED}, key=lambda case: case.jobs)
    cuts = {case: results.cut(case, of.LLMSCHED, of.FCFS, JCT) for case in cases}
    first, last = cases[0], cases[-1]
    yield Claim(
        "jobs",
        "what llmsched saves of FCFS's mean job completion time with the most jobs, less with the"
        " fewest",
        f"mixed, {first.jobs} to {last.jobs} jobs, {RATE_PER_S:g}/s",
        "share",
        0.0,
        round(cuts[last].mean - cuts[first].mean, 3),
        note=_note(
            "the paper: more pronounced with more jobs, as against Decima 0.38 with 100 and 0.75"
            " with 400",
            ", ".join(f"{case.jobs}: {cut.mean:.3f}" for case, cut in cuts.items()),
            reasons.COUNT,
        ),
    )


def _overheads(results: Results) -> Iterable[Claim]:
    for case in of.MAIN_CASES:
        found = results.overheads[case, of.LLMSCHED]
        others = ", ".join(
            f"{one.label} {results.overheads[case, one].mean_ms:.2f} ms"
            for one in (of.FCFS, of.CARBYNE)
        )
        yield Claim(
            f"overhead-{case.mix}",
            "process time of llmsched per invocation, inference included",
            case.label,
            "ms",
            OVERHEAD_MS[case.mix],
            round(found.mean_ms, 3),
            better=Better.LOWER,
            note=_note(f"{found.invocations} invocations", others, reasons.OVERHEAD),
        )


def _ablations(results: Results) -> Iterable[Claim]:
    for name, without, claimed, reason in (
        ("network", of.NO_NETWORK, NO_NETWORK, reasons.NETWORK),
        ("uncertainty", of.NO_UNCERTAINTY, NO_UNCERTAINTY, reasons.UNCERTAINTY),
    ):
        for case in of.MAIN_CASES:
            excess = results.excess(case, without, of.LLMSCHED, JCT)
            yield claim_of_one(
                f"no-{name}-{case.mix}",
                f"mean job completion time of {without.label}, above llmsched's",
                case.label,
                claimed[case.mix],
                excess,
                unit="share",
                note=_note(_told(results, case, (of.LLMSCHED, without)), reason),
            )


def _sensitivity(results: Results) -> Iterable[Claim]:
    times = {point: results.mean(of.GRID_CASE, one, JCT) for point, one in of.GRID.items()}
    none = times[0.0, of.RATIOS[0]]
    by_epsilon = {
        epsilon: min(jct for (e, _), jct in times.items() if e == epsilon)
        for epsilon in of.EPSILONS
    }
    best = min(of.EPSILONS[1:], key=lambda epsilon: by_epsilon[epsilon])
    yield Claim(
        "epsilon",
        "mean job completion time without exploring, above that of the best epsilon and r",
        f"{of.GRID_CASE.label}; epsilon {', '.join(f'{e:g}' for e in of.EPSILONS)}",
        "share",
        0.0,
        round(none / by_epsilon[best] - 1.0, 3),
        note=_note(
            "the paper: first less, then more; it gives no numbers",
            f"best {best:g}: "
            + ", ".join(f"{epsilon:g}: {jct:.2f} s" for epsilon, jct in by_epsilon.items()),
            reasons.EPSILON,
        ),
    )
    by_ratio = {ratio: times[0.2, ratio] for ratio in of.RATIOS}
    least = min(by_ratio, key=lambda ratio: by_ratio[ratio])
    yield Claim(
        "ratio",
        "the best of the sampling ratios r",
        f"{of.GRID_CASE.label}; epsilon 0.2",
        "r",
        0.5,
        least,
        better=Better.LOWER,
        note=_note(
            "the paper: suitably small; it gives no numbers",
            ", ".join(f"{ratio:g}: {jct:.2f} s" for ratio, jct in by_ratio.items()),
            reasons.RATIO,
        ),
    )


def _rates(results: Results) -> Iterable[Claim]:
    for case in of.MAIN_CASES:
        cases = sorted(
            (one for one in (*of.RATE_CASES, case) if one.mix == case.mix),
            key=lambda one: one.rate_per_s,
        )
        times = [results.mean(one, of.LLMSCHED, JCT) for one in cases]
        cuts = {one: results.cut(one, of.LLMSCHED, of.FCFS, JCT) for one in cases}
        yield Claim(
            f"rate-{case.mix}",
            "mean job completion time under llmsched at the highest rate over that at the lowest",
            f"{case.mix}, {cases[0].rate_per_s:g} to {cases[-1].rate_per_s:g} jobs/s",
            "ratio",
            1.0,
            round(times[-1] / times[0], 3),
            note=_note(
                "the paper: longer the more come; it gives no numbers",
                ", ".join(
                    f"{one.rate_per_s:g}/s {jct:.1f} s, saves {cuts[one].mean:.3f} of FCFS's"
                    for one, jct in zip(cases, times, strict=True)
                ),
                reasons.RATE,
            ),
        )


def _variants(results: Results) -> Iterable[Claim]:
    for name, other, what, reason in (
        ("gittins", of.GITTINS, "ordered by the Gittins index", reasons.GITTINS),
        ("by-time", of.BY_TIME, "with time along the critical path for work", reasons.BY_TIME),
        ("paper", of.PAPER, "as printed: by time, by counts, no turns of the overdue", ""),
    ):
        excess = [results.excess(case, other, of.LLMSCHED, JCT) for case in of.MAIN_CASES]
        yield claim_of_several(
            f"variant-{name}",
            f"mean job completion time {what}, above llmsched's",
            "all four mixes as in the main cases",
            0.0,
            excess,
            unit="share",
            note=_note(
                "not the paper's number",
                means_told(excess, (case.mix for case in of.MAIN_CASES), ".3f"),
                reason,
            ),
        )
