"""A queue whose keys move with time: one sorted list, and rounds of re-keying in bounded pieces.

No paper; what density (`policies.lsdf`) and attained service (`policies.plas`) need under them.
Push, remove and re-key cost O(log n) comparisons and a shift of the list (microseconds at ten
thousand calls); a round over n calls costs O(n) keys, spread over as many ticks as it takes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator

from dispatcher.core.types import CallId, Key, SeatTag
from dispatcher.core.views import CallView

Entry = tuple[Key, int, CallId]
"""Key, arrival sequence, call id."""


_SPREAD = 0.618
"""Multiples of it, less their whole parts, lie apart from each other."""


class RescoredQueue:
    """Calls by key, smallest first, ties by arrival; the same for every kind of seat.

    Args:
        key: Where a call stands now.
        cost: How many cheap keys one key is worth: a tick's limit is divided by it, so that a
            costly key does not make a tick long. Where less than one is left of it, a call is
            re-keyed every few ticks, and not at every queue in the same one.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> def call(name, sequence, due_s, worth):
        ...     return Fake(spec=Fake(call_id=name), sequence=sequence, due_s=due_s, worth=worth)
        >>> waiting = RescoredQueue(lambda call, now_s: (-call.worth * (now_s < call.due_s),))
        >>> waiting.push(call("soon lost", 1, due_s=5.0, worth=2.0), 0.0)
        >>> waiting.push(call("in time", 2, due_s=60.0, worth=1.0), 0.0)
        >>> waiting.select("", 0.0).spec.call_id
        'soon lost'
        >>> waiting.rescore(10.0, 100)
        False
        >>> waiting.select("", 10.0).spec.call_id
        'in time'
    """

    def __init__(self, key: Callable[[CallView, float], Key], *, cost: int = 1) -> None:
        self._key = key
        self._cost = cost
        self._sorted: list[Entry] = []
        #: call id -> (its entry in the list, the call)
        self._live: dict[CallId, tuple[Entry, CallView]] = {}
        #: what this round has not come to yet
        self._stale: deque[CallId] = deque()
        self._round_s: float | None = None
        #: part of a key that earlier ticks have left over
        self._credit = 0.0

    def push(self, call: CallView, now_s: float) -> None:
        """Add a call; it must not be here yet."""
        call_id = call.spec.call_id
        if call_id in self._live:
            raise KeyError(f"call {call_id} is queued here already")
        entry = (self._key(call, now_s), call.sequence, call_id)
        if not self._live:
            self._credit = call.sequence * _SPREAD % 1.0
        self._live[call_id] = (entry, call)
        insort(self._sorted, entry)

    def remove(self, call_id: CallId) -> None:
        """Take a call out. Raises `KeyError` when it is not here."""
        entry, _ = self._live.pop(call_id)
        del self._sorted[bisect_left(self._sorted, entry)]

    def refresh(self, call: CallView, now_s: float) -> None:
        """Order the call anew. Raises `KeyError` when it is not here."""
        self.rekey(call.spec.call_id, now_s)

    def rekey(self, call_id: CallId, now_s: float) -> None:
        """Put a call where it stands now. Raises `KeyError` when it is not here."""
        entry, call = self._live[call_id]
        key = self._key(call, now_s)  # first: where it raises, nothing has changed
        if key != entry[0]:
            del self._sorted[bisect_left(self._sorted, entry)]
            entry = (key, call.sequence, call_id)
            self._live[call_id] = (entry, call)
            insort(self._sorted, entry)

    def select(self, seat: SeatTag, now_s: float) -> CallView | None:
        """The call with the smallest key as of its last scoring, left in the queue."""
        return self._live[self._sorted[0][2]][1] if self._sorted else None

    def rescore(self, now_s: float, limit: int) -> bool:
        """Re-key the next calls of the round, or begin one; True when some are left."""
        if not self._stale:
            if self._round_s == now_s or not self._live:
                return False
            self._stale.extend(self._live)
            self._round_s = now_s
        self._credit += limit / self._cost
        keys = min(int(self._credit), len(self._stale))
        self._credit %= 1.0
        for _ in range(keys):
            call_id = self._stale.popleft()
            if call_id in self._live:
                self.rekey(call_id, now_s)
        return bool(self._stale)

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[CallView]:
        return (call for _, call in self._live.values())
