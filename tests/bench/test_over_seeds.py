"""What plays from several seeds come to, and one contender's beside another's."""

from __future__ import annotations

import math

import pytest

from dispatcher.bench.claims import Better
from dispatcher.bench.measured_claims import claim_of_one, claim_of_several
from dispatcher.bench.over_seeds import Measured, PairedPlays, means_told, noise, span


def _plays() -> PairedPlays[str, str]:
    """Two contenders from two seeds; told by seed, as they were played, not by contender."""
    found = {
        ("case", "ours", 0): {"rate": 4.0, "late": None},
        ("case", "theirs", 0): {"rate": 2.0, "late": 1.0},
        ("case", "ours", 1): {"rate": 3.0, "late": 2.0},
        ("case", "theirs", 1): {"rate": 6.0, "late": 0.0},
    }
    return PairedPlays([("case", "ours"), ("case", "theirs")], found)


def test_measured_is_the_mean_over_seeds() -> None:
    found = Measured([1.0, 2.0, 6.0])
    assert (found.mean, found.deviation) == (3.0, pytest.approx(7.0**0.5))
    assert Measured([4.0]).deviation == 0.0


def test_contenders_are_compared_seed_by_seed() -> None:
    plays = _plays()
    assert plays.mean("case", "ours", "rate") == 3.5
    assert plays.ratio("case", "ours", "theirs", "rate").values == (2.0, 0.5)
    assert plays.cut("case", "ours", "theirs", "rate").values == (-1.0, 0.5)
    assert plays.excess("case", "theirs", "ours", "rate").values == (-0.5, 1.0)
    assert plays.difference("case", "ours", "theirs", "rate").values == (2.0, -3.0)
    doubled = plays.measured("case", "ours", lambda found: 2.0 * found["rate"])
    assert doubled.values == (8.0, 6.0)


def test_what_a_seed_could_not_measure_is_no_number_and_over_nothing_is_large() -> None:
    plays = _plays()
    assert math.isnan(plays.mean("case", "ours", "late"))
    ratio = plays.ratio("case", "ours", "theirs", "late")
    assert ratio.values[1] == math.inf
    assert math.isnan(ratio.deviation)


def test_who_did_not_play_has_no_figures() -> None:
    with pytest.raises(KeyError):
        _plays().figures("other", "ours")


def test_several_are_told_by_their_ends_and_their_noise() -> None:
    found = [Measured([1.0, 2.0]), Measured([0.12345, 0.12345])]
    assert span(found) == (0.123, 1.5)
    assert noise(found) == 0.707
    assert means_told(found, ("a", "b")) == "a 1.50, b 0.12"
    assert means_told(found, ("a", "b"), ".3f") == "a 1.500, b 0.123"


def test_claims_tell_one_case_by_its_mean_and_several_by_their_ends() -> None:
    one, other = Measured([1.0, 2.0]), Measured([4.0, 4.0])
    single = claim_of_one("a", "what", "where", 1.5, one, note="")
    assert (single.measured, single.spread, single.unit, single.met) == (1.5, 0.707, "ratio", True)
    several = claim_of_several(
        "b", "what", "where", 3.0, [one, other], unit="share", better=Better.LOWER, note=""
    )
    assert (several.measured, several.spread, several.unit) == ((1.5, 4.0), 0.707, "share")
    assert not several.met
    none = claim_of_several("c", "what", "where", 1.0, [], note="")
    assert (none.measured, none.spread, none.met) == (None, None, False)
