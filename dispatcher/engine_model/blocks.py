"""The KV cache as a pool of equal blocks, shared by content, evicted least recently used first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Residency(NamedTuple):
    """How much of a prompt a KV cache keeps, in blocks, and what of that goes first."""

    resident: int
    """Leading blocks that are kept, up to the first miss."""
    held: int
    """Those of them that requests or paused sessions hold: they cannot be evicted."""
    free_before: int | None
    """Free blocks that are handed out before the first of these is; `None`: none is free."""
    offloaded: int
    """Further blocks, from the first miss on, that the offload tier keeps."""


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

    def residency(self, hashes: Sequence[int]) -> Residency:
        """Return how many of these blocks are kept, and where in eviction order.

        For a look from outside: it goes through the eviction order.
        """
        kept = set(hashes[: self.longest_hit(hashes, len(hashes))])
        idle = self.idle_among(list(kept))
        before = None
        if idle:
            before = next(place for place, one in enumerate(self._idle) if one in kept)
            before += self._blank
        return Residency(len(kept), len(kept) - idle, before, 0)

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

    def discard(self, hashes: Sequence[int]) -> list[int]:
        """Forget those of this content that nobody holds; return them."""
        dropped = [content for content in hashes if content in self._idle]
        for content in dropped:
            del self._idle[content], self._holders[content]
        self._blank += len(dropped)
        return dropped

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

    def validate_holders(self, held: Mapping[int, int]) -> None:
        """Check that content is held as often as those who hold it say.

        Raises:
            AssertionError: It is not.
        """
        counted = {content: count for content, count in self._holders.items() if count}
        if counted != held:
            raise AssertionError(f"content is held {counted}, those who hold it say {held}")


class TieredBlockPool(BlockPool):
    """A pool whose evicted content falls into host memory, least recently used out first.

    What is brought back stays there as well, as in vLLM's offloading connector, and moves to the
    end of the line. Writing to host memory takes no time: it goes on beside what is computed.

    Example:
        >>> pool = TieredBlockPool(2, offload_blocks=2)
        >>> pool.take(2), pool.publish([11, 12])
        (True, [11, 12])
        >>> pool.release(private=0, shared=[11, 12])
        >>> pool.take(2), pool.longest_hit([11, 12], 2), pool.offloaded_hit([11, 12])
        (True, 0, 2)
    """

    __slots__ = ("_offload_blocks", "_offloaded")

    def __init__(self, num_blocks: int, *, offload_blocks: int) -> None:
        super().__init__(num_blocks)
        self._offload_blocks = offload_blocks
        #: content in host memory, first to go first
        self._offloaded: OrderedDict[int, None] = OrderedDict()

    def residency(self, hashes: Sequence[int]) -> Residency:
        """Return how many of these blocks are kept, and where; see `BlockPool.residency`."""
        found = super().residency(hashes)
        return found._replace(offloaded=self.offloaded_hit(hashes[found.resident :]))

    def take(self, count: int) -> bool:
        """Hand out private blocks; see `BlockPool.take`."""
        evicted = count - self._blank
        if evicted > len(self._idle):
            return False
        self._blank -= min(count, self._blank)
        for _ in range(evicted):
            content = self._idle.popitem(last=False)[0]
            del self._holders[content]
            self._offload(content)
        return True

    def offloaded_hit(self, hashes: Sequence[int]) -> int:
        """Return how many of these are in host memory, up to the first that is not."""
        offloaded = self._offloaded
        for place, content in enumerate(hashes):
            if content not in offloaded:
                return place
        return len(hashes)

    def touch_offloaded(self, hashes: Sequence[int]) -> None:
        """Note that these, in host memory, are used; of them the last will go first."""
        for content in reversed(hashes):
            self._offloaded.move_to_end(content)

    def offload(self, hashes: Sequence[int]) -> int:
        """Move those of this content that nobody holds to host memory; return how many."""
        moved = self.discard(hashes)
        for content in reversed(moved):
            self._offload(content)
        return len(moved)

    def clear_cache(self) -> None:
        """Forget idle content, and what is in host memory."""
        super().clear_cache()
        self._offloaded.clear()

    def validate(self, private_blocks: int) -> None:
        """Check that every block is in exactly one place; see `BlockPool.validate`."""
        super().validate(private_blocks)
        if len(self._offloaded) > self._offload_blocks:
            raise AssertionError("more is in host memory than fits")

    def _offload(self, content: int) -> None:
        offloaded = self._offloaded
        offloaded[content] = None
        offloaded.move_to_end(content)
        if len(offloaded) > self._offload_blocks:
            offloaded.popitem(last=False)
