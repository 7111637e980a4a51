"""Finished workflows' graphs, per application: what a running one is matched with. Bounded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from workflows.bounds import MAX_TOKENS, MAX_WIDTH, stored
from workflows.graph_match import Graph, Match, Weights, bounded_graph, similarity

MAX_NODES = 64
"""Super-nodes of one graph; what comes later is one with the last."""
_FEW = 5
"""Up to so many graphs are compared one by one: an array is not worth its overhead."""
_SAME = 1e-9
_MAX_NAME = 200


@dataclass(frozen=True, slots=True)
class GraphBounds:
    """How much is kept. Each at least 1."""

    per_application: int = 200
    """Graphs; the one that was learned or matched least recently goes first."""
    applications: int = 500
    """The one that learned least recently goes first."""
    super_nodes: int = 50_000
    """Of all graphs together; applications go as above until it holds, but never the last."""


class Index(Protocol):
    """Compares with many graphs at once; see `graph_index.GraphIndex`."""

    def put(self, slot: int, weights: Weights) -> None:
        """Keep a graph's weights in place of what the slot held."""

    def similarities(self, running: Weights, at_least: int) -> Sequence[float]:
        """Per slot, as `graph_match.similarity`; -1 where the graph is too short."""


NewIndex = Callable[[int], Index]
"""An empty one for so many slots."""


class ApplicationGraphs:
    """One application's graphs."""

    def __init__(self, max_graphs: int, new_index: NewIndex | None) -> None:
        self._max_graphs = max_graphs
        self._new_index = new_index
        self._index: Index | None = None
        self._graphs: list[Graph] = []
        self._weights: list[Weights] = []
        #: by slot: turn in which it was learned, and learned or matched last
        self._learned: list[int] = []
        self._used: list[int] = []
        self._turn = 0
        self.super_nodes = 0

    def learn(self, graph: Graph) -> None:
        """Take a finished workflow's; O(graphs)."""
        self._turn += 1
        weights = graph.weights
        self.super_nodes += len(graph)
        if len(self._graphs) < self._max_graphs:
            slot = len(self._graphs)
            self._graphs.append(graph)
            self._weights.append(weights)
            self._learned.append(self._turn)
            self._used.append(self._turn)
        else:
            slot = self._used.index(min(self._used))
            self.super_nodes -= len(self._graphs[slot])
            self._graphs[slot], self._weights[slot] = graph, weights
            self._learned[slot] = self._used[slot] = self._turn
        if self._index is not None:
            self._index.put(slot, weights)
        elif self._new_index is not None and len(self._graphs) > _FEW:
            self._index = self._new_index(self._max_graphs)
            for each, known in enumerate(self._weights):
                self._index.put(each, known)

    def match(self, running: Weights, best: int) -> list[Match]:
        """The most alike graphs that have the running one's present super-node, best first.

        Of equals the one learned last. What is matched is kept longer.
        """
        position = len(running.nodes)
        if self._index is not None:
            scores = self._index.similarities(running, position + 1)
        else:
            scores = [
                similarity(running, known) if len(known.nodes) > position else -1.0
                for known in self._weights
            ]
        candidates = sum(score >= 0 for score in scores)
        if not candidates:
            return []
        slots = self._best(scores, min(best, candidates))
        self._turn += 1
        for slot in slots:
            self._used[slot] = self._turn
        return [Match(self._graphs[s], scores[s], position, candidates) for s in slots]

    def _best(self, scores: Sequence[float], count: int) -> list[int]:
        if count > 1:
            by_score = sorted(
                range(len(scores)), key=lambda s: (scores[s], self._learned[s]), reverse=True
            )
            return by_score[:count]
        top = max(scores) - _SAME
        return [max((s for s, v in enumerate(scores) if v >= top), key=self._learned.__getitem__)]

    def dump(self) -> dict[str, object]:
        """Graphs in order of learning, and the turns of their last use; plain JSON values."""
        slots = sorted(range(len(self._graphs)), key=self._learned.__getitem__)
        return {
            "graphs": [_dump_graph(self._graphs[slot]) for slot in slots],
            "used": [self._used[slot] for slot in slots],
        }

    def use(self, turns: Sequence[int]) -> None:
        """Take over turns of last use, graphs in order of learning; none was replaced yet."""
        self._used = list(turns)
        self._turn = max(self._turn, *turns)

    def __len__(self) -> int:
        return len(self._graphs)


