"""The books of what waits: where each call is, and what it adds to the load there.

A call waits in one of three places: *held* centrally (its policy binds late, or no instance that
fits is available), *queued* at one instance, or *moving*: about to be placed anew because the
policy was switched or its instance was lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from dispatcher.core.call import Call, Lane, Place
from dispatcher.core.fleet import Fleet
from dispatcher.core.instance import Instance
from dispatcher.core.ports import CallQueue, Policy
from dispatcher.core.types import CallId, InstanceId

_SAMPLE = 16
"""Calls whose work stands for that of all that are held."""


class Waiting:
    """All waiting calls of one coordinator. Decides nothing; see `placing`."""

    def __init__(self, policy: Policy, fleet: Fleet) -> None:
        self.policy = policy
        self._fleet = fleet
        self.moving: dict[CallId, Call] = {}
        self.lanes: dict[Lane, CallQueue] = {}
        #: instances where something has changed since they were last filled
        self._dirty: dict[InstanceId, Instance] = {}
        self._held_dirty = False
        #: lanes that were not looked at yet, beyond what one event may do (early binding)
        self._unlooked: dict[Lane, None] = {}
        #: waiting calls, oldest wait first -> when the wait becomes too long
        self._patience: dict[CallId, tuple[float, Call]] = {}
        #: the call that is being decided about; set still where a policy has raised on it
        self.at_hand: Call | None = None
        #: moments at which an admission asked to be asked again
        self._deferred_until_s: dict[InstanceId, float] = {}

    # --- counts ---

    def __len__(self) -> int:
        return len(self._patience)

    @property
    def held(self) -> int:
        """Calls held centrally."""
        return sum(len(queue) for queue in self.lanes.values())

    def is_deferred(self, instance: Instance, now_s: float) -> bool:
        """Whether an admission has asked not to be asked about it until later."""
        return self._deferred_until_s.get(instance.instance_id, now_s) > now_s

    def next_wake_s(self, now_s: float) -> float | None:
        """When there is something to do without any event."""
        if self.moving or self._unlooked or self._dirty or self._held_dirty:
            return now_s
        earliest_s = next(iter(self._patience.values()))[0] if self._patience else None
        for until_s in self._deferred_until_s.values():
            if earliest_s is None or until_s < earliest_s:
                earliest_s = until_s
        return earliest_s

    def wait_s(self, instances: Sequence[Instance]) -> float:
        """Until the first of these instances would get to a new call; 0 where there are none.

        That is its backlog, and its share of what is held or moving.
        """
        if not instances:
            return 0.0
        ids = frozenset(instance.instance_id for instance in instances)
        unplaced_s = self._work_s(self.moving.values(), len(self.moving)) + sum(
            self._work_s((self._patience[c.spec.call_id][1] for c in queue), len(queue))
            for lane, queue in self.lanes.items()
            if not ids.isdisjoint(lane.candidates)
        )
        backlog_s = min(self._fleet.backlog_s(instance) for instance in instances)
        return backlog_s + unplaced_s / sum(instance.seats for instance in instances)

    def _work_s(self, calls: Iterable[Call], count: int) -> float:
        """Seat-seconds of so many calls, by the first of them."""
        sample = list(islice(calls, _SAMPLE))
        if not sample:
            return 0.0
        total_s = sum(self._fleet.mean_compute_s(call) * call.spec.seats for call in sample)
        return total_s * count / len(sample)

    # --- in and out ---

    def remove(self, call: Call) -> None:
        """A call gives up waiting; one that stood behind it may fit where it did not."""
        self._reconsider(call)
        del self._patience[call.call_id]
        self._take_out(call)

    def _reconsider(self, call: Call) -> None:
        """What was first in this call's place may no longer be."""
        if call.place is Place.QUEUED and call.instance is not None:
            self.touch(call.instance)
        self._held_dirty = True

    def refresh(self, call: Call, now_s: float) -> None:
        """A waiting call's estimate or budget has changed."""
        self._reconsider(call)
        if call.place is Place.QUEUED and self.policy.routing.late_binding:
            # it has waited there for seats; perhaps it is no longer first
            self._take_out(call)
            self._move([call])
        elif call.place is Place.QUEUED:
            instance = call.instance
            assert instance is not None and instance.queue is not None
            prefill_s = self._fleet.prefill_s(call, instance)
            self._unbook(call, instance)
            self._book(call, instance, prefill_s)
            instance.queue.refresh(call, now_s)
        elif call.place is Place.HELD:
            self._lane_of(call).refresh(call, now_s)

    def impatient(self, now_s: float) -> Iterator[Call]:
        """Waiting calls whose time is up; the caller removes each before asking on."""
        while self._patience:
            until_s, call = next(iter(self._patience.values()))
            if until_s > now_s:
                return
            yield call

    def waiting(self) -> Iterator[Call]:
        """Every waiting call."""
        return (call for _, call in self._patience.values())

    def touch(self, instance: Instance) -> None:
        """Seats or load of the instance have changed, or what waits there: ask again."""
        self._deferred_until_s.pop(instance.instance_id, None)
        self._dirty[instance.instance_id] = instance
        self._held_dirty = True

    def _queues(self) -> Iterable[CallQueue]:
        yield from self.lanes.values()
        yield from (i.queue for i in self._fleet if i.queue is not None)

    # --- places ---

    def _own(self, queue: CallQueue) -> list[Call]:
        return [self._patience[view.spec.call_id][1] for view in queue]

    def _move(self, calls: Iterable[Call]) -> None:
        for call in calls:
            call.place = Place.MOVING
            call.instance = None
            self.moving[call.call_id] = call

    def _hold(self, call: Call, now_s: float) -> None:
        call.enqueued_s = now_s
        lane = Lane(call.candidates, frozenset(call.avoid))
        queue = self.lanes.get(lane)
        if queue is None:
            queue = self.policy.ordering.queue(None, self._fleet)
        queue.push(call, now_s)
        # only now: where a policy raises, the call is still where it was
        self.lanes[lane] = queue
        call.place, call.instance, call.lane = Place.HELD, None, lane
        self._held_dirty = True
        for instance_id in call.candidates.intersection(self._deferred_until_s):
            # room that is kept from others may be kept for this one
            del self._deferred_until_s[instance_id]

    def _lane_of(self, call: Call) -> CallQueue:
        assert call.lane is not None
        return self.lanes[call.lane]

    def _enqueue(self, call: Call, instance: Instance, now_s: float) -> None:
        assert instance.queue is not None
        call.backlog_s = self._fleet.backlog_s(instance)
        prefill_s = self._fleet.prefill_s(call, instance)
        call.enqueued_s = now_s
        instance.queue.push(call, now_s)
        # only now: where a policy or a predictor raises, the call is still where it was
        call.place, call.instance = Place.QUEUED, instance
        self._book(call, instance, prefill_s)
        self.touch(instance)
        if self.policy.stealing is not None:
            for other in self._fleet:
                self.touch(other)

    def _book(self, call: Call, instance: Instance, prefill_s: float) -> None:
        seats = call.spec.seats
        # the sequences of one prompt share its prefill
        call.queued_prefill_s = prefill_s * call.spec.prompts
        call.queued_output_tokens = call.remaining_tokens * seats
        instance.queued += 1
        instance.queued_seats += seats
        instance.load_changed()
        instance.queued_prefill_s += call.queued_prefill_s
        instance.queued_output_tokens += call.queued_output_tokens

    def _unbook(self, call: Call, instance: Instance) -> None:
        instance.queued_prefill_s -= call.queued_prefill_s
        instance.queued_output_tokens -= call.queued_output_tokens
        call.queued_prefill_s = call.queued_output_tokens = 0.0
        instance.queued -= 1
        instance.queued_seats -= call.spec.seats
        instance.load_changed()

    def _empty(self, instance: Instance) -> None:
        instance.queued_prefill_s = instance.queued_output_tokens = 0.0
        instance.queued = instance.queued_seats = 0
        instance.load_changed()

    def _take_out(self, call: Call) -> None:
        if call.place is Place.QUEUED:
            instance = call.instance
            assert instance is not None and instance.queue is not None
            instance.queue.remove(call.call_id)
            self._unbook(call, instance)
            if not len(instance.queue):
                # sums of floats drift; an empty queue is exactly empty
                self._empty(instance)
        elif call.place is Place.HELD:
            queue = self._lane_of(call)
            queue.remove(call.call_id)
            if not len(queue) and call.lane is not None:
                del self.lanes[call.lane]
        else:
            del self.moving[call.call_id]
