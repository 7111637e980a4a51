"""Numbers about a text: which they are, that they are bounded, that the text is not in them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.text_features import HEAD_CHARS, TAIL_CHARS, TEXT_FEATURES, text_features


@given(st.text(max_size=300))
@settings(max_examples=200, deadline=None)
def test_always_the_same_names_and_small_finite_numbers(text):
    found = text_features(text)
    assert tuple(found) == TEXT_FEATURES
    assert all(isinstance(value, float) and math.isfinite(value) for value in found.values())
    assert max(map(abs, found.values())) <= 500


def test_an_empty_text_and_a_huge_one():
    assert not any(value for name, value in text_features("").items() if name > "text_03")
    huge = text_features("word? " * 500_000)
    assert huge["text_00"] == pytest.approx(math.log1p(3_000_000))
    assert max(map(abs, huge.values())) < 50


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ("Tell me.", "Tell me in 500 words."),
        ("Tell me in 20 words.", "Tell me in 500 words."),
        ("What is it", "What is it?"),
        ("Say it.", "Explain it, describe why."),
        ("Add one and two.", "Add 1 and 2."),
        ("one line", "two\nlines"),
        ("f(x)", "```f(x)```"),
    ],
)
def test_what_matters_changes_some_number(less, more):
    before, after = text_features(less), text_features(more)
    assert any(after[name] > before[name] for name in TEXT_FEATURES if name < "text_30")


def test_of_a_long_text_only_the_ends_are_read():
    middle = "a" * 10_000
    head, tail = "b" * HEAD_CHARS, "c" * TAIL_CHARS
    assert text_features(head + middle + tail) == text_features(head + "9" * 10_000 + tail)
    assert text_features(head + middle + tail) != text_features(head + middle + "9" + tail[1:])


def test_the_words_cannot_be_told_from_the_numbers():
    # different words of one bucket and sign: the numbers are those of each other
    seen: dict[tuple[float, ...], str] = {}
    for number in range(200):
        word = "x" + "".join(chr(ord("a") + int(digit)) for digit in f"{number:03d}")
        seen.setdefault(tuple(text_features(word).values()), word)
    assert len(seen) <= 32
