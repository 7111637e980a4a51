"""Queue management by groups: in order of arrival until somebody would be late, then by deadline.

Patke et al., "Queue Management for SLO-Oriented Large Language Model Serving", SoCC '24, with its
public code (QLM-project/QLM, `qlm/scheduler/scheduler.py`); a baseline of HexGen-Flow (section
5.1). Calls of one model with nearly the same SLO form a group, served first come, first served. The
groups at an engine stand in the order in which they formed. The time until group g is through is

    wait(g) = outstanding output tokens up to and with g / throughput

and when that exceeds the group's remaining SLO for any of them, all groups are reordered by least
remaining SLO. Exact but for what is said below; models are neither swapped nor evicted, since the
models of an engine are fixed when it starts.

Settled, and deviations:

1. A call's SLO is that of its workflow, end to end, as HexGen-Flow's comparison has it. A group's
   remaining SLO is that of its most pressing member.
2. SLOs are quantised by ratio (each step is `slo_ratio` times the one before), not by a fixed
   number of seconds, so that 5 s and 10 s differ and 1,000 s and 1,005 s do not. With the bounds of
   `SHORTEST_SLO_S` and `LONGEST_SLO_S` that also bounds the number of groups per model.
3. As in the authors' code, a group's own tokens count: its last member waits for the others. What
   is in flight counts as well; the code leaves it out.
4. Throughput is all outstanding tokens here over the time in which they would be worked off at the
   present load (`FleetView.backlog_s`), so that it knows the engine's GPU, batch and prefills.
5. The order is worked out whenever a seat is to be filled: that covers arrivals, ends and time
   gone by. It is the groups' own order whenever that makes nobody late; in the code a reordered
   queue stays as it is until the next reordering.
6. The authors' default (EDF over groups), not their linear program for a commercial solver.
7. Held calls have no engine that could be asked for its throughput: least remaining SLO first.
8. HexGen-Flow speaks of a "local queue" and names round robin as the dispatcher of baselines: the
   default. Routing by least backlog is offered.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from dispatcher.core.errors import BadParameterError
from dispatcher.core.ports import CallQueue
from dispatcher.core.types import CallId, InstanceId, Key, SeatTag
from dispatcher.core.views import CallView, FleetView, InstanceView

SHORTEST_SLO_S = 0.1
LONGEST_SLO_S = 1e6

_GroupName = tuple[str, int]
"""Model, and step of the SLO."""


class Qlm:
    """Groups by model and SLO; O(groups log groups + calls in flight) per selection.

    Args:
        slo_ratio: SLOs that differ by less than about this factor share a group; above 1.

    Raises:
        BadParameterError: `slo_ratio` is not above 1.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> def call(name, sequence, slo_s, tokens):
        ...     spec = Fake(call_id=name, model="m", seats=1, client_priority=0)
        ...     length = Fake(expected_tokens=tokens)
        ...     placement = Fake(workflow_started_s=0.0)
        ...     return Fake(spec=spec, sequence=sequence, length=length, generated_tokens=0,
        ...                 placement=placement, budget=Fake(deadline_s=slo_s))
        >>> engine = Fake(spec=Fake(instance_id="e"), in_flight={})
        >>> fleet = Fake(instances={"e": engine}, backlog_s=lambda instance: 30.0)
        >>> waiting = Qlm().queue(engine, fleet)
        >>> waiting.push(call("relaxed", 1, slo_s=90.0, tokens=500.0), 0.0)
        >>> waiting.push(call("pressing", 2, slo_s=40.0, tokens=500.0), 0.0)
        >>> waiting.select("", 0.0).spec.call_id  # all is through in 30 s
        'relaxed'
        >>> waiting.select("", 15.0).spec.call_id  # 25 s are left to the pressing one
        'pressing'
    """

    def __init__(self, *, slo_ratio: float = 1.25) -> None:
        if not (slo_ratio > 1.0 and math.isfinite(slo_ratio)):
            raise BadParameterError(f"slo_ratio must be above 1 and finite, got {slo_ratio!r}")
        self.slo_ratio = slo_ratio
        #: for `key`: the queue last built for each instance of the fleet
        self._queues: dict[InstanceId, GroupQueue] = {}

    def queue(self, instance: InstanceView | None, fleet: FleetView) -> CallQueue:
        """The groups that wait here."""
        queue = GroupQueue(instance, fleet, self.slo_ratio)
        if instance is not None:
            self._queues[instance.spec.instance_id] = queue
            if len(self._queues) > len(fleet.instances):
                self._queues = {i: q for i, q in self._queues.items() if i in fleet.instances}
        return queue

    def key(
        self, call: CallView, instance: InstanceView | None, fleet: FleetView, now_s: float
    ) -> Key:
        """(its group's place in the engine's order from 0, client priority).

        For a held call: (its workflow's deadline in seconds, client priority).
        """
        priority = float(call.spec.client_priority)
        queue = None if instance is None else self._queues.get(instance.spec.instance_id)
        if queue is None:
            return (call.budget.deadline_s, priority)
        return (float(queue.rank(call, now_s)), priority)

    def latest_start_s(
        self, call: CallView, instance: InstanceView, fleet: FleetView, now_s: float
    ) -> float | None:
        """None: the engine keeps the order in which calls reach it."""
        return None


@dataclass(slots=True, eq=False)
class _Group:
    """Calls of one model with nearly the same SLO."""

    #: arrival sequence of the call it formed with; its place among groups
    formed: int
    #: (client priority, arrival sequence, call id), ascending
    line: list[tuple[int, int, CallId]] = field(default_factory=list)
    #: (deadline, arrival sequence), ascending
    deadlines: list[tuple[float, int]] = field(default_factory=list)
    #: expected output of its calls
    tokens: float = 0.0

    @property
    def deadline_s(self) -> float:
        """Of its most pressing member."""
        return self.deadlines[0][0]


@dataclass(frozen=True, slots=True)
class _Entry:
    """A call with the figures under which it was filed."""

    call: CallView
    name: _GroupName
    place: tuple[int, int, CallId]
    deadline: tuple[float, int]
    tokens: float


class GroupQueue:
    """The groups at one place, in the order in which they are to be served.

    Args:
        instance: Whose queue it is; `None`: calls held centrally.
        fleet: Knows the instance's backlog.
        slo_ratio: As in `Qlm`.
    """

    def __init__(self, instance: InstanceView | None, fleet: FleetView, slo_ratio: float) -> None:
        self._instance = instance
        self._fleet = fleet
        self._log_ratio = math.log(slo_ratio)
        self._entries: dict[CallId, _Entry] = {}
        self._groups: dict[_GroupName, _Group] = {}
        #: the groups as they are to be served, as of `_ordered_s`; stale where that is None
        self._order: list[_Group] = []
        self._ordered_s: float | None = None

    def push(self, call: CallView, now_s: float) -> None:
        """Add a call; it must not be here yet."""
        call_id = call.spec.call_id
        if call_id in self._entries:
            raise KeyError(f"call {call_id} is queued here already")
        self._file(self._entry(call))

    def remove(self, call_id: CallId) -> None:
        """Take a call out; its group keeps its place. Raises `KeyError` when it is not here."""
        self._unfile(self._entries[call_id])

    def refresh(self, call: CallView, now_s: float) -> None:
        """File the call anew. Raises `KeyError` when it is not here."""
        old, new = self._entries[call.spec.call_id], self._entry(call)
        self._unfile(old)
        group = self._groups.get(old.name)
        if group is not None and old.name != new.name and group.formed == call.sequence:
            # it has not been served: the group is none of its making any more
            group.formed = min(sequence for _, sequence, _ in group.line)
        self._file(new)

    def select(self, seat: SeatTag, now_s: float) -> CallView | None:
        """The earliest call of the group that comes first now."""
        if not self._entries:
            return None
        first = self._ordered(now_s)[0]
        return self._entries[first.line[0][2]].call

    def rescore(self, now_s: float, limit: int) -> bool:
        """Nothing to do: the order is that of the moment in which it is asked for."""
        return False

    def rank(self, call: CallView, now_s: float) -> int:
        """Groups that come before the call's own; all of them where the call is not here."""
        entry = self._entries.get(call.spec.call_id)
        if entry is None:
            return len(self._groups)
        return self._ordered(now_s).index(self._groups[entry.name])

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[CallView]:
        return (entry.call for entry in self._entries.values())

    # --- groups ---

    def _entry(self, call: CallView) -> _Entry:
        spec, deadline_s = call.spec, call.budget.deadline_s
        slo_s = deadline_s - call.placement.workflow_started_s
        within_s = min(LONGEST_SLO_S, max(SHORTEST_SLO_S, slo_s))
        return _Entry(
            call=call,
            name=(spec.model, math.floor(math.log(within_s) / self._log_ratio)),
            place=(spec.client_priority, call.sequence, spec.call_id),
            deadline=(deadline_s, call.sequence),
            tokens=_remaining_tokens(call),
        )

    def _file(self, entry: _Entry) -> None:
        sequence = entry.call.sequence
        self._entries[entry.call.spec.call_id] = entry
        group = self._groups.get(entry.name)
        if group is None:
            group = self._groups[entry.name] = _Group(formed=sequence)
        group.formed = min(group.formed, sequence)
        insort(group.line, entry.place)
        insort(group.deadlines, entry.deadline)
        group.tokens += entry.tokens
        self._ordered_s = None

    def _unfile(self, entry: _Entry) -> None:
        del self._entries[entry.call.spec.call_id]
        group = self._groups[entry.name]
        del group.line[bisect_left(group.line, entry.place)]
        del group.deadlines[bisect_left(group.deadlines, entry.deadline)]
        group.tokens -= entry.tokens
        if not group.line:
            del self._groups[entry.name]
        self._ordered_s = None

    # --- order ---

    def _ordered(self, now_s: float) -> list[_Group]:
        if self._ordered_s != now_s:
            groups = sorted(self._groups.values(), key=lambda group: group.formed)
            if len(groups) > 1 and self._somebody_would_be_late(groups, now_s):
                groups.sort(key=lambda group: group.deadline_s)
            self._order, self._ordered_s = groups, now_s
        return self._order

    def _somebody_would_be_late(self, groups: list[_Group], now_s: float) -> bool:
        """Whether a group's remaining SLO is shorter than the time until it is through."""
        if self._instance is None:
            return True
        in_flight = self._instance.in_flight.values()
        ahead_tokens = sum(_remaining_tokens(attempt.call) for attempt in in_flight)
        outstanding_tokens = ahead_tokens + sum(group.tokens for group in groups)
        s_per_token = self._fleet.backlog_s(self._instance) / outstanding_tokens
        for group in groups:
            ahead_tokens += group.tokens
            if ahead_tokens * s_per_token > group.deadline_s - now_s:
                return True
        return False


def _remaining_tokens(call: CallView) -> float:
    """Output still expected of a call, all its sequences together; at least 1."""
    seats = call.spec.seats
    return max(1.0, call.length.expected_tokens - call.generated_tokens / seats) * seats
