"""The claims of HeteroServe's section 4, each beside what was measured."""

from __future__ import annotations

from collections.abc import Iterable

from dispatcher.bench.claims import Better, Claim
from dispatcher.bench.over_seeds import means_told, noise
from dispatcher.bench.papers.heteroserve import experiments as of
from dispatcher.bench.papers.heteroserve import reasons
from dispatcher.bench.papers.heteroserve.cases import Contender
from dispatcher.bench.papers.heteroserve.results import (
    ATTAINMENT,
    STEADY,
    TOKENS,
    Results,
    linear_fit,
)
from dispatcher.bench.papers.heteroserve.table_claims import table_claims
from dispatcher.bench.papers.heteroserve.telling import as_printed, claim, span


def claims_of(results: Results) -> list[Claim]:
    """All of them, in the paper's order."""
    return [
        *table_claims(results),
        *_ablation(results),
        *_loads(results),
        *_mixes(results),
        *_bimodal(results),
        *_bins(results),
        *_scaling(results),
        *_decisions(results),
    ]


# --- sections 4.3 and 4.4 -----------------------------------------------------------------------


def _ablation(results: Results) -> Iterable[Claim]:
    case, printed = of.ABLATION, of.PAPER
    settled = results.measured(case, of.HETEROSERVE, ATTAINMENT)
    yield claim(
        "ablation-full",
        "SLO attainment at 0.9 of saturation, the paper's form",
        case,
        0.9665,
        results.measured(case, printed, ATTAINMENT),
        unit="share",
        note=f"as settled {settled.mean:.3f}; {reasons.ABLATION['full']}",
    )
    for without, ours, name, claimed in (
        (of.PAPER_NO_FEEDBACK, of.NO_FEEDBACK, "feedback", 0.956),
        (of.PAPER_NO_BINS, of.NO_BINS, "bins", 0.0043),
        (of.PAPER_NO_MEMORY, of.NO_MEMORY, "memory", 0.0),
    ):
        settled = results.difference(case, of.HETEROSERVE, ours, ATTAINMENT)
        yield claim(
            f"ablation-{name}",
            f"SLO attainment that the paper's form loses without {_PARTS[name]}",
            case,
            claimed,
            results.difference(case, printed, without, ATTAINMENT),
            unit="share",
            note=f"as settled {settled.mean:.3g}; {reasons.ABLATION[name]}",
        )
    lost = results.ratio(case, of.PAPER_NO_FEEDBACK, printed, TOKENS)
    yield claim(
        "ablation-feedback-throughput",
        "throughput of the paper's form without feedback, over that with it",
        case,
        round(8_183 / 33_374, 3),
        lost,
        better=Better.LOWER,
        note=reasons.ABLATION["feedback"],
    )


_PARTS = {
    "feedback": "queue feedback",
    "bins": "length bins",
    "memory": "the limit on memory",
}


def _loads(results: Results) -> Iterable[Claim]:
    up_to = [case for case in of.LOAD_CASES if case.load <= 1.5]
    found = [results.measured(case, of.HETEROSERVE, ATTAINMENT) for case in up_to]
    printed = span([results.measured(case, of.PAPER, ATTAINMENT) for case in up_to])
    by_load = means_told(found, (f"{case.load:g}" for case in up_to))
    yield Claim(
        "load-to-150",
        "SLO attainment at loads up to 1.5",
        f"load 0.5 to 1.5, {of.FEWER:,} requests",
        "share",
        0.8,
        span(found),
        spread=noise(found),
        note=f"by load {by_load}; the paper's form {printed[0]:.2g} to {printed[1]:.2g};"
        f" {reasons.LOADS}",
    )
    most = of.LOAD_CASES[-1]
    attained = results.measured(most, of.HETEROSERVE, ATTAINMENT)
    yield claim(
        "load-200",
        "SLO attainment at load 2",
        most,
        0.71,
        attained,
        unit="share",
        note=f"{as_printed(results.measured(most, of.PAPER, ATTAINMENT))}; {reasons.LOADS}",
    )
    yield claim(
        "load-200-uniform",
        "SLO attainment at load 2, HeteroServe's less Uniform's",
        most,
        0.3,
        results.difference(most, of.HETEROSERVE, of.UNIFORM, ATTAINMENT),
        unit="share",
        note=f"Uniform attains {results.mean(most, of.UNIFORM, ATTAINMENT):.3f}",
    )


def _mixes(results: Results) -> Iterable[Claim]:
    for rival in (of.UNIFORM, of.LATENCY_AWARE):
        found = [
            results.difference(case, of.HETEROSERVE, rival, ATTAINMENT) for case in of.MIX_CASES
        ]
        told = "; ".join(
            f"{case.mix}: {results.mean(case, of.HETEROSERVE, ATTAINMENT):.2f} against"
            f" {results.mean(case, rival, ATTAINMENT):.2f}"
            for case in of.MIX_CASES
        )
        yield Claim(
            f"mixes-{rival.policy}",
            f"SLO attainment under other lengths, HeteroServe's less that of {rival.label}",
            f"load {of.MIX_LOAD:g} of each, {of.FEWER:,} requests",
            "share",
            0.0,
            span(found),
            spread=noise(found),
            note=f"claimed in words; {told}",
        )


