"""How what was measured is told: in so many digits, with its spread over seeds."""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher.bench.claims import Better, Claim, Number
from dispatcher.bench.over_seeds import Measured
from dispatcher.bench.papers.heteroserve.cases import Case


def rounded(measured: Measured) -> float:
    """Its mean, in as many digits as matter."""
    return float(f"{measured.mean:.4g}")


def span(found: Sequence[Measured]) -> tuple[float, float]:
    """Lowest and highest mean, of at least one."""
    means = [rounded(one) for one in found]
    return min(means), max(means)


def claim(
    name: str,
    what: str,
    case: Case,
    claimed: Number,
    measured: Measured,
    *,
    unit: str = "ratio",
    better: Better = Better.HIGHER,
    note: str,
) -> Claim:
    """One claim of one case, its setting the case's."""
    return Claim(
        name,
        what,
        case.label,
        unit,
        claimed,
        rounded(measured),
        better=better,
        spread=float(f"{measured.deviation:.3g}"),
        note=note,
    )


def as_printed(measured: Measured) -> str:
    """What the paper's own form came to, in words."""
    return f"the paper's form: {measured.mean:.3g}"
