"""The forest: its law against the reference implementation, its coverage, its limits."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from quantile_forest import RandomForestQuantileRegressor
from sklearn.ensemble import RandomForestRegressor

from dispatcher.core.types import CallClass, CallId, CallSpec, WorkflowId
from predictors._length_cells import LengthCells, encode_apart
from predictors._stacked_trees import StackedTrees
from predictors.length_features import FEATURES, WIDTH, length_features, without_text
from predictors.quantile_forest import PROBABILITIES, ForestSettings, train
from predictors.text_features import text_features

SMALL = ForestSettings(trees=20, most_rows=2_000)


def spec(application="chat", model="llama", **given):
    return CallSpec(
        CallId("c"), WorkflowId("w"), model, given.pop("prompt_tokens", 100),
        application=application, **given,
    )  # fmt: skip


def world(seed, groups=300, per_group=6):
    """Calls of three applications; a group's prompt and a model's habits decide the length."""
    rng = random.Random(seed)
    rows, lengths, names = [], [], []
    for group in range(groups):
        application = ("chat", "sql", "agent")[group % 3]
        prompt_tokens = rng.randint(50, 5000)
        of_group = rng.gauss(0.0, 0.3)
        for _ in range(per_group):
            model = rng.choice(("a", "b", "c"))
            usual = {"chat": 300, "sql": 60, "agent": 120}[application]
            usual *= {"a": 1.0, "b": 1.5, "c": 0.6}[model] * (prompt_tokens / 1000) ** 0.4
            rows.append(length_features(spec(application, model, prompt_tokens=prompt_tokens)))
            lengths.append(max(1, round(usual * np.exp(of_group + rng.gauss(0.0, 0.3)))))
            names.append(f"{seed}/{group}")
    return rows, lengths, names


@pytest.fixture(scope="module")
def forest():
    rows, lengths, groups = world(1)
    return train(rows, lengths, SMALL, seed=3, groups=groups)


def test_quantiles_ascend_and_cover_what_they_say(forest):
    rows, lengths, _ = world(2, groups=600)
    estimates = forest.predict(rows)
    for estimate in estimates:
        assert tuple(p for p, _ in estimate.quantiles) == PROBABILITIES
        values = [tokens for _, tokens in estimate.quantiles]
        assert values == sorted(values)
        assert values[0] >= 1
        assert values[0] < estimate.expected_tokens < 2 * values[-1]
        assert estimate.source == "forest"
    for level in (0.1, 0.5, 0.9, 0.95):
        covered = [
            tokens <= estimate.quantile_tokens(level)
            for estimate, tokens in zip(estimates, lengths, strict=True)
        ]
        # 600 groups of other prompts than it has learned from: a few points of chance remain
        assert abs(np.mean(covered) - level) < 0.06, level


def test_it_sees_more_than_the_mean_of_an_application(forest):
    short, long = forest.predict(
        [length_features(spec(model="a", prompt_tokens=tokens)) for tokens in (60, 4800)]
    )
    assert long.quantile_tokens(0.5) > 2 * short.quantile_tokens(0.5)
    other = forest.predict([length_features(spec(model="b", prompt_tokens=4800))])[0]
    assert other.quantile_tokens(0.5) > 1.2 * long.quantile_tokens(0.5)


def test_an_application_never_seen_gets_the_lengths_of_all_for_its_model(forest):
    rows, lengths, _ = world(1)
    unknown = [spec("new", model="a", prompt_tokens=tokens) for tokens in (60, 4800)]
    first, second = forest.predict([length_features(one) for one in unknown])
    assert first.quantiles == second.quantiles
    of_model = [
        tokens for row, tokens in zip(rows, lengths, strict=True)
        if row[0] == length_features(unknown[0])[0]
    ]  # fmt: skip
    assert first.quantile_tokens(0.5) == pytest.approx(np.median(of_model), rel=0.25)


def test_limits_of_the_call_hold(forest):
    capped, floored, plain = forest.predict(
        [
            length_features(spec(max_tokens=40)),
            length_features(spec(features={"min_tokens": 5_000.0})),
            length_features(spec()),
        ]
    )
    assert max(tokens for _, tokens in capped.quantiles) == 40
    assert capped.expected_tokens <= 40
    assert {tokens for _, tokens in floored.quantiles} == {5_000.0}
    assert plain.quantiles[-1][1] > 40


def test_the_same_seed_gives_the_same_forest_and_a_copy_says_the_same(forest):
    rows, lengths, groups = world(1)
    asked = rows[:50]
    again = train(rows, lengths, SMALL, seed=3, groups=groups)
    other = train(rows, lengths, SMALL, seed=4, groups=groups)
    assert again.predict(asked) == forest.predict(asked)
    assert other.predict(asked) != forest.predict(asked)
    copied = pickle.loads(pickle.dumps(forest))
    assert copied.predict(asked) == forest.predict(asked)
    # a batch says what each says alone
    assert forest.predict(asked)[7] == forest.predict(asked[7:8])[0]
    assert forest.predict([]) == []


def test_groups_stay_on_one_side(forest):
    rows, lengths, groups = world(1)
    stats = forest.stats()
    assert stats["groups"] + stats["groups_held_out"] == len(set(groups))
    assert 0.15 < stats["rows_held_out"] / len(rows) < 0.35
    assert forest.taught < set(groups)
    assert len(forest.taught) == stats["groups"]
    half = [number % 2 == 0 for number in range(len(rows))]
    with pytest.raises(ValueError, match="both sides"):
        train(rows, lengths, SMALL, seed=0, groups=groups, held_out=half)


def test_few_groups_calibrate_by_half():
    rows, lengths, groups = world(5, groups=60)
    stats = train(rows, lengths, SMALL, seed=0, groups=groups).stats()
    assert stats["groups_held_out"] == 30


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rows": [(0.0,) * WIDTH] * 5, "lengths": [1] * 5}, "at least 20"),
        ({"lengths": [1] * 10}, "a length for each"),
        ({"rows": [(0.0,) * 3] * 40}, f"rows of {WIDTH}"),
        ({"lengths": [0] * 40}, "at least 1 token"),
        ({"groups": ["one"] * 40}, "calibrate"),
        ({"groups": ["one"] * 3}, "a group for each"),
        ({"held_out": [False] * 40}, "calibrate"),
    ],
)
def test_what_cannot_be_learned_from_is_refused(change, said):
    rows = [length_features(spec(prompt_tokens=number)) for number in range(40)]
    given = {"rows": rows, "lengths": list(range(1, 41))} | change
    with pytest.raises(ValueError, match=said):
        train(given.pop("rows"), given.pop("lengths"), SMALL, seed=0, **given)


def test_answers_cut_at_their_limits_do_not_shorten_those_without():
    """Four in five of an application's calls stop at 32 tokens; the fifth may go on."""
    rng = random.Random(5)

    def call(most):
        tokens = max(1, round(200 * rng.lognormvariate(0.0, 0.8)))
        row = length_features(spec(prompt_tokens=rng.randint(5, 500), max_tokens=most))
        return row, tokens if most is None else min(tokens, most)

    rows, lengths = zip(*[call(None if n % 5 == 0 else 32) for n in range(3_000)], strict=True)
    forest = train(rows, lengths, SMALL, seed=1)
    asked = [call(None) for _ in range(1_500)]
    for level in (0.5, 0.9, 0.95):
        said = [e.quantile_tokens(level) for e in forest.predict([row for row, _ in asked])]
        within = np.mean([n <= most for (_, n), most in zip(asked, said, strict=True)])
        assert within == pytest.approx(level, abs=0.08)


