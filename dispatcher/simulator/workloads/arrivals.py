"""When workflows arrive: processes of a given rate, from even to bursty.

Sources: HexGen-Flow (arXiv:2505.05286), section 5.1: Poisson. Burstiness by the coefficient of
variation (CV) of a Gamma renewal process: as in AlpaServe (OSDI 2023) and FastServe. ServeGen
(arXiv:2505.09999; data Apache-2.0): many clients, few of them with most of the load, each with
its own rate and burstiness, piecewise constant. Azure LLM inference trace 2023 (CC-BY 4.0;
Splitwise, ISCA 2024): half an hour of production chat and code completion.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from itertools import islice, pairwise, takewhile
from math import exp, inf
from random import Random
from typing import Protocol

from dispatcher.simulator.workloads.draws import Quantiles


class Arrivals(Protocol):
    """A process of arrivals."""

    def stream(self, rate_per_s: float, random: Random) -> Iterator[float]:
        """Return moments in seconds from 0 on, ascending, without end.

        Args:
            rate_per_s: Their number per second in the long run; above 0, finite.
            random: Where randomness comes from; the caller hands it over.
        """
        ...


def moments(
    arrivals: Arrivals,
    rate_per_s: float,
    random: Random,
    *,
    count: int | None = None,
    duration_s: float | None = None,
) -> list[float]:
    """Return the first `count` moments, or those up to `duration_s`.

    Raises:
        ValueError: Not exactly one of `count` and `duration_s` is given, or one of the numbers is
            not above 0 and finite.
    """
    if (count is None) == (duration_s is None):
        raise ValueError("expected a count or a duration_s, and not both")
    for name, number in (("rate_per_s", rate_per_s), ("count", count), ("duration_s", duration_s)):
        if number is not None and not 0 < number < inf:
            raise ValueError(f"{name} must be above 0 and finite, not {number}")
    stream = arrivals.stream(rate_per_s, random)
    if duration_s is not None:
        return list(takewhile(lambda moment_s: moment_s <= duration_s, stream))
    return list(islice(stream, count))


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent arrivals at a constant rate (CV 1)."""

    def stream(self, rate_per_s: float, random: Random) -> Iterator[float]:
        """See `Arrivals`."""
        moment_s = 0.0
        while True:
            moment_s += random.expovariate(rate_per_s)
            yield moment_s


@dataclass(frozen=True, slots=True)
class Gamma:
    """Renewal process of Gamma gaps: even below CV 1, Poisson at 1, bursty above.

    Raises:
        ValueError: The CV is not above 0.
    """

    cv: float

    def __post_init__(self) -> None:
        if not 0.0 < self.cv < inf:
            raise ValueError(f"cv must be above 0 and finite, not {self.cv}")

    def stream(self, rate_per_s: float, random: Random) -> Iterator[float]:
        """See `Arrivals`."""
        moment_s = 0.0
        shape = 1.0 / self.cv**2
        while True:
            moment_s += random.gammavariate(shape, 1.0 / (shape * rate_per_s))
            yield moment_s


_SERVEGEN_CV = Quantiles.parse("0:0.4 0.05:0.7 0.25:0.9 0.5:1.03 0.75:2.1 0.95:8 1:12")
"""CV of the gaps of one client in ten minutes, weighted by its rate: what the clients of
deepseek-r1 (5 %: 0.5, median 1.0, 75 %: 2.3, 95 %: 9.8) and m-large (0.9, 1.1, 2.0, 7.3) have in
common."""


@dataclass(frozen=True, slots=True)
class ServeGen:
    """Several clients, each a Gamma process whose rate and CV change from window to window.

    Fitted on ServeGen's deepseek-r1 and m-large: 46 and 84 clients, but so few of them with most
    of the load that it is worth 3.4 and 7.8 equal ones (inverse of the sum of squared shares):
    here shares fall as rank ** -`skew`. The rate of a client over ten-minute windows has a
    deviation of 0.1 to 2 times its mean; half is the median. That a client's rate is lognormal
    and forgets itself from window to window is assumed.

    Raises:
        ValueError: A number is out of range.
    """

    clients: int = 40
    """At least 1."""
    skew: float = 1.3
    """At least 0: 0 gives all clients one rate; 1.3 makes 40 worth 5.6."""
    window_s: float = 600.0
    rate_sigma: float = 0.45
    """Deviation of the logarithm of a client's rate; at least 0."""

    def __post_init__(self) -> None:
        if self.clients < 1 or self.window_s <= 0.0 or self.skew < 0.0 or self.rate_sigma < 0.0:
            raise ValueError(f"out of range: {self}")

    def stream(self, rate_per_s: float, random: Random) -> Iterator[float]:
        """See `Arrivals`."""
        weights = [rank**-self.skew for rank in range(1, self.clients + 1)]
        rates = [rate_per_s * weight / sum(weights) for weight in weights]
        each = [self._client(rate, Random(random.random())) for rate in rates]  # noqa: S311
        following = [(next(client), number) for number, client in enumerate(each)]
        heapify(following)
        while True:
            moment_s, number = following[0]
            yield moment_s
            heapreplace(following, (next(each[number]), number))

    def _client(self, rate_per_s: float, random: Random) -> Iterator[float]:
        """Gaps are drawn in units of the mean gap, and pass as fast as the window's rate."""
        begin_s = 0.0
        left = None
        while True:
            rate = rate_per_s * exp(random.gauss(-(self.rate_sigma**2) / 2.0, self.rate_sigma))
            shape = 1.0 / _SERVEGEN_CV.draw(random) ** 2
            if left is None:
                # Not the beginning of a gap, but some moment within one.
                left = random.random() * random.gammavariate(shape + 1.0, 1.0 / shape)
            at_s = begin_s + left / rate
            while at_s < begin_s + self.window_s:
                yield at_s
                at_s += random.gammavariate(shape, 1.0 / shape) / rate
            left = (at_s - begin_s - self.window_s) * rate
            begin_s += self.window_s


