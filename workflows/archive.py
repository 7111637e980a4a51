"""Ended workflows that can still be explained: bounded in number, calls and time."""

from __future__ import annotations

from collections import OrderedDict

from dispatcher.core.types import WorkflowId
from workflows.model import Workflow
from workflows.settings import TrackerSettings


class Archive:
    """The latest ended workflows; the one that ended longest ago is forgotten first."""

    def __init__(self, settings: TrackerSettings) -> None:
        self._settings = settings
        self._workflows: OrderedDict[WorkflowId, tuple[float, Workflow]] = OrderedDict()
        self._calls = 0

    def keep(self, workflow: Workflow, now_s: float) -> None:
        """Keep one that has just ended; it replaces an earlier one of the same id."""
        self._drop(workflow.workflow_id)
        self._workflows[workflow.workflow_id] = (now_s, workflow)
        self._calls += len(workflow.calls)
        while (
            len(self._workflows) > self._settings.max_finished
            or self._calls > self._settings.max_finished_calls
        ):
            self._drop(next(iter(self._workflows)))
        self.expire(now_s)

    def get(self, workflow_id: WorkflowId) -> Workflow | None:
        """One that is still remembered."""
        entry = self._workflows.get(workflow_id)
        return None if entry is None else entry[1]

    def expire(self, now_s: float) -> None:
        """Forget what ended too long ago."""
        while self._workflows:
            workflow_id, (kept_s, _) = next(iter(self._workflows.items()))
            if kept_s + self._settings.finished_s > now_s:
                return
            self._drop(workflow_id)

    def __len__(self) -> int:
        return len(self._workflows)

    def _drop(self, workflow_id: WorkflowId) -> None:
        entry = self._workflows.pop(workflow_id, None)
        if entry is not None:
            self._calls -= len(entry[1].calls)
