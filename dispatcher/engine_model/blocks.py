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

    __slots__ = ("_blank", "_caching", "_idle", "_refs", "num_blocks")

    def __init__(self, num_blocks: int, *, caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self._caching = caching
        self._blank = num_blocks
        #: content hash -> holders; 0 means idle
        self._refs: dict[int, int] = {}
        #: idle content hashes, first to be evicted first
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def free_blocks(self) -> int:
        """Blocks that may be handed out: blank and idle."""
        return self._blank + len(self._idle)

    @property
    def shared_blocks(self) -> int:
        """Blocks held by content."""
        return len(self._refs) - len(self._idle)

    def longest_hit(self, hashes: Sequence[int], limit: int) -> int:
        """Return how many of the first `limit` hashes are kept, up to the first miss."""
        refs = self._refs
        count = 0
        for content in hashes[:limit]:
            if content not in refs:
                break
            count += 1
        return count

    def idle_among(self, hashes: Sequence[int]) -> int:
        """Return how many of these kept blocks nobody holds: taking them uses free blocks."""
        refs = self._refs
        return sum(1 for content in hashes if refs[content] == 0)

    def take_shared(self, hashes: Sequence[int]) -> None:
        """Hold these kept blocks once more each."""
        refs = self._refs
        for content in hashes:
            if refs[content] == 0:
                del self._idle[content]
            refs[content] += 1

    def take(self, count: int) -> bool:
        """Hand out `count` private blocks, blank ones first, or none at all and say False."""
        if count > self._blank + len(self._idle):
            return False
        from_blank = min(count, self._blank)
        self._blank -= from_blank
        for _ in range(count - from_blank):
            content, _unused = self._idle.popitem(last=False)
            del self._refs[content]
        return True

    def publish(self, content: int) -> bool:
        """Index a private block that has become full; False when it must stay private."""
        if not self._caching or content in self._refs:
            return False
        self._refs[content] = 1
        return True

    def release(self, *, private: int, shared: Sequence[int]) -> None:
        """Take back a request's blocks; of its shared ones the last are evicted first."""
        refs = self._refs
        for content in reversed(shared):
            refs[content] -= 1
            if refs[content] == 0:
                self._idle[content] = None
        self._blank += private

    def clear_cache(self) -> None:
        """Forget idle content."""
        for content in self._idle:
            del self._refs[content]
        self._blank += len(self._idle)
        self._idle.clear()

    def validate(self, private_blocks: int) -> None:
        """Check that every block is in exactly one place.

        Raises:
            AssertionError: Blocks were lost, made up or miscounted.
        """
        if self._blank < 0 or any(count < 0 for count in self._refs.values()):
            raise AssertionError(f"negative count: blank {self._blank}, refs {self._refs}")
        idle = {content for content, count in self._refs.items() if count == 0}
        if idle != set(self._idle):
            raise AssertionError("idle blocks and reference counts disagree")
        total = self._blank + len(self._refs) + private_blocks
        if total != self.num_blocks:
            raise AssertionError(f"{total} blocks accounted for, {self.num_blocks} exist")
