from __future__ import annotations

import json
import random

import pytest

from predictors.prompt_tokens import PromptTokens


@pytest.mark.parametrize(("ratio", "overhead"), [(0.25, 20), (0.9, 0), (0.12, 60)])
def test_converges_to_the_tokeniser_of_the_model(ratio: float, overhead: int) -> None:
    tokens, rng = PromptTokens(), random.Random(1)
    for _ in range(800):
        size = round(150 * 130 ** rng.random())  # most bodies are small
        tokens.learn("m", size, round((ratio * size + overhead) * rng.lognormvariate(0, 0.1)))
    for size in (400, 2_000, 18_000):
        assert tokens.estimate("m", size) == pytest.approx(ratio * size + overhead, rel=0.15)


def test_the_first_calls_already_correct_the_prior() -> None:
    tokens = PromptTokens()
    for _ in range(3):
        tokens.learn("m", 3_000, 3_000)
    assert tokens.estimate("m", 3_000) == pytest.approx(3_000, rel=0.15)


def test_models_do_not_teach_each_other() -> None:
    tokens = PromptTokens()
    before = tokens.estimate("other", 3_000)
    for _ in range(50):
        tokens.learn("m", 3_000, 3_000)
    assert tokens.estimate("other", 3_000) == before


def test_a_picture_among_texts_hardly_moves_it() -> None:
    tokens, rng = PromptTokens(), random.Random(2)
    for _ in range(500):
        size = rng.randint(500, 8_000)
        tokens.learn("m", size, round(0.25 * size))
        if rng.random() < 0.05:
            tokens.learn("m", 400_000, 600)
    assert tokens.estimate("m", 4_000) == pytest.approx(1_000, rel=0.2)


@pytest.mark.parametrize("body_bytes", [0, 1])
def test_an_estimate_is_at_least_one_token(body_bytes: int) -> None:
    assert PromptTokens().estimate("m", body_bytes) >= 1


def test_estimates_stay_bounded_whatever_was_counted() -> None:
    tokens = PromptTokens()
    for size, counted in ((1, 10**400), (10**400, 1), (10**400, 10**400), (5, 2**40)):
        for _ in range(30):
            tokens.learn("m", size, counted)
            for asked in (-1, 0, 10_000, 10**400):
                assert 1 <= tokens.estimate("m", asked) < 2**31
    json.dumps([tokens.dump(), tokens.stats()], allow_nan=False)
    again = PromptTokens()
    again.load(tokens.dump())
    assert again.estimate("m", 1_000) == tokens.estimate("m", 1_000)


@pytest.mark.parametrize("flaw", [float("nan"), float("inf"), None])
def test_a_state_with_a_flaw_changes_nothing(flaw: object) -> None:
    tokens = PromptTokens()
    tokens.learn("m", 1_000, 300)
    before = tokens.dump()
    with pytest.raises(ValueError, match="log_factor"):
        tokens.load({"m": {**before["m"], "log_factor": flaw}})  # type: ignore[dict-item]
    assert tokens.dump() == before


def test_counts_of_nothing_teach_nothing() -> None:
    tokens = PromptTokens()
    tokens.learn("m", 0, 100)
    tokens.learn("m", 100, 0)
    assert tokens.stats() == {}
