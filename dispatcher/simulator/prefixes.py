"""Block hashes of what a prompt shares with others: what a prefix cache would look up."""

from __future__ import annotations

import hashlib
from functools import lru_cache

from dispatcher.traces import TraceCall

_STRIDE = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


@lru_cache(maxsize=4096)
def _seed(content: str) -> int:
    return int.from_bytes(hashlib.blake2b(content.encode(), digest_size=8).digest())


def block_hashes(call: TraceCall, block_size: int) -> list[int]:
    """Return the hash of each full block within the call's shared parts, in order.

    A block that spans two parts belongs to the later one. Stable from run to run.
    """
    hashes: list[int] = []
    for part in call.prefix:
        seed = _seed(part.content)
        first, last = len(hashes), part.end_tokens // block_size
        hashes.extend((seed + number * _STRIDE) & _MASK for number in range(first, last))
    return hashes
