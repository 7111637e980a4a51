"""Plays of contenders on the same requests, from several seeds: means, spreads, paired ratios."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from dispatcher.bench.report import Figures

Case = TypeVar("Case")
Contender = TypeVar("Contender")
Figure = str | Callable[[Figures], float]
"""A figure by name, or what finds it."""


class Measured:
    """A figure, once for each seed.

    Args:
        values: At least one.
    """

    def __init__(self, values: Sequence[float]) -> None:
        self.values = tuple(values)
        self.mean = statistics.fmean(values)
        self.deviation = _deviation(values)


def _deviation(values: Sequence[float]) -> float:
    """Of a sample; not a number where a value is none, or is infinite."""
    if len(values) < 2:
        return 0.0
    return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan


def span(found: Iterable[Measured]) -> tuple[float, float]:
    """Lowest and highest mean, of at least one."""
    means = [round(one.mean, 3) for one in found]
    return min(means), max(means)


def noise(found: Iterable[Measured]) -> float:
    """The highest standard deviation over seeds, of at least one."""
    return round(max(one.deviation for one in found), 3)


def means_told(found: Iterable[Measured], names: Iterable[str], how: str = ".2f") -> str:
    """Each mean behind its name, in words."""
    return ", ".join(f"{name} {one.mean:{how}}" for name, one in zip(names, found, strict=True))


class PairedPlays(Generic[Case, Contender]):
    """Figures of every play, by case, contender and seed.

    Of one case and seed all contenders have met the same requests. So what compares two of them
    compares seed with seed: the mean of ratios, not the ratio of means.

    Args:
        pairs: Who plays what, in the order in which it is told.
        found: Figures by case, contender and seed; of a case, each contender's seeds in one order.
    """

    def __init__(
        self,
        pairs: Sequence[tuple[Case, Contender]],
        found: Mapping[tuple[Case, Contender, int], Figures],
    ) -> None:
        self.pairs = pairs
        self._of: dict[tuple[Case, Contender], list[Figures]] = {}
        for (case, contender, _), figures in found.items():
            self._of.setdefault((case, contender), []).append(figures)

    def figures(self, case: Case, contender: Contender) -> list[Figures]:
        """One for each seed.

        Raises:
            KeyError: Not played.
        """
        return self._of[case, contender]

    def measured(self, case: Case, contender: Contender, of: Figure) -> Measured:
        """A figure of a contender; not a number where a seed has nothing to measure."""
        return Measured([_value(found, of) for found in self.figures(case, contender)])

    def mean(self, case: Case, contender: Contender, of: Figure) -> float:
        """Over seeds."""
        return self.measured(case, contender, of).mean

    def ratio(self, case: Case, over: Contender, under: Contender, of: Figure) -> Measured:
        """One contender's figure over another's, of the same requests."""
        return self._paired(case, over, under, of, _over)

    def cut(self, case: Case, ours: Contender, theirs: Contender, of: Figure) -> Measured:
        """Part of another contender's figure that one saves, of the same requests."""
        return self._paired(case, ours, theirs, of, lambda a, b: 1.0 - _over(a, b))

    def excess(self, case: Case, other: Contender, ours: Contender, of: Figure) -> Measured:
        """What another contender's figure has above ours, as a part of ours."""
        return self._paired(case, other, ours, of, lambda a, b: _over(a, b) - 1.0)

    def difference(self, case: Case, more: Contender, less: Contender, of: Figure) -> Measured:
        """One contender's figure less another's, of the same requests."""
        return self._paired(case, more, less, of, lambda a, b: a - b)

    def _paired(
        self,
        case: Case,
        one: Contender,
        other: Contender,
        of: Figure,
        compared: Callable[[float, float], float],
    ) -> Measured:
        pairs = zip(self.figures(case, one), self.figures(case, other), strict=True)
        return Measured([compared(_value(a, of), _value(b, of)) for a, b in pairs])


def _value(found: Figures, of: Figure) -> float:
    if not isinstance(of, str):
        return of(found)
    value = found[of]
    return math.nan if value is None else float(value)


def _over(over: float, under: float) -> float:
    """A ratio to nothing says no more than that it is large."""
    return over / under if under > 0.0 else float("inf")
