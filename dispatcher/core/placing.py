"""Which place a call waits in, and which call goes out next: where a policy's ports are asked.

Calls are placed anew (a policy switch, a lost instance) in bounded pieces, so that ten thousand
waiting calls do not stop the event loop of a gateway.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

from dispatcher.core.attempts import Prepared
from dispatcher.core.call import Call, Place
from dispatcher.core.errors import InvariantError
from dispatcher.core.fleet import Fleet
from dispatcher.core.instance import Instance
from dispatcher.core.ports import Admit, Assignment, Defer, Policy
from dispatcher.core.types import PLAIN_SEAT, InstanceId, SeatTag
from dispatcher.core.waiting import Waiting

ROUTINGS_PER_EVENT = 256
"""Instances weighed for calls that are placed anew, per event; more calls wait for the next."""
_RESCORES_PER_TICK = 512

Prepare = Callable[[Call, Instance, SeatTag], Prepared]
"""Works out an attempt; may raise, books nothing."""
Send = Callable[[Prepared], None]
"""Carries out a decision: the call goes out, its load is booked."""


class Placing(Waiting):
    """The decisions about what waits."""

    def __init__(self, policy: Policy, fleet: Fleet, prepare: Prepare, send: Send) -> None:
        super().__init__(policy, fleet)
        self._prepare = prepare
        self._send = send
        self._plan: deque[Assignment] | None = None

    def add(self, call: Call, patience_until_s: float) -> None:
        """A call begins to wait; `patience_until_s` must not fall from one `add` to the next."""
        self._patience[call.call_id] = (patience_until_s, call)
        self._plan = None
        self._move([call])  # behind those that came first; `pump` places it

    # --- changes of the world ---

    def switch(self, policy: Policy) -> None:
        """Another policy: all that waits is placed anew, in order of arrival."""
        self.policy = policy
        self._plan = None
        self._deferred_until_s.clear()
        self.moving.clear()
        self._unlooked.clear()
        self.at_hand = None
        calls = sorted(self.waiting(), key=lambda call: call.sequence)
        for instance in self._fleet:
            self._empty(instance)
            instance.queue = policy.ordering.queue(instance, self._fleet)
        self.lanes.clear()
        self._move(calls)

    def joined(self, instance: Instance) -> None:
        """An instance came, came back, or serves other things now: held calls may go there."""
        if instance.queue is None:
            instance.queue = self.policy.ordering.queue(instance, self._fleet)
        unfit = [call for call in self._own(instance.queue) if not instance.fits(call.spec)]
        for call in unfit:
            self._take_out(call)
        self._move(unfit)
        self.touch(instance)
        self.reconsider_held()

    def reconsider_held(self) -> None:
        """The fleet has changed: who can serve the held calls is looked up anew."""
        self._plan = None
        held = [call for queue in self.lanes.values() for call in self._own(queue)]
        self.lanes.clear()
        self._move(sorted(held, key=lambda call: call.sequence))

    def lost(self, instance: Instance) -> None:
        """An instance is down or draining: its queue goes elsewhere."""
        assert instance.queue is not None
        calls = sorted(self._own(instance.queue), key=lambda call: call.sequence)
        self._empty(instance)
        instance.queue = self.policy.ordering.queue(instance, self._fleet)
        self._deferred_until_s.pop(instance.instance_id, None)
        self._plan = None
        self._held_dirty = True  # a held call may have preferred this instance to one with a seat
        self._move(calls)

    def left(self, instance: Instance) -> None:
        """An instance is gone for good; its queue is empty already."""
        self._dirty.pop(instance.instance_id, None)
        self.reconsider_held()

    def drop_plan(self) -> None:
        """A stage has ended: a global plan is out of date."""
        self._plan = None

    def tick(self, now_s: float) -> None:
        """The policy's own period has passed: keys that move with time are refreshed."""
        share = max(1, _RESCORES_PER_TICK // max(1, sum(1 for _ in self._queues())))
        for queue in self._queues():
            if len(queue):
                # what is over the limit waits for the next tick
                queue.rescore(now_s, share)
        for instance in self._fleet:
            self.touch(instance)

    # --- placing ---

    def _place(self, call: Call, now_s: float) -> None:
        """Route a call to an instance, or hold it."""
        self.at_hand = call
        call.candidates = self._fleet.candidates(call.spec)
        if not self.policy.routing.late_binding:
            available = self._fleet.available(call)
            if available:
                chosen = self._route(call, available, now_s)
                if chosen is not None:
                    self._enqueue(call, chosen, now_s)
                    self.at_hand = None
                    return
        self._hold(call, now_s)
        self.at_hand = None

    def _route(self, call: Call, among: Sequence[Instance], now_s: float) -> Instance | None:
        self.at_hand = call
        chosen = self.policy.routing.route(call, among, self._fleet, now_s)
        return None if chosen is None else self._fleet.get(chosen)

    def _requeue(self, call: Call, instance: Instance, now_s: float) -> None:
        """A held call is bound."""
        self._take_out(call)
        self._move([call])
        self._enqueue(call, instance, now_s)
        del self.moving[call.call_id]
        self.at_hand = None

    # --- going out ---

    def pump(self, now_s: float) -> None:
        """Place what moves, then fill every seat that may be filled."""
        if self.moving:
            for call in list(islice(self.moving.values(), self._pieces())):
                self._place(call, now_s)
                del self.moving[call.call_id]
        if self._unlooked and not self._held_dirty:
            self._route_held(now_s)
        if self._deferred_until_s:
            for instance_id, until_s in list(self._deferred_until_s.items()):
                if until_s <= now_s:
                    del self._deferred_until_s[instance_id]
                    self.touch(self._fleet.get(instance_id))
        while self._held_dirty or self._dirty:
            if self._held_dirty and self._may_be_bound():
                self._release(now_s)
            self._held_dirty = False
            while self._dirty:
                _, instance = self._dirty.popitem()
                # a shorter queue may have room for a held call
                self._held_dirty |= self._fill(instance, now_s) and self._may_be_bound()

    def _may_be_bound(self) -> bool:
        """Whether calls wait that are not bound to one instance, or not for good."""
        late = self.policy.routing.late_binding
        return bool(self.lanes) or (late and len(self._patience) > len(self.moving))

    def _pieces(self) -> int:
        """Calls that one event may route: fewer where each has more instances to weigh."""
        return max(1, ROUTINGS_PER_EVENT // max(1, len(self._fleet.instances)))

    def _release(self, now_s: float) -> None:
        """Held calls that may go now, go."""
        if self.policy.planner is not None:
            if self.lanes:
                self._follow_plan(now_s)
        elif self.policy.routing.late_binding:
            while self._bind_one(now_s):
                pass
        else:
            # those that were left over come first
            self._unlooked.update(dict.fromkeys(self.lanes))
            self._route_held(now_s)

    def _route_held(self, now_s: float) -> None:
        """Early binding: calls that found no place are routed as soon as they find one."""
        pieces = self._pieces()
        while self._unlooked:
            lane = next(iter(self._unlooked))
            while True:
                if pieces == 0:
                    return
                pieces -= 1
                queue = self.lanes.get(lane)
                head = None if queue is None else queue.select(PLAIN_SEAT, now_s)
                if head is None:
                    break
                call = self._patience[head.spec.call_id][1]
                available = self._fleet.available(call)
                chosen = self._route(call, available, now_s) if available else None
                if chosen is None:
                    self.at_hand = None
                    break
                self._requeue(call, chosen, now_s)
            del self._unlooked[lane]

    def _bind_one(self, now_s: float) -> bool:
        """Late binding: the first call by the ordering's key takes the seat that routing picks."""
        free: dict[SeatTag, list[Instance]] = {}
        for instance in self._fleet:
            if instance.queued or instance.instance_id in self._deferred_until_s:
                continue  # its seats gather for a call that needs several
            if instance.available:
                for seat in self.policy.admission.open_seats(instance, now_s):
                    free.setdefault(seat, []).append(instance)
        for seat, instances in free.items():
            if self._gathered(seat, instances, now_s):
                return True
            for call in self._heads(seat, instances, now_s):
                if self._bind(call, seat, instances, now_s):
                    return True
        return False

    def _gathered(self, seat: SeatTag, free: Sequence[Instance], now_s: float) -> bool:
        """Send a call that gathers seats at one instance to another that has them already."""
        for gathering in self._fleet:
            if not gathering.queue:
                continue
            for call in self._own(gathering.queue):
                call.candidates = self._fleet.candidates(call.spec)  # some may have joined since
                fit = self._fleet.available(call)
                for instance in free:
                    if instance in fit and self._admit(call, seat, instance, now_s):
                        self.touch(gathering)
                        return True
        return False

    def _heads(self, seat: SeatTag, free: Sequence[Instance], now_s: float) -> list[Call]:
        """The head of every lane that one of these instances serves, most pressing first."""
        fleet, ids = self._fleet, {instance.instance_id for instance in free}
        heads = []
        for lane, queue in self.lanes.items():
            if not ids.isdisjoint(lane.candidates):
                view = queue.select(seat, now_s)
                if view is not None:
                    heads.append(self._patience[view.spec.call_id][1])
        if len(heads) > 1:
            key, own = self.policy.ordering.key, self.policy.held_key
            heads.sort(
                key=lambda c: (
                    *(own(c, seat, fleet, now_s) if own else key(c, None, fleet, now_s)),
                    c.sequence,
                )
            )
        return heads

    def _bind(self, call: Call, seat: SeatTag, instances: list[Instance], now_s: float) -> bool:
        """Send the call to one of these instances, where it may go.

        A call that needs more seats than any of them has free is queued at its first choice, whose
        seats gather for it while those behind it go elsewhere; held, it would be passed by.
        """
        fit = self._fleet.available(call)
        able = [instance for instance in instances if instance in fit]
        first: Instance | None = None
        while able:
            instance = self._route(call, able, now_s)
            if instance is None:
                self.at_hand = None
                return False
            if self._admit(call, seat, instance, now_s):
                return True
            first = first or instance
            able.remove(instance)
        if first is None or call.spec.seats == 1:
            return False
        self._requeue(call, first, now_s)
        return True

    def _fill(self, instance: Instance, now_s: float) -> bool:
        """Fill the seats of one instance from its own queue, then by stealing; True if any went."""
        if not instance.available or instance.instance_id in self._deferred_until_s:
            return False
        in_use = instance.seats_in_use
        while instance.queued and self._fill_one(instance, now_s):
            pass
        self._steal(instance, now_s)
        return instance.seats_in_use > in_use

    def _steal(self, instance: Instance, now_s: float) -> None:
        stealing = self.policy.stealing
        while stealing is not None and not instance.queued:
            seats = self.policy.admission.open_seats(instance, now_s)
            stolen = stealing.steal(instance, self._fleet, now_s) if seats else None
            if stolen is None:
                return
            call = self._patience[stolen][1]
            if not self._fleet.fits(call, instance):
                raise InvariantError(f"{self.policy.name} stole {stolen}, which does not fit")
            robbed = call.instance
            if not self._admit(call, seats[0], instance, now_s):
                return
            if robbed is not None:
                # the one behind the stolen call may fit where that did not
                self.touch(robbed)

    def _fill_one(self, instance: Instance, now_s: float) -> bool:
        assert instance.queue is not None
        for seat in self.policy.admission.open_seats(instance, now_s):
            view = instance.queue.select(seat, now_s)
            if view is not None:
                call = self._patience[view.spec.call_id][1]
                if self._admit(call, seat, instance, now_s):
                    return True
        return False

    def _follow_plan(self, now_s: float) -> None:
        """A planner's assignments, in its order, each as soon as its instance has a seat."""
        planner = self.policy.planner
        assert planner is not None
        if self._plan is None:
            free = {
                i.instance_id: max(0, i.seats - i.seats_in_use) for i in self._fleet if i.available
            }
            if not any(free.values()):
                return
            held = [call for queue in self.lanes.values() for call in self._own(queue)]
            held.sort(key=lambda call: call.sequence)
            self._plan = deque(planner.plan(held, free, self._fleet, now_s))
        waiting: deque[Assignment] = deque()
        for assignment in self._plan:
            entry = self._patience.get(assignment.call_id)
            if entry is None or entry[1].place is not Place.HELD:
                continue
            if not self._assign(entry[1], assignment.instance_id, now_s):
                waiting.append(assignment)
        self._plan = waiting or None

    def _assign(self, call: Call, instance_id: InstanceId, now_s: float) -> bool:
        if instance_id not in self._fleet.instances:
            return False
        instance = self._fleet.get(instance_id)
        if not instance.available or not instance.fits(call.spec):
            return False
        seats = self.policy.admission.open_seats(instance, now_s)
        return bool(seats) and self._admit(call, seats[0], instance, now_s)

    def _admit(self, call: Call, seat: SeatTag, instance: Instance, now_s: float) -> bool:
        self.at_hand = call
        verdict = self.policy.admission.admit(call, seat, instance, now_s)
        prepared = None
        if isinstance(verdict, Admit):
            prepared = self._prepare(call, instance, verdict.seat)
        self.at_hand = None
        if prepared is not None:
            del self._patience[call.call_id]
            self._take_out(call)
            # what was deferred may have been another call alone
            self._deferred_until_s.pop(instance.instance_id, None)
            self._send(prepared)
            return True
        if isinstance(verdict, Defer) and verdict.until_s is not None and verdict.until_s > now_s:
            self._deferred_until_s[instance.instance_id] = verdict.until_s
        return False
