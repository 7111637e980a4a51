"""Small fakes of schedulers that come later: each leans on a port the first policies do not use.

They show that the ports carry them; they are not the algorithms.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque

from dispatcher.core.local_queue import HeapQueue
from dispatcher.core.ports import Assignment, Policy
from dispatcher.core.types import PLAIN_SEAT, SeatTag
from policies.fcfs import Fcfs
from policies.least_backlog import LeastBacklog
from policies.round_robin import RoundRobin
from policies.seats import SeatAdmission

RESERVE = SeatTag("reserve")


def policy(**parts) -> Policy:
    """Round robin, FCFS, plain seats, but for the parts given."""
    fields = {"routing": RoundRobin(), "ordering": Fcfs(), "admission": SeatAdmission()}
    return Policy(**{"name": "fake", **fields, **parts})


class ScanQueue:
    """A queue in order of arrival; what to select is left to the heirs."""

    def __init__(self):
        self.calls = OrderedDict()

    def push(self, call, now_s):
        self.calls[call.spec.call_id] = call

    def remove(self, call_id):
        del self.calls[call_id]

    def refresh(self, call, now_s):
        self.calls[call.spec.call_id] = call

    def rescore(self, now_s, limit):
        return False

    def by_arrival(self):
        return sorted(self.calls.values(), key=lambda call: call.sequence)

    def __len__(self):
        return len(self.calls)

    def __iter__(self):
        return iter(list(self.calls.values()))


# --- Tempo: density over siblings, a reserve, rescoring in pieces, preemption ---------------------


class DensityQueue(ScanQueue):
    """Highest gain per second first; the reserve serves who has waited long."""

    LONG_S = 30.0

    def __init__(self, fleet):
        super().__init__()
        self.fleet = fleet
        self.density = {}
        self.stale = deque()
        self.scored_s = None

    def score(self, call, now_s):
        siblings = self.fleet.live_calls(call.spec.workflow_id) or [call]
        gain = sum(c.spec.prompt_tokens + 2.0 * c.length.expected_tokens for c in siblings)
        rest_s = max(self.fleet.mean_compute_s(c) for c in siblings)
        late_s = max(0.0, now_s + rest_s - call.placement.deadline_s)
        self.density[call.spec.call_id] = gain / (rest_s * (1.0 + late_s))

    def push(self, call, now_s):
        super().push(call, now_s)
        self.score(call, now_s)

    def remove(self, call_id):
        super().remove(call_id)
        del self.density[call_id]

    def refresh(self, call, now_s):
        super().refresh(call, now_s)
        self.score(call, now_s)

    def rescore(self, now_s, limit):
        if self.scored_s != now_s and not self.stale:
            self.stale.extend(self.calls)
            self.scored_s = now_s
        for _ in range(min(limit, len(self.stale))):
            call = self.calls.get(self.stale.popleft())
            if call is not None:
                self.score(call, now_s)
        return bool(self.stale)

    def select(self, seat, now_s):
        if seat == RESERVE:
            old = [c for c in self.by_arrival() if now_s - c.arrived_s > self.LONG_S]
            if old:
                return old[0]
        return min(
            self.calls.values(),
            key=lambda call: (-self.density[call.spec.call_id], call.sequence),
            default=None,
        )


class DensityOrdering(Fcfs):
    def __init__(self):
        self.queues = {}

    def queue(self, instance, fleet):
        queue = DensityQueue(fleet)
        if instance is not None:
            self.queues = {i: q for i, q in self.queues.items() if i in fleet.instances}
            self.queues[instance.spec.instance_id] = queue
        return queue


class ReserveAdmission(SeatAdmission):
    """A tenth of the seats, at least one, is the reserve's."""

    def open_seats(self, instance, now_s):
        reserve = max(1, math.ceil(0.1 * instance.seats))
        used = {PLAIN_SEAT: 0, RESERVE: 0}
        for attempt in instance.in_flight.values():
            used[attempt.seat] = used.get(attempt.seat, 0) + attempt.call.spec.seats
        room = {PLAIN_SEAT: instance.seats - reserve, RESERVE: reserve}
        full = instance.seats_in_use >= instance.seats
        return () if full else tuple(tag for tag in room if used[tag] < room[tag])


class StopTheLeastDense:
    """At most one attempt per instance, where a waiting call promises twice the gain."""

    def __init__(self, ordering):
        self.ordering = ordering

    def preempt(self, fleet, now_s):
        stopped = []
        for instance_id, instance in fleet.instances.items():
            queue = self.ordering.queues.get(instance_id)
            waiting = queue.select(PLAIN_SEAT, now_s) if queue else None
            rates = {
                attempt.attempt_id: attempt.call.spec.prompt_tokens
                / fleet.remaining_s(attempt, instance)
                for attempt in instance.in_flight.values()
            }
            if waiting is not None and rates and not instance.seats_in_use < instance.seats:
                least = min(rates, key=rates.__getitem__)
                gain = waiting.spec.prompt_tokens / fleet.compute_s(waiting, instance)
                if gain > 2.0 * rates[least]:
                    stopped.append(least)
        return stopped


# --- LLMSched: one plan for all that is held ------------------------------------------------------


class CoinPlanner:
    """Least remaining work first, or (a coin says so) most; instances in turn."""

    def __init__(self, rng):
        self.rng = rng
        self.tosses = []
        #: where to send everything; None: where seats are free, then in turn
        self.only = None

    def plan(self, held, free_seats, fleet, now_s):
        if not held:
            return []
        explore = self.rng.random() < 0.5
        self.tosses.append(explore)
        order = sorted(
            held,
            key=lambda call: (call.budget.remaining_work_s, call.sequence),
            reverse=explore,
        )
        ids = sorted(free_seats, key=lambda i: -free_seats[i]) if self.only is None else [self.only]
        return [
            Assignment(call.spec.call_id, ids[number % len(ids)])
            for number, call in enumerate(order)
        ]


def planned(rng) -> tuple[Policy, CoinPlanner]:
    planner = CoinPlanner(rng)
    return policy(routing=LeastBacklog(), planner=planner), planner


# --- stealing -------------------------------------------------------------------------------------


class KnownQueues(Fcfs):
    """FCFS that remembers the queues it built, for the part that steals from them."""

    def __init__(self):
        self.queues = {}

    def queue(self, instance, fleet):
        queue = HeapQueue(lambda call, now_s: self.key(call, instance, fleet, now_s))
        if instance is not None:
            self.queues = {i: q for i, q in self.queues.items() if i in fleet.instances}
            self.queues[instance.spec.instance_id] = queue
        return queue


class FromTheLongest:
    """The first call that fits, from the longest queue that has one."""

    def __init__(self, ordering):
        self.ordering = ordering

    def steal(self, instance, fleet, now_s):
        others = sorted(self.ordering.queues.items(), key=lambda item: -len(item[1]))
        own_id, models = instance.spec.instance_id, instance.spec.models
        for instance_id, queue in others:
            fits = (call for call in queue if call.spec.model in models)
            first = min(fits, key=lambda call: call.sequence, default=None)
            if instance_id != own_id and first is not None:
                return first.spec.call_id
        return None
