"""The Gittins index of a duration that is known by its mean and an interval.

Of jobs whose durations are uncertain, serving the one with the largest

    G = sup over quanta D of  P(X <= D) / E[min(X, D)]

minimises the mean completion time on one server (Gittins 1979; Aalto, Ayesta, Righter, "On the
Gittins index in the M/G/1 queue", 2009). What is left of a job is a fresh X at each decision, given
what of it has ended. Here 1 / G, in seconds, stands in for the mean where jobs are ordered by what
is left: equal to it where quanta cannot help, less where the job will probably end early and
otherwise late.

Settled: of X are known the mean m and the 5 % and 95 % quantiles. X is taken to be uniform over
[low, m] with probability (high - m) / (high - low), else uniform over [m, high]: the simplest one
that has this mean and this interval. Quanta are quarters of the two parts, of which one is best to
within a few per cent.
"""

from __future__ import annotations

from dispatcher.core.workflow_types import Remaining

_QUARTERS = (0.25, 0.5, 0.75, 1.0)


def gittins_s(left: Remaining) -> float:
    """1 / G, seconds: at most the mean, at least 0.

    Example:
        >>> even = Remaining(mean_s=10.0, low_s=0.0, high_s=20.0, work_s=10.0, known=True)
        >>> skewed = Remaining(mean_s=10.0, low_s=0.0, high_s=100.0, work_s=10.0, known=True)
        >>> round(gittins_s(even), 3), round(gittins_s(skewed), 3)
        (10.0, 6.111)
    """
    low_s, mean_s, high_s = left.low_s, left.mean_s, left.high_s
    if not low_s < mean_s < high_s:
        return mean_s
    early = (high_s - mean_s) / (high_s - low_s)
    least_s = mean_s
    for quarter in _QUARTERS:
        spent_s = _spent_s(quarter, low_s, mean_s)
        # nothing of the second part has ended yet: all of it takes the whole quantum
        quantum_s = low_s + quarter * (mean_s - low_s)
        least_s = min(least_s, (early * spent_s + (1.0 - early) * quantum_s) / (early * quarter))
    first_s = early * (low_s + mean_s) / 2.0
    for quarter in _QUARTERS:
        spent_s = _spent_s(quarter, mean_s, high_s)
        done = early + (1.0 - early) * quarter
        least_s = min(least_s, (first_s + (1.0 - early) * spent_s) / done)
    return least_s


def _spent_s(part: float, from_s: float, to_s: float) -> float:
    """E[min(X, D)] of X uniform over an interval, D at that part of it."""
    quantum_s = from_s + part * (to_s - from_s)
    return part * (from_s + quantum_s) / 2.0 + (1.0 - part) * quantum_s
