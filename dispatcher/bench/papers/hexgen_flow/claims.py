"""The claims of HexGen-Flow's section 5, each beside what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dispatcher.bench.claims import Better, Claim
from dispatcher.bench.fleets import FLEETS
from dispatcher.bench.measured_claims import claim_of_several
from dispatcher.bench.over_seeds import noise, span
from dispatcher.bench.papers.hexgen_flow import reasons
from dispatcher.bench.papers.hexgen_flow.cases import (
    ALPHA_CASES,
    ALPHAS,
    BASELINES,
    HETERO_CASES,
    HOMO_CASES,
    MAC_SQL_CASES,
    OURS,
    QUERIES,
    SCALE,
    TENANT_CASES,
    TENANTS,
    WB_FCFS,
    Case,
)
from dispatcher.bench.papers.hexgen_flow.results import Results, mean, with_alpha
from dispatcher.bench.report import Figures
from dispatcher.simulator.workloads.chess import PAPER_STAGES


def claims_of(results: Results) -> list[Claim]:
    """All of them, in the paper's order."""
    return [
        *_end_to_end(results),
        *_homogeneous(results),
        *_elsewhere(results),
        *_ablations(results),
        *_placement(results),
        *_alpha(results),
        *_tuning(results),
    ]


# --- section 5.2 --------------------------------------------------------------------------------

_CLAIMED = {
    "vllm": ((1.192, 1.562), (1.491, 1.810)),
    "vtc": ((1.192, 1.538), (1.103, 1.398)),
    "qlm": ((1.140, 1.396), (1.175, 1.366)),
}
"""P95 and throughput ratios on the two mixed fleets."""
_EXAMPLES = (
    ("vllm", Case("chess-1", "hetero-1", 0.5), 5.4, 3.5),
    ("vtc", Case("chess-2", "hetero-2", 0.5), 7.9, 5.2),
    ("qlm", Case("chess-3", "hetero-2", 1.0), 7.8, 6.1),
)


_HETERO = "traces 1-3, Hetero-1 and Hetero-2, 0.5 and 1.0 queries/s"


def _end_to_end(results: Results) -> Iterable[Claim]:
    for name in BASELINES:
        p95, throughput = _CLAIMED[name]
        scales = [results.scales(case, name) for case in HETERO_CASES]
        yield claim_of_several(
            f"p95-ratio-{name}",
            f"least SLO scale at 95 % attainment: {name}'s over HexGen-Flow's",
            _HETERO,
            p95,
            scales,
            note=reasons.P95[name],
        )
        throughputs = [results.throughputs(case, name) for case in HETERO_CASES]
        yield claim_of_several(
            f"throughput-ratio-{name}",
            f"queries over makespan: HexGen-Flow's over {name}'s",
            _HETERO,
            throughput,
            throughputs,
            note=reasons.THROUGHPUT[name],
        )
    for name, case, theirs, ours in _EXAMPLES:
        found = results.scales(case, name)
        yield Claim(
            f"example-{name}",
            f"the paper's example: {name} needs scale {theirs:g}, HexGen-Flow {ours:g}",
            case.label,
            "ratio",
            round(theirs / ours, 3),
            round(found.mean, 3),
            spread=noise([found]),
            note=f"measured scales: {name} {results.mean(case, name, SCALE):.2f}, HexGen-Flow"
            f" {results.mean(case, OURS, SCALE):.2f}",
        )


def _homogeneous(results: Results) -> Iterable[Claim]:
    for name, claimed in zip(BASELINES, (1.326, 1.314, 1.286), strict=True):
        found = [results.scales(case, name) for case in HOMO_CASES]
        low, high = span(found)
        yield Claim(
            f"homogeneous-{name}",
            f"highest P95 ratio against {name} on four equal engines",
            "traces 1-3, 4 x A100 instances, 0.5 and 1.0 queries/s",
            "ratio",
            claimed,
            high,
            spread=noise(found),
            note=f"over the settings {low} to {high}; {reasons.HOMOGENEOUS}",
        )


def _elsewhere(results: Results) -> Iterable[Claim]:
    found = [results.scales(case, name) for case in MAC_SQL_CASES for name in BASELINES]
    yield claim_of_several(
        "mac-sql",
        "P95 ratio against all three baselines",
        "MAC-SQL on Spider (trace 4); " + FLEETS["mac-sql"].note,
        (1.340, 1.383),
        found,
        note=reasons.MAC_SQL,
    )
    for tenant, scale in TENANTS:
        of_tenant = [
            results.ratio(case, name, OURS, lambda f, t=tenant: float(f["tenants"][t][SCALE]))  # type: ignore[misc]
            for case in TENANT_CASES
            for name in BASELINES
        ]
        yield claim_of_several(
            f"two-tenants-{tenant}",
            f"P95 ratio of {tenant} against all three baselines",
            "trace 3, Hetero-1 and Hetero-2, 0.5 and 1.0 queries/s, two users in turn, SLO scale"
            f" {scale:g} for this one",
            (1.279, 1.357),
            of_tenant,
            note=reasons.TENANTS,
        )


