from __future__ import annotations

import json
import random
from typing import Any

import pytest

from workflows.graph_history import MAX_NODES, GraphBounds, GraphHistory, NewIndex
from workflows.graph_index import GraphIndex
from workflows.graph_match import Graph, Weights

INDEXES = [pytest.param(None, id="one by one"), pytest.param(GraphIndex, id="at once")]


def chain(*outputs: float, label: str = "s") -> Graph:
    names = tuple(f"{label}{n}" for n in range(len(outputs)))
    tens = (10.0,) * len(outputs)
    return Graph(names, tens, outputs, tens, outputs)


def running(*outputs: float) -> Weights:
    return Weights.of([10.0] * (len(outputs) + 1), outputs)


def lengths(history: GraphHistory, *applications: str) -> list[int]:
    kept: Any = history.dump()
    return [len(graph[0]) for name in applications or kept for graph in kept[name]["graphs"]]


def filled(new_index: NewIndex | None, graphs: int = 100, seed: int = 1) -> GraphHistory:
    rng, history = random.Random(seed), GraphHistory(new_index=new_index)
    for _ in range(graphs):
        outputs = [float(rng.randrange(1, 1000)) for _ in range(rng.randrange(1, 9))]
        history.learn("app", chain(*outputs))
    return history


@pytest.mark.parametrize("new_index", INDEXES)
def test_finds_the_nearest_that_goes_on(new_index: NewIndex | None) -> None:
    history = filled(new_index)
    history.learn("app", chain(500, 40, 3))
    history.learn("app", chain(500, 40))  # ends where the running one stands
    history.learn("other", chain(500, 40, 9, 9))
    found = history.match("app", running(500, 40))[0]
    assert found.graph == chain(500, 40, 3)
    assert found.similarity == 1.0
    assert found.position == 2
    assert found.remaining == []
    assert found.candidates == sum(length > 2 for length in lengths(history, "app"))


@pytest.mark.parametrize("new_index", INDEXES)
def test_of_equals_the_latest(new_index: NewIndex | None) -> None:
    history = GraphHistory(new_index=new_index)
    for rest in range(30):
        history.learn("app", chain(100, rest + 1.0))
    assert history.match("app", running())[0].graph == chain(100, 30)
    best = history.match("app", running(100), best=3)
    assert [match.graph for match in best] == [chain(100, n) for n in (30, 29, 28)]


@pytest.mark.parametrize("new_index", INDEXES)
def test_several_come_in_order_of_likeness(new_index: NewIndex | None) -> None:
    history = filled(new_index)
    found = history.match("app", running(300, 300), best=5)
    scores = [match.similarity for match in found]
    assert len(found) == 5
    assert scores == sorted(scores, reverse=True)
    assert scores[0] == history.match("app", running(300, 300))[0].similarity


def test_one_by_one_and_at_once_agree() -> None:
    slow, fast = filled(None), filled(GraphIndex)
    rng = random.Random(2)
    for _ in range(50):
        asked = running(*[float(rng.randrange(1, 1000)) for _ in range(rng.randrange(8))])
        graphs = [[m.graph for m in history.match("app", asked, 3)] for history in (slow, fast)]
        assert graphs[0] == graphs[1]


def test_nothing_where_nothing_is_known_or_long_enough() -> None:
    history = filled(GraphIndex)
    assert history.match("unknown", running(1)) == []
    assert history.match("app", running(*[1.0] * 8)) == []
    assert history.match("app", running(*[1.0] * 200)) == []
    assert history.match("app", Weights.of([], [])) == []


@pytest.mark.parametrize("new_index", INDEXES)
def test_what_is_matched_stays_longer(new_index: NewIndex | None) -> None:
    history = GraphHistory(GraphBounds(per_application=10), new_index)
    history.learn("app", chain(9000, 1))
    for number in range(100):
        history.learn("app", chain(10, number + 1.0))
        assert history.match("app", running(9000))[0].graph == chain(9000, 1)
    assert history.count("app") == 10
    for number in range(10):
        history.learn("app", chain(10, number + 1.0))
    assert history.match("app", running(9000))[0].graph != chain(9000, 1)


def test_ten_thousand_workflows_of_fifty_applications_stay_within_bounds() -> None:
    rng = random.Random(3)
    bounds = GraphBounds(per_application=40, applications=30, super_nodes=4_000)
    history = GraphHistory(bounds, GraphIndex)
    most = 0
    for _ in range(10_000):
        stages = rng.choice([1, 3, 8, 2 * MAX_NODES])
        graph = chain(*[float(rng.randrange(1000)) for _ in range(stages)])
        application = f"app{min(rng.randrange(50), rng.randrange(50))}"
        history.learn(application, graph)
        assert history.count(application) >= 1
        most = max(most, history.stats()["super_nodes"])
    stats = history.stats()
    kept = lengths(history)
    assert stats["applications"] == len(history.dump()) <= 30
    assert max(history.count(name) for name in history.dump()) <= 40
    assert max(kept) == MAX_NODES
    assert sum(kept) == stats["super_nodes"] <= most <= 4_000
    assert stats["graphs"] == len(kept) == len(history)


def test_super_nodes_are_counted_as_graphs_are_replaced() -> None:
    history = GraphHistory(GraphBounds(per_application=3))
    for length in (7, 1, 5, 2, 9, 1):
        history.learn("app", chain(*[1.0] * length))
    assert lengths(history) == [2, 9, 1]
    assert history.stats()["super_nodes"] == 12


@pytest.mark.parametrize("new_index", INDEXES)
def test_dump_and_load_give_the_same_answers(new_index: NewIndex | None) -> None:
    history, again = filled(new_index), GraphHistory(new_index=new_index)
    history.match("app", running(300))
    again.load(json.loads(json.dumps(history.dump())))
    assert again.dump() == history.dump()
    assert again.stats() == history.stats()
    rng = random.Random(4)
    for _ in range(30):
        asked = running(*[float(rng.randrange(1, 1000)) for _ in range(rng.randrange(5))])
        before, after = (h.match("app", asked)[0] for h in (history, again))
        assert after.graph == before.graph
        assert after.similarity == pytest.approx(before.similarity)


@pytest.mark.parametrize(
    "known",
    [
        1,
        {"graphs": [], "used": []},
        {"graphs": [[["s"], [1], [1], [1], [1]]], "used": []},
        {"graphs": [[["s"], [1], [1], [1], [1]]], "used": [-1]},
        {"graphs": [[["s"], [1], [1], [1]]], "used": [1]},
        {"graphs": [[[], [], [], [], []]], "used": [1]},
        {"graphs": [[["s"], [1], [1], [1], [1, 2]]], "used": [1]},
        {"graphs": [[["s"], [1], [1], [1], [-1]]], "used": [1]},
        {"graphs": [[["s"], [1], [1], [1], ["x"]]], "used": [1]},
        {"graphs": [[["s"] * 99, *[[1] * 99] * 4]], "used": [1]},
    ],
)
def test_a_state_of_another_shape_changes_nothing(known: object) -> None:
    history = filled(GraphIndex, 10)
    before = history.dump()
    with pytest.raises(ValueError, match="graph"):
        history.load({"app": known})
    assert history.dump() == before
