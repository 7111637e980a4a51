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
        >>> pool.take(2), pool.publish([11, 12]), pool.free_blocks
        (True, [11, 12], 1)
        >>> pool.release(private=0, shared=[11, 12])
        >>> pool.free_blocks, pool.longest_hit([11, 12, 13], 3)
        (3, 2)
    """

    __slots__ = ("_blank", "_caching", "_holders", "_idle", "num_blocks")

    def __init__(self, num_blocks: int, *, caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self._caching = caching
        self._blank = num_blocks
        #: kept content -> requests that hold it; 0 where it is idle
        self._holders: dict[int, int] = {}
        #: kept content that nobody holds, first to be evicted first
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def free_blocks(self) -> int:
        """Blocks that may be handed out: blank and idle."""
        return self._blank + len(self._idle)

    def longest_hit(self, hashes: Sequence[int], limit: int) -> int:
        """Return how many of the first `limit` hashes are kept, up to the first miss."""
        asked = hashes[:limit]
        # one pass in C: this is asked for every prompt, of hundreds of blocks
        found = list(map(self._holders.__contains__, asked))
        return len(found) if all(found) else found.index(False)

    def idle_among(self, hashes: Sequence[int]) -> int:
        """Return how many of these kept blocks nobody holds: taking them uses free blocks."""
        return sum(map(self._idle.__contains__, hashes))

    def take_shared(self, hashes: Sequence[int]) -> None:
        """Hold these kept blocks once more each."""
        holders, idle = self._holders, self._idle
        for content in hashes:
            before = holders[content]
            holders[content] = before + 1
            if not before:
                del idle[content]

    def take(self, count: int) -> bool:
        """Hand out `count` private blocks, blank ones first, or none at all and say False."""
        blank = self._blank
        if count <= blank:
            self._blank = blank - count
            return True
        evicted = count - blank
        if evicted > len(self._idle):
            return False
        self._blank = 0
        holders, evict = self._holders, self._idle.popitem
        for _ in range(evicted):
            del holders[evict(last=False)[0]]
        return True

    def publish(self, hashes: Sequence[int]) -> list[int]:
        """Index private blocks, of distinct content, that have become full; return those it took.

        The others, whose content is kept already, stay private.
        """
        if not self._caching:
            return []
        holders = self._holders
        published = [content for content in hashes if content not in holders]
        holders.update(dict.fromkeys(published, 1))
        return published

    def release(self, *, private: int, shared: Sequence[int]) -> None:
        """Take back a request's blocks; of its shared ones the last are evicted first."""
        holders, idle = self._holders, self._idle
        for content in reversed(shared):
            left = holders[content] - 1
            holders[content] = left
            if not left:
                idle[content] = None
        self._blank += private

    def clear_cache(self) -> None:
        """Forget idle content."""
        self._blank += len(self._idle)
        for content in self._idle:
            del self._holders[content]
        self._idle.clear()

    def validate(self, private_blocks: int) -> None:
        """Check that every block is in exactly one place.

        Raises:
            AssertionError: Blocks were lost, made up or miscounted.
        """
        if self._blank < 0 or min(self._holders.values(), default=0) < 0:
            raise AssertionError(f"impossible count: blank {self._blank}, held {self._holders}")
        if {content for content, held in self._holders.items() if not held} != self._idle.keys():
            raise AssertionError("what nobody holds is not what is idle")
        total = self._blank + len(self._holders) + private_blocks
        if total != self.num_blocks:
            raise AssertionError(f"{total} blocks accounted for, {self.num_blocks} exist")
