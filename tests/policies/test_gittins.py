"""The Gittins index of an interval with a mean."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.core.workflow_types import Remaining
from policies.gittins import gittins_s

DURATIONS = st.lists(st.floats(0.0, 1e4), min_size=3, max_size=3).map(sorted)


def left(low_s, mean_s, high_s):
    return Remaining(mean_s, low_s, high_s, mean_s, known=True)


def searched(low_s, mean_s, high_s):
    """1 / G by trying many quanta on many equally likely durations."""
    early = (high_s - mean_s) / (high_s - low_s)
    cells = 400
    durations = []
    for cell in range(cells):
        part = (cell + 0.5) / cells
        durations.append((low_s + part * (mean_s - low_s), early / cells))
        durations.append((mean_s + part * (high_s - mean_s), (1.0 - early) / cells))
    best = float("inf")
    for step in range(1, 41):
        quantum_s = low_s + (high_s - low_s) * step / 40
        done = sum(p for x, p in durations if x <= quantum_s)
        if done:
            spent_s = sum(p * min(x, quantum_s) for x, p in durations)
            best = min(best, spent_s / done)
    return best


@settings(max_examples=200, deadline=None, derandomize=True)
@given(DURATIONS)
def test_it_is_no_more_than_the_mean_and_no_less_than_the_low_end(durations):
    low_s, mean_s, high_s = durations
    index_s = gittins_s(left(low_s, mean_s, high_s))
    assert 0.0 <= index_s <= mean_s * (1.0 + 1e-9)
    assert index_s >= low_s * (1.0 - 1e-9)


@pytest.mark.parametrize(
    ("low_s", "mean_s", "high_s"),
    [(0.0, 10.0, 20.0), (0.0, 10.0, 100.0), (5.0, 8.0, 60.0), (2.0, 30.0, 33.0), (9.0, 10.0, 11.0)],
)
def test_it_is_what_a_search_over_quanta_finds(low_s, mean_s, high_s):
    found_s = searched(low_s, mean_s, high_s)
    assert gittins_s(left(low_s, mean_s, high_s)) == pytest.approx(found_s, rel=0.1)


def test_what_is_certain_takes_what_it_takes():
    assert gittins_s(left(7.0, 7.0, 7.0)) == 7.0
    assert gittins_s(left(0.0, 0.0, 0.0)) == 0.0


def test_what_will_probably_end_early_passes_what_is_surely_middling():
    gamble, sure = left(1.0, 12.0, 120.0), left(9.0, 10.0, 11.0)
    assert gamble.mean_s > sure.mean_s
    assert gittins_s(gamble) < gittins_s(sure)
