"""Carbyne: fair shares, and what a job does not need of its share goes to the shortest job.

Grandl et al., "Altruistic Scheduling in Multi-Resource Clusters", OSDI '16; a baseline of LLMSched
(section V: "altruistically schedules the job by collecting and redistributing leftover resources").
With C seats and J jobs, a job's fair share is f = floor(C / J) seats. With cp the time that is left
along its critical path and W its work left, it would end after max(cp, W / f) under that share, and
it does not need more than

    need = min(f, ceil(W / cp))

seats to hold that. Seats go first to jobs that run less than they need, fewest running first; what
is left over is given to the shortest remaining job.

Settled: seats are the one resource here. f is at least 1: with more jobs than seats nobody would be
owed anything. W / cp comes from what is known of the job's shape (`FleetView.remaining`). What is
"shortest" is the mean of the application's jobs, as for SJF; `profile` can give it more to go by
(`policies.job_estimates`). A job's fair end is that of the moment: time it has gained by a gift
does not count against it later.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from weakref import WeakSet

from dispatcher.core.ports import CallQueue
from dispatcher.core.types import Key, SeatTag, WorkflowId
from dispatcher.core.views import CallView, FleetView, InstanceView
from policies.fair_jobs import FairQueue, fair_key
from policies.job_estimates import Profile, estimate
from policies.ranking import Ranking
from policies.running_jobs import RunningJobs

_OWED, _LEFTOVER = 0.0, 1.0


class Carbyne:
    """Key: (0, calls out, start) for the owed, (1, time left, start) for others; O(log n + N).

    Args:
        running: Calls out by workflow; must observe the coordinator.
        profile: What tells the shortest job.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> from dispatcher.core.workflow_types import Remaining
        >>> def call(name, sequence):
        ...     spec = Fake(call_id=name, workflow_id=name, client_priority=0)
        ...     placement = Fake(application=name, workflow_started_s=0.0)
        ...     return Fake(spec=spec, sequence=sequence, placement=placement)
        >>> left = {"chain": Remaining(9.0, 9.0, 9.0, 9.0, True)}
        >>> left["fan"] = Remaining(20.0, 20.0, 20.0, 80.0, True)
        >>> fleet = Fake(
        ...     remaining=left.get,
        ...     application_mean_s={"chain": 9.0, "fan": 20.0}.get,
        ...     instances={"i": Fake(seats=6, available=True)},
        ... )
        >>> counts = {"chain": 1, "fan": 2}
        >>> running = Fake(of=counts.get, jobs=2, version=0, changed_since=lambda version: [])
        >>> waiting = Carbyne(running).queue(None, fleet)
        >>> for one in (call("chain", 1), call("fan", 2)):
        ...     waiting.push(one, 0.0)
        >>> waiting.select("", 0.0).spec.call_id
        'fan'
        >>> counts["fan"] = 3
        >>> waiting.refresh(call("fan", 2), 0.0)
        >>> waiting.select("", 0.0).spec.call_id
        'chain'
    """

    def __init__(self, running: RunningJobs, profile: Profile = "mean") -> None:
        self.running = running
        self.profile: Profile = profile
        #: those for held calls
        self._queues: WeakSet[CarbyneQueue] = WeakSet()

    def queue(self, instance: InstanceView | None, fleet: FleetView) -> CallQueue:
        """Jobs by what they are owed, and by what is left of them."""
        queue = CarbyneQueue(self, fleet)
        if instance is None:
            self._queues.add(queue)
        return queue

    def key(
        self, call: CallView, instance: InstanceView | None, fleet: FleetView, now_s: float
    ) -> Key:
        """(0, calls out, start of the workflow) or (1, time left, start of the workflow)."""
        fair = fair_key(call, self.running)
        if fair[0] < min(self.share(fleet), self.width(call, fleet)):
            return (_OWED, *fair)
        return (_LEFTOVER, *self.leftover_key(call, fleet))

    def latest_start_s(
        self, call: CallView, instance: InstanceView, fleet: FleetView, now_s: float
    ) -> float | None:
        """None: the engine keeps the order in which calls reach it."""
        return None

    def share(self, fleet: FleetView) -> int:
        """f, seats: at least 1."""
        seats = sum(i.seats for i in fleet.instances.values() if i.available)
        jobs = self.running.jobs + sum(queue.idle_jobs for queue in self._queues)
        return max(1, seats // max(1, jobs))

    def width(self, call: CallView, fleet: FleetView) -> int:
        """ceil(W / cp) of the call's job: seats that shorten it; at least 1."""
        left = estimate(call, fleet, "network")
        if left.mean_s <= 0.0:
            return 1
        # what is equal but for rounding is no wider
        return max(1, math.ceil(left.work_s / left.mean_s - 1e-9))

    def leftover_key(self, call: CallView, fleet: FleetView) -> Key:
        """(time left, start of the workflow)."""
        return (estimate(call, fleet, self.profile).mean_s, call.placement.workflow_started_s)


class CarbyneQueue(FairQueue):
    """Jobs by what is left of them; beside that, those that run less than they have use for."""

    def __init__(self, ordering: Carbyne, fleet: FleetView) -> None:
        super().__init__(ordering.running)
        self._ordering = ordering
        self._fleet = fleet
        self._key = lambda call, now_s: ordering.leftover_key(call, fleet)
        self._widths: dict[WorkflowId, int] = {}
        #: jobs that run less than their width, by `fair_key`
        self._narrow: Ranking[WorkflowId] = Ranking()
        self._idle: set[WorkflowId] = set()

    @property
    def idle_jobs(self) -> int:
        """Jobs that wait here and have nothing out."""
        return len(self._idle)

    def select(self, seat: SeatTag, now_s: float) -> CallView | None:
        """Of the job that is owed most, else of the shortest."""
        self._catch_up(now_s)
        self._count(self._changed())
        job = self._narrow.first()
        if job is not None and self._narrow.key(job)[0] < self._ordering.share(self._fleet):
            return self._first(job)
        job = self._ranking.first()
        return None if job is None else self._first(job)

    def _look(self, group: WorkflowId, now_s: float) -> None:
        width = self._ordering.width(self._first(group), self._fleet)
        super()._look(group, now_s)
        self._widths[group] = width
        self._count((group,))

    def _moved(self, group: WorkflowId) -> None:
        super()._moved(group)
        self._count((group,))

    def _emptied(self, group: WorkflowId) -> None:
        super()._emptied(group)
        self._narrow.discard(group)
        self._idle.discard(group)
        del self._widths[group]

    def _count(self, jobs: Iterable[WorkflowId]) -> None:
        for job in jobs:
            first = self._first(job)
            fair = fair_key(first, self._running)
            if fair[0] < self._widths[job]:
                self._narrow.put(job, fair, first.sequence)
            else:
                self._narrow.discard(job)
            if fair[0]:
                self._idle.discard(job)
            else:
                self._idle.add(job)
