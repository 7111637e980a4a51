"""Coverage of predicted quantiles over a window: correction, drift, recovery."""

from __future__ import annotations

import json
import math
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.core.types import LengthEstimate
from predictors.coverage import (
    Coverage,
    CoverageSettings,
    at_levels,
    conformal_level,
    mean_of,
    place_of,
)

EVEN = LengthEstimate(500.0, tuple((p / 20, 50.0 * p) for p in range(1, 20)), "forest")
"""Even between 0 and about 1,000 tokens."""


def observe(coverage, draws, rng, stretch=1.0):
    for _ in range(draws):
        coverage.observe(EVEN, max(1.0, stretch * rng.uniform(0.0, 1000.0)))


def test_right_predictions_are_left_almost_as_they_are():
    coverage, rng = Coverage(), random.Random(0)
    observe(coverage, 2_000, rng)
    assert coverage.corrected(EVEN).quantile_tokens(0.5) == pytest.approx(500, abs=60)
    assert not coverage.verdict().drifted
    found = coverage.stats()["coverage"]
    assert all(abs(found[f"{level:g}"] - level) < 0.05 for level in (0.5, 0.9, 0.95))


@pytest.mark.parametrize("stretch", [0.4, 1.8])
def test_wrong_ones_are_moved_to_what_covers(stretch):
    coverage, rng = Coverage(), random.Random(1)
    observe(coverage, 2_000, rng, stretch)
    fixed = coverage.corrected(EVEN)
    assert fixed.quantile_tokens(0.5) == pytest.approx(500 * stretch, rel=0.15)
    fresh = [stretch * rng.uniform(0.0, 1000.0) for _ in range(2_000)]
    for level in (0.5, 0.9, 0.95):
        covered = sum(tokens <= fixed.quantile_tokens(level) for tokens in fresh) / len(fresh)
        assert covered == pytest.approx(level, abs=0.05)
    values = [tokens for _, tokens in fixed.quantiles]
    assert values == sorted(values)
    assert fixed.source == "forest"


def test_too_few_calls_correct_nothing_and_say_so():
    coverage = Coverage(CoverageSettings(min_samples=100))
    observe(coverage, 99, random.Random(2), stretch=5.0)
    assert coverage.corrected(EVEN) is EVEN
    verdict = coverage.verdict()
    assert not verdict.drifted
    assert verdict.reason == "99 of 100 calls seen"


def test_a_jump_is_drift_until_the_window_has_learned_it():
    coverage, rng = Coverage(CoverageSettings(window=300)), random.Random(3)
    observe(coverage, 300, rng)
    assert not coverage.verdict().drifted
    drifted_after = None
    for count in range(300):
        observe(coverage, 1, rng, stretch=3.0)
        if coverage.verdict().drifted:
            drifted_after = count
            break
    assert drifted_after is not None
    assert "quantile covers" in coverage.verdict().reason
    assert coverage.stats()["drifted"] is True
    observe(coverage, 900, rng, stretch=3.0)
    assert not coverage.verdict().drifted
    assert coverage.stats()["drifts_total"] == 1


def test_another_predictor_begins_anew():
    coverage = Coverage(CoverageSettings(window=200))
    observe(coverage, 200, random.Random(4), stretch=4.0)
    coverage.reset()
    assert coverage.corrected(EVEN) is EVEN
    assert coverage.stats()["calls"] == 0
    assert coverage.stats()["calls_total"] == 200


def test_the_window_is_bounded_and_its_counts_stay_right():
    coverage, rng = Coverage(CoverageSettings(window=120)), random.Random(5)
    observe(coverage, 1_000, rng)
    assert (len(coverage._window), len(coverage._places)) == (120, 120)
    assert sorted(place for place, _ in coverage._window) == coverage._places
    counted = [sum(covered[at] for _, covered in coverage._window) for at in range(3)]
    assert coverage._covered == counted
    json.dumps(coverage.stats())


def test_what_is_no_length_teaches_nothing():
    coverage = Coverage()
    for tokens in (0.0, -1.0, math.nan, math.inf):
        coverage.observe(EVEN, tokens)
    coverage.observe(LengthEstimate(10.0), 5.0)
    assert coverage.stats()["calls"] == 0


@pytest.mark.parametrize(
    "settings", [{"min_samples": 0}, {"min_samples": 9, "window": 8}, {"levels": (1.0,)}]
)
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(ValueError, match="must be"):
        Coverage(CoverageSettings(**settings))


# --- laws ---------------------------------------------------------------------------------------

laws = st.lists(st.floats(1.0, 1e6), min_size=2, max_size=12).map(
    lambda values: tuple(
        ((at + 1) / (len(values) + 1), value) for at, value in enumerate(sorted(values))
    )
)


@given(laws, st.floats(1.0, 2e6))
@settings(max_examples=300, deadline=None)
def test_the_level_at_a_lengths_place_is_as_long(law, tokens):
    place = place_of(law, tokens)
    assert 0 < place < 1
    if 0.001 < place < 0.999:
        ((_, value),) = at_levels(law, [(0.5, place)])
        # a step in the law has one level but many lengths
        steep = any(a == b for (_, a), (_, b) in pairwise(law))
        assert value == pytest.approx(tokens, rel=1e-6) or steep


def test_places_where_a_law_has_a_step():
    law = ((0.2, 10.0), (0.4, 10.0), (0.6, 20.0), (0.8, 20.0))
    assert place_of(law, 10.0) == 0.2
    assert place_of(law, 15.0) == pytest.approx(0.5)
    assert place_of(law, 20.0) == pytest.approx(0.6)
    assert place_of(law, 21.0) > 0.999


def test_the_mean_of_a_law():
    assert mean_of(EVEN.quantiles) == pytest.approx(500, rel=0.03)
    # exponential with mean 100
    law = tuple((p / 100, -100 * math.log(1 - p / 100)) for p in range(1, 100))
    assert mean_of(law) == pytest.approx(100, rel=0.03)


def test_levels_have_the_rank_of_split_conformal():
    places = [number / 10 for number in range(1, 10)]
    assert conformal_level(places, 0.5) == 0.5
    assert conformal_level(places, 0.85) == 0.9
    assert conformal_level(places, 0.95) > 0.99
    assert conformal_level([0.0], 0.1) > 0
