"""Shortest job first: by the mean duration of the application's jobs.

LLMSched, section V, baseline SJF: "prioritizes the job with the shortest estimated duration", which
is the application's average, since nothing else is known of a job before it runs. All jobs of an
application stand alike, then, and go in order of arrival.

Settled: the mean is of the jobs that have finished well here; keys follow it in rounds on ticks. A
job whose application has not finished one goes by its predicted work (`policies.job_estimates`).
Long jobs may starve while short ones keep coming, as in the paper.
"""

from __future__ import annotations

from dispatcher.core.ports import CallQueue
from dispatcher.core.types import Key
from dispatcher.core.views import CallView, FleetView, InstanceView
from policies.grouped_queue import GroupedQueue, job_of
from policies.job_estimates import estimate


class ShortestJob:
    """Key: (mean duration of the application, start of the workflow). O(log n) per call.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> def call(name, sequence):
        ...     spec = Fake(call_id=name, workflow_id=name, client_priority=0)
        ...     placement = Fake(application=name, workflow_started_s=0.0)
        ...     return Fake(spec=spec, sequence=sequence, placement=placement)
        >>> means_s = {"sorting": 90.0, "search": 9.0}
        >>> waiting = ShortestJob().queue(None, Fake(application_mean_s=means_s.get))
        >>> for one in (call("sorting", 1), call("search", 2)):
        ...     waiting.push(one, 0.0)
        >>> waiting.select("", 0.0).spec.call_id
        'search'
    """

    def queue(self, instance: InstanceView | None, fleet: FleetView) -> CallQueue:
        """Jobs by mean duration."""
        return GroupedQueue(job_of, lambda call, now_s: self.key(call, instance, fleet, now_s))

    def key(
        self, call: CallView, instance: InstanceView | None, fleet: FleetView, now_s: float
    ) -> Key:
        """(mean duration of the application's jobs, start of the workflow)."""
        return (estimate(call, fleet, "mean").mean_s, call.placement.workflow_started_s)

    def latest_start_s(
        self, call: CallView, instance: InstanceView, fleet: FleetView, now_s: float
    ) -> float | None:
        """None: the engine keeps the order in which calls reach it."""
        return None
