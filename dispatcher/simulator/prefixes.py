"""Block hashes of what a prompt shares with others: what a prefix cache would look up."""

from __future__ import annotations

import hashlib
from functools import lru_cache

from dispatcher.traces import TraceCall

_CONTENTS_KEPT = 1024


class _Content:
    """The blocks of one text, as many as were asked for.

    One after another from a number of its own: neighbours in a text are then neighbours in the
    cache's tables, too, which are gone through in that order.
    """

    def __init__(self, content: str) -> None:
        self._seed = int.from_bytes(hashlib.blake2b(content.encode(), digest_size=8).digest())
        self._hashes: list[int] = []

    def blocks(self, first: int, last: int) -> list[int]:
        hashes, seed = self._hashes, self._seed
        if last > len(hashes):
            hashes += range(seed + len(hashes), seed + last)
        return hashes[first:last]


_content = lru_cache(maxsize=_CONTENTS_KEPT)(_Content)


def block_hashes(call: TraceCall, block_size: int) -> list[int]:
    """Return the hash of each full block within the call's shared parts, in order.

    A block that spans two parts belongs to the later one. Stable from run to run.
    """
    hashes: list[int] = []
    for part in call.prefix:
        hashes += _content(part.content).blocks(len(hashes), part.end_tokens // block_size)
    return hashes
