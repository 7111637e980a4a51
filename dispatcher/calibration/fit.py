"""From measurements to a cost profile: relative, robust least squares with nothing below zero."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from dispatcher.calibration.samples import AdmissionSample, DecodeSample, PrefillSample, Samples
from dispatcher.config.profiles import (
    AdmissionProfile,
    DecodeProfile,
    FitQuality,
    MeasuredTimes,
    PrefillProfile,
)
from dispatcher.core.errors import HeadwayError

LEAST_PREFILL, LEAST_DECODE = 3, 3
"""Measurements without which nothing is fitted."""

_ROUNDS = 12
_HUBER = 1.5
_SINGULAR = 1e-12

Row = Sequence[float]


class TooFewSamplesError(HeadwayError):
    """Not enough was measured to fit anything."""


def fit_times(samples: Samples) -> MeasuredTimes:
    """Fit all that the samples tell.

    Raises:
        TooFewSamplesError: Fewer prefills of different length, or fewer loads, than a fit needs.
    """
    prefill = fit_prefill(samples.prefill)
    decode = fit_decode(samples.decode)
    admission = fit_admission(samples.admission, samples.prefill, decode)
    return MeasuredTimes(prefill=prefill, decode=decode, admission=admission)


def fit_prefill(samples: Sequence[PrefillSample]) -> PrefillProfile:
    """`TTFT = a u + b`.

    Raises:
        TooFewSamplesError: Fewer than three measurements, or all of one length.
    """
    if len(samples) < LEAST_PREFILL or len({s.uncached_tokens for s in samples}) < 2:
        raise TooFewSamplesError(
            f"{len(samples)} prefills measured; a fit needs {LEAST_PREFILL} of two lengths"
        )
    rows = [(float(s.uncached_tokens), 1.0) for s in samples]
    targets = [s.ttft_s for s in samples]
    (per_token, fixed), fit = _robust(rows, targets)
    return PrefillProfile(per_token_s=per_token, fixed_s=fixed, fit=fit)


def fit_decode(samples: Sequence[DecodeSample]) -> DecodeProfile:
    """`TPOT = c + d n + e K`.

    Raises:
        TooFewSamplesError: Fewer than three measurements.
    """
    if len(samples) < LEAST_DECODE:
        raise TooFewSamplesError(f"{len(samples)} loads measured; a fit needs {LEAST_DECODE}")
    rows = [(1.0, float(s.running), s.kv_tokens) for s in samples]
    targets = [s.tpot_s for s in samples]
    (base, per_running, per_kv), fit = _robust(rows, targets)
    return DecodeProfile(base_s=base, per_running_s=per_running, per_kv_token_s=per_kv, fit=fit)


def fit_admission(
    admissions: Sequence[AdmissionSample],
    prefills: Sequence[PrefillSample],
    decode: DecodeProfile,
) -> AdmissionProfile | None:
    """What a prompt adds to an iteration, and what a call takes outside of the iterations.

    A call among others holds them up by `d + e u + p u + f`; one that is alone has its first
    token after `r + c + d + e u + p u + f`. Errors are relative to the second: a stall of half a
    millisecond need not be met to the percent. None without calls among others.
    """
    if not admissions:
        return None
    rows: list[Row] = []
    targets, known = [], []
    for stall in admissions:
        tokens = stall.uncached_tokens
        own_s = decode.per_running_s + decode.per_kv_token_s * tokens
        rows.append((float(tokens), 1.0, 0.0))
        targets.append(stall.stall_s - own_s)
        known.append(decode.base_s + decode.per_running_s * stall.running + own_s)
    for alone in prefills:
        tokens = alone.uncached_tokens
        own_s = decode.base_s + decode.per_running_s + decode.per_kv_token_s * tokens
        rows.append((float(tokens), 1.0, 1.0))
        targets.append(alone.ttft_s - own_s)
        known.append(own_s)
    (per_token, fixed, request), fit = _robust(rows, targets, known)
    return AdmissionProfile(per_prompt_token_s=per_token, fixed_s=fixed, request_s=request, fit=fit)


def _robust(
    rows: Sequence[Row], targets: Sequence[float], known: Sequence[float] | None = None
) -> tuple[tuple[float, ...], FitQuality]:
    """Coefficients, and how far off they are relative to what they predict.

    Reweighted after Huber (1964), so that a hiccup of the machine (another process, a burst of
    tokens that were held back) does not bend the fit. Errors are relative to the prediction, not
    to the measurement: that would believe what came out too short more than what came out too
    long.

    Args:
        rows: Inputs.
        targets: What the coefficients are to make of them, seconds.
        known: What comes on top of each target and is not fitted, seconds; none: nothing.
    """
    known = known or [0.0] * len(rows)
    measured = [target + more for target, more in zip(targets, known, strict=True)]
    # nothing is predicted yet; a measurement that is far too short must not weigh the most
    least_s = max(sorted(measured)[len(measured) // 2] / 4, 1e-9)
    units = [max(seconds, least_s) for seconds in measured]
    weights = [1.0] * len(rows)
    coefficients: tuple[float, ...] = ()
    errors: list[float] = []
    for _ in range(_ROUNDS):
        scaled = [tuple(x / unit for x in row) for row, unit in zip(rows, units, strict=True)]
        wanted = [target / unit for target, unit in zip(targets, units, strict=True)]
        coefficients = non_negative_least_squares(scaled, wanted, weights)
        fitted = [sum(c * x for c, x in zip(coefficients, row, strict=True)) for row in rows]
        units = [max(own + more, least_s / 10) for own, more in zip(fitted, known, strict=True)]
        errors = [
            abs(own - target) / unit
            for own, target, unit in zip(fitted, targets, units, strict=True)
        ]
        usual = 1.4826 * sorted(errors)[len(errors) // 2]
        limit = _HUBER * max(usual, 1e-6)
        weights = [1.0 if error <= limit else limit / error for error in errors]
    rms = math.sqrt(sum(error * error for error in errors) / len(errors))
    worst = sorted(errors)[math.ceil(0.95 * len(errors)) - 1]
    return coefficients, FitQuality(samples=len(errors), relative_rms=rms, relative_p95=worst)


def non_negative_least_squares(
    rows: Sequence[Row], targets: Sequence[float], weights: Sequence[float]
) -> tuple[float, ...]:
    """Minimise `sum(w * (row . x - target)^2)` over `x >= 0`; exact, for a few columns.

    The minimiser solves the plain problem over those columns that are above 0 in it, so each
    choice of columns is tried and the best of the solutions that are nowhere negative is taken.
    Columns that are multiples of each other, as where nothing varied, are never chosen together.

    Example:
        >>> non_negative_least_squares([(1.0, 1.0), (2.0, 1.0)], [3.0, 5.0], [1.0, 1.0])
        (2.0, 1.0)
        >>> non_negative_least_squares([(1.0, 1.0), (2.0, 1.0)], [3.0, 2.0], [1.0, 1.0])
        (0.0, 2.5)
    """
    columns = range(len(rows[0]))
    size = [max(abs(row[j]) for row in rows) or 1.0 for j in columns]
    # columns of like size: tokens by the thousand stand beside ones
    even = [[x / largest for x, largest in zip(row, size, strict=True)] for row in rows]
    gram = [
        [sum(w * row[j] * row[k] for w, row in zip(weights, even, strict=True)) for k in columns]
        for j in columns
    ]
    moment = [
        sum(w * row[j] * t for w, row, t in zip(weights, even, targets, strict=True))
        for j in columns
    ]
    best, best_gain = tuple(0.0 for _ in columns), 0.0
    for count in range(1, len(size) + 1):
        for chosen in itertools.combinations(columns, count):
            solution = _solve([[gram[j][k] for k in chosen] for j in chosen], moment, chosen)
            if solution is None or min(solution) < 0:
                continue
            # at a solution, the sum of squares has fallen by x . moment
            gain = sum(x * moment[j] for j, x in zip(chosen, solution, strict=True))
            if gain > best_gain:
                found = dict(zip(chosen, solution, strict=True))
                best = tuple(found.get(j, 0.0) / size[j] for j in columns)
                best_gain = gain
    return best


def _solve(
    matrix: list[list[float]], moment: Sequence[float], chosen: Sequence[int]
) -> list[float] | None:
    """Gaussian elimination with pivoting; None where the columns do not differ."""
    rows = [[*row, moment[j]] for row, j in zip(matrix, chosen, strict=True)]
    size = len(rows)
    largest = max(abs(value) for row in matrix for value in row)
    for step in range(size):
        pivot = max(range(step, size), key=lambda index: abs(rows[index][step]))
        rows[step], rows[pivot] = rows[pivot], rows[step]
        if abs(rows[step][step]) <= _SINGULAR * largest:
            return None
        for index in range(size):
            if index != step:
                factor = rows[index][step] / rows[step][step]
                rows[index] = [a - factor * b for a, b in zip(rows[index], rows[step], strict=True)]
    return [rows[index][size] / rows[index][index] for index in range(size)]
