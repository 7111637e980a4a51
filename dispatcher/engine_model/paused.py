"""Sessions that pause while a tool runs, whose blocks an engine keeps for them.

InferCept's *Preserve* (Abhyankar et al., ICML 2024), which vLLM does not have. Kept blocks count as
held; they are given up where the session goes on, when its time is over, or, largest session first,
where running requests would have to be preempted or nothing could run at all. Content that is given
up is idle then, as that of a request that has just ended.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dispatcher.engine_model.blocks import BlockPool


class _Kept(NamedTuple):
    hashes: list[int]
    until_s: float


class PausedSessions:
    """Holds blocks of a pool for sessions.

    Attributes:
        next_expiry_s: Moment at which the first of them expires; infinite without any.
        dropped: Sessions given up for want of blocks, so far.
    """

    __slots__ = ("_kept", "_pool", "dropped", "next_expiry_s")

    def __init__(self, pool: BlockPool) -> None:
        self.next_expiry_s = math.inf
        self.dropped = 0
        self._pool = pool
        #: by session, the longest paused first
        self._kept: dict[str, _Kept] = {}

    def keep(self, session: str, hashes: Sequence[int], until_s: float) -> int:
        """Hold those of these blocks that are kept, up to the first miss; return how many.

        In place of what has been held for the session so far.
        """
        found = list(hashes[: self._pool.longest_hit(hashes, len(hashes))])
        self._pool.take_shared(found)
        self.release(session)
        if found:
            self._kept[session] = _Kept(found, until_s)
            self.next_expiry_s = min(self.next_expiry_s, until_s)
        return len(found)

    def release(self, session: str) -> bool:
        """Give up a session's blocks; False where none are held for it."""
        kept = self._kept.pop(session, None)
        if kept is None:
            return False
        self._pool.release(private=0, shared=kept.hashes)
        if kept.until_s <= self.next_expiry_s:
            self.next_expiry_s = min((k.until_s for k in self._kept.values()), default=math.inf)
        return True

    def expire(self, now_s: float) -> int:
        """Give up all whose time is over; return how many sessions those are."""
        if self.next_expiry_s > now_s:
            return 0
        over = [session for session, kept in self._kept.items() if kept.until_s <= now_s]
        for session in over:
            self.release(session)
        return len(over)

    def drop_largest(self) -> bool:
        """Give up the session with the most blocks, of equals the longest paused; False: none."""
        if not self._kept:
            return False
        self.release(max(self._kept, key=lambda session: len(self._kept[session].hashes)))
        self.dropped += 1
        return True

    def clear(self) -> None:
        """Give up all."""
        for session in list(self._kept):
            self.release(session)

    def blocks(self) -> int:
        """Return how many blocks are held for sessions, each counted once."""
        return len(self.holds())

    def holds(self) -> Counter[int]:
        """Return how often each block's content is held for sessions."""
        return Counter(self._contents())

    def _contents(self) -> Iterator[int]:
        for kept in self._kept.values():
            yield from kept.hashes
