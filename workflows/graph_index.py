"""One application's graphs side by side, so that all of them are compared at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from workflows.graph_match import SCALE, Weights

_FIRST_COLUMNS = 8
_NARROWNESS = -0.5 / SCALE**2


class GraphIndex:
    """Weights by slot: a row per graph, a column per super-node, unused ones 0.

    Args:
        slots: Most graphs that it holds, at least 1.
    """

    def __init__(self, slots: int) -> None:
        self._lengths = np.zeros(slots, dtype=np.int64)
        self._nodes = np.zeros((slots, _FIRST_COLUMNS))
        self._edges = np.zeros((slots, _FIRST_COLUMNS))
        #: slots in use: those below it
        self._used = 0

    def put(self, slot: int, weights: Weights) -> None:
        """Keep a graph's weights, as many nodes as edges, in place of what the slot held."""
        length = len(weights.nodes)
        if length > self._nodes.shape[1]:
            self._nodes = _wider(self._nodes, length)
            self._edges = _wider(self._edges, length)
        self._lengths[slot] = length
        self._nodes[slot, :length] = weights.nodes
        self._edges[slot, :length] = weights.edges
        self._used = max(self._used, slot + 1)

    def similarities(self, running: Weights, at_least: int) -> Sequence[float]:
        """How alike each slot's graph is, as `graph_match.similarity`; -1 where it is too short.

        Args:
            running: At most `at_least` nodes and edges, and one edge or more.
            at_least: Super-nodes that a graph must have.
        """
        used = self._used
        if at_least > self._nodes.shape[1]:
            return [-1.0] * used
        scores = _kernel(self._edges[:used], running.edges)
        if running.nodes:
            scores = 0.5 * scores + 0.5 * _kernel(self._nodes[:used], running.nodes)
        scores[self._lengths[:used] < at_least] = -1.0
        return scores.tolist()  # type: ignore[no-any-return]


def _kernel(rows: NDArray[np.float64], weights: tuple[float, ...]) -> NDArray[np.float64]:
    apart = rows[:, : len(weights)] - weights
    alike: NDArray[np.float64] = np.exp(_NARROWNESS * apart * apart)
    return alike.sum(axis=1) / len(weights)  # type: ignore[no-any-return]


def _wider(rows: NDArray[np.float64], columns: int) -> NDArray[np.float64]:
    wider = np.zeros((rows.shape[0], max(columns, 2 * rows.shape[1])))
    wider[:, : rows.shape[1]] = rows
    return wider
