"""Density in its three readings: the numbers that a reader can work out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.service_density import SHORTEST_S, Part, density

READINGS = ("definition", "printed", "slack")


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        ("definition", (200.0, 200.0, 200.0)),
        ("printed", (60.0, 15.0, 5.0)),
        ("slack", (300 / 3.5, 300 / 18.5, 300 / 58.5)),
    ],
)
def test_200_prompt_and_50_output_tokens_at_30_ms_with_5_20_and_60_s(reading, expected):
    # worth 200 + 2 * 50; 1.5 s to go, nothing waited yet
    found = [density([Part(300.0, slo_s, 1.5)], 1.5, reading) for slo_s in (5.0, 20.0, 60.0)]
    assert [one.value for one in found] == pytest.approx(expected)
    assert not any(one.doomed for one in found)


def test_by_definition_lateness_lowers_and_as_printed_it_does_not():
    late, later = [Part(300.0, 5.0, 10.0)], [Part(300.0, 5.0, 20.0)]
    assert density(late, 1.5, "definition").value == pytest.approx(100.0)
    assert density(later, 1.5, "definition").value == pytest.approx(50.0)
    assert density(later, 1.5, "definition", penalty=2.0).value == pytest.approx(12.5)
    assert density(late, 1.5, "printed") == density(later, 1.5, "printed")


def test_slack_is_that_of_the_part_that_is_due_first():
    parts = [Part(200.0, 2.0, 1.0), Part(100.0, 30.0, 5.0)]
    assert density(parts, 4.0, "slack").value == pytest.approx(300.0 / 1.0)


def test_what_is_doomed_is_ordered_by_definition():
    parts = [Part(200.0, 2.0, 4.0), Part(100.0, 30.0, 5.0)]
    doomed = density(parts, 4.0, "slack")
    assert doomed.doomed
    assert doomed.value == density(parts, 4.0, "definition").value == pytest.approx(200.0 / 4.0)


@pytest.mark.parametrize("reading", READINGS)
def test_a_part_without_an_slo_is_gained_whenever_it_comes(reading):
    asked = Part(100.0, 10.0, 10.0)
    both = density([asked, Part(300.0, None, 1e9)], 2.0, reading)
    alone = density([asked], 2.0, reading)
    gained = SHORTEST_S if reading == "slack" else 2.0
    assert both.value - alone.value == pytest.approx(300.0 / gained)


@given(
    st.lists(
        st.tuples(
            st.floats(0.0, 1e6),
            st.one_of(st.none(), st.floats(-1e4, 1e6)),
            st.floats(0.0, 1e6),
        ),
        min_size=1,
        max_size=4,
    ),
    st.floats(0.0, 1e5),
    st.sampled_from(READINGS),
    st.floats(0.1, 20.0),
)
def test_densities_are_finite_and_not_negative(parts, remaining_s, reading, penalty):
    found = density([Part(*part) for part in parts], remaining_s, reading, penalty)
    assert 0.0 <= found.value < math.inf
    assert not (found.doomed and reading != "slack")