def test_lengths_that_are_all_the_same_are_foretold_exactly():
    rows = [length_features(spec(prompt_tokens=number)) for number in range(60)]
    forest = train(rows, [70] * 60, SMALL, seed=0)
    estimate = forest.predict(rows[:1])[0]
    assert [tokens for _, tokens in estimate.quantiles] == pytest.approx([70.0] * 21)
    assert estimate.longer_than(69).quantile_tokens(0.5) == pytest.approx(70, abs=1)


def test_stacked_trees_say_what_the_reference_says():
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(1500, 6)).astype(np.float32).astype(np.float64)
    targets = inputs[:, 0] + np.abs(inputs[:, 1]) * rng.normal(size=1500)
    grown = {"n_estimators": 40, "min_samples_leaf": 20, "max_features": 0.5, "random_state": 7}
    forest = RandomForestRegressor(**grown).fit(inputs, targets)
    stacked = StackedTrees(forest, inputs, targets, leaf_points=64)
    reference = RandomForestQuantileRegressor(**grown, max_samples_leaf=None).fit(inputs, targets)
    levels = [0.1, 0.5, 0.9]
    asked = rng.normal(size=(200, 6)).astype(np.float32).astype(np.float64)
    ours = stacked.quantiles(asked, np.array(levels))
    theirs = reference.predict(asked, quantiles=levels, weighted_leaves=True)
    # the same trees but for the lengths in leaves: all rows here, those of the bootstrap there
    assert np.abs(ours - theirs).mean() < 0.06
    assert np.corrcoef(ours[:, 2], theirs[:, 2])[0, 1] > 0.98


