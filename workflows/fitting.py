"""From finished workflows to an application's model: bins, a network over them, and the rest.

Takes some milliseconds with a library that learns networks, so a gateway does it in a worker
process and a simulation in between. What comes out is plain JSON values, which
`stage_profile.StageProfile` answers from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.workflow_types import StageKind
from workflows.stage_rows import GAP, INSIDE, unpack_cells, unpack_edges
from workflows.stage_variable import Values

MAX_BINS = 6
"""Of durations above 0; not executed is a state of its own (LLMSched, section IV-B)."""
MAX_MODELLED = 32
"""Variables in the network: those executed most often."""
_GAP_SHARE = 0.01
"""Of all time: a gap that nobody declared and that takes less is left out."""
_MOSTLY = 0.95
"""Share of workflows in which one stage is later than another that it follows."""
_BINS_GROW = 0.36
"""Power of the workflows at which bins grow: 2 of 20 workflows, 4 of 48, 6 of 146. With more of
them, what depends goes unseen under BIC; with fewer, what is known is coarse."""

Network = tuple[list[list[int]], list[list[float]]]
LearnNetwork = Callable[[Sequence[Sequence[int]], Sequence[int], Sequence[int]], Network]
"""Parents and tables from (rows of states, states of each variable, time slice of each)."""


@dataclass(frozen=True, slots=True)
class FitJob:
    """One application's finished workflows."""

    application: str
    columns: tuple[tuple[str, StageKind], ...]
    rows: tuple[tuple[bytes, bytes], ...]
    """As `stage_rows.pack` gives them."""
    tpot_s: float
    """Usual time per output token: the pace at which durations are binned."""


def fit(job: FitJob, learn: LearnNetwork | None, method: str) -> dict[str, Any]:
    """An application's model.

    Args:
        job: At least one row.
        learn: Learns a network; `None`: stages tell nothing of each other.
        method: What it is called.

    Raises:
        ValueError: No rows.
    """
    if not job.rows:
        raise ValueError(f"{job.application}: nothing to learn from")
    parts = _Parts(job)
    modelled, before = parts.modelled()
    states, variables = [], []
    for column in modelled:
        column_states, variable = parts.variable(column)
        states.append(column_states)
        variables.append(variable)
    cards = [len(variable["bins"]) for variable in variables]
    data = np.stack(states, axis=1)
    parents: list[list[int]] = [[] for _ in cards]
    tables = [_frequencies(data[:, v], card) for v, card in enumerate(cards)]
    # a variable of one state tells nothing, and libraries do not take one
    open_ = [number for number, card in enumerate(cards) if card > 1]
    if learn is not None and len(open_) > 1:
        depths = _depths(before)
        slices = [depths[number] for number in open_]
        found = learn(data[:, open_].tolist(), [cards[v] for v in open_], slices)
        for number, its_parents, table in zip(open_, *found, strict=True):
            parents[number], tables[number] = [open_[p] for p in its_parents], table
    return {
        "method": method,
        "samples": len(job.rows),
        "tpot_s": job.tpot_s,
        "variables": variables,
        "before": before,
        "parents": parents,
        "tables": tables,
        "candidates": parts.candidates(),
        "edges": parts.edges(),
    }