def _bimodal(results: Results) -> Iterable[Claim]:
    case = of.BIMODAL
    uniform = results.measured(case, of.UNIFORM, ATTAINMENT)
    printed = results.difference(case, of.PAPER, of.UNIFORM, ATTAINMENT)
    yield claim(
        "bimodal",
        "SLO attainment of half short, half long prompts",
        case,
        0.121,
        results.measured(case, of.HETEROSERVE, ATTAINMENT),
        unit="share",
        note=f"Uniform {uniform.mean:.3f} (claimed 0.267), the paper's form"
        f" {results.mean(case, of.PAPER, ATTAINMENT):.3f}, {printed.mean:+.3f} (claimed -0.146);"
        f" {reasons.BIMODAL}",
    )
    for rival in (of.UNIFORM, of.LATENCY_AWARE):
        found = [
            results.difference(one, of.HETEROSERVE, rival, ATTAINMENT) for one in of.BIMODAL_CASES
        ]
        yield Claim(
            f"floor-bimodal-{rival.policy}",
            f"SLO attainment of half short, half long prompts, HeteroServe's less {rival.label}'s",
            "; ".join(one.label for one in of.BIMODAL_CASES),
            "share",
            0.0,
            span(found),
            spread=noise(found),
            note="a floor: the paper's own loses 0.146 against Uniform",
        )
    yield claim(
        "bimodal-throughput",
        "throughput of half short, half long prompts, HeteroServe's over Uniform's",
        case,
        2.11,
        results.ratio(case, of.HETEROSERVE, of.UNIFORM, TOKENS),
        note=reasons.THROUGHPUT,
    )


# --- sections 4.5 and 4.7, appendix A -----------------------------------------------------------


def _bins(results: Results) -> Iterable[Claim]:
    case = of.SATURATED
    tokens = {k: results.measured(case, one, TOKENS) for k, one in of.BY_BINS.items()}
    attained = {k: results.mean(case, one, ATTAINMENT) for k, one in of.BY_BINS.items()}
    means = [one.mean for one in tokens.values()]
    told = ", ".join(f"K = {k} {share:.3f}" for k, share in attained.items())
    yield Claim(
        "bins",
        "throughput with 2, 3 or 4 length bins, the lowest over the highest; the paper's form",
        case.label,
        "ratio",
        round(37_488 / 37_502, 4),
        round(min(means) / max(means), 4),
        spread=round(max(one.deviation for one in tokens.values()) / max(means), 4),
        note=f"attainment: {told} (claimed 0.414, 0.394, 0.408); {reasons.BINS}",
    )


def _scaling(results: Results) -> Iterable[Claim]:
    def points(contender: Contender, of_what: str) -> list[tuple[float, float]]:
        return [
            (float(case.devices), results.mean(case, contender, of_what))
            for case in of.SCALING_CASES
        ]

    ours = points(of.HETEROSERVE, TOKENS)
    slope, share = linear_fit(ours)
    uniform, _ = linear_fit(points(of.UNIFORM, TOKENS))
    _, steady_share = linear_fit(points(of.HETEROSERVE, STEADY))
    efficiency = (ours[-1][1] / ours[-1][0]) / (ours[0][1] / ours[0][0])
    yield Claim(
        "scaling",
        "R^2 of throughput against devices",
        f"4 to 32 devices, 1 : 2 : 1, load 1, {of.PER_DEVICE} requests per device",
        "R^2",
        0.997,
        round(share, 5),
        note=f"{slope:,.0f} tokens/s a device (Uniform {uniform:,.0f}); per device at"
        f" {ours[-1][0]:g} {efficiency:.2f} of that at {ours[0][0]:g}; of what ended while requests"
        f" came R^2 {steady_share:.4f}; {reasons.SCALING}",
    )


def _decisions(results: Results) -> Iterable[Claim]:
    found = results.decisions
    worst = max(found.values(), key=lambda one: one.p99_us)
    told = "; ".join(
        f"{one.devices} devices: P50 {one.p50_us / 1e3:.3f}, routing alone P99"
        f" {one.routing_p99_us / 1e3:.3f} ms"
        for one in found.values()
    )
    yield Claim(
        "decision",
        "P99 time from a request's arrival to its dispatch, decision alone",
        f"{', '.join(str(n) for n in found)} devices, load 0.9, {worst.decisions:,} requests",
        "ms",
        0.5,
        round(worst.p99_us / 1e3, 4),
        better=Better.LOWER,
        note="the deciding thread's own time, the best of three runs, on whatever machine this ran:"
        f" the one figure that depends on it; {told}",
    )