class GraphHistory:
    """Applications' graphs.

    Args:
        bounds: How much is kept.
        new_index: Compares with many graphs at once; `None`: one by one.

    Example:
        >>> history = GraphHistory()
        >>> history.learn("sql", Graph(("draft", "fix"), (9, 9), (50, 20), (9, 9), (50, 20)))
        >>> found = history.match("sql", Weights.of([9], []))[0]
        >>> found.similarity, found.remaining, found.candidates
        (1.0, [('fix', 9, 20)], 1)
        >>> found.tail_s(lambda prompt, output: output / 10)
        2.0
    """

    def __init__(
        self, bounds: GraphBounds | None = None, new_index: NewIndex | None = None
    ) -> None:
        self._bounds = bounds or GraphBounds()
        self._new_index = new_index
        #: the one that learned least recently first
        self._applications: OrderedDict[str, ApplicationGraphs] = OrderedDict()
        self._super_nodes = 0

    def learn(self, application: str, graph: Graph) -> None:
        """Take a workflow that finished well; one without super-nodes teaches nothing."""
        if not len(graph):
            return
        known = self._applications.get(application)
        if known is None:
            known = ApplicationGraphs(self._bounds.per_application, self._new_index)
            self._applications[application] = known
        self._applications.move_to_end(application)
        before = known.super_nodes
        known.learn(bounded_graph(graph, MAX_NODES))
        self._super_nodes += known.super_nodes - before
        while len(self._applications) > 1 and (
            len(self._applications) > self._bounds.applications
            or self._super_nodes > self._bounds.super_nodes
        ):
            _, dropped = self._applications.popitem(last=False)
            self._super_nodes -= dropped.super_nodes

    def match(self, application: str, running: Weights, best: int = 1) -> list[Match]:
        """At most `best` of the application's graphs that go on where the running one stands.

        Args:
            application: Whose graphs.
            running: Its finished super-nodes, and the edges into them and into the present one.
            best: At least 1.

        Returns:
            Most alike first; empty where nothing is known of the application, no graph is long
            enough, or there is nothing to compare.
        """
        known = self._applications.get(application)
        if known is None or not running.edges or len(running.edges) > len(running.nodes) + 1:
            return []
        return known.match(running, best)

    def stats(self) -> dict[str, int]:
        """How much is kept."""
        return {
            "applications": len(self._applications),
            "graphs": len(self),
            "super_nodes": self._super_nodes,
        }

    def count(self, application: str) -> int:
        """Graphs of one application."""
        known = self._applications.get(application)
        return 0 if known is None else len(known)

    def __len__(self) -> int:
        return sum(map(len, self._applications.values()))

    def dump(self) -> dict[str, object]:
        """What was learned, as plain JSON values."""
        return {name: known.dump() for name, known in self._applications.items()}

    def load(self, state: Mapping[str, object]) -> None:
        """Replace what was learned by what `dump` gave.

        Raises:
            ValueError: The state does not have the shape that `dump` gives; nothing has changed
                then.
        """
        fresh = GraphHistory(self._bounds, self._new_index)
        for name, known in state.items():
            graphs, used = _load_application(known, self._bounds.per_application)
            for graph in graphs:
                fresh.learn(name, graph)
            fresh._applications[name].use(used)
        self.adopt(fresh)

    def adopt(self, other: GraphHistory) -> None:
        """Replace what was learned by what another one, used no more, has learned."""
        self._applications, self._super_nodes = other._applications, other._super_nodes


def _dump_graph(graph: Graph) -> list[object]:
    # Not copied: there may be thousands, and who asks has other things to do meanwhile.
    return [
        graph.stages,
        graph.input_tokens,
        graph.output_tokens,
        graph.prompt_tokens,
        graph.longest_output_tokens,
    ]


def _load_application(state: object, most: int) -> tuple[list[Graph], list[int]]:
    """The latest graphs, at most so many, and when they were last used."""
    if not isinstance(state, dict):
        raise ValueError("graphs: expected an object for each application")
    graphs, used = state.get("graphs"), state.get("used")
    if not isinstance(graphs, list) or not isinstance(used, list) or len(graphs) != len(used):
        raise ValueError("graphs: expected as many turns of use as graphs")
    if not graphs:
        raise ValueError("graphs: expected one or more for each application")
    turns = [int(stored(turn, "graph used", 0, 2**53)) for turn in used[-most:]]
    return [_load_graph(graph) for graph in graphs[-most:]], turns


def _load_graph(state: object) -> Graph:
    if not isinstance(state, list) or len(state) != 5:
        raise ValueError("graph: expected five columns")
    names, *columns = state
    if not isinstance(names, list | tuple) or not 0 < len(names) <= MAX_NODES:
        raise ValueError(f"graph: expected 1 to {MAX_NODES} stages")
    numbers = []
    for column in columns:
        if not isinstance(column, list | tuple) or len(column) != len(names):
            raise ValueError("graph: expected columns of one length")
        most = float(MAX_TOKENS) * MAX_WIDTH
        numbers.append(tuple(stored(value, "graph", 0.0, most) for value in column))
    return Graph(tuple(str(name)[:_MAX_NAME] for name in names), *numbers)