class _Parts:
    """A job's rows as columns."""

    def __init__(self, job: FitJob) -> None:
        self._job = job
        shape = (len(job.rows), len(job.columns))
        self._steps, self._seconds = np.zeros(shape), np.zeros(shape)
        self._tasks, self._levels = np.zeros(shape), np.zeros(shape)
        self._ran = np.zeros(shape, dtype=bool)
        for number, (cells, _) in enumerate(job.rows):
            for column, level, steps, seconds, tasks in unpack_cells(cells):
                at = (number, column)
                self._ran[at], self._levels[at], self._tasks[at] = True, level, tasks
                self._steps[at], self._seconds[at] = steps, seconds

    def modelled(self) -> tuple[list[int], list[list[int]]]:
        """Columns in the network, none before what it follows, and what each one follows."""
        often = [
            (-int(self._ran[:, column].sum()), column)
            for column, (name, _) in enumerate(self._job.columns)
            if INSIDE not in name and self._ran[:, column].any() and self._matters(column)
        ]
        chosen = [column for _, column in sorted(often)[:MAX_MODELLED]]
        chosen.sort(key=lambda column: (self._level(column), column))
        before = self._precedence(chosen)
        try:
            depths = _depths(before)
        except ValueError:
            # who follows whom goes round in a circle: levels decide
            levels = [self._level(column) for column in chosen]
            before = [[e for e, level in enumerate(levels) if level < own] for own in levels]
            depths = _depths(before)
        order = sorted(range(len(chosen)), key=lambda v: (depths[v], v))
        place = {v: number for number, v in enumerate(order)}
        moved = [sorted(place[e] for e in before[v]) for v in order]
        return [chosen[v] for v in order], _reduced(moved)

    def _precedence(self, columns: Sequence[int]) -> list[list[int]]:
        """Of each the others that ran on an earlier level wherever both ran, all but never not."""
        ran, levels = self._ran[:, columns], self._levels[:, columns]
        before: list[list[int]] = []
        for later in range(len(columns)):
            both = ran & ran[:, [later]]
            earlier = (both & (levels < levels[:, [later]])).sum(axis=0)
            counts = both.sum(axis=0)
            found = (counts > 0) & (earlier >= _MOSTLY * counts)
            before.append([int(e) for e in np.flatnonzero(found)])
        return before

    def variable(self, column: int) -> tuple[NDArray[np.intp], dict[str, Any]]:
        """Its state in each row, and what is to be known of it."""
        name, kind = self._job.columns[column]
        ran = self._ran[:, column]
        values = self._values(column)
        bins: list[list[float]] = [] if ran.all() else [[0.0, 0.0, 0.0]]
        states = np.zeros(len(ran), dtype=np.intp)
        first = len(bins)
        cuts = _cuts(values[ran])
        inner = np.searchsorted(cuts, values[ran], side="right")
        states[ran] = inner + first
        edges = [float(values[ran].min()), *map(float, cuts), float(values[ran].max())]
        for number in range(len(cuts) + 1):
            mean = float(values[ran][inner == number].mean())
            bins.append([mean, edges[number], edges[number + 1]])
        return states, {
            "name": name,
            "kind": kind.value,
            "level": self._level(column),
            "share": self._share(column),
            "tasks": float(self._tasks[ran, column].mean()),
            "ran": float(ran.mean()),
            "may_not_run": bool(first),
            "bins": bins,
        }

    def candidates(self) -> list[dict[str, Any]]:
        """What dynamic stages were made of."""
        found = []
        for column, (name, kind) in enumerate(self._job.columns):
            ran = self._ran[:, column]
            if INSIDE not in name or not ran.any():
                continue
            values = self._values(column)[ran]
            found.append(
                {
                    "name": name,
                    "kind": kind.value,
                    "share": self._share(column),
                    "ran": float(ran.mean()),
                    "tasks": float(self._tasks[ran, column].mean()),
                    "mean": float(values.mean()),
                    "quantiles": [float(q) for q in np.quantile(values, np.linspace(0, 1, 9))],
                }
            )
        return found

    def edges(self) -> list[list[Any]]:
        """Dependencies between candidates, and the share of workflows that had each."""
        counts: dict[tuple[int, int], int] = {}
        for _, packed in self._job.rows:
            for edge in unpack_edges(packed):
                counts[edge] = counts.get(edge, 0) + 1
        names = [name for name, _ in self._job.columns]
        total = len(self._job.rows)
        return [[names[a], names[b], count / total] for (a, b), count in counts.items()]

    def _matters(self, column: int) -> bool:
        """Clients always take a moment between two calls: only what lasts is a stage."""
        if not self._job.columns[column][0].startswith(GAP):
            return True
        whole = self._steps.sum() * self._job.tpot_s + self._seconds.sum()
        return float(self._values(column).sum()) > _GAP_SHARE * float(whole)

    def _level(self, column: int) -> float:
        ran = self._ran[:, column]
        return float(np.median(self._levels[ran, column]))

    def _values(self, column: int) -> Values:
        return np.asarray(self._steps[:, column] * self._job.tpot_s + self._seconds[:, column])

    def _share(self, column: int) -> float:
        """Of its time that is decoding, and so goes with the load of the engines."""
        whole = float(self._values(column).sum())
        decoding = float(self._steps[:, column].sum()) * self._job.tpot_s
        return decoding / whole if whole > 0.0 else 0.0


def _depths(before: Sequence[Sequence[int]]) -> list[int]:
    """Stages on the longest path that leads to each. Raises `ValueError` for a circle."""
    depths: dict[int, int] = {}
    while len(depths) < len(before):
        ready = [
            v for v, names in enumerate(before) if v not in depths and depths.keys() >= set(names)
        ]
        if not ready:
            raise ValueError("stages follow each other in a circle")
        depths |= {v: max((depths[e] + 1 for e in before[v]), default=0) for v in ready}
    return [depths[v] for v in range(len(before))]


def _reduced(before: Sequence[Sequence[int]]) -> list[list[int]]:
    """The same order without what follows from the rest of it."""
    ahead: list[set[int]] = []
    reduced = []
    for names in before:
        through = set().union(*(ahead[e] for e in names))
        reduced.append([e for e in names if e not in through])
        ahead.append(through.union(names))
    return reduced


def _cuts(values: Values) -> Values:
    """Between bins of as many values each, at most `MAX_BINS`; equal values stay together."""
    count = max(1, min(MAX_BINS, int(len(values) ** _BINS_GROW)))
    ordered = np.sort(values)
    cuts = []
    for number in range(1, count):
        below = ordered[number * len(ordered) // count - 1]
        above = ordered[ordered > below]
        if len(above):
            cuts.append((below + above[0]) / 2.0)
    return np.unique(np.array(cuts, dtype=np.float64))


def _frequencies(states: NDArray[np.intp], card: int) -> list[float]:
    """P(state), a pseudo-count each."""
    counts = np.bincount(states, minlength=card) + 1.0
    return [float(p) for p in counts / counts.sum()]