@dataclass(frozen=True, slots=True)
class Modulated:
    """Poisson arrivals whose rate is multiplied, level by level, by a factor of mean 1.

    Each level draws a Gamma factor anew for every window of its length; the levels multiply.

    Raises:
        ValueError: There is no level, a length is not above 0 or does not divide the one before,
            or a variance is not above 0.
    """

    levels: tuple[tuple[float, float], ...]
    """(window in seconds, variance of its factor), the longest first."""

    def __post_init__(self) -> None:
        if not self.levels or any(w <= 0.0 or v <= 0.0 for w, v in self.levels):
            raise ValueError(f"expected levels of a window and a variance above 0: {self.levels}")
        for (longer_s, _), (shorter_s, _) in pairwise(self.levels):
            if longer_s % shorter_s or longer_s <= shorter_s:
                raise ValueError(f"each window must divide the one before: {self.levels}")

    def stream(self, rate_per_s: float, random: Random) -> Iterator[float]:
        """See `Arrivals`."""
        step_s = self.levels[-1][0]
        every = [round(window_s / step_s) for window_s, _ in self.levels]
        factors = [1.0] * len(every)
        step, left = 0, random.expovariate(1.0)
        while True:
            rate = rate_per_s
            for level, (_, variance) in enumerate(self.levels):
                if step % every[level] == 0:
                    factors[level] = random.gammavariate(1.0 / variance, variance)
                rate *= factors[level]
            passed = 0.0
            while left < rate * step_s - passed:
                passed += left
                yield step * step_s + passed / rate
                left = random.expovariate(1.0)
            left -= rate * step_s - passed
            step += 1


AZURE_CHAT = Modulated(levels=((60.0, 0.034), (1.0, 0.02)))
"""After the conversation trace of 2023 (10,108 calls in half an hour): nearly Poisson within a
minute (CV of gaps 1.0; 1.07 overall). Index of dispersion of counts over 1, 10 and 60 s: 1.3, 3.1
and 12.5; here, at its rate of 5.6 per second, 1.3, 3.2 and 12.5 by construction."""

AZURE_CODE = Modulated(levels=((60.0, 0.70), (10.0, 0.94), (1.0, 0.52)))
"""After the code trace of 2023 (5,740 calls in half an hour): minutes without a call beside minutes
with 600. Index of dispersion over 1, 10 and 60 s: 13.9, 75 and 185; here, at its rate of 3.2 per
second, the same by construction. Over 5 minutes it falls to 38 (the bursts come in turns), which
independent minutes do not show."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """Moments as they were once, stretched or pressed to the rate asked for; then from the start.

    Raises:
        ValueError: Fewer than two moments, or they do not ascend, or all are one.
    """

    recorded_s: Sequence[float]
    """Ascending; from which zero does not matter."""

    def __post_init__(self) -> None:
        at = self.recorded_s
        if len(at) < 2 or any(a > b for a, b in pairwise(at)) or at[0] == at[-1]:
            raise ValueError("expected at least two recorded moments, ascending, not all one")

    def stream(self, rate_per_s: float, random: Random) -> Iterator[float]:
        """See `Arrivals`; nothing is random."""
        at = self.recorded_s
        # One mean gap lies between the last moment of a round and the first of the next.
        gap_s = (at[-1] - at[0]) / (len(at) - 1)
        scale = 1.0 / (rate_per_s * gap_s)
        begin_s = 0.0
        while True:
            for moment_s in at:
                yield begin_s + (moment_s - at[0]) * scale
            begin_s += len(at) * gap_s * scale


ARRIVALS: dict[str, Arrivals] = {
    "poisson": Poisson(),
    "gamma-2": Gamma(2.0),
    "gamma-4": Gamma(4.0),
    "servegen": ServeGen(),
    "azure-chat": AZURE_CHAT,
    "azure-code": AZURE_CODE,
}
"""Processes by name."""
