"""Whether predicted quantiles hold, over a sliding window, and what makes them hold.

What came is kept as its place in the predicted law: the probability that the law gave to lengths
up to it. Where predictions are right these places are uniform, so a quantile p covers a share p.
Where they are not, the level that did cover a share p of the window is used in place of p
(conformal prediction over the predicted distribution: Chernozhukov, Wuethrich and Zhu, 2021, with
the finite-sample rank of split conformal prediction; a window in place of a fixed calibration set,
since traffic moves). Where even the corrected quantiles miss by too much, predictions have
drifted, until they hold again.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import itemgetter

from dispatcher.core.types import LengthEstimate

Quantiles = tuple[tuple[float, float], ...]
"""(probability in (0, 1), tokens of at least 1), both ascending; as in `LengthEstimate`."""

_LEAST_LEVEL, _MOST_LEVEL = 1e-6, 1.0 - 1e-12
"""Places of lengths are cut here: of a law with an exponential tail, far out of it."""
_BEYOND_LEVEL = 0.9995
"""Used where more samples are needed to know a level, unless one of them was beyond it."""

_level_of = itemgetter(0)
_tokens_of = itemgetter(1)


@dataclass(frozen=True, slots=True)
class CoverageSettings:
    """What is watched, and how far off is too far."""

    window: int = 500
    """Latest calls that count; at least 1."""
    levels: tuple[float, ...] = (0.5, 0.9, 0.95)
    """Quantiles that are watched."""
    min_samples: int = 100
    """With fewer nothing is corrected and nothing has drifted."""
    tolerance: float = 0.10
    """Coverage further than this from its level, beyond what chance explains, is drift."""
    recovered: float = 0.05
    """Drift is over once all levels are within this, or within chance."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether predictions may be used."""

    drifted: bool
    reason: str
    """Which quantile covers what, in words; why nothing is known yet; or that all is well."""


class Coverage:
    """Sliding window over what was predicted and what came.

    Example:
        >>> coverage = Coverage(CoverageSettings(window=100, min_samples=20))
        >>> law = LengthEstimate(50.0, tuple((p / 10, 10.0 * p) for p in range(1, 10)))
        >>> for tokens in range(20, 220, 2):  # twice as long as predicted
        ...     coverage.observe(law, tokens)
        >>> round(coverage.corrected(law).quantile_tokens(0.5)) in range(100, 140)
        True
    """

    def __init__(self, settings: CoverageSettings | None = None) -> None:
        self._settings = settings or CoverageSettings()
        if not 1 <= self._settings.min_samples <= self._settings.window:
            raise ValueError("min_samples must be at least 1 and at most window")
        if not all(0 < level < 1 for level in self._settings.levels):
            raise ValueError("levels must be in (0, 1)")
        #: oldest first: place in the predicted law, and levels that covered it
        self._window: deque[tuple[float, tuple[bool, ...]]] = deque()
        #: the same places, ascending
        self._places: list[float] = []
        self._covered = [0] * len(self._settings.levels)
        self._total = 0
        self._drifted = False
        self._drifts = 0

    def observe(self, estimate: LengthEstimate, tokens: float) -> None:
        """A call ended with that many tokens.

        Args:
            estimate: What was predicted on arrival, before `corrected`.
            tokens: What came; at least 1, others teach nothing.
        """
        if not (estimate.quantiles and 1 <= tokens < math.inf):
            return
        used = self.corrected(estimate)
        covered = tuple(tokens <= used.quantile_tokens(p) for p in self._settings.levels)
        place = place_of(estimate.quantiles, tokens)
        if len(self._window) == self._settings.window:
            oldest, were_covered = self._window.popleft()
            del self._places[bisect_left(self._places, oldest)]
            for at, yes in enumerate(were_covered):
                self._covered[at] -= yes
        self._window.append((place, covered))
        insort(self._places, place)
        for at, yes in enumerate(covered):
            self._covered[at] += yes
        self._total += 1
        self._judge()

    def corrected(self, estimate: LengthEstimate) -> LengthEstimate:
        """The same with each quantile moved to the level that held in the window."""
        if len(self._places) < self._settings.min_samples or len(estimate.quantiles) < 2:
            return estimate
        wanted = [(p, conformal_level(self._places, p)) for p, _ in estimate.quantiles]
        quantiles = at_levels(estimate.quantiles, wanted)
        return replace(estimate, expected_tokens=mean_of(quantiles), quantiles=quantiles)

    def verdict(self) -> Verdict:
        """Of the window as it is."""
        count = len(self._window)
        if count < self._settings.min_samples:
            return Verdict(False, f"{count} of {self._settings.min_samples} calls seen")
        worst = max(self._misses(), key=lambda miss: abs(miss[1]))
        level, off = worst
        said = f"the {level:g} quantile covers {level + off:.1%} of the latest {count} calls"
        return Verdict(self._drifted, said)

    def reset(self) -> None:
        """Another predictor speaks from now on."""
        self._window.clear()
        self._places.clear()
        self._covered = [0] * len(self._settings.levels)
        self._drifted = False

    def stats(self) -> dict[str, object]:
        """Coverage by level, the levels used in their place, the verdict; JSON-ready."""
        count = len(self._window)
        verdict = self.verdict()
        enough = count >= self._settings.min_samples
        return {
            "calls": count,
            "calls_total": self._total,
            "window": self._settings.window,
            "coverage": {
                f"{level:g}": covered / count if count else None
                for level, covered in zip(self._settings.levels, self._covered, strict=True)
            },
            "corrected_levels": {
                f"{level:g}": conformal_level(self._places, level) if enough else level
                for level in self._settings.levels
            },
            "drifted": verdict.drifted,
            "reason": verdict.reason,
            "drifts_total": self._drifts,
        }

    def _misses(self) -> list[tuple[float, float]]:
        """Level, and coverage less level; the window must not be empty."""
        count = len(self._window)
        return [
            (level, covered / count - level)
            for level, covered in zip(self._settings.levels, self._covered, strict=True)
        ]

    def _judge(self) -> None:
        count = len(self._window)
        if count < self._settings.min_samples:
            return
        limit = self._settings.recovered if self._drifted else self._settings.tolerance
        # three standard deviations: chance reaches them about once in 400 windows
        beyond = any(
            abs(off) > max(limit, 3.0 * math.sqrt(level * (1.0 - level) / count))
            for level, off in self._misses()
        )
        if beyond and not self._drifted:
            self._drifts += 1
        self._drifted = beyond


