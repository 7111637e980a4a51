from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.core.types import CallId, CallSpec, WorkflowId
from predictors.rolling_quantiles import (
    PROBABILITIES,
    RollingQuantiles,
    RollingQuantilesSettings,
)

CALL = CallSpec(CallId("c"), WorkflowId("w"), "m", 100, application="sql", stage="revise")


def learned(*lengths: int, spec: CallSpec = CALL) -> RollingQuantiles:
    predictor = RollingQuantiles()
    for tokens in lengths:
        predictor.learn(spec, tokens)
    return predictor


@pytest.mark.parametrize(
    ("asked", "source"),
    [
        (CALL, "rolling:stage"),
        (replace(CALL, stage="draft"), "rolling:application"),
        (replace(CALL, stage=None), "rolling:application"),
        (replace(CALL, application="code"), "rolling:model"),
        (replace(CALL, model="other"), "rolling:global"),
    ],
)
def test_the_most_particular_step_that_knows_enough_speaks(asked: CallSpec, source: str) -> None:
    estimate = learned(*[100] * 5).predict(asked)
    assert (estimate.source, estimate.expected_tokens) == (source, 100.0)


def test_too_few_samples_leave_the_word_to_the_prior() -> None:
    estimate = learned(*[100] * 4).predict(CALL)
    assert estimate.source == "prior"
    assert estimate.expected_tokens == RollingQuantilesSettings().prior_tokens
    values = [value for _, value in estimate.quantiles]
    assert values == sorted(values)


@pytest.mark.parametrize("samples", [0, 50])
@pytest.mark.parametrize("max_tokens", [1, 40, 100_000])
def test_no_estimate_passes_max_tokens(samples: int, max_tokens: int) -> None:
    rng = random.Random(3)
    predictor = learned(*(rng.randint(10, 500) for _ in range(samples)))
    estimate = predictor.predict(replace(CALL, max_tokens=max_tokens))
    assert 1 <= estimate.expected_tokens <= max_tokens
    assert all(1 <= value <= max_tokens for _, value in estimate.quantiles)


def test_the_mean_under_a_cap_is_the_mean_of_the_capped_lengths() -> None:
    predictor = learned(10, 20, 30, 40, 100)
    assert predictor.predict(replace(CALL, max_tokens=30)).expected_tokens == pytest.approx(24)


def test_min_tokens_is_a_floor() -> None:
    spec = replace(CALL, features={"min_tokens": 25.0})
    estimate = learned(10, 20, 30, 40, 50).predict(spec)
    assert estimate.quantiles[0] == (0.1, 25.0)
    assert estimate.expected_tokens == pytest.approx(34)


def test_ignored_end_of_text_is_known_exactly_and_teaches_nothing() -> None:
    spec = replace(CALL, max_tokens=77, features={"ignore_eos": 1.0})
    predictor = learned(*[77] * 10, spec=spec)
    assert predictor.predict(spec).expected_tokens == 77
    assert predictor.predict(spec).source == "exact"
    assert predictor.predict(CALL).source == "prior"


def test_lengths_come_per_sequence_already() -> None:
    predictor = learned(*[100] * 5, spec=replace(CALL, seats=4))
    assert predictor.predict(CALL).expected_tokens == 100


NUMBERS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True), st.integers(-(10**400), 10**400)
)


@settings(max_examples=80, deadline=None)
@given(st.lists(NUMBERS, max_size=20), NUMBERS, st.one_of(st.none(), st.integers(-1, 10**400)))
def test_whatever_it_is_taught_lengths_stay_positive_and_bounded(
    lengths: list[float], min_tokens: float, max_tokens: int | None
) -> None:
    predictor = learned(*lengths)  # type: ignore[arg-type]
    for ignore_eos in (0.0, 1.0):
        features = {"min_tokens": min_tokens, "ignore_eos": ignore_eos}
        estimate = predictor.predict(replace(CALL, max_tokens=max_tokens, features=features))
        for value in (estimate.expected_tokens, *(v for _, v in estimate.quantiles)):
            assert 1 <= value < 2**31
    json.dumps([predictor.dump(), predictor.stats()], allow_nan=False)


@pytest.mark.parametrize("prior", [float("nan"), float("inf"), 0.0])
def test_a_prior_that_is_no_length_is_refused(prior: float) -> None:
    with pytest.raises(ValueError, match="prior_tokens"):
        RollingQuantiles(RollingQuantilesSettings(prior_tokens=prior))


@pytest.mark.parametrize(
    "windows",
    [
        [[["m"], [5, float("nan")]]],
        [[["m"], [0]]],
        [[["m"], [2**40]]],
        [[[], [1]]],
        [["m"]],
        [[["m"], 3]],
    ],
)
def test_a_state_with_a_flaw_changes_nothing(windows: list[object]) -> None:
    predictor = learned(*[100] * 5)
    before = predictor.dump()
    with pytest.raises(ValueError, match=r"tokens|windows|samples"):
        predictor.load({"global": [1], "windows": windows})
    assert predictor.dump() == before


def test_old_lengths_leave_the_window() -> None:
    predictor = learned(*[1000] * 200, *[10] * 128)
    assert predictor.predict(CALL).expected_tokens == 10
    assert predictor.predict(CALL).quantile_tokens(0.99) == 10


@pytest.mark.parametrize("mean", [50.0, 800.0])
def test_quantiles_converge_to_the_truth_and_cover_it(mean: float) -> None:
    rng = random.Random(5)
    predictor = RollingQuantiles()
    for _ in range(4000):
        predictor.learn(CALL, max(1, round(rng.lognormvariate(0, 0.5) * mean)))
    assert predictor.predict(CALL).quantile_tokens(0.5) == pytest.approx(mean, rel=0.15)
    coverage = predictor.stats()["coverage"]
    assert isinstance(coverage, dict)
    for probability in PROBABILITIES:
        assert coverage[str(probability)] == pytest.approx(probability, abs=0.06)


def test_of_no_predictions_nobody_knows_how_good_they_were() -> None:
    """Lengths come back after a restart, and no judgement of what was predicted before it."""
    again = RollingQuantiles()
    again.load(learned(100, 200, 300).dump())
    stats = again.stats()
    assert stats["samples"] == 0
    assert stats["coverage"] == {str(probability): None for probability in PROBABILITIES}
    assert stats["mean_abs_error_tokens"] is None
    again.learn(CALL, 10**6)
    stats = again.stats()
    assert stats["coverage"] == {str(probability): 0.0 for probability in PROBABILITIES}
    assert isinstance(stats["mean_abs_error_tokens"], float)


def test_a_length_of_nothing_teaches_nothing() -> None:
    assert learned(*[0] * 10).predict(CALL).source == "prior"


@pytest.mark.parametrize("state", [{}, {"global": [], "windows": 3}, {"global": 1, "windows": []}])
def test_a_state_of_another_shape_is_refused(state: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="expected a list"):
        RollingQuantiles().load(state)
