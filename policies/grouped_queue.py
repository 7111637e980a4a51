"""A queue of calls that stand together: the jobs' calls, or the stages', under one key each.

What orders workflows (LLMSched's baselines) or their stages (LLMSched, Argus) ranks groups: one key
for all calls of a group, in which they go by the client's own priority and then by arrival. So a
change of what is known of a job moves one entry, however many calls it has here.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

from dispatcher.core.types import CallId, Key, SeatTag, WorkflowId
from dispatcher.core.views import CallView
from policies.ranking import Ranking

GROUPS_PER_TICK = 2
"""Groups that are looked at anew per tick, at most: a key may ask the workflow tracker."""

NEWS_KEPT = 2
"""Groups that may be left to be looked at before the next decision: it must not take long."""

Group = TypeVar("Group", bound=Hashable)

StageId = tuple[WorkflowId, str]
"""Workflow and stage."""

_Place = tuple[int, int, CallId]
"""Client priority, arrival sequence, call id."""


def job_of(call: CallView) -> WorkflowId:
    """Group by workflow."""
    return call.spec.workflow_id


def stage_of(call: CallView) -> StageId:
    """Group by stage of a workflow."""
    return (call.spec.workflow_id, call.placement.stage)


class GroupedQueue(Generic[Group]):
    """Groups by key, smallest first, ties by their first call; in a group by priority and arrival.

    A group is keyed when its first call comes; before the next decision when more have come or one
    was refreshed, so that of a stage of many calls is asked once; and in rounds on ticks. O(log n)
    comparisons per operation.

    Args:
        group_of: Which group a call is in; must not change while it waits.
        key: Where the group of a call stands now, asked of its first call.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> def call(name, sequence):
        ...     spec = Fake(call_id=name, workflow_id=name[0], client_priority=0)
        ...     return Fake(spec=spec, sequence=sequence)
        >>> worth = {"a": 2.0, "b": 1.0}
        >>> waiting = GroupedQueue(job_of, lambda one, now_s: (worth[one.spec.workflow_id],))
        >>> for one in (call("a1", 1), call("b1", 2), call("b2", 3)):
        ...     waiting.push(one, 0.0)
        >>> waiting.select("", 0.0).spec.call_id
        'b1'
        >>> worth["b"] = 9.0
        >>> waiting.rescore(5.0, 100), waiting.select("", 5.0).spec.call_id
        (False, 'a1')
    """

    def __init__(
        self, group_of: Callable[[CallView], Group], key: Callable[[CallView, float], Key]
    ) -> None:
        self._group_of = group_of
        self._key = key
        self._calls: dict[CallId, CallView] = {}
        #: group -> its calls, ascending; never empty
        self._lines: dict[Group, list[_Place]] = {}
        self._ranking: Ranking[Group] = Ranking()
        #: groups of which something has become known since they were looked at
        self._news: dict[Group, None] = {}
        #: what this round of ticks has not come to yet
        self._round: deque[Group] = deque()
        self._round_s: float | None = None

    def push(self, call: CallView, now_s: float) -> None:
        """Add a call; it must not be here yet."""
        call_id = call.spec.call_id
        if call_id in self._calls:
            raise KeyError(f"call {call_id} is queued here already")
        group, place = self._group_of(call), _place(call)
        known = group in self._lines
        if known:
            self._joined(group, now_s)  # first: where it raises, nothing has changed
        self._calls[call_id] = call
        insort(self._lines.setdefault(group, []), place)
        if known:
            self._moved(group)
            return
        try:
            self._look(group, now_s)
        except Exception:
            self._drop(call_id, group, place)
            raise

    def remove(self, call_id: CallId) -> None:
        """Take a call out. Raises `KeyError` when it is not here."""
        call = self._calls[call_id]
        group = self._group_of(call)
        self._drop(call_id, group, _place(call))
        if group in self._lines:
            self._moved(group)
        else:
            self._news.pop(group, None)
            self._emptied(group)

    def refresh(self, call: CallView, now_s: float) -> None:
        """Key the call's group anew, soon. Raises `KeyError` when the call is not here."""
        self._hear_of(self._group_of(self._calls[call.spec.call_id]), now_s)

    def select(self, seat: SeatTag, now_s: float) -> CallView | None:
        """The first call of the first group."""
        self._catch_up(now_s)
        group = self._ranking.first()
        return None if group is None else self._first(group)

    def rescore(self, now_s: float, limit: int) -> bool:
        """Key the next groups of the round anew, or begin one; True when some are left."""
        if not self._round:
            if self._round_s == now_s:
                return False
            self._round.extend(self._lines)
            self._round_s = now_s
        for _ in range(min(limit, GROUPS_PER_TICK, len(self._round))):
            group = self._round.popleft()
            if group in self._lines:
                self._look(group, now_s)
        return bool(self._round)

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[CallView]:
        return iter(self._calls.values())

    # --- for heirs ---

    def _look(self, group: Group, now_s: float) -> None:
        """Ask where a group stands now, and put it there; where that raises, nothing changes."""
        first = self._first(group)
        key = self._key(first, now_s)
        self._news.pop(group, None)
        self._ranking.put(group, key, first.sequence)

    def _catch_up(self, now_s: float) -> None:
        """Look at what something has become known of."""
        while self._news:
            self._look(next(iter(self._news)), now_s)

    def _hear_of(self, group: Group, now_s: float) -> None:
        """Something has become known of a group; its turn comes with the next decision."""
        while group not in self._news and len(self._news) >= NEWS_KEPT:
            self._look(next(iter(self._news)), now_s)
        self._news[group] = None

    def _joined(self, group: Group, now_s: float) -> None:
        """Another call is coming to a group that is here."""
        self._hear_of(group, now_s)

    def _moved(self, group: Group) -> None:
        """Calls have come to a known group, or left it; others are still there."""
        self._ranking.put(group, self._ranking.key(group), self._first(group).sequence)

    def _emptied(self, group: Group) -> None:
        """The last call of the group has left."""
        self._ranking.discard(group)

    def _first(self, group: Group) -> CallView:
        return self._calls[self._lines[group][0][2]]

    def _drop(self, call_id: CallId, group: Group, place: _Place) -> None:
        del self._calls[call_id]
        line = self._lines[group]
        del line[bisect_left(line, place)]
        if not line:
            del self._lines[group]


def _place(call: CallView) -> _Place:
    return (call.spec.client_priority, call.sequence, call.spec.call_id)
