"""What happens to whole workflows, and what that means for their calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from dispatcher.core import events as ev
from dispatcher.core.call import Call
from dispatcher.core.commands import Command, RecordWorkflow
from dispatcher.core.fleet import Fleet
from dispatcher.core.placing import Placing
from dispatcher.core.ports import TrackerUpdate, WorkflowTracker
from dispatcher.core.types import CallId

_PIECES_PER_EVENT = 64
"""Calls cancelled with their workflow, and calls given a new budget, per event. More wait for the
next, so that one large workflow does not stop the event loop of a gateway."""


class Workflows:
    """Carries out what the tracker says. Only the coordinator calls it."""

    def __init__(
        self,
        tracker: WorkflowTracker,
        calls: Mapping[CallId, Call],
        fleet: Fleet,
        placing: Placing,
        *,
        cancel: Callable[[Call], None],
        say: Callable[[Command], None],
    ) -> None:
        self._tracker = tracker
        self._calls = calls
        self._fleet = fleet
        self._placing = placing
        self._cancel = cancel
        self._say = say
        #: waiting calls whose budget is out of date
        self._stale: dict[CallId, None] = {}
        #: calls of cancelled workflows
        self._to_cancel: dict[CallId, None] = {}

    @property
    def behind(self) -> bool:
        """Whether something is left for `catch_up`."""
        return bool(self._stale or self._to_cancel)

    def stale(self, calls: Iterable[CallId]) -> None:
        """These calls need new budgets."""
        for call_id in calls:
            self._stale[call_id] = None

    def apply(self, update: TrackerUpdate) -> None:
        """Carry out what an event meant; new budgets follow in `catch_up`."""
        self.stale(update.rebudget)
        if update.stage_ended:
            self._placing.drop_plan()
        for record in update.ended:
            self._fleet.sessions.finished(record.workflow_id)
            self._say(RecordWorkflow(record))

    def catch_up(self) -> None:
        """Do a piece of what this event, or earlier ones, have left to do."""
        if not self.behind:
            return
        for call_id in list(islice(self._to_cancel, _PIECES_PER_EVENT)):
            del self._to_cancel[call_id]
            call = self._calls.get(call_id)
            if call is not None:
                self._cancel(call)
        for call_id in list(islice(self._stale, _PIECES_PER_EVENT)):
            del self._stale[call_id]
            call = self._calls.get(call_id)
            if call is not None and call.attempt is None:
                work_s = self._fleet.work_s(call.candidates)
                call.budget = self._tracker.budget(call_id, work_s, self._fleet.now_s)
                self._placing.refresh(call, self._fleet.now_s)

    # --- events ---

    def declared(self, event: ev.WorkflowDeclared) -> None:
        """A workflow is announced, or announced anew."""
        self.apply(self._tracker.declare(event.declaration, self._fleet.now_s))

    def stage_reported(self, event: ev.StageReported) -> None:
        """A stage that ran at the client has ended."""
        self.apply(
            self._tracker.stage_reported(
                event.workflow_id, event.stage, event.duration_s, self._fleet.now_s
            )
        )

    def plan_posted(self, event: ev.PlanPosted) -> None:
        """The rest of a workflow is known now."""
        self.apply(self._tracker.plan_posted(event.workflow_id, event.stages, self._fleet.now_s))

    def finished(self, event: ev.WorkflowFinished) -> None:
        """Nothing more will come."""
        self.apply(self._tracker.finish(event.workflow_id, self._fleet.now_s, cancelled=False))

    def cancelled(self, event: ev.WorkflowCancelled) -> None:
        """Its client gives up; so do its calls."""
        self._to_cancel.update(dict.fromkeys(self._tracker.live_calls(event.workflow_id)))
        self.apply(self._tracker.finish(event.workflow_id, self._fleet.now_s, cancelled=True))
