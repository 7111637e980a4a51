"""Super-node graphs and how alike two of them are (Tempo, section 4.1).

All calls of a workflow on one level are one super-node, so a workflow is a chain of them. A
super-node weighs what its calls put out together, the edge into it what they read together. Both
are taken as `log(1 + tokens)`: lengths differ by factors, and the paper's kernel has one width for
all of them.

    sim = 0.5 mean_k exp(-dv_k^2 / 2 s^2) + 0.5 mean_k exp(-de_k^2 / 2 s^2),  s = 1

The shorter graph is compared with the beginning of the longer one. A running workflow knows the
edge into its present super-node already, but not what that will put out, so it may have one edge
more than nodes; where it has no node at all yet, edges decide alone.

A match says what is left: `Match.share` is the part of the remaining time that the present stage
gets, `rho_s / sum_{k >= s} rho_k`, and a stage's deadline is then the remaining SLO times that. The
paper leaves open what a stage's time is; its authors' code takes either measured time, with the
wait in queues in it, or the longest output. Here it is the work of the longest member at the speed
of the fleet as it is now: what waited long is not granted more for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log1p

from dispatcher.core.ports import WorkSeconds

SCALE = 1.0
"""Standard deviation of the kernel, in units of `log(1 + tokens)`."""
_NARROWNESS = -0.5 / SCALE**2


@dataclass(frozen=True, slots=True)
class Weights:
    """What is compared of a graph: its super-nodes and the edges into them, in logarithms."""

    nodes: tuple[float, ...]
    edges: tuple[float, ...]

    @classmethod
    def of(cls, input_tokens: Sequence[float], output_tokens: Sequence[float]) -> Weights:
        """From tokens in all of each super-node's calls, from 0; one entry more of input may be."""
        return cls(tuple(map(log1p, output_tokens)), tuple(map(log1p, input_tokens)))


@dataclass(frozen=True, slots=True)
class Graph:
    """A finished workflow: one entry per super-node in each column, in order. Tokens from 0."""

    stages: tuple[str, ...]
    """Names, those of parallel stages joined by `+`."""
    input_tokens: tuple[float, ...]
    """Of all calls together."""
    output_tokens: tuple[float, ...]
    prompt_tokens: tuple[float, ...]
    """Of the longest call: it decides how long the stage takes."""
    longest_output_tokens: tuple[float, ...]

    @property
    def weights(self) -> Weights:
        """What others are compared with."""
        return Weights.of(self.input_tokens, self.output_tokens)

    def __len__(self) -> int:
        return len(self.stages)


@dataclass(frozen=True, slots=True)
class Match:
    """A finished workflow that a running one resembles so far."""

    graph: Graph
    similarity: float
    """In [0, 1]."""
    position: int
    """Of the super-node that corresponds to the present stage; the graph has it."""
    candidates: int
    """Graphs that were long enough to be compared."""

    @property
    def remaining(self) -> list[tuple[str, float, float]]:
        """What came after the present stage: names, and tokens of the longest call."""
        graph, later = self.graph, slice(self.position + 1, None)
        columns = (
            graph.stages[later],
            graph.prompt_tokens[later],
            graph.longest_output_tokens[later],
        )
        return list(zip(*columns, strict=True))

    def ratios(self, work_s: WorkSeconds) -> tuple[float, ...]:
        """Each super-node's part of the whole graph's time; they sum to 1."""
        times_s = self._times_s(work_s, 0)
        total_s = sum(times_s)
        if total_s <= 0:
            return (1.0 / len(times_s),) * len(times_s)
        return tuple(time_s / total_s for time_s in times_s)

    def present_s(self, work_s: WorkSeconds) -> float:
        """Seconds of the stage that corresponds to the present one."""
        return self._times_s(work_s, self.position)[0]

    def tail_s(self, work_s: WorkSeconds) -> float:
        """Seconds of what came after it."""
        return sum(self._times_s(work_s, self.position + 1))

    def share(self, work_s: WorkSeconds) -> float:
        """The present stage's part of what remains, itself included; in [0, 1]."""
        present_s, *later_s = self._times_s(work_s, self.position)
        total_s = present_s + sum(later_s)
        return present_s / total_s if total_s > 0 else 1.0 / (1 + len(later_s))

    def _times_s(self, work_s: WorkSeconds, first: int) -> list[float]:
        graph = self.graph
        lengths = zip(graph.prompt_tokens[first:], graph.longest_output_tokens[first:], strict=True)
        return [work_s(prompt, output) for prompt, output in lengths]


def similarity(one: Weights, other: Weights) -> float:
    """How alike two graphs are as far as the shorter one goes, in [0, 1]; 0 without anything.

    Example:
        >>> whole = Weights.of([100, 40], [50, 20])
        >>> similarity(whole, whole), similarity(whole, Weights.of([100, 40, 9], [50, 20, 9]))
        (1.0, 1.0)
        >>> round(similarity(Weights.of([271], []), Weights.of([99, 40], [50, 20])), 3)
        0.606
    """
    nodes = [exp(_NARROWNESS * (a - b) ** 2) for a, b in zip(one.nodes, other.nodes, strict=False)]
    edges = [exp(_NARROWNESS * (a - b) ** 2) for a, b in zip(one.edges, other.edges, strict=False)]
    if not edges:
        return sum(nodes) / len(nodes) if nodes else 0.0
    of_edges = sum(edges) / len(edges)
    return 0.5 * sum(nodes) / len(nodes) + 0.5 * of_edges if nodes else of_edges


def bounded_graph(graph: Graph, max_nodes: int) -> Graph:
    """The same with at most so many super-nodes: the last one stands for all that came later."""
    if len(graph) <= max_nodes:
        return graph
    last = max_nodes - 1

    def cut(column: tuple[float, ...]) -> tuple[float, ...]:
        return (*column[:last], sum(column[last:]))

    return Graph(
        graph.stages[:max_nodes],
        cut(graph.input_tokens),
        cut(graph.output_tokens),
        cut(graph.prompt_tokens),
        cut(graph.longest_output_tokens),
    )
