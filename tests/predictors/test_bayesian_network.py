"""Networks that pyAgrum learns, and our inference on them against its own."""

from __future__ import annotations

import builtins
import importlib.util
import random
import sys
import warnings

import numpy as np
import pytest

from predictors.bayesian_network import LibraryMissingError, learn_network
from workflows.stage_network import StageNetwork

installed = pytest.mark.skipif(
    importlib.util.find_spec("pyagrum") is None, reason="pyAgrum is not installed"
)


def rows(count: int, seed: int = 0) -> list[list[int]]:
    """The second and third follow the first, mostly; the fourth nobody."""
    chance = random.Random(seed)
    found = []
    for _ in range(count):
        first = chance.randrange(4)
        second = first if chance.random() < 0.8 else chance.randrange(4)
        third = (first + second) // 2 if chance.random() < 0.8 else chance.randrange(4)
        found.append([first, second, third, chance.randrange(3)])
    return found


@installed
def test_what_depends_is_found_and_what_does_not_is_left_alone() -> None:
    parents, _ = learn_network(rows(200), [4, 4, 4, 3], [0, 2, 4, 6])
    assert parents[0] == []
    assert 0 in parents[1]
    assert {0, 1} & set(parents[2])
    assert parents[3] == []
    assert all(3 not in each for each in parents)


@installed
def test_arcs_never_go_back_in_time() -> None:
    parents, _ = learn_network(rows(300), [4, 4, 4, 3], [6, 4, 2, 0])
    slices = [6, 4, 2, 0]
    assert any(parents)
    for variable, before in enumerate(parents):
        assert all(slices[p] <= slices[variable] for p in before)


@installed
def test_the_same_rows_give_the_same_network() -> None:
    first = learn_network(rows(100), [4, 4, 4, 3], [0, 0, 0, 0])
    assert first == learn_network(rows(100), [4, 4, 4, 3], [0, 0, 0, 0])


@installed
def test_few_rows_say_little() -> None:
    _, tables = learn_network([[0, 0, 0, 0]] * 2, [4, 4, 4, 3], [0, 1, 2, 3])
    assert all(p > 0.0 for table in tables for p in table)
    network = StageNetwork(
        [4, 4, 4, 3], learn_network(rows(5), [4, 4, 4, 3], [0, 1, 2, 3])[0], tables
    )
    assert len(network) == 4


@installed
@pytest.mark.parametrize("seed", range(4))
def test_our_inference_is_pyagrums(seed: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pyagrum as gum
    cards, slices = [4, 4, 4, 3], [0, 1, 2, 3]
    parents, tables = learn_network(rows(150, seed), cards, slices)
    ours = StageNetwork(cards, parents, tables)
    theirs = gum.BayesNet()
    for v, card in enumerate(cards):
        theirs.add(gum.RangeVariable(f"v{v}", "", 0, card - 1))
    for v, before in enumerate(parents):
        for p in before:
            theirs.addArc(f"v{p}", f"v{v}")
    for v, before in enumerate(parents):
        table = np.reshape(tables[v], [cards[p] for p in before] + [cards[v]])
        cpt = theirs.cpt(f"v{v}")
        wanted = [int(name[1:]) for name in list(cpt.names)[::-1]]
        have = [*before, v]
        cpt.fillWith(np.transpose(table, [have.index(w) for w in wanted]).ravel().tolist())
    for evidence in ({}, {0: 1}, {2: 3}, {0: 0, 2: 2}):
        engine = gum.LazyPropagation(theirs)
        engine.setEvidence({f"v{v}": s for v, s in evidence.items()})
        engine.makeInference()
        for v in range(4):
            if v not in evidence:
                assert np.allclose(ours.marginal(v, evidence), engine.posterior(f"v{v}").toarray())
    expected = gum.InformationTheory(gum.LazyPropagation(theirs), ["v0"], ["v1", "v2"])
    assert ours.information_bits([1, 2], 0, {}) == pytest.approx(
        expected.mutualInformationXY(), abs=1e-9
    )


def test_rows_that_are_not_as_said_are_refused() -> None:
    with pytest.raises(ValueError, match="nothing to learn"):
        learn_network([], [2], [0])
    with pytest.raises(ValueError, match="states below"):
        learn_network([[2]], [2], [0])
    with pytest.raises(ValueError, match=r"shorter|longer"):
        learn_network([[0, 1]], [2], [0])


def test_a_missing_library_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: object, **kwargs: object) -> object:
        if name == "pyagrum":
            raise ImportError("no such wheel")
        return real(name, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.delitem(sys.modules, "pyagrum", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(LibraryMissingError, match="no such wheel"):
        learn_network([[0], [1]], [2], [0])
