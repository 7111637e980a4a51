"""What may be asked of the tracker, and the books that answer. Asking changes no workflow."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from dispatcher.core.ports import WorkSeconds
from dispatcher.core.types import CallId, WorkflowId
from dispatcher.core.workflow_types import Remaining, StageShape
from workflows.archive import Archive
from workflows.explain import explain, line
from workflows.learned import LearnedStructure
from workflows.model import Call, Workflow
from workflows.settings import TrackerSettings
from workflows.shapes import shape_of
from workflows.stage_profiles import StageProfiles
from workflows.templates import Templates


class Questions:
    """The tracker's books, read only; `Tracker` writes them."""

    def __init__(
        self, settings: TrackerSettings | None = None, templates: Templates | None = None
    ) -> None:
        self.settings = settings or TrackerSettings()
        learned = self._learned = LearnedStructure(self.settings, templates)
        self.templates, self.graphs, self.tools = learned.templates, learned.graphs, learned.tools
        self._profiles = learned.profiles
        self._budgets = learned.budgets()
        self._live: dict[WorkflowId, Workflow] = {}  # oldest first
        self._calls: dict[CallId, tuple[Call, Workflow]] = {}
        self._archive = Archive(self.settings)
        #: latest moment seen
        self._now_s = float("-inf")

    def live_calls(self, workflow_id: WorkflowId) -> Collection[CallId]:
        """Its calls that have not ended, in order of arrival; empty when unknown."""
        workflow = self._live.get(workflow_id)
        return () if workflow is None else tuple(workflow.live)

    def remaining_work_s(self, workflow_id: WorkflowId, work_s: WorkSeconds) -> float:
        """Predicted work left along the critical path; 0 when unknown."""
        workflow = self._live.get(workflow_id)
        if workflow is None:
            return 0.0
        return self._budgets.remaining_work_s(workflow, work_s, self._now_s)

    def remaining(
        self, workflow_id: WorkflowId, work_s: WorkSeconds, now_s: float | None = None
    ) -> Remaining | None:
        """How long it still takes, given what of it has ended; `None`: it is not alive.

        Args:
            workflow_id: Which.
            work_s: Work by lengths, mean over the instances that its calls fit.
            now_s: To this very moment, for people. `None`: as of the latest event, and coarsely,
                so that answers can be remembered: for policies, which ask often.
        """
        workflow = self._live.get(workflow_id)
        if workflow is None:
            return None
        self._profiles.pace(work_s(0.0, 1.0) - work_s(0.0, 0.0))
        pace_s, at_s = self._profiles.pace_s, self._now_s if now_s is None else now_s
        known = self._profiles.remaining(workflow, pace_s, at_s, exact=now_s is not None)
        if known is None:
            work = self._budgets.remaining_work_s(workflow, work_s, at_s)
            return Remaining(work, work, work, work, known=False)
        strange = self._profiles.strange(workflow)
        if not strange:
            return known
        # what the model never saw is as long as budgets take it to be
        more_s = self._budgets.planned_work_s(workflow, strange, work_s, at_s)
        return Remaining(
            mean_s=known.mean_s + more_s,
            low_s=known.low_s + more_s,
            high_s=known.high_s + more_s,
            work_s=known.work_s + more_s,
            known=True,
        )

    def uncertainty(self, call_id: CallId) -> float:
        """R(X) of the call's stage, bit x seconds (LLMSched, Eq. 6); 0 where nothing is known."""
        known = self._calls.get(call_id)
        return 0.0 if known is None else self._profiles.uncertainty(known[1], known[0].visit)

    def stage_shape(self, call_id: CallId) -> StageShape | None:
        """Where the call's stage stands in its workflow's graph; `None`: the call is not live."""
        known = self._calls.get(call_id)
        if known is None:
            return None
        call, workflow = known
        template = self.templates.get(workflow.application)
        return shape_of(workflow, call.visit, template, self._profiles.shape(workflow, call.visit))

    def application_mean_s(self, application: str) -> float | None:
        """Mean duration of its workflows that finished well; `None`: none has."""
        return self._learned.durations.mean_s(application)

    def gap_s(self, tool: str | None, p: float) -> float | None:
        """Seconds that a tool stays within with probability `p`; `None`: none was ever seen."""
        return self.tools.quantile_s(tool or None, p)

    def explain(
        self, workflow_id: WorkflowId, now_s: float | None = None
    ) -> Mapping[str, object] | None:
        """Everything a user would ask, JSON-ready; `None`: as of the latest event."""
        at_s = self._now_s if now_s is None else now_s
        live = self._live.get(workflow_id)
        workflow = live or self._archive.get(workflow_id)
        if workflow is None:
            return None
        told = {**explain(workflow, at_s), "remaining": None, "model": None}
        return told if live is None else told | self._profiles.explain(live, at_s)

    def workflows(self) -> Sequence[Mapping[str, object]]:
        """Live workflows, oldest first, JSON-ready, one line each."""
        return [line(each, self._now_s) for each in self._live.values()]

    @property
    def profiles(self) -> StageProfiles:
        """Application models: whoever fits them asks here."""
        return self._profiles

    def stats(self) -> Mapping[str, object]:
        """What structure and tool gaps are predicted from, JSON-ready."""
        return self._learned.stats()

    @property
    def live(self) -> int:
        """Live workflows."""
        return len(self._live)

    @property
    def explainable(self) -> int:
        """Ended workflows that are still remembered."""
        return len(self._archive)
