"""Inference on a network's tables against sums over all states."""

from __future__ import annotations

import itertools
import random
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workflows.stage_network import NetworkError, StageNetwork, entropy_bits


def random_network(
    seed: int, count: int = 5
) -> tuple[list[int], list[list[int]], list[list[float]]]:
    chance = random.Random(seed)
    cards = [chance.randint(1, 4) for _ in range(count)]
    parents = [chance.sample(range(v), min(v, chance.randint(0, 2))) for v in range(count)]
    tables = []
    for variable in range(count):
        table: list[float] = []
        for _ in range(prod(cards[p] for p in parents[variable])):
            row = [chance.random() + 0.01 for _ in range(cards[variable])]
            table += [x / sum(row) for x in row]
        tables.append(table)
    return cards, parents, tables


def whole(network: tuple[list[int], list[list[int]], list[list[float]]]) -> np.ndarray:
    """P of every state of everything, straight from the definition."""
    cards, parents, tables = network
    joint = np.ones(cards)
    for states in itertools.product(*map(range, cards)):
        for variable, table in enumerate(tables):
            row = 0
            for parent in parents[variable]:
                row = row * cards[parent] + states[parent]
            joint[states] *= table[row * cards[variable] + states[variable]]
    return joint


def posterior(joint: np.ndarray, asked: list[int], evidence: dict, at_least: dict) -> np.ndarray:
    kept = joint.copy()
    for states in itertools.product(*map(range, joint.shape)):
        wrong = any(states[v] != s for v, s in evidence.items())
        if wrong or any(states[v] < s for v, s in at_least.items()):
            kept[states] = 0.0
    others = tuple(v for v in range(joint.ndim) if v not in asked)
    table = kept.sum(axis=others)
    return np.transpose(table, [sorted(asked).index(v) for v in asked]) / kept.sum()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.data())
def test_answers_are_those_of_summing_over_everything(seed: int, data: st.DataObject) -> None:
    raw = random_network(seed)
    cards = raw[0]
    roles = [data.draw(st.sampled_from(["ask", "know", "least", "leave"])) for _ in cards]
    asked = [v for v, role in enumerate(roles) if role == "ask"] or [0]
    asked = data.draw(st.permutations(asked))
    known = [v for v, role in enumerate(roles) if role == "know" and v not in asked]
    evidence = {v: data.draw(st.integers(0, cards[v] - 1)) for v in known}
    at_least = {v: cards[v] // 2 for v, role in enumerate(roles) if role == "least"}
    network = StageNetwork(*raw)
    expected = posterior(whole(raw), asked, evidence, at_least)
    assert np.allclose(network.joint(asked, evidence, at_least), expected)


@pytest.mark.parametrize("seed", range(5))
def test_draws_follow_the_posterior(seed: int) -> None:
    raw = random_network(seed)
    network, cards = StageNetwork(*raw), raw[0]
    evidence, at_least = {2: 0}, {1: cards[1] - 1}
    asked = [4, 0, 1, 3]
    uniforms = np.random.default_rng(seed).random((40_000, 5))
    states = network.sample(asked, evidence, at_least, uniforms)
    counted = np.zeros([cards[v] for v in asked])
    np.add.at(counted, tuple(states.T), 1.0 / len(states))
    expected = posterior(whole(raw), asked, evidence, at_least)
    # five standard deviations of a share
    assert np.abs(counted - expected).max() < 5 * 0.5 / 200


def test_information_worked_out_by_hand() -> None:
    # X is a fair coin; Y is X with probability 3/4: I = 1 - H(1/4) = 0.1887 bit
    network = StageNetwork([2, 2], [[], [0]], [[0.5, 0.5], [0.75, 0.25, 0.25, 0.75]])
    expected = 1.0 + 0.25 * np.log2(0.25) + 0.75 * np.log2(0.75)
    assert network.information_bits([1], 0, {}) == pytest.approx(expected)
    assert network.information_bits([], 0, {}) == 0.0
    # who knows X learns nothing more of it
    chain = StageNetwork(
        [2, 2, 2], [[], [0], [1]], [[0.5, 0.5], [1, 0, 0, 1], [0.75, 0.25, 0.25, 0.75]]
    )
    assert chain.information_bits([2], 1, {0: 1}) == pytest.approx(0.0)
    assert chain.information_bits([2], 1, {}) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(8))
def test_information_is_the_definition_of_it(seed: int) -> None:
    raw = random_network(seed)
    network, joint = StageNetwork(*raw), whole(raw)
    table = posterior(joint, [2, 4, 0], {1: 0}, {})
    together, of_x, of_y = table, table.sum(axis=(0, 1)), table.sum(axis=2)
    expected = sum(
        p * np.log2(p / (of_y[a, b] * of_x[x]))
        for (a, b, x), p in np.ndenumerate(together)
        if p > 0
    )
    assert network.information_bits([2, 4], 0, {1: 0}) == pytest.approx(expected, abs=1e-9)


def test_entropy() -> None:
    assert entropy_bits(np.array([0.5, 0.25, 0.25])) == pytest.approx(1.5)
    assert entropy_bits(np.array([1.0, 0.0])) == 0.0


def test_evidence_that_cannot_be_leaves_everything_as_likely() -> None:
    network = StageNetwork([2, 2], [[], [0]], [[1.0, 0.0], [1.0, 0.0, 0.0, 1.0]])
    assert network.marginal(0, {1: 1}).tolist() == [0.5, 0.5]
    drawn = network.sample([0], {1: 1}, {}, np.full((3, 2), 0.9))
    assert drawn.tolist() == [[0], [0], [0]]


def test_descendants_are_what_a_path_leads_to() -> None:
    network = StageNetwork([1, 1, 1, 1], [[], [0], [1], []], [[1.0]] * 4)
    assert network.descendants(0) == {1, 2}
    assert network.descendants(3) == set()


@pytest.mark.parametrize(
    ("cards", "parents", "tables", "message"),
    [
        ([2], [[]], [[0.5, 0.6]], "sum to 1"),
        ([2], [[]], [[float("nan"), 1.0]], "probabilities"),
        ([2], [[]], [[-0.5, 1.5]], "probabilities"),
        ([2], [[]], [[1.0]], "expected 2"),
        ([2, 2], [[1], [0]], [[0.5] * 4, [0.5] * 4], "circle"),
        ([2], [[0]], [[0.5] * 4], "its own"),
        ([2], [[3]], [[0.5] * 4], "that is none"),
        ([2], [[], []], [[0.5, 0.5]], "for each"),
        ([99], [[]], [[1 / 99] * 99], "states"),
        ([1] * 65, [[]] * 65, [[1.0]] * 65, "65 variables"),
    ],
)
def test_what_is_no_network_is_refused(cards, parents, tables, message) -> None:
    with pytest.raises(NetworkError, match=message):
        StageNetwork(cards, parents, tables)


def test_a_question_that_needs_too_large_a_table_is_refused() -> None:
    many = StageNetwork([10] * 20, [[]] * 20, [[0.1] * 10] * 20)
    with pytest.raises(NetworkError, match="too many answers"):
        many.joint(range(20), {})
    # common effects of pairs: knowing them ties all causes into one table
    pairs = list(itertools.combinations(range(7), 2))
    tied = StageNetwork(
        [10] * 7 + [2] * len(pairs),
        [[]] * 7 + [list(pair) for pair in pairs],
        [[0.1] * 10] * 7 + [[0.5] * 200] * len(pairs),
    )
    with pytest.raises(NetworkError, match="too large a table"):
        tied.marginal(0, {7 + n: 0 for n in range(len(pairs))})
