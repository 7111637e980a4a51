"""Quantiles of log length by model, application, stage and tool: names as numbers for a forest.

A tree splits on numbers, and there are dozens of models: what a name is worth is how long answers
were under it (target encoding: Micci-Barreca, 2001), here three quantiles, so that a tree knows
the spread too. Few lengths are drawn towards those of the wider cell. Rows that a forest learns
from are encoded without their own group's lengths, or it would trust a cell far too much.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]

UNKNOWN = -1
"""Code of a name that no cell knows."""

LEVELS = (0.1, 0.5, 0.9)
FOLDS = 5

_MODEL, _APPLICATION, _STAGE, _TOOL = range(4)
_CELLS = (
    (_MODEL,),
    (_APPLICATION,),
    (_MODEL, _APPLICATION),
    (_MODEL, _APPLICATION, _STAGE),
    (_APPLICATION, _TOOL),
)

ENCODED = len(_CELLS) * len(LEVELS)
"""Numbers that a row's four codes become."""


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

    def encode(self, codes: Whole) -> Floats:
        """`ENCODED` numbers for each row of codes; names never seen count as all lengths do."""
        whole = self._everything
        model = self._shrunk(0, codes, np.broadcast_to(whole, (len(codes), len(LEVELS))))
        application = self._shrunk(1, codes, np.broadcast_to(whole, (len(codes), len(LEVELS))))
        # how much longer than usual this model answers, in an application where it never did
        both = self._shrunk(2, codes, application + (model - whole)[:, 1:2])
        stage = self._shrunk(3, codes, both)
        tool = self._shrunk(4, codes, application)
        return np.concatenate((model, application, both, stage, tool), axis=1)

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
            encoded[inside] = cells.encode(codes[wanted[inside]])
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
