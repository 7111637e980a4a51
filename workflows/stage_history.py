"""Finished workflows' stage durations, per application: what models are fitted to. Bounded."""

from __future__ import annotations

import base64
import binascii
from collections import deque
from collections.abc import Mapping, Sequence

from dispatcher.core.workflow_types import StageKind
from workflows.bounds import stored
from workflows.stage_rows import Row, pack, unpack_cells, unpack_edges

MAX_COLUMNS = 128
"""Variables of one application; what comes later is left out."""
_MAX_NAME = 400
_MAX_ROW_BYTES = 1 << 16
_MOST = 1e12


class ApplicationRows:
    """One application's latest workflows."""

    def __init__(self, most: int) -> None:
        #: variable -> (its column, its kind)
        self._columns: dict[str, tuple[int, StageKind]] = {}
        self._rows: deque[tuple[bytes, bytes]] = deque(maxlen=most)
        self.total = 0
        """Workflows ever taken in."""
        self.bytes = 0
        """Of all rows that are kept."""

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def columns(self) -> tuple[tuple[str, StageKind], ...]:
        """Variables with their kinds, in order of their columns."""
        return tuple((name, kind) for name, (_, kind) in self._columns.items())

    @property
    def rows(self) -> tuple[tuple[bytes, bytes], ...]:
        """Oldest first."""
        return tuple(self._rows)

    def add(self, row: Row) -> None:
        """Take one in; the oldest goes beyond the bound."""
        for cell in row.cells:
            if cell.name not in self._columns and len(self._columns) < MAX_COLUMNS:
                self._columns[cell.name[:_MAX_NAME]] = (len(self._columns), cell.kind)
        self._put(pack(row, {name: column for name, (column, _) in self._columns.items()}))
        self.total += 1

    def _put(self, packed: tuple[bytes, bytes]) -> None:
        if len(self._rows) == self._rows.maxlen:
            self.bytes -= sum(map(len, self._rows[0]))
        self._rows.append(packed)
        self.bytes += sum(map(len, packed))

    def dump(self) -> dict[str, object]:
        """Plain JSON values; rows as one text, since they are many."""
        return {
            "columns": [[name, kind.value] for name, kind in self.columns],
            "sizes": [[len(cells), len(edges)] for cells, edges in self._rows],
            "rows": base64.b64encode(b"".join(c + e for c, e in self._rows)).decode("ascii"),
            "total": self.total,
        }

    @classmethod
    def loaded(cls, state: Mapping[str, object], most: int) -> ApplicationRows:
        """What `dump` gave. Raises `KeyError`, `TypeError`, `ValueError`."""
        rows = cls(most)
        columns, sizes, text = state["columns"], state["sizes"], state["rows"]
        if not isinstance(columns, list) or not isinstance(sizes, list):
            raise ValueError("rows: expected columns and sizes")
        for name, kind in columns[:MAX_COLUMNS]:
            rows._columns[str(name)[:_MAX_NAME]] = (len(rows._columns), StageKind(str(kind)))
        try:
            whole = base64.b64decode(str(text), validate=True)
        except binascii.Error as error:
            raise ValueError(f"rows: {error}") from error
        at = 0
        for size in sizes:
            cells_size, edges_size = (int(stored(s, "size", 0, _MAX_ROW_BYTES)) for s in size)
            cells = whole[at : at + cells_size]
            edges = whole[at + cells_size : at + cells_size + edges_size]
            at += cells_size + edges_size
            _check(cells, edges, len(rows._columns))
            rows._put((cells, edges))
        if at != len(whole):
            raise ValueError("rows: sizes that do not fit")
        rows.total = int(stored(state["total"], "total", 0, 2**53))
        return rows


def _check(cells: bytes, edges: bytes, columns: int) -> None:
    """Raises `ValueError` for what points nowhere, or is no number."""
    for column, *numbers in unpack_cells(cells):
        if column >= columns:
            raise ValueError("rows: a column that is none")
        # comparisons with what is no number are false
        if not all(-1.0 <= number <= _MOST for number in numbers):
            raise ValueError("rows: a number that is none, or out of bounds")
    _check_edges(unpack_edges(edges), columns)


def _check_edges(edges: Sequence[tuple[int, int]], columns: int) -> None:
    if any(max(edge) >= columns for edge in edges):
        raise ValueError("rows: an edge between columns that are none")
