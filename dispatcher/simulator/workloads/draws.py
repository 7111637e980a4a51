"""Ways to draw lengths and counts; whatever is random comes in as a seeded `random.Random`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import pairwise
from math import exp, expm1, log1p
from random import Random


class Quantiles:
    """A distribution of numbers >= 0, given by quantiles: (probability, value), both ascending.

    Between two points it is even in log(1 + value): the bulk and a long tail are drawn alike
    well, spikes (a context limit, a fixed answer) are two points of nearly one value.

    Raises:
        ValueError: The points do not run from probability 0 to 1, or do not ascend.

    Example:
        >>> halves = Quantiles.parse("0:0 0.5:10 1:1000")
        >>> round(halves.at(0.5), 6), round(halves.at(1.0), 6)
        (10.0, 1000.0)
    """

    __slots__ = ("_logs", "_probabilities")

    def __init__(self, points: Iterable[tuple[float, float]]) -> None:
        pairs = list(points)
        probabilities = [probability for probability, _ in pairs]
        values = [value for _, value in pairs]
        if len(pairs) < 2 or probabilities[0] != 0 or probabilities[-1] != 1:
            raise ValueError(f"quantiles must run from 0 to 1, not over {probabilities}")
        if any(a >= b for a, b in pairwise(probabilities)):
            raise ValueError(f"probabilities must ascend, not {probabilities}")
        if values[0] < 0 or any(a > b for a, b in pairwise(values)):
            raise ValueError(f"values must be at least 0 and ascend, not {values}")
        self._probabilities = probabilities
        self._logs = [log1p(value) for value in values]

    @classmethod
    def parse(cls, points: str) -> Quantiles:
        """Read `probability:value` points, separated by blanks.

        Raises:
            ValueError: It is no such text, or as above.
        """
        pairs = (point.split(":") for point in points.split())
        return cls([(float(probability), float(value)) for probability, value in pairs])

    def at(self, probability: float) -> float:
        """Return the value that a share of `probability` (0 to 1) stays below."""
        right = min(max(bisect_left(self._probabilities, probability), 1), len(self._logs) - 1)
        low, high = self._probabilities[right - 1], self._probabilities[right]
        along = (probability - low) / (high - low)
        return expm1(self._logs[right - 1] + along * (self._logs[right] - self._logs[right - 1]))

    def draw(self, random: Random) -> float:
        """Draw one value."""
        return self.at(random.random())

    def tokens(self, random: Random) -> int:
        """Draw one value as a number of tokens, at least 1."""
        return max(1, round(self.draw(random)))


def lognormal(random: Random, median: float, sigma: float) -> float:
    """Draw from the lognormal of that median; `sigma` is the deviation of the logarithm."""
    return median * exp(random.gauss(0.0, sigma))


def clipped(value: float, low: float, high: float) -> int:
    """Return the whole number nearest to `value` within [low, high]."""
    return round(min(max(value, low), high))


class BetaBinomial:
    """Counts in 0..trials of a given mean and variance: trials that succeed or fail alike.

    Raises:
        ValueError: There are none: fewer than two trials, a mean outside (0, trials), or a variance
            not between that of independent trials and mean x (trials - mean).
    """

    __slots__ = ("_failure_weight", "_success_weight", "_trials")

    def __init__(self, trials: int, mean: float, variance: float) -> None:
        chance = mean / trials
        independent = trials * chance * (1.0 - chance)
        if trials < 2 or not 0 < mean < trials or not independent < variance < independent * trials:
            raise ValueError(f"no {trials} trials have mean {mean} and variance {variance}")
        alike = (variance / independent - 1.0) / (trials - 1)
        weight = 1.0 / alike - 1.0
        self._trials = trials
        self._success_weight, self._failure_weight = chance * weight, (1.0 - chance) * weight

    def draw(self, random: Random) -> int:
        """Draw one count."""
        chance = random.betavariate(self._success_weight, self._failure_weight)
        return sum(random.random() < chance for _ in range(self._trials))
