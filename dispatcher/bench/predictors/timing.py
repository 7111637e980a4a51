"""What one prediction, one refinement and one match of graphs cost, in this process, alone."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from dispatcher.bench.predictors.corpus import Answer
from predictors.coverage import Coverage, CoverageSettings
from predictors.quantile_forest import TrainedForest
from predictors.text_features import text_features
from workflows.graph_history import GraphBounds, GraphHistory
from workflows.graph_index import GraphIndex
from workflows.graph_match import Graph, Weights

BATCH = 16
_BATCHES = 100
_GRAPHS = 200
_STAGES = 8
_WORDS = ("explain", "list", "the", "function", "answer", "value", "42", "how", "each", "number")

Times = dict[str, Any]


def times(forest: TrainedForest, answers: Sequence[Answer], seed: int) -> Times:
    """Seconds by what is timed: median and 95th percentile over repetitions.

    Args:
        forest: Trained.
        answers: To predict; at least one.
        seed: Which of them, and of the graphs.
    """
    rng = random.Random(seed)  # noqa: S311 - a sample, not a secret
    rows = [rng.choice(answers).row for _ in range(BATCH * _BATCHES)]
    batches = [rows[at : at + BATCH] for at in range(0, len(rows), BATCH)]
    estimates = forest.predict(rows)
    coverage = Coverage(CoverageSettings())
    for estimate in estimates[: CoverageSettings().window]:
        coverage.observe(estimate, max(1.0, estimate.expected_tokens * rng.uniform(0.5, 2.0)))
    refined = [(one, one.quantile_tokens(rng.uniform(0.05, 0.95))) for one in estimates]
    texts = [" ".join(rng.choices(_WORDS, k=400)) for _ in range(_BATCHES)]
    graphs, running = _graphs(rng)
    return {
        "alone": _timed(lambda row: forest.predict([row]), rows[:_BATCHES]),
        "batch_of_16": _timed(forest.predict, batches),
        "amortised_in_16": _timed(forest.predict, batches, each=BATCH),
        "refinement": _timed(lambda pair: pair[0].longer_than(pair[1]), refined),
        "coverage_correction": _timed(coverage.corrected, estimates),
        "text_features_2_kb": _timed(text_features, texts),
        "graph_match_pair": _timed(
            lambda weights: graphs.match("a", weights), running, each=_GRAPHS
        ),
    }


def _timed(act: Callable[[Any], object], items: Sequence[Any], each: int = 1) -> Times:
    """Of one act, over `each`; the first act is not counted."""
    act(items[0])
    taken_s = []
    for item in items:
        began_s = time.perf_counter()
        act(item)
        taken_s.append((time.perf_counter() - began_s) / each)
    taken_s.sort()
    return {
        "median_s": taken_s[len(taken_s) // 2],
        "p95_s": taken_s[int(0.95 * (len(taken_s) - 1))],
        "times": len(taken_s),
    }


def _graphs(rng: random.Random) -> tuple[GraphHistory, list[Weights]]:
    """A full history of one application, and running workflows to match with it."""
    graphs = GraphHistory(GraphBounds(per_application=_GRAPHS), new_index=GraphIndex)

    def tokens() -> tuple[float, ...]:
        return tuple(float(rng.randint(10, 4000)) for _ in range(_STAGES))

    for _ in range(_GRAPHS):
        stages = tuple(f"s{number}" for number in range(_STAGES))
        graphs.learn("a", Graph(stages, tokens(), tokens(), tokens(), tokens()))
    running = [Weights.of(tokens()[:4], tokens()[:3]) for _ in range(_BATCHES)]
    return graphs, running
