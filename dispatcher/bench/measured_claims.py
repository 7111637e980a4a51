"""Claims of what was measured over seeds: of one case with its noise, of several by their ends."""

from __future__ import annotations

from collections.abc import Collection

from dispatcher.bench.claims import Better, Claim, Number
from dispatcher.bench.over_seeds import Measured, noise, span


def claim_of_one(
    name: str,
    what: str,
    where: str,
    claimed: Number,
    found: Measured,
    *,
    unit: str = "ratio",
    better: Better = Better.HIGHER,
    note: str,
) -> Claim:
    """One claim of one case."""
    return Claim(
        name,
        what,
        where,
        unit,
        claimed,
        round(found.mean, 3),
        better=better,
        spread=round(found.deviation, 3),
        note=note,
    )


def claim_of_several(
    name: str,
    what: str,
    where: str,
    claimed: Number,
    found: Collection[Measured],
    *,
    unit: str = "ratio",
    better: Better = Better.HIGHER,
    note: str,
) -> Claim:
    """One claim of several cases; of none, it could not be measured."""
    return Claim(
        name,
        what,
        where,
        unit,
        claimed,
        span(found) if found else None,
        better=better,
        spread=noise(found) if found else None,
        note=note,
    )
