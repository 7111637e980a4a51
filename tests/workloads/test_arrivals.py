"""Arrivals: as many as asked for, as bursty as said, and the same from the same seed."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random
from statistics import fmean, pstdev, pvariance

import pytest

from dispatcher.simulator.workloads import (
    ARRIVALS,
    AZURE_CHAT,
    AZURE_CODE,
    Arrivals,
    Gamma,
    Modulated,
    Poisson,
    Recorded,
    ServeGen,
    moments,
)


def gaps_cv(at: list[float]) -> float:
    gaps = [later - earlier for earlier, later in pairwise(at)]
    return pstdev(gaps) / fmean(gaps)


def dispersion(at: list[float], window_s: float) -> float:
    """Variance over mean of the arrivals per window."""
    counted = Counter(int(moment_s // window_s) for moment_s in at)
    numbers = [counted[window] for window in range(int(at[-1] // window_s))]
    return pvariance(numbers) / fmean(numbers)


@pytest.mark.parametrize("name", ARRIVALS)
def test_they_ascend_and_repeat_by_seed_only(name: str) -> None:
    first, again, other = (
        moments(ARRIVALS[name], 2.0, Random(seed), count=500) for seed in (7, 7, 8)
    )
    assert first == again != other
    assert len(first) == 500
    assert first == sorted(first)
    assert first[0] >= 0.0


@pytest.mark.parametrize(
    ("arrivals", "cv", "within"),
    [(Poisson(), 1.0, 0.03), (Gamma(0.5), 0.5, 0.02), (Gamma(2.0), 2.0, 0.1), (Gamma(4), 4.0, 0.3)],
    ids=str,
)
def test_the_cv_of_gaps_is_the_one_asked_for(arrivals: Arrivals, cv: float, within: float) -> None:
    at = moments(arrivals, 3.0, Random(0), count=20_000)
    assert gaps_cv(at) == pytest.approx(cv, abs=within)
    assert len(at) / at[-1] == pytest.approx(3.0, rel=0.08)


def test_the_rate_only_stretches_renewals() -> None:
    slow = moments(Gamma(2.0), 0.5, Random(3), count=100)
    fast = moments(Gamma(2.0), 1.0, Random(3), count=100)
    assert slow == pytest.approx([2.0 * moment_s for moment_s in fast])


# Figures of the traces themselves, over 1, 10 and 60 seconds, and of the gaps.
@pytest.mark.parametrize(
    ("arrivals", "rate_per_s", "dispersions", "cv"),
    [
        (AZURE_CHAT, 10_108 / 1800, (1.31, 3.11, 12.5), (1.0, 1.15)),
        (AZURE_CODE, 5_740 / 1788, (13.9, 75.3, 185.0), (2.5, 14.0)),
    ],
)
def test_azure_bursts_are_the_recorded_ones(
    arrivals: Modulated,
    rate_per_s: float,
    dispersions: tuple[float, float, float],
    cv: tuple[float, float],
) -> None:
    at = moments(arrivals, rate_per_s, Random(0), duration_s=18_000.0)
    for window_s, recorded in zip((1.0, 10.0, 60.0), dispersions, strict=True):
        assert dispersion(at, window_s) == pytest.approx(recorded, rel=0.2)
    assert cv[0] < gaps_cv(at) < cv[1]


def test_servegen_keeps_its_rate_and_is_burstier_than_poisson_the_longer_the_more() -> None:
    at = moments(ServeGen(), 5.0, Random(0), duration_s=40_000.0)
    assert len(at) / 40_000.0 == pytest.approx(5.0, rel=0.15)
    by_window = [dispersion(at, window_s) for window_s in (1.0, 60.0, 600.0)]
    assert by_window == sorted(by_window)
    assert by_window[0] > 1.3


def test_a_single_servegen_client_without_bursts_of_rate_is_a_renewal() -> None:
    alone = ServeGen(clients=1, rate_sigma=0.0, window_s=100.0)
    at = moments(alone, 5.0, Random(0), count=20_000)
    assert gaps_cv(at) > 1.2


def test_recorded_moments_are_scaled_and_come_again() -> None:
    recorded = Recorded([100.0, 101.0, 101.0, 104.0])
    at = moments(recorded, 0.5, Random(0), count=9)
    # Mean gap 4/3 s becomes 2 s: all times half as long again.
    assert at == pytest.approx([0.0, 1.5, 1.5, 6.0, 8.0, 9.5, 9.5, 14.0, 16.0])


def test_a_duration_ends_them() -> None:
    at = moments(Poisson(), 4.0, Random(0), duration_s=1000.0)
    assert at[-1] <= 1000.0
    assert len(at) == pytest.approx(4000, abs=200)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, "a count or a duration_s"),
        ({"count": 1, "duration_s": 1.0}, "a count or a duration_s"),
        ({"count": 0}, "count must be above 0"),
        ({"duration_s": float("inf")}, "duration_s must be above 0"),
    ],
)
def test_what_is_asked_for_must_make_sense(asked: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        moments(Poisson(), 1.0, Random(0), **asked)


def test_a_rate_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="rate_per_s must be above 0"):
        moments(Poisson(), 0.0, Random(0), count=1)


def test_processes_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="cv must be above 0"):
        Gamma(0.0)
    with pytest.raises(ValueError, match="at least two recorded moments"):
        Recorded([1.0])
    with pytest.raises(ValueError, match="at least two recorded moments"):
        Recorded([2.0, 1.0])
    with pytest.raises(ValueError, match="out of range"):
        ServeGen(clients=0)
    with pytest.raises(ValueError, match="must divide the one before"):
        Modulated(levels=((10.0, 1.0), (3.0, 1.0)))
    with pytest.raises(ValueError, match="expected levels"):
        Modulated(levels=())
