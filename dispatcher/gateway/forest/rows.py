"""What a forest is trained on: the latest ended calls, as numbers packed close together.

A row is a call's features, its workflow (a number that tells it from others) and its length.
Rows stand in blocks of bytes, oldest first; with a block, its rows are forgotten together. That
costs four bytes a number, and whoever trains or saves takes the blocks as they are.
"""

from __future__ import annotations

import base64
import sys
import zlib
from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

NUMBER_BYTES = 4
"""Single precision: what trees split on anyway."""

_GROUPS = 1 << 24
"""Whole numbers below this are exact in single precision."""
_BLOCKS = 40
"""Of a full window: so much of it is forgotten at once."""


class Rows(NamedTuple):
    """Rows as they travel to another process."""

    width: int
    """Features of a row; its workflow and its length come after them."""
    blocks: tuple[bytes, ...]
    """Oldest first; whole rows, in this machine's byte order."""


def packed(features: Sequence[float]) -> bytes:
    """A row's features, in single precision."""
    return array("f", features).tobytes()


class RowWindow:
    """The latest rows.

    Example:
        >>> window = RowWindow(width=2, most=100)
        >>> window.add(packed([0.5, 3.0]), "job-7", 120)
        >>> len(window), window.total
        (1, 1)
    """

    def __init__(self, width: int, most: int) -> None:
        """An empty window.

        Args:
            width: Features of a row; at least 1.
            most: Rows kept; at least 1.
        """
        self.width = width
        #: rows that were ever added here
        self.total = 0
        self._most = most
        self._row_bytes = NUMBER_BYTES * (width + 2)
        self._block_bytes = self._row_bytes * max(1, most // _BLOCKS)
        #: full ones, oldest first
        self._blocks: deque[bytes] = deque()
        #: the one that is being filled
        self._open = bytearray()
        self._rows = 0

    def __len__(self) -> int:
        """Rows that are kept."""
        return self._rows

    def add(self, features: bytes, workflow_id: str, length_tokens: int) -> None:
        """Take one ended call in.

        Args:
            features: As `packed` gives them.
            workflow_id: Calls of one workflow say little of each other's quality; only a number
                is kept of it.
            length_tokens: What it generated, per sequence.

        Raises:
            ValueError: It is not as wide as the others.
        """
        if len(features) != NUMBER_BYTES * self.width:
            raise ValueError(f"{len(features)} bytes of features, not {NUMBER_BYTES * self.width}")
        group = zlib.crc32(workflow_id.encode("utf-8", "replace")) % _GROUPS
        self._append(features + packed((group, length_tokens)))
        self.total += 1

    def _append(self, row: bytes) -> None:
        self._open += row
        self._rows += 1
        if len(self._open) >= self._block_bytes:
            self._blocks.append(bytes(self._open))
            self._open.clear()
        if self._rows > self._most:
            self._rows -= len(self._blocks.popleft()) // self._row_bytes

    def rows(self, latest: int | None = None) -> Rows:
        """All of them, or about as many of the latest, as they are now.

        Full blocks are not copied.
        """
        blocks = (*self._blocks, bytes(self._open))
        if latest is not None:
            blocks = blocks[-1 - max(1, latest // (self._block_bytes // self._row_bytes)) :]
        return Rows(self.width, blocks)

    # --- kept across restarts ---

    def take(self, state: Mapping[str, object]) -> None:
        """Replace the rows by what `to_json` gave.

        Raises:
            KeyError, ValueError: The state does not have that shape, or its rows are of another
                width; nothing has changed then.
        """
        width, texts = state["width"], state["blocks"]
        if state["byteorder"] != sys.byteorder:
            raise ValueError("the rows are of a machine with another byte order")
        if width != self.width:
            raise ValueError(f"rows of {width} features, not of {self.width}")
        if not isinstance(texts, list):
            raise ValueError("blocks: expected a list")
        everything = b"".join(_unpacked(text) for text in texts)
        if len(everything) % self._row_bytes:
            raise ValueError("blocks: expected whole rows")
        self._blocks.clear()
        self._open.clear()
        self._rows = 0
        keep = everything[-self._most * self._row_bytes :]
        for at in range(0, len(keep), self._row_bytes):
            self._append(keep[at : at + self._row_bytes])


def to_json(rows: Rows) -> dict[str, object]:
    """Rows as JSON has them: compressed, since most of their numbers are alike."""
    blocks = [base64.b64encode(zlib.compress(block, 1)).decode("ascii") for block in rows.blocks]
    return {"width": rows.width, "byteorder": sys.byteorder, "blocks": blocks}


def _unpacked(text: object) -> bytes:
    if not isinstance(text, str):
        raise ValueError("blocks: expected texts")
    try:
        return zlib.decompress(base64.b64decode(text, validate=True))
    except zlib.error as error:
        raise ValueError(f"blocks: {error}") from error
