"""The KV cache as a pool of equal blocks, shared by content, evicted least recently used first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class BlockPool:
    """Counts blocks; identity matters only for those whose content can be found again.

    A block is in exactly one of four places: blank (free, no content), idle (free, content
    kept, in eviction order), shared (content known, held by one or more requests) or private
    (held by one request, content not indexed). A second block of equal content stays private,
    as block tables are append-only in vLLM and duplicates are not merged.

    Example:
        >>> pool = BlockPool(3)
        >>> pool.take(2), pool.publish(11), pool.publish(12), pool.free_blocks
        (True, True, True, 1)
        >>> pool.release(private=0, shared=[11, 12])
        >>> pool.free_blocks, pool.longest_hit([11, 12, 13], 3)
        (3, 2)
    """

    __slots__ = ("_blank", "_caching", "_held", "_idle", "_kept", "num_blocks")

    def __init__(self, num_blocks: int, *, caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self._caching = caching
        self._blank = num_blocks
        #: content hash -> holders, at least one
        self._held: dict[int, int] = {}
        #: kept content that nobody holds, first to be evicted first
        self._idle: OrderedDict[int, None] = OrderedDict()
        #: content held or idle
        self._kept: set[int] = set()

    @property
    def free_blocks(self) -> int:
        """Blocks that may be handed out: blank and idle."""
        return self._blank + len(self._idle)

    def longest_hit(self, hashes: Sequence[int], limit: int) -> int:
        """Return how many of the first `limit` hashes are kept, up to the first miss."""
        asked = hashes[:limit]
        # one pass in C: this is asked for every prompt, of hundreds of blocks
        found = list(map(self._kept.__contains__, asked))
        return len(found) if all(found) else found.index(False)

    def idle_among(self, hashes: Sequence[int]) -> int:
        """Return how many of these kept blocks nobody holds: taking them uses free blocks."""
        return sum(map(self._idle.__contains__, hashes))

    def take_shared(self, hashes: Sequence[int]) -> None:
        """Hold these kept blocks once more each."""
        held, idle = self._held, self._idle
        for content in hashes:
            if content in idle:
                del idle[content]
                held[content] = 1
            else:
                held[content] += 1

    def take(self, count: int) -> bool:
        """Hand out `count` private blocks, blank ones first, or none at all and say False."""
        if count > self._blank + len(self._idle):
            return False
        from_blank = min(count, self._blank)
        self._blank -= from_blank
        for _ in range(count - from_blank):
            self._kept.discard(self._idle.popitem(last=False)[0])
        return True

    def publish(self, content: int) -> bool:
        """Index a private block that has become full; False when it must stay private."""
        if not self._caching or content in self._kept:
            return False
        self._held[content] = 1
        self._kept.add(content)
        return True

    def release(self, *, private: int, shared: Sequence[int]) -> None:
        """Take back a request's blocks; of its shared ones the last are evicted first."""
        held, idle = self._held, self._idle
        for content in reversed(shared):
            holders = held[content]
            if holders == 1:
                del held[content]
                idle[content] = None
            else:
                held[content] = holders - 1
        self._blank += private

    def clear_cache(self) -> None:
        """Forget idle content."""
        self._blank += len(self._idle)
        self._kept.difference_update(self._idle)
        self._idle.clear()

    def validate(self, private_blocks: int) -> None:
        """Check that every block is in exactly one place.

        Raises:
            AssertionError: Blocks were lost, made up or miscounted.
        """
        if self._blank < 0 or any(count < 1 for count in self._held.values()):
            raise AssertionError(f"impossible count: blank {self._blank}, held {self._held}")
        if self._held.keys() & self._idle.keys():
            raise AssertionError("content is both held and idle")
        if self._kept != self._held.keys() | self._idle.keys():
            raise AssertionError("what is kept is neither held nor idle")
        total = self._blank + len(self._held) + len(self._idle) + private_blocks
        if total != self.num_blocks:
            raise AssertionError(f"{total} blocks accounted for, {self.num_blocks} exist")