def place_of(known: Quantiles, tokens: float) -> float:
    """Probability that the law of these quantiles gives to lengths up to this one, in (0, 1).

    Where the law has a step, the least level whose quantile is as long. Beyond the last quantile
    the tail is exponential; below the first the law is even down to 0.
    """
    at = bisect_left(known, tokens, key=_tokens_of)
    if at == 0:
        p, value = known[0]
        return max(_LEAST_LEVEL, p * min(1.0, tokens / value))
    p0, v0 = known[at - 1]
    if at == len(known):
        scale = _tail(known)
        beyond = math.exp(-(tokens - v0) / scale) if scale > 0 else 0.0
        return min(_MOST_LEVEL, 1.0 - (1.0 - p0) * beyond)
    p1, v1 = known[at]
    return p0 + (p1 - p0) * (tokens - v0) / (v1 - v0)


def at_levels(known: Quantiles, wanted: Sequence[tuple[float, float]]) -> Quantiles:
    """The law that has, as its quantile p, this law's value at another level; none below 1 token.

    Args:
        known: At least one quantile, ascending.
        wanted: (p, level) pairs in (0, 1), both ascending.
    """
    return tuple((p, max(1.0, _value_at(known, level))) for p, level in wanted)


def conformal_level(places: Sequence[float], p: float, independent: float | None = None) -> float:
    """The place that a share p of the next ones does not exceed: the rank of split conformal.

    Args:
        places: Ascending; not empty.
        p: In (0, 1).
        independent: So many independent places would say as much; above 0. Default: all are.
    """
    count = len(places)
    rank = math.ceil(p * count * (1.0 + 1.0 / (independent or count)))
    found = places[rank - 1] if rank <= len(places) else max(_BEYOND_LEVEL, places[-1])
    return min(_MOST_LEVEL, max(_LEAST_LEVEL, found))


def mean_of(quantiles: Quantiles) -> float:
    """Mean of the law that is even between its quantiles, with an exponential tail; at least 1."""
    p, value = quantiles[0]
    # below the first quantile half of it, if 0 is the least that may come
    total = p * value * 0.75
    for (p0, v0), (p1, v1) in pairwise(quantiles):
        total += (p1 - p0) * (v0 + v1) / 2.0
    p, value = quantiles[-1]
    return max(1.0, total + (1.0 - p) * (value + _tail(quantiles)))


def _value_at(known: Quantiles, level: float) -> float:
    at = bisect_right(known, level, key=_level_of)
    if at == 0:
        p, value = known[0]
        return value * level / p
    p0, v0 = known[at - 1]
    if at == len(known):
        return v0 + _tail(known) * math.log((1.0 - p0) / (1.0 - level))
    p1, v1 = known[at]
    return v0 + (v1 - v0) * (level - p0) / (p1 - p0)


def _tail(known: Quantiles) -> float:
    """Mean of what lies beyond the last quantile, in tokens."""
    if len(known) < 2:
        return 0.0
    (p0, v0), (p1, v1) = known[-2:]
    return (v1 - v0) / math.log((1.0 - p0) / (1.0 - p1))