# --- section 5.3 --------------------------------------------------------------------------------


def _ablations(results: Results) -> Iterable[Claim]:
    balance = [results.scales(case, "rr-pq") for case in HETERO_CASES]
    yield claim_of_several(
        "balance-against-round-robin",
        "P95 ratio of RR+PQ over WB+PQ",
        _HETERO,
        (1.105, 1.348),
        balance,
        note=reasons.BALANCE,
    )
    queue = [results.scales(case, WB_FCFS) for case in HETERO_CASES]
    low, high = span(queue)
    yield Claim(
        "queue-against-fcfs",
        "highest P95 ratio of WB+FCFS over WB+PQ",
        _HETERO,
        "ratio",
        1.48,
        high,
        spread=noise(queue),
        note=f"over the settings {low} to {high}; {reasons.QUEUE}",
    )


_STRONG, _WEAK = ("a100-0", "a100-1"), ("l40-0",)


def _share(found: Figures, stage: int, instances: Sequence[str]) -> float:
    """Share of a paper's stage in what runs on these instances, summed as the paper sums it."""
    total = 0.0
    for instance in instances:
        stages = found["placement"].get(instance, {})
        calls = sum(stages.values())
        of_stage = sum(n for name, n in stages.items() if PAPER_STAGES[name] == stage)
        total += of_stage / calls if calls else 0.0
    return total


def _placement(results: Results) -> Iterable[Claim]:
    case = Case("chess-3", "hetero-2", 0.5)
    for stage, instances, claimed, better in (
        (2, _STRONG, (27.9 + 29.6) / (10.3 + 7.8), Better.HIGHER),
        (2, _WEAK, 3.1 / 9.6, Better.LOWER),
        (1, _STRONG, (0.9 + 0.5) / (20.8 + 23.1), Better.LOWER),
        (1, _WEAK, 32.3 / 26.8, Better.HIGHER),
    ):
        where = "A100" if instances is _STRONG else "L40"
        under_wb = mean([_share(found, stage, instances) for found in results.figures(case, OURS)])
        under_rr = mean(
            [_share(found, stage, instances) for found in results.figures(case, "rr-pq")]
        )
        yield Claim(
            f"placement-stage-{stage}-{where.lower()}",
            f"share of stage {stage} in what {where} instances run: under WB over under RR"
            " (Table 2)",
            case.label,
            "ratio",
            round(claimed, 3),
            round(under_wb / under_rr, 3),
            better=better,
            note=f"{under_wb:.1%} and {under_rr:.1%}; {reasons.PLACEMENT}",
        )


# --- section 5.4 --------------------------------------------------------------------------------


def _alpha(results: Results) -> Iterable[Claim]:
    best: dict[str, float] = {}
    gains: dict[str, float] = {}
    for case in ALPHA_CASES:
        scales = {a: results.mean(case, with_alpha(OURS, a), SCALE) for a in ALPHAS}
        best[case.label] = min(ALPHAS, key=lambda a, s=scales: (s[a], a))  # type: ignore[misc]
        gains[case.label] = scales[0.0] / scales[best[case.label]]
    told = "; ".join(f"{label}: alpha {best[label]:g}, {gains[label]:.2f}" for label in best)
    yield Claim(
        "alpha-optimum",
        "settings whose best alpha lies in 0.1 to 0.4",
        "traces 1-3, Hetero-1 and Hetero-2, 0.5 queries/s",
        "share",
        1.0,
        round(sum(0.1 <= alpha <= 0.4 for alpha in best.values()) / len(best), 3),
        note=f"best alpha and gain by setting: {told}",
    )
    yield Claim(
        "alpha-gain",
        "highest P95 ratio of alpha 0 over the best alpha",
        "traces 1-3, Hetero-1 and Hetero-2, 0.5 queries/s",
        "ratio",
        1.14,
        round(max(gains.values()), 3),
        note=reasons.ALPHA,
    )


def _tuning(results: Results) -> Iterable[Claim]:
    found = [results.tuned[case] for case in ALPHA_CASES]
    calls = [tuned.calls for tuned in found]
    alphas = ", ".join(f"{tuned.alpha:g}" for tuned in found)
    times_s = [tuned.taken_s for tuned in found]
    yield Claim(
        "tuning-cost",
        f"time of one tune: {QUERIES} queries under 11 alphas (Table 4)",
        f"traces 1-3, Hetero-1 and Hetero-2, 0.5 queries/s; {min(calls)} to {max(calls)} calls,"
        " one core",
        "s",
        (115.6, 158.0),
        (round(min(times_s), 2), round(max(times_s), 2)),
        better=Better.LOWER,
        note=f"alphas found, in that order: {alphas}; {reasons.TUNING}",
    )
