"""Has latency grown worse, or is it chance? One-sided tests of a window against a reference.

HexGen-Flow, section 4.3, Eq. 9 tests the P95 of a window against the P95 of another by a t-test,
which is undefined: one P95 a window is no sample. Three tests take its place:

`permutation` (default): were it chance, any workflow could as well have been in the other window.
    The difference of the two P95 is compared with that under random exchanges (Phipson and Smyth,
    "Permutation p-values should never be zero", 2010: p = (hits + 1) / (draws + 1)).
`welch_log`: Welch's t-test on the logarithms of all latencies. Tests means, not tails; latencies
    are skewed, their logarithms much less so.
`batch_p95`: Welch's t-test on the P95 of consecutive batches, which are samples of a P95.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from dispatcher.tuning.rules import TestName

P95 = 0.95
_BATCHES = (2, 10)
_BATCH_SIZE = 10


def percentile(values: Sequence[float], share: float) -> float:
    """Linear between the two nearest values.

    Args:
        values: In any order; at least one. They may be infinite.
        share: 0 gives the least, 1 the greatest.

    Example:
        >>> percentile([4.0, 1.0, 3.0, 2.0], 0.5)
        2.5
    """
    ordered = sorted(values)
    below, weight = _position(len(ordered), share)
    low, high = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    # between two infinities, and next to one, there is nothing to weigh
    return low if weight == 0.0 or low == high else low + weight * (high - low)


def _position(count: int, share: float) -> tuple[int, float]:
    """The value just below a percentile, from 0, and how far the percentile is to the next."""
    if count < 1:
        raise ValueError("expected at least one value")
    place = share * (count - 1)
    below = min(int(place), count - 1)
    return below, place - below


@dataclass(frozen=True, slots=True)
class RegressionTest:
    """Two windows of workflow latencies, seconds, and how to compare them; can be pickled."""

    reference_s: tuple[float, ...]
    """At least 2."""
    new_s: tuple[float, ...]
    """At least 2; in the order in which they ended."""
    test: TestName = "permutation"
    draws: int = 1000
    seed: int = 0


def regression_p(job: RegressionTest) -> float:
    """How likely chance alone would make the new window look so much worse, in (0, 1].

    Raises:
        ValueError: A window has fewer than two latencies.

    Example:
        >>> quick, slow = tuple(map(float, range(1, 51))), tuple(map(float, range(41, 91)))
        >>> regression_p(RegressionTest(quick, slow)) < 0.01
        True
        >>> regression_p(RegressionTest(slow, quick)) > 0.99
        True
    """
    if min(len(job.reference_s), len(job.new_s)) < 2:
        raise ValueError("expected at least two latencies on either side")
    if job.test == "welch_log":
        return welch_p(_logs(job.reference_s), _logs(job.new_s))
    if job.test == "batch_p95":
        return welch_p(_batches(job.reference_s), _batches(job.new_s))
    return permutation_p(
        job.reference_s,
        job.new_s,
        draws=job.draws,
        random=random.Random(job.seed),  # noqa: S311 - no secret, and seeded
    )


def _logs(values: Sequence[float]) -> list[float]:
    return [math.log(max(value, 1e-9)) for value in values]


def _batches(values: Sequence[float]) -> list[float]:
    """The P95 of up to ten consecutive batches of at least ten values (of fewer: two halves)."""
    least, most = _BATCHES
    count = min(most, max(least, len(values) // _BATCH_SIZE))
    edges = [round(number * len(values) / count) for number in range(count + 1)]
    return [
        percentile(values[begin:end], P95)
        for begin, end in itertools.pairwise(edges)
        if end > begin
    ]


# --- permutation --------------------------------------------------------------------------------


def permutation_p(
    reference: Sequence[float], new: Sequence[float], *, draws: int, random: random.Random
) -> float:
    """Share of random exchanges after which P95(new) - P95(reference) is at least as it was.

    Only what decides a P95 is drawn: from the greatest value down, each belongs to the new window
    with the chance that is left for it, until both P95 are known. That is the distribution of a
    shuffle at a tenth of its cost.
    """
    pooled = sorted((*reference, *new), reverse=True)
    observed = percentile(new, P95) - percentile(reference, P95)
    hits = 0
    for _ in range(draws):
        shuffled_new, shuffled_reference = _draw_p95s(pooled, len(new), random)
        hits += shuffled_new - shuffled_reference >= observed - 1e-12
    return (hits + 1) / (draws + 1)


def _draw_p95s(
    descending: Sequence[float], new_count: int, random: random.Random
) -> tuple[float, float]:
    """P95 of a random subset of that size, and of the rest."""
    total = len(descending)
    sizes = (new_count, total - new_count)
    places = [_position(size, P95) for size in sizes]
    # how many of its greatest values reach down to the one just below its P95
    wanted = [size - below for size, (below, _) in zip(sizes, places, strict=True)]
    tails: tuple[list[float], list[float]] = ([], [])
    left = new_count
    for seen, value in enumerate(descending):
        is_new = random.random() * (total - seen) < left
        left -= is_new
        side = 0 if is_new else 1
        if len(tails[side]) < wanted[side]:
            tails[side].append(value)
        if len(tails[0]) == wanted[0] and len(tails[1]) == wanted[1]:
            break
    first, second = (
        _from_tail(tail, weight) for tail, (_, weight) in zip(tails, places, strict=True)
    )
    return first, second


def _from_tail(tail: Sequence[float], weight: float) -> float:
    """The percentile, given the values from the greatest down to the one just below it."""
    below = tail[-1]
    above = tail[-2] if len(tail) > 1 else below
    return below + weight * (above - below)


# --- Welch --------------------------------------------------------------------------------------


def welch_p(reference: Sequence[float], new: Sequence[float]) -> float:
    """One-sided p-value that the new mean is greater (Welch, 1947); at least two values a side.

    Example:
        >>> round(welch_p([1.0, 2.0, 3.0, 4.0], [4.0, 5.0, 6.0, 7.0]), 4)
        0.0084
    """
    means = [math.fsum(values) / len(values) for values in (reference, new)]
    errors = [
        math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values)
        for values, mean in zip((reference, new), means, strict=True)
    ]
    difference, variance = means[1] - means[0], sum(errors)
    if variance <= 0.0:
        return 1.0 if difference <= 0.0 else 0.0
    freedom = variance**2 / (
        errors[0] ** 2 / (len(reference) - 1) + errors[1] ** 2 / (len(new) - 1)
    )
    return student_tail(difference / math.sqrt(variance), freedom)


def student_tail(t: float, freedom: float) -> float:
    """P(T >= t) of Student's distribution, for freedom > 0.

    By the regularised incomplete beta function: P(T >= |t|) = I_x(freedom/2, 1/2) / 2 with
    x = freedom / (freedom + t^2) (Abramowitz and Stegun, 26.7.1 and 26.5.27).
    """
    half = 0.5 * _incomplete_beta(freedom / (freedom + t * t), freedom / 2.0, 0.5)
    return half if t >= 0.0 else 1.0 - half


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """I_x(a, b), by the continued fraction 26.5.8 where it converges fast."""
    if x <= 0.0 or x >= 1.0:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - _incomplete_beta(1.0 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    log_front += a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) / a * _beta_fraction(x, a, b)


def _beta_fraction(x: float, a: float, b: float) -> float:
    """The continued fraction, evaluated front to back (modified Lentz's method)."""
    tiny = 1e-300
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > tiny else tiny)
    value = d
    for m in range(1, 500):
        even = m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0))
        for term in (even, odd):
            d = 1.0 + term * d
            d = 1.0 / (d if abs(d) > tiny else tiny)
            c = 1.0 + term / c
            c = c if abs(c) > tiny else tiny
            value *= c * d
        if abs(c * d - 1.0) < 1e-14:
            break
    return value
