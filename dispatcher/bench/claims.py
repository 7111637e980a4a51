"""What a paper claims beside what was measured, and whether that reaches it.

The `Experiment` of a paper yields `Findings`; `paper_document` makes of them what
`headway bench paper` writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from dispatcher.bench.provenance import provenance
from dispatcher.bench.report import plain

Number = float | tuple[float, float]
"""One number, or the lowest and the highest of several."""


class Better(StrEnum):
    """The direction of a claim."""

    HIGHER = "higher"
    LOWER = "lower"


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim of a paper and its measurement.

    Raises:
        ValueError: A range whose ends are not in order.
    """

    id: str
    """Unique within its paper; stays the same."""
    what: str
    setting: str
    unit: str
    claimed: Number
    measured: Number | None
    """`None`: could not be measured; the note says why."""
    better: Better = Better.HIGHER
    spread: Number | None = None
    """Of the measurement: the standard deviation over seeds, or the lowest and the highest."""
    note: str = ""
    """Where measured and claimed differ: the reason."""

    def __post_init__(self) -> None:
        for name in ("claimed", "measured", "spread"):
            value = getattr(self, name)
            if isinstance(value, tuple) and value[0] > value[1]:
                raise ValueError(f"claim {self.id}: {name} must be (low, high), not {value}")

    @property
    def met(self) -> bool:
        """Whether the measured number reaches the weaker end of the claim in its direction.

        Of a measured range, the weaker end has to.

        Example:
            >>> Claim("c", "ratio", "-", "x", (1.2, 1.6), 1.3).met
            True
            >>> Claim("c", "ratio", "-", "x", (1.2, 1.6), (1.1, 1.9)).met
            False
        """
        if self.measured is None:
            return False
        if self.better is Better.HIGHER:
            return _low(self.measured) >= _low(self.claimed)
        return _high(self.measured) <= _high(self.claimed)

    def described(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "id": self.id,
            "what": self.what,
            "setting": self.setting,
            "unit": self.unit,
            "claimed": plain(self.claimed),
            "measured": plain(self.measured),
            "spread": plain(self.spread),
            "met": self.met,
            "note": self.note,
        }


def _low(number: Number) -> float:
    return number[0] if isinstance(number, tuple) else number


def _high(number: Number) -> float:
    return number[1] if isinstance(number, tuple) else number


@dataclass(frozen=True, slots=True)
class ExperimentOptions:
    """How the experiments of a paper are run."""

    seeds: tuple[int, ...] = (0, 1, 2)
    jobs: int | None = None
    """Worker processes; `None`: as many as there are cores."""
    on_steps: Callable[[int], None] = lambda total: None
    """Told once how many steps there will be."""
    on_step: Callable[[], None] = lambda: None
    """Called after each."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A small table to print beneath the claims."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Findings:
    """What the experiments of a paper came to."""

    claims: Sequence[Claim]
    tables: Mapping[str, Any] = field(default_factory=dict)
    """Further results by name, as plain values; they follow the claims in the file."""
    summaries: Sequence[Summary] = ()


@dataclass(frozen=True, slots=True)
class Experiment:
    """The experiments of one paper."""

    paper: str
    """Its name on the command line."""
    title: str
    run: Callable[[ExperimentOptions], Findings]
    draw: Callable[[Mapping[str, Any], Path], list[Path]]
    """Pictures of its document into a folder; the files. Raises where there is no matplotlib."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """The paper's, or as many as tell its claims from chance; where none are asked for."""


def paper_document(
    paper: str, findings: Findings, *, seeds: Sequence[int], seconds: float
) -> dict[str, Any]:
    """What `headway bench paper` writes, as plain JSON values.

    Args:
        paper: Its name.
        findings: Claims, each of another id, and further tables.
        seeds: What was measured with.
        seconds: How long it took.

    Raises:
        ValueError: Two claims of one id.
    """
    ids = [claim.id for claim in findings.claims]
    if len(set(ids)) < len(ids):
        twice = sorted({name for name in ids if ids.count(name) > 1})
        raise ValueError(f"claims of one id: {', '.join(twice)}")
    return {
        "paper": paper,
        **provenance(),
        "seeds": list(seeds),
        "seconds": round(seconds, 1),
        "claims": [claim.described() for claim in findings.claims],
        **plain(findings.tables),
    }
