"""What matching a running workflow with finished ones costs."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from workflows.graph_history import GraphBounds, GraphHistory
from workflows.graph_index import GraphIndex
from workflows.graph_match import Graph, Weights

_APPLICATION = "app"
_MEAN_LOG_TOKENS = 6.0
_REPEATS = 5


@dataclass(frozen=True, slots=True)
class GraphMatchCost:
    """Process time of matches. Microseconds."""

    graphs: int
    """Compared with each time."""
    stages: int
    """Super-nodes of each graph."""
    match_us: float
    """One match, from the running workflow's tokens to the graph found."""
    pair_us: float
    """The same, per graph."""
    learn_us: float
    """Taking one finished workflow into a history that is full."""

    def described(self) -> dict[str, float]:
        """For reports."""
        return {
            "graphs": self.graphs,
            "stages": self.stages,
            "match_us": self.match_us,
            "pair_us": self.pair_us,
            "learn_us": self.learn_us,
        }


def graph_match_cost(
    graphs: int = 200, stages: int = 12, *, matches: int = 400, seed: int = 0
) -> GraphMatchCost:
    """Time matches of workflows, half done on average, with a full history; the best of five runs.

    A match is timed with what comes before it: logarithms of the running workflow's tokens.

    Args:
        graphs: In the history; more than a few are compared at once.
        stages: Super-nodes of each.
        matches: In each run.
        seed: Of lengths.
    """
    rng = random.Random(seed)  # noqa: S311 - a model, no secret
    history = GraphHistory(GraphBounds(per_application=graphs), GraphIndex)
    for _ in range(graphs):
        history.learn(_APPLICATION, _graph(rng, stages))
    running = []
    for number in range(matches):
        ended = number % stages
        running.append((_tokens(rng, ended + 1), _tokens(rng, ended)))
    finished = [_graph(rng, stages) for _ in range(matches)]
    match_s = learn_s = float("inf")
    for _ in range(_REPEATS):
        begun_s = time.process_time()
        for inputs, outputs in running:
            history.match(_APPLICATION, Weights.of(inputs, outputs))
        matched_s = time.process_time()
        for graph in finished:
            history.learn(_APPLICATION, graph)
        match_s = min(match_s, (matched_s - begun_s) / matches)
        learn_s = min(learn_s, (time.process_time() - matched_s) / matches)
    return GraphMatchCost(graphs, stages, match_s * 1e6, match_s * 1e6 / graphs, learn_s * 1e6)


def _tokens(rng: random.Random, length: int) -> list[float]:
    return [float(round(rng.lognormvariate(_MEAN_LOG_TOKENS, 1.0))) for _ in range(length)]


def _graph(rng: random.Random, stages: int) -> Graph:
    inputs, outputs = _tokens(rng, stages), _tokens(rng, stages)
    return Graph(
        tuple(f"stage-{number}" for number in range(stages)),
        tuple(inputs),
        tuple(outputs),
        tuple(inputs),
        tuple(outputs),
    )
