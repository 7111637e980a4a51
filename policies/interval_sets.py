"""Non-overlapping sets of intervals, and who is worth most in the first of them.

LLMSched, section IV-D (Algorithm 1, lines 5-10): jobs whose durations may be in either order form
a set, and between sets the order is certain. Settled, with [5 %, 95 %] intervals: sort by low end;
a set goes on while the next low end is no higher than the highest high end so far. Full supports
would merge nearly everything into one set.

Sorting all anew for every decision costs O(n log n); here members come and go in blocks of up to
`_SPLIT_AT`, each of which knows its highest end and who is worth most in it, so that a block that
lies within the set is passed in one step: O(n / block + block) per question and per change.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Hashable, Iterator
from typing import Generic, NamedTuple, TypeVar

Id = TypeVar("Id", bound=Hashable)

_SPLIT_AT = 128


class Member(NamedTuple, Generic[Id]):
    """One interval; compared by low end, then number."""

    low_s: float
    number: int
    """Decides between equals, no other member's."""
    high_s: float
    worth: float | None
    """`None`: there is nothing to take here, only its interval counts."""
    id: Id


class _Block(Generic[Id]):
    """Neighbouring members, ascending; never empty."""

    __slots__ = ("best", "high_s", "members")

    def __init__(self, members: list[Member[Id]]) -> None:
        self.members = members
        self.look()

    def look(self) -> None:
        """Work out anew what is known of all of them."""
        self.high_s = max(member.high_s for member in self.members)
        self.best: Member[Id] | None = None
        for member in self.members:
            self.best = _better(self.best, member)


class IntervalSets(Generic[Id]):
    """Intervals in non-overlapping sets.

    Example:
        >>> sets = IntervalSets()
        >>> for number, (name, low_s, high_s, worth) in enumerate(
        ...     [("a", 1.0, 4.0, 2.0), ("b", 3.0, 8.0, 9.0), ("c", 8.5, 9.0, 50.0)]
        ... ):
        ...     sets.put(name, low_s, high_s, worth, number)
        >>> [[member.id for member in one] for one in sets.sets()]
        [['a', 'b'], ['c']]
        >>> sets.head()
        'b'
        >>> sets.discard("b")
        >>> sets.head()
        'a'
    """

    def __init__(self) -> None:
        self._blocks: list[_Block[Id]] = []
        self._members: dict[Id, Member[Id]] = {}

    def put(self, one: Id, low_s: float, high_s: float, worth: float | None, number: int) -> None:
        """Add one, or replace it."""
        member = Member(low_s, number, high_s, worth, one)
        if self._members.get(one) == member:
            return
        self.discard(one)
        self._members[one] = member
        if not self._blocks:
            self._blocks.append(_Block([member]))
            return
        at = self._block_of(member)
        block = self._blocks[at]
        insort(block.members, member, key=_place)
        if len(block.members) <= _SPLIT_AT:
            block.high_s = max(block.high_s, high_s)
            block.best = _better(block.best, member)
            return
        half = len(block.members) // 2
        self._blocks[at : at + 1] = [_Block(block.members[:half]), _Block(block.members[half:])]

    def discard(self, one: Id) -> None:
        """Take one out, where it is here."""
        member = self._members.pop(one, None)
        if member is None:
            return
        at = self._block_of(member)
        block = self._blocks[at]
        del block.members[bisect_left(block.members, _place(member), key=_place)]
        if not block.members:
            del self._blocks[at]
        elif block.best is member or member.high_s >= block.high_s:
            block.look()

    def head(self) -> Id | None:
        """Worth most in the first set that has anything to take; `None`: none has.

        Ties: the lower low end, then the smaller number.
        """
        best: Member[Id] | None = None
        reach_s = float("-inf")
        for block in self._blocks:
            if block.members[-1].low_s <= reach_s:
                reach_s = max(reach_s, block.high_s)
                best = _better(best, block.best)
                continue
            for member in block.members:
                if best is not None and member.low_s > reach_s:
                    return best.id
                reach_s = max(reach_s, member.high_s)
                best = _better(best, member)
        return None if best is None else best.id

    def sets(self) -> Iterator[list[Member[Id]]]:
        """All sets, lowest first; within each by low end. O(n)."""
        group: list[Member[Id]] = []
        reach_s = float("-inf")
        for block in self._blocks:
            for member in block.members:
                if group and member.low_s > reach_s:
                    yield group
                    group = []
                reach_s = max(reach_s, member.high_s)
                group.append(member)
        if group:
            yield group

    def __len__(self) -> int:
        return len(self._members)

    def _block_of(self, member: Member[Id]) -> int:
        """Where it is, or belongs."""
        after = bisect_right(self._blocks, _place(member), key=lambda b: _place(b.members[0]))
        return max(0, after - 1)


def _place(member: Member[Id]) -> tuple[float, int]:
    return (member.low_s, member.number)


def _better(best: Member[Id] | None, other: Member[Id] | None) -> Member[Id] | None:
    """The one that is worth more; the first of equals."""
    if other is None or other.worth is None:
        return best
    if best is None or best.worth is None or other.worth > best.worth:
        return other
    if other.worth == best.worth and _place(other) < _place(best):
        return other
    return best
