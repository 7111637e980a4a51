"""Non-overlapping sets: what they hold, their order, and who is worth most in the first."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies import interval_sets
from policies.interval_sets import IntervalSets

PROPERTY = settings(max_examples=200, deadline=None, derandomize=True)

INTERVALS = st.tuples(
    st.integers(0, 40), st.integers(0, 12), st.sampled_from([None, 0.0, 1.0, 2.0, 3.0])
)
STEPS = st.lists(st.tuples(st.integers(0, 15), st.none() | INTERVALS), max_size=80)


def sets_of(members):
    """By hand: sorted by low end, extended while the next one begins no later than the furthest."""
    groups, reach = [], None
    for name, (low, high, _) in sorted(members.items(), key=lambda item: (item[1][0], item[0])):
        if reach is None or low > reach:
            groups.append([])
            reach = high
        groups[-1].append(name)
        reach = max(reach, high)
    return groups


def head_of(members):
    for group in sets_of(members):
        worth = {name: members[name][2] for name in group if members[name][2] is not None}
        if worth:
            return max(worth, key=lambda name: (worth[name], -members[name][0], -name))
    return None


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(interval_sets, "_SPLIT_AT", 3)


@PROPERTY
@given(STEPS)
def test_sets_are_disjoint_ordered_and_complete_whatever_has_come_and_gone(steps):
    sets, members = IntervalSets(), {}
    for name, interval in steps:
        if interval is None:
            sets.discard(name)
            members.pop(name, None)
        else:
            low, width, worth = interval
            sets.put(name, float(low), float(low + width), worth, name)
            members[name] = (low, low + width, worth)
        found = list(sets.sets())
        assert [[member.id for member in group] for group in found] == sets_of(members)
        assert len(sets) == len(members)
        for earlier, later in pairwise(found):
            assert max(m.high_s for m in earlier) < min(m.low_s for m in later)
        assert sets.head() == head_of(members)


def test_intervals_that_touch_are_one_set():
    sets = IntervalSets()
    sets.put("a", 0.0, 5.0, 1.0, 1)
    sets.put("b", 5.0, 6.0, 2.0, 2)
    assert [[m.id for m in group] for group in sets.sets()] == [["a", "b"]]
    assert sets.head() == "b"


def test_a_long_interval_joins_what_does_not_overlap_by_itself():
    sets = IntervalSets()
    for number, (name, low, high) in enumerate([("a", 0, 1), ("b", 4, 5), ("c", 8, 9)]):
        sets.put(name, float(low), float(high), float(number), number)
    assert sets.head() == "a"
    sets.put("wide", 0.5, 20.0, None, 9)
    assert sets.head() == "c"
    assert len(list(sets.sets())) == 1


def test_where_the_first_set_has_nothing_to_take_the_next_one_has():
    sets = IntervalSets()
    sets.put("a", 0.0, 1.0, None, 1)
    assert sets.head() is None
    sets.put("b", 2.0, 3.0, 0.0, 2)
    sets.put("c", 4.0, 5.0, 9.0, 3)
    assert sets.head() == "b"
