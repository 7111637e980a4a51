"""Quantiles of log length by model, application, stage and tool: names as numbers for a forest.

A tree splits on numbers, and there are dozens of models: what a name is worth is how long answers
were under it (target encoding: Micci-Barreca, 2001), here three quantiles, so that a tree knows
the spread too. Few lengths are drawn towards those of the wider cell. Rows that a forest learns
from are encoded without their own group's lengths, or it would trust a cell far too much.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]

UNKNOWN = -1
"""Code of a name that no cell knows."""

LEVELS = (
    *(0.005, 0.01, 0.02, 0.03, 0.05, 0.075),
    *(round(0.05 * step, 2) for step in range(2, 18)),
    *(0.875, 0.9, 0.925, 0.95, 0.965, 0.98, 0.99, 0.995),
)
"""Quantiles of a cell: finer at the ends."""

_TOLD = [LEVELS.index(p) for p in (0.1, 0.5, 0.9)]
"""Of these, what trees are told."""
_MIDDLE = LEVELS.index(0.5)

FOLDS = 5

_MODEL, _APPLICATION, _STAGE, _TOOL = range(4)
_CELLS = (
    (_MODEL,),
    (_APPLICATION,),
    (_MODEL, _APPLICATION),
    (_MODEL, _APPLICATION, _STAGE),
    (_APPLICATION, _TOOL),
)

ENCODED = len(_CELLS) * len(_TOLD)
"""Numbers that a row's four codes become."""


class Encoded(NamedTuple):
    """What cells know of some rows."""

    numbers: Floats
    """(rows, ENCODED): for trees."""
    laws: Floats
    """(rows, LEVELS): log lengths of the narrowest cell, drawn towards wider ones."""
    counts: Floats
    """(rows,): lengths known of the row's application."""


class LengthCells:
    """What every cell's lengths were like.

    Args:
        codes: One row of four whole numbers (model, application, stage, tool) a length.
        logs: Logarithms of the lengths.
        trust: A cell of so many lengths is believed half, its wider cell the other half.
    """

    def __init__(self, codes: Whole, logs: Floats, trust: float) -> None:
        self._everything = np.quantile(logs, LEVELS)
        self._cells = [_cell_quantiles(codes[:, columns], logs) for columns in map(list, _CELLS)]
        self._trust = trust

    def encode(self, codes: Whole) -> Encoded:
        """For each row of codes; names never seen count as all lengths do."""
        whole = self._everything
        everything = np.broadcast_to(whole, (len(codes), len(whole)))
        model = self._shrunk(0, codes, everything)
        application = self._shrunk(1, codes, everything)
        # how much longer than usual this model answers, in an application where it never did
        longer = model[:, _MIDDLE] - whole[_MIDDLE]
        known = self._counts(codes)
        narrow = np.where(known[:, None] > 0, application + longer[:, None], model)
        both = self._shrunk(2, codes, narrow)
        stage = self._shrunk(3, codes, both)
        tool = self._shrunk(4, codes, application)
        numbers = [cell[:, _TOLD] for cell in (model, application, both, stage, tool)]
        return Encoded(np.concatenate(numbers, axis=1), stage, known)

    def _counts(self, codes: Whole) -> Floats:
        known = self._cells[_APPLICATION]
        names = codes[:, _APPLICATION].tolist()
        return np.array([known[(name,)][0] if (name,) in known else 0.0 for name in names])

    def _shrunk(self, which: int, codes: Whole, wider: Floats) -> Floats:
        known, columns = self._cells[which], list(_CELLS[which])
        out = np.array(wider)
        for at, key in enumerate(map(tuple, codes[:, columns].tolist())):
            cell = known.get(key)
            if cell is not None:
                count, quantiles = cell
                out[at] += count / (count + self._trust) * (quantiles - out[at])
        return out


def encode_apart(
    codes: Whole, logs: Floats, groups: Whole, wanted: Whole, trust: float
) -> tuple[LengthCells, Floats]:
    """Cells of all rows, and the wanted rows encoded without what their own group taught.

    Args:
        codes: One row of four codes a length.
        logs: Logarithms of the lengths.
        groups: Number of each row's group, at least 0: groups stay whole in a fold.
        wanted: Indices of rows to encode.
        trust: As in `LengthCells`.
    """
    encoded = np.zeros((len(wanted), ENCODED))
    folds = groups % FOLDS
    for fold in range(FOLDS):
        others = folds != fold
        inside = folds[wanted] == fold
        if inside.any():
            # a single group: there is nothing else to learn from
            cells = LengthCells(codes[others], logs[others], trust) if others.any() else None
            cells = cells or LengthCells(codes, logs, trust)
            encoded[inside] = cells.encode(codes[wanted[inside]]).numbers
    return LengthCells(codes, logs, trust), encoded


def _cell_quantiles(keys: Whole, logs: Floats) -> dict[tuple[int, ...], tuple[int, Floats]]:
    """Count and quantiles of the lengths under each key."""
    cells: NDArray[Any]
    cells, at = np.unique(keys, axis=0, return_inverse=True)
    at = at.reshape(-1)
    order = np.argsort(at, kind="stable")
    bounds = np.searchsorted(at[order], np.arange(len(cells) + 1))
    ordered = logs[order]
    return {
        key: (int(end - start), np.quantile(ordered[start:end], LEVELS))
        for key, start, end in zip(
            _keys(cells), bounds[:-1].tolist(), bounds[1:].tolist(), strict=True
        )
    }


def _keys(cells: NDArray[Any]) -> Sequence[tuple[int, ...]]:
    return [tuple(map(int, cell)) for cell in cells.tolist()]
