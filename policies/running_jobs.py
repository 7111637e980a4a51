"""How many calls of each workflow are out: what fair shares of jobs count (Fair, Carbyne).

An observer, so that a switch to such a policy begins with what is out already. A queue asks what
has changed since it asked last, so that it has to look at those jobs only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

from dispatcher.core.events import AttemptEnded, Dispatched, Event
from dispatcher.core.types import AttemptId, WorkflowId
from dispatcher.core.views import FleetView

CHANGES_KEPT = 1024
"""Latest changes that are remembered; who asks after more looks at all jobs."""


class RunningJobs:
    """Attempts out by workflow: an `Observer`; O(1) per event.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> from dispatcher.core.types import Outcome
        >>> running = RunningJobs()
        >>> call = Fake(spec=Fake(workflow_id="w"))
        >>> running.observe(Dispatched(call, AttemptId(1), "engine"), Fake(), 0.0)
        >>> running.of("w"), running.jobs, running.changed_since(0)
        (1, 1, ['w'])
        >>> running.observe(AttemptEnded(AttemptId(1), Outcome.OK), Fake(), 3.0)
        >>> running.of("w"), running.jobs, running.changed_since(1)
        (0, 0, ['w'])
    """

    def __init__(self) -> None:
        self._counts: dict[WorkflowId, int] = {}
        self._out: dict[AttemptId, WorkflowId] = {}
        #: changes so far
        self.version = 0
        self._changed: deque[WorkflowId] = deque(maxlen=CHANGES_KEPT)

    @property
    def jobs(self) -> int:
        """Workflows with a call out."""
        return len(self._counts)

    def of(self, workflow_id: WorkflowId) -> int:
        """Its attempts that are out."""
        return self._counts.get(workflow_id, 0)

    def changed_since(self, version: int) -> Sequence[WorkflowId] | None:
        """Workflows whose count has changed since, maybe repeatedly; `None`: too long ago."""
        new = self.version - version
        if new > len(self._changed):
            return None
        return list(islice(reversed(self._changed), new))

    def observe(self, event: Event | Dispatched, fleet: FleetView, now_s: float) -> None:
        """Follow dispatches and ends."""
        match event:
            case Dispatched():
                workflow_id = event.call.spec.workflow_id
                self._out[event.attempt_id] = workflow_id
                self._counts[workflow_id] = self.of(workflow_id) + 1
                self._note(workflow_id)
            case AttemptEnded():
                ended = self._out.pop(event.attempt_id, None)
                if ended is not None:
                    self._counts[ended] -= 1
                    if not self._counts[ended]:
                        del self._counts[ended]
                    self._note(ended)
            case _:
                pass

    def _note(self, workflow_id: WorkflowId) -> None:
        self.version += 1
        self._changed.append(workflow_id)
