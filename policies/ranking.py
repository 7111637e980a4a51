"""Things by key, smallest first: a sorted list under the queues of `policies.grouped_queue`."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from dispatcher.core.types import Key

Id = TypeVar("Id", bound=Hashable)


class Ranking(Generic[Id]):
    """Ids by (key, number); O(log n) comparisons per change, and a shift of the list.

    Example:
        >>> ranking = Ranking()
        >>> for name, key, number in (("a", (2.0,), 1), ("b", (1.0,), 2), ("c", (1.0,), 3)):
        ...     ranking.put(name, key, number)
        >>> list(ranking)
        ['b', 'c', 'a']
        >>> ranking.put("b", (3.0,), 2)
        >>> ranking.first()
        'c'
    """

    def __init__(self) -> None:
        self._sorted: list[tuple[Key, int, Id]] = []
        self._entries: dict[Id, tuple[Key, int, Id]] = {}

    def put(self, one: Id, key: Key, number: int) -> None:
        """Add one, or move it; `number` decides between equal keys and is no other id's."""
        entry = (key, number, one)
        if self._entries.get(one) != entry:
            self.discard(one)
            self._entries[one] = entry
            insort(self._sorted, entry)

    def discard(self, one: Id) -> None:
        """Take one out, where it is here."""
        entry = self._entries.pop(one, None)
        if entry is not None:
            del self._sorted[bisect_left(self._sorted, entry)]

    def key(self, one: Id) -> Key:
        """As it was put. Raises `KeyError` when it is not here."""
        return self._entries[one][0]

    def first(self) -> Id | None:
        """Smallest key, then smallest number; `None`: empty."""
        return self._sorted[0][2] if self._sorted else None

    def __len__(self) -> int:
        return len(self._sorted)

    def __iter__(self) -> Iterator[Id]:
        return (entry[2] for entry in self._sorted)