def test_rows_to_learn_from_are_encoded_without_their_own_group():
    codes = np.array([[1, 1, 0, 0]] * 10 + [[1, 2, 0, 0]] * 10)
    logs = np.array([1.0] * 10 + [5.0] * 10)
    groups = np.repeat(np.arange(4), 5)
    own = LengthCells(codes, logs, trust=1e-9).encode(codes).numbers
    assert own[0, 3:6] == pytest.approx([1.0] * 3)
    assert own[-1, 3:6] == pytest.approx([5.0] * 3)
    # application 2 comes in groups 2 and 3 only: from fold 3, group 2's lengths speak
    _, apart = encode_apart(codes, logs, groups, np.arange(20), trust=1e-9)
    assert apart[-1, 3:6] == pytest.approx([5.0] * 3)
    lonely = np.array([0] * 10 + [1] * 10)
    _, apart = encode_apart(codes, logs, lonely, np.arange(20), trust=1e-9)
    assert apart[-1, 3:6] == pytest.approx([1.0] * 3)


# --- rows ---------------------------------------------------------------------------------------


def test_a_row_says_what_is_known_and_nothing_else():
    known = spec(
        "sql", "llama", stage="draft", tool="grep", max_tokens=7, streaming=True, stage_width=3,
        call_class=CallClass.LATENCY, modalities=frozenset({"image"}),
        features={"temperature": 0.5, "messages": 3.0, "tools": 2.0, "unheard_of": 9.0},
    )  # fmt: skip
    row = dict(zip(FEATURES, length_features(known), strict=True))
    assert len(row) == WIDTH
    assert (row["max_tokens"], row["temperature"], row["top_p"]) == (7.0, 0.5, -1.0)
    assert (row["messages"], row["tools"], row["streaming"], row["modalities"]) == (3, 2, 1, 1)
    assert 9.0 not in row.values()
    for name, other in (("model", "x"), ("application", "x"), ("stage", None), ("tool", None)):
        changed = dict(zip(FEATURES, length_features(replace(known, **{name: other})), strict=True))
        assert [key for key in FEATURES if changed[key] != row[key]] == [name]
    assert dict(zip(FEATURES, length_features(spec()), strict=True))["stage"] == 0.0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e300])
def test_rows_are_finite_whatever_a_call_says(value):
    features = dict.fromkeys([*text_features(""), "temperature", "messages"], value)
    assert np.isfinite(np.float32(length_features(spec(features=features)))).all()


def test_rows_are_the_same_in_every_process():
    program = (
        "from dispatcher.core.types import *\n"
        "from predictors.length_features import length_features\n"
        "from predictors.text_features import text_features\n"
        "spec = CallSpec(CallId('c'), WorkflowId('w'), 'llama', 100, application='chat',"
        " features=text_features('Explain why, in 30 words.'))\n"
        "print(length_features(spec))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    here = length_features(spec(features=text_features("Explain why, in 30 words.")))
    assert done.stdout.strip() == str(here)
    assert (
        without_text(here)[: len(here) - len(text_features(""))] == here[: -len(text_features(""))]
    )
    assert not any(without_text(here)[-len(text_features("")) :])
