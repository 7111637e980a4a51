"""How a length estimate changes while tokens come."""

import pytest

from dispatcher.core.types import LengthEstimate

QUARTILES = LengthEstimate(100.0, ((0.25, 50.0), (0.5, 100.0), (0.75, 150.0)), "rolling:stage")


def test_nothing_changes_before_the_shortest_quantile():
    assert QUARTILES.longer_than(49) is QUARTILES


def test_quantiles_are_those_of_the_lengths_that_are_left():
    refined = QUARTILES.longer_than(75)
    below = 0.25 + 0.25 * 0.5
    for (p, tokens), target in zip(
        refined.quantiles, [below + p * (1 - below) for p in (0.25, 0.5, 0.75)], strict=True
    ):
        if target <= 0.75:
            assert tokens == pytest.approx(QUARTILES.quantile_tokens(target)), p
    assert refined.source == "rolling:stage"


@pytest.mark.parametrize("generated", [60, 100, 149, 150, 200, 5_000])
def test_what_is_left_is_ahead_of_what_has_come(generated):
    refined = QUARTILES.longer_than(generated)
    values = [tokens for _, tokens in refined.quantiles]
    assert values == sorted(values)
    assert values[0] >= generated + 1
    assert refined.expected_tokens >= generated + 1


def test_an_exponential_law_has_no_memory():
    from math import log

    law = LengthEstimate(
        200.0, tuple((p / 100, -200.0 * log(1 - p / 100)) for p in range(1, 100)), "exact"
    )
    for generated in (50, 300, 2_000):
        refined = law.longer_than(generated)
        assert refined.quantile_tokens(0.5) - generated == pytest.approx(200 * log(2), rel=0.02)
        assert refined.expected_tokens - generated == pytest.approx(200, rel=0.05)


def test_without_quantiles_only_the_mean_moves():
    assert LengthEstimate(100.0).longer_than(40) == LengthEstimate(100.0)
    assert LengthEstimate(100.0).longer_than(400).expected_tokens == 401


def test_a_length_known_exactly_is_passed_by_one_token_at_a_time():
    exact = LengthEstimate(100.0, ((0.5, 100.0),), "exact")
    assert exact.longer_than(99).expected_tokens == 100
    assert exact.longer_than(120).expected_tokens == 121
