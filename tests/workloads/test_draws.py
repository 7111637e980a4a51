"""Draws: quantiles come back as given, counts have the mean and variance asked for."""

from __future__ import annotations

from random import Random
from statistics import fmean, median, pvariance

import pytest

from dispatcher.simulator.workloads.draws import BetaBinomial, Quantiles, clipped, lognormal


def test_drawn_quantiles_are_the_given_ones() -> None:
    given = Quantiles.parse("0:1 0.25:40 0.5:50 0.9:800 1:1000")
    random = Random(0)
    drawn = sorted(given.draw(random) for _ in range(20_000))
    for probability, value in ((0.25, 40), (0.5, 50), (0.9, 800)):
        assert drawn[int(probability * len(drawn))] == pytest.approx(value, rel=0.05)
    assert drawn[0] >= 1.0
    assert drawn[-1] <= 1000.0


def test_a_fixed_value_is_drawn_as_often_as_said() -> None:
    spike = Quantiles.parse("0:10 0.2:22 0.7:22 1:50")
    random = Random(0)
    drawn = [spike.tokens(random) for _ in range(5000)]
    assert fmean(tokens == 22 for tokens in drawn) > 0.5


def test_tokens_are_at_least_one() -> None:
    assert Quantiles.parse("0:0 1:0").tokens(Random(0)) == 1


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ("0:1", "from 0 to 1"),
        ("0.1:1 1:2", "from 0 to 1"),
        ("0:1 0.5:2 0.5:3 1:4", "probabilities must ascend"),
        ("0:1 0.5:3 1:2", "values must be at least 0 and ascend"),
        ("0:-1 1:2", "values must be at least 0 and ascend"),
    ],
)
def test_points_that_are_no_distribution_are_refused(points: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Quantiles.parse(points)


@pytest.mark.parametrize(("mean", "variance"), [(4.2, 8.85), (5.5, 11.45), (5.9, 13.05), (1, 1.5)])
def test_counts_have_the_mean_and_variance_asked_for(mean: float, variance: float) -> None:
    counts, random = BetaBinomial(10, mean, variance), Random(0)
    drawn = [counts.draw(random) for _ in range(10_000)]
    assert set(drawn) <= set(range(11))
    assert fmean(drawn) == pytest.approx(mean, abs=0.12)
    assert pvariance(drawn) == pytest.approx(variance, rel=0.05)


@pytest.mark.parametrize(("mean", "variance"), [(0, 1), (10, 1), (5, 2.4), (5, 25.1)])
def test_moments_that_no_counts_have_are_refused(mean: float, variance: float) -> None:
    with pytest.raises(ValueError, match="no 10 trials"):
        BetaBinomial(10, mean, variance)


def test_a_lognormal_has_its_median() -> None:
    random = Random(0)
    assert median(lognormal(random, 40.0, 0.5) for _ in range(5000)) == pytest.approx(40, rel=0.03)


def test_clipping_rounds_within_bounds() -> None:
    assert [clipped(value, 1, 9) for value in (-3.0, 4.6, 99.0)] == [1, 5, 9]
