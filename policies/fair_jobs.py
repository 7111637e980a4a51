"""Fair: the job with the fewest running tasks goes first.

LLMSched, section V, baseline Fair ("allocates the same number of resources to each running job",
Spark's fair scheduler). A seat that frees goes to the workflow with the fewest calls out; ties: the
earlier workflow. Exact at a gateway.
"""

from __future__ import annotations

from dispatcher.core.ports import CallQueue
from dispatcher.core.types import Key, SeatTag, WorkflowId
from dispatcher.core.views import CallView, FleetView, InstanceView
from policies.grouped_queue import GroupedQueue, job_of
from policies.running_jobs import RunningJobs


class FairJobs:
    """Key: (calls out, start of the workflow). O(log n) per call, and per change of a count.

    Args:
        running: Calls out by workflow; must observe the coordinator.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> def call(name, sequence):
        ...     spec = Fake(call_id=name, workflow_id=name[0], client_priority=0)
        ...     return Fake(spec=spec, sequence=sequence, placement=Fake(workflow_started_s=0.0))
        >>> counts = {"a": 2, "b": 1}
        >>> running = Fake(of=counts.get, version=0, changed_since=lambda version: [])
        >>> waiting = FairJobs(running).queue(None, Fake())
        >>> for one in (call("a1", 1), call("b1", 2)):
        ...     waiting.push(one, 0.0)
        >>> waiting.select("", 0.0).spec.call_id
        'b1'
    """

    def __init__(self, running: RunningJobs) -> None:
        self.running = running

    def queue(self, instance: InstanceView | None, fleet: FleetView) -> CallQueue:
        """Jobs by what they have out."""
        return FairQueue(self.running)

    def key(
        self, call: CallView, instance: InstanceView | None, fleet: FleetView, now_s: float
    ) -> Key:
        """(calls of the workflow that are out, its start)."""
        return fair_key(call, self.running)

    def latest_start_s(
        self, call: CallView, instance: InstanceView, fleet: FleetView, now_s: float
    ) -> float | None:
        """None: the engine keeps the order in which calls reach it."""
        return None


def fair_key(call: CallView, running: RunningJobs) -> Key:
    """The same everywhere and at all times, as counts stand."""
    return (float(running.of(call.spec.workflow_id)), call.placement.workflow_started_s)


class FairQueue(GroupedQueue[WorkflowId]):
    """Jobs by what they have out; those whose count has changed are keyed anew as one is selected.

    Args:
        running: Calls out by workflow.
    """

    def __init__(self, running: RunningJobs) -> None:
        super().__init__(job_of, lambda call, now_s: fair_key(call, running))
        self._running = running
        self._version = running.version

    def select(self, seat: SeatTag, now_s: float) -> CallView | None:
        """The first call of the job that has fewest out, as of now."""
        for job in self._changed():
            self._look(job, now_s)
        return super().select(seat, now_s)

    def _changed(self) -> list[WorkflowId]:
        """Jobs here whose count has changed since this was asked last."""
        if self._version == self._running.version:
            return []
        changed = self._running.changed_since(self._version)
        self._version = self._running.version
        if changed is None:
            return list(self._lines)
        return [job for job in dict.fromkeys(changed) if job in self._lines]
