"""Percentiles and tests, against tables and against brute force."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatcher.tuning import RegressionTest, percentile, regression_p
from dispatcher.tuning.statistics import _draw_p95s, permutation_p, student_tail, welch_p

latencies = st.lists(st.floats(0.001, 1e4), min_size=2, max_size=30)
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@unhurried
@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=50))
def test_percentiles_are_those_of_the_standard_library(values: list[float]) -> None:
    expected = statistics.quantiles(values, n=20, method="inclusive")
    for number, quantile in enumerate(expected, 1):
        assert percentile(values, number / 20) == pytest.approx(quantile, rel=1e-9, abs=1e-6)


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([1.0, math.inf, math.inf], 0.95, math.inf),
        ([1.0, 2.0, math.inf], 0.5, 2.0),
        ([1.0, 2.0, math.inf], 0.51, math.inf),
    ],
)
def test_percentiles_among_infinities(values: list[float], share: float, expected: float) -> None:
    assert percentile(values, share) == expected


def test_a_percentile_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        percentile([], 0.5)


@pytest.mark.parametrize(
    ("t", "freedom", "tail"),
    # upper percentage points of Student's distribution, as any table prints them
    [
        (6.314, 1, 0.05),
        (63.657, 1, 0.005),
        (2.920, 2, 0.05),
        (2.015, 5, 0.05),
        (2.764, 10, 0.01),
        (2.845, 20, 0.005),
        (2.358, 120, 0.01),
        (0.0, 7, 0.5),
        (-2.015, 5, 0.95),
    ],
)
def test_student_against_the_table(t: float, freedom: float, tail: float) -> None:
    assert student_tail(t, freedom) == pytest.approx(tail, abs=1.5e-4)


@unhurried
@given(latencies, latencies, st.integers(0, 1000))
def test_a_draw_has_the_percentiles_of_some_split_of_the_pool(
    reference: list[float], new: list[float], seed: int
) -> None:
    """The short cut down the sorted pool gives what a whole split would."""
    pooled = sorted((*reference, *new), reverse=True)
    chance, again = random.Random(seed), random.Random(seed)
    drawn = _draw_p95s(pooled, len(new), chance)
    left, sides = len(new), ([], [])
    for seen, value in enumerate(pooled):
        is_new = again.random() * (len(pooled) - seen) < left
        left -= is_new
        sides[0 if is_new else 1].append(value)
    assert len(sides[0]) == len(new)
    assert drawn == pytest.approx([percentile(side, 0.95) for side in sides])


def test_the_short_cut_agrees_with_whole_shuffles() -> None:
    chance = random.Random(4)
    reference = [chance.lognormvariate(0, 0.5) for _ in range(40)]
    new = [chance.lognormvariate(0.25, 0.5) for _ in range(60)]
    observed = percentile(new, 0.95) - percentile(reference, 0.95)
    pool, hits, draws = [*reference, *new], 0, 4000
    for _ in range(draws):
        chance.shuffle(pool)
        hits += percentile(pool[:60], 0.95) - percentile(pool[60:], 0.95) >= observed - 1e-12
    whole = (hits + 1) / (draws + 1)
    short = permutation_p(reference, new, draws=draws, random=random.Random(5))
    assert 0.02 < whole < 0.5
    assert short == pytest.approx(whole, abs=0.03)


@pytest.mark.parametrize("test", ["permutation", "welch_log", "batch_p95"])
def test_a_regression_is_seen_and_its_absence_is_not(test: str) -> None:
    chance = random.Random(1)
    usual = tuple(chance.lognormvariate(1, 0.4) for _ in range(100))
    same = tuple(chance.lognormvariate(1, 0.4) for _ in range(100))
    worse = tuple(1.8 * chance.lognormvariate(1, 0.4) for _ in range(100))
    assert regression_p(RegressionTest(usual, worse, test)) < 0.01
    assert regression_p(RegressionTest(usual, same, test)) > 0.01
    assert regression_p(RegressionTest(worse, usual, test)) > 0.5


def test_only_the_tail_moves_the_permutation_test_and_only_the_mean_moves_welch() -> None:
    chance = random.Random(2)
    usual = tuple(chance.uniform(1, 2) for _ in range(200))
    tail = tuple(value if n % 12 else 4.0 for n, value in enumerate(usual))
    assert regression_p(RegressionTest(usual, tail)) < 0.01
    shifted = tuple(value + 0.25 if value < 1.6 else value for value in usual)
    assert regression_p(RegressionTest(usual, shifted, "welch_log")) < 0.01
    assert regression_p(RegressionTest(usual, shifted)) > 0.01


def test_false_alarms_are_as_rare_as_promised() -> None:
    chance, alarms = random.Random(3), 0
    for seed in range(200):
        one, two = (
            tuple(chance.lognormvariate(1, 0.6) for _ in range(30)),
            tuple(chance.lognormvariate(1, 0.6) for _ in range(30)),
        )
        alarms += regression_p(RegressionTest(one, two, draws=300, seed=seed)) < 0.05
    # 200 x 0.05 = 10 expected; 22 is four standard deviations more
    assert alarms <= 22


def test_same_seed_same_p() -> None:
    one = RegressionTest((1.0, 2.0, 3.0, 9.0), (2.0, 3.0, 4.0, 8.0), seed=7)
    assert regression_p(one) == regression_p(one)


def test_equal_windows_and_constant_ones() -> None:
    assert regression_p(RegressionTest((1.0, 1.0), (1.0, 1.0))) == 1.0
    assert welch_p([1.0, 1.0], [1.0, 1.0]) == 1.0
    assert welch_p([1.0, 1.0], [2.0, 2.0]) == 0.0
    with pytest.raises(ValueError, match="at least two"):
        regression_p(RegressionTest((1.0,), (1.0, 2.0)))
