"""Application models: declared or learned, fitted elsewhere, asked here (LLMSched, section IV).

Every workflow that finishes well adds a row. When an application has enough new ones a fit is due:
a simulation does it at once (`StageModelSettings.fitter`), a gateway in its worker process
(`due`, `job`, `install`). Until there is a model, and wherever it cannot speak, nothing is said
here and the tracker's budgets answer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from math import log
from typing import TYPE_CHECKING, Any

from dispatcher.core.workflow_types import Remaining, StageKind, StagePlan
from workflows.bounds import MAX_S, MAX_WORK_S, cut, stored
from workflows.declarations import check_stages, dump_stage, load_stage, shape_of
from workflows.model import Visit, Workflow
from workflows.names import base_name
from workflows.stage_answers import Answers
from workflows.stage_application import Application, application_told, remaining_told
from workflows.stage_history import ApplicationRows
from workflows.stage_rows import row_of
from workflows.stage_settings import Fitter, StageModel, StageModelSettings

if TYPE_CHECKING:
    from workflows.fitting import FitJob
    from workflows.resolving import Resolution
    from workflows.spans import Part, Posterior
    from workflows.standing import Standing

__all__ = ["Fitter", "StageModel", "StageModelSettings", "StageProfiles"]

DEFAULT_TPOT_S = 0.02
"""Until a fleet has said how long a token takes."""
_PACE_STEP = 0.25
"""Paces whose logarithms are this near have the same critical paths."""


class StageProfiles:
    """All applications' models."""

    def __init__(self, settings: StageModelSettings | None = None) -> None:
        self.settings = settings or StageModelSettings()
        for stages in self.settings.declared.values():
            check_stages(stages)
        #: the one that learned least recently first
        self._applications: OrderedDict[str, Application] = OrderedDict()
        self._due: dict[str, None] = {}
        self._bytes = 0
        self._answers: Answers[Posterior | None] = Answers()
        self._reaches: Answers[Part | None] = Answers()
        #: models ever taken, so that no two have the same number
        self._models = 0
        self.pace_s = DEFAULT_TPOT_S
        """Time per output token now, mean over the fleet."""

    # --- what happens ---

    def pace(self, tpot_s: float) -> None:
        """How long an output token takes now."""
        if tpot_s > 0.0:
            self.pace_s = cut(tpot_s, 1e-9, MAX_S)

    def declare(self, application: str, stages: Sequence[StagePlan]) -> None:
        """A client says what its application is made of; configuration says it better.

        Raises:
            PlanError: The stages are no graph, or too many.
        """
        check_stages(stages)
        if self.settings.model is StageModel.NONE or application in self.settings.declared:
            return
        known = self._application(application)
        shape = tuple(shape_of(stage) for stage in stages)
        if known.shape == shape:
            known.rival = None
            return
        if known.shape and known.rivals(shape) < self.settings.min_workflows:
            return  # one odd workflow is no new version of its application
        # what was learned under other names and kinds does not fit any more
        self._bytes -= known.rows.bytes
        rows = ApplicationRows(self.settings.rows)
        self._applications[application] = Application(rows, stages)
        self._due.pop(application, None)

    def declared(self, application: str) -> tuple[StagePlan, ...]:
        """Stages of an application as configured, else as clients declared them; empty: neither."""
        configured = self.settings.declared.get(application)
        if configured is not None:
            return configured
        known = self._applications.get(application)
        return () if known is None else tuple(known.declared.stages.values())

    def planned(self, application: str, resolution: Resolution) -> None:
        """A planner has decided: what it put where nobody had said what may be is learned."""
        if self.settings.model is StageModel.NONE or not self.declared(application):
            return
        known = self._application(application).declared
        for dynamic, part in resolution.parts.items():
            for stage in part:
                known.learn(base_name(stage.name), dynamic)

    def learn(self, workflow: Workflow, now_s: float) -> None:
        """One has finished well, and was seen whole."""
        if self.settings.model is StageModel.NONE:
            return
        name = workflow.application
        known = self._application(name)
        row = row_of(workflow, known.declared, self.pace_s)
        if not row.cells:
            return
        self._bytes -= known.rows.bytes
        known.rows.add(row)
        self._bytes += known.rows.bytes
        self._applications.move_to_end(name)
        self._forget()
        if self._is_due(known):
            self._due[name] = None
            if self.settings.fitter is not None:
                self._fit_now(name, self.settings.fitter, now_s)

    # --- fitting ---

    def due(self) -> Sequence[str]:
        """Applications that want a fit, the longest due first."""
        return tuple(self._due)

    def want(self, application: str) -> bool:
        """A fit is due whatever has ended since the last one; False: nobody knows it any more."""
        known = self._applications.get(application)
        if known is None or not len(known.rows):
            return False
        self._due[application] = None
        return True

    def job(self, application: str) -> FitJob | None:
        """What to fit; `None`: it is not due any more. It is due again after more workflows."""
        from workflows.fitting import FitJob  # noqa: PLC0415 - arrays, only where one is fitted

        self._due.pop(application, None)
        known = self._applications.get(application)
        if known is None or not len(known.rows):
            return None
        known.fitted_at = known.rows.total
        return FitJob(application, known.rows.columns, known.rows.rows, self.pace_s)

    def install(self, application: str, state: Mapping[str, Any], fitted_unix_s: float) -> None:
        """Answer from this model from now on.

        Args:
            application: Whose.
            state: The model.
            fitted_unix_s: When it was fitted, to be told; a simulation's own seconds there.

        Raises:
            KeyError, TypeError, ValueError: It is none; the one before stays.
        """
        known = self._applications.get(application)
        if known is not None:
            self._take(known, state)
            known.fitted_unix_s = fitted_unix_s
            known.error = None

    def failed(self, application: str, why: str) -> None:
        """It could not be fitted: the one before stays, and more workflows make another try."""
        known = self._applications.get(application)
        if known is not None:
            known.error = why

    # --- answers ---

    def remaining(
        self, workflow: Workflow, tpot_s: float, now_s: float, *, exact: bool = False
    ) -> Remaining | None:
        """Posterior of what is left of a workflow; `None`: no model speaks.

        Args:
            workflow: A live one. What its plan has that the model never saw (`strange`) is not in
                the answer.
            tpot_s: Time per output token now, mean over the fleet.
            now_s: How long stages have been under way counts.
            exact: To the moment. Else in quarters of a bin, so that answers can be remembered.
        """
        standing = self._standing(workflow)
        if standing is None:
            return None
        from workflows.standing import posterior, question_of  # noqa: PLC0415 - loaded with the first model

        profile = standing.profile
        question = question_of(workflow, standing, tpot_s, now_s, exact=exact)
        if exact:
            answer = posterior(profile, question, tpot_s)
        else:
            key = (profile.number, round(log(max(tpot_s, 1e-9)) / _PACE_STEP), question)
            answer = self._answers.get(key, lambda: posterior(profile, question, tpot_s))
        return None if answer is None else answer.at(tpot_s)

    def strange(self, workflow: Workflow) -> frozenset[str]:
        """Stages to come as its planner said that its model does not know; none without a model."""
        known = self._applications.get(workflow.application)
        if workflow.planned is None or workflow.plan is None or known is None:
            return frozenset()
        profile = known.profile
        if profile is None:
            return frozenset()
        return frozenset(
            name
            for name in workflow.planned
            if name not in workflow.plan.done
            and name not in profile.index
            and base_name(name) not in profile.index
            and known.declared.inside_of(name) not in profile.index
        )

    def uncertainty(self, workflow: Workflow, visit: Visit) -> float:
        """R(X) of a stage at the present pace, bit x seconds; 0 where no model speaks."""
        standing = self._standing(workflow)
        if standing is None:
            return 0.0
        profile = standing.profile
        variable = profile.index.get(visit.name)
        if variable is None:
            return 0.0
        key = (profile.number, variable, standing.evidence, standing.unscheduled)
        reach = self._reaches.get(key, lambda: _reduction(standing, variable))
        return 0.0 if reach is None else reach.at(self.pace_s)

    def shape(self, workflow: Workflow, visit: Visit) -> tuple[int, int] | None:
        """Height and children of a stage in its model's graph; `None`: no model knows it."""
        known = self._applications.get(workflow.application)
        if known is None or known.profile is None:
            return None
        variable = known.profile.index.get(visit.name)
        if variable is None:
            return None
        return known.profile.height(variable), known.profile.children(variable)

    def kind(self, application: str, stage: str) -> StageKind:
        """Of a stage, as declared."""
        known = self._applications.get(application)
        return StageKind.LLM if known is None else known.declared.kind(stage)

    # --- telling and keeping ---

    def explain(self, workflow: Workflow, now_s: float) -> dict[str, object]:
        """What the model says of a live workflow; JSON-ready, empty where none speaks."""
        remaining = self.remaining(workflow, self.pace_s, now_s)
        if remaining is None:
            return {}
        from workflows.standing import told  # noqa: PLC0415 - loaded with the first model

        known = self._applications[workflow.application]
        standing = self._standing(workflow)
        assert standing is not None  # noqa: S101 - there was an answer
        return {
            "remaining": remaining_told(remaining),
            "model": {
                "source": known.source,
                "method": standing.profile.method,
                "samples": standing.profile.samples,
                "stages": told(standing),
            },
        }

    def stats(self) -> dict[str, object]:
        """Applications, the one that learned last first; JSON-ready."""
        return {
            "model": self.settings.model.value,
            "row_bytes": self._bytes,
            "answers": len(self._answers) + len(self._reaches),
            "applications": {
                name: application_told(known)
                for name, known in reversed(self._applications.items())
            },
        }

    def dump(self) -> dict[str, object]:
        """What was learned, as plain JSON values."""
        return {
            name: {
                **known.rows.dump(),
                "source": known.source,
                "stages": [dump_stage(s) for s in known.declared.stages.values()],
                "learned": known.declared.learned,
                "model": None if known.profile is None else known.profile.state,
                "fitted_unix_s": known.fitted_unix_s,
                "fitted_at": known.fitted_at,
            }
            for name, known in self._applications.items()
        }

    def load(self, state: Mapping[str, object]) -> None:
        """Replace what was learned by what `dump` gave.

        What was learned of an application that is declared otherwise now is left out.

        Raises:
            KeyError, TypeError, ValueError: The state does not have the shape that `dump` gives;
                nothing has changed then.
        """
        fresh = StageProfiles(self.settings)
        if self.settings.model is not StageModel.NONE:
            for name, entry in list(state.items())[-self.settings.applications :]:
                if not isinstance(entry, Mapping):
                    raise ValueError("application models: expected an object for each")
                fresh._load_one(name, entry)
        fresh._forget()
        self.adopt(fresh)

    def adopt(self, fresh: StageProfiles) -> None:
        """Replace what was learned by what another one, used no more, has learned."""
        for known in fresh._applications.values():
            if known.profile is not None:
                self._models += 1
                known.profile.number = self._models
        self._applications, self._due = fresh._applications, fresh._due
        self._bytes = fresh._bytes
        self._answers.clear()
        self._reaches.clear()

    # --- inside ---

    def _load_one(self, name: str, entry: Mapping[str, Any]) -> None:
        stages = tuple(load_stage(each) for each in entry["stages"])
        check_stages(stages)
        own = self.settings.declared.get(name)
        if own is not None and own != stages:
            return
        rows = ApplicationRows.loaded(entry, self.settings.rows)
        known = self._applications[name] = Application(rows, stages)
        known.fitted_at = int(entry["fitted_at"])
        for candidate, dynamic in dict(entry.get("learned", {})).items():
            known.declared.learn(str(candidate), str(dynamic))
        fitted_unix_s = entry.get("fitted_unix_s")
        if fitted_unix_s is not None:
            known.fitted_unix_s = stored(fitted_unix_s, "fitted_unix_s", 0.0, MAX_WORK_S)
        self._bytes += rows.bytes
        if entry["model"] is not None:
            self._take(known, entry["model"])
        if self._is_due(known):
            self._due[name] = None

    def _take(self, known: Application, state: Mapping[str, Any]) -> None:
        from workflows.stage_profile import StageProfile  # noqa: PLC0415 - arrays

        self._models += 1
        known.profile = StageProfile(state, known.declared, self._models)

    def _fit_now(self, name: str, fitter: Fitter, now_s: float) -> None:
        job = self.job(name)
        if job is None:
            return
        try:
            self.install(name, fitter(job), now_s)
        except (ValueError, RuntimeError) as error:
            self.failed(name, str(error))

    def _is_due(self, known: Application) -> bool:
        if known.rows.total < self.settings.min_workflows:
            return False
        new = known.rows.total - known.fitted_at
        return new >= min(self.settings.refit_after, max(1, known.fitted_at // 2))

    def _application(self, name: str) -> Application:
        known = self._applications.get(name)
        if known is None:
            stages = self.settings.declared.get(name, ())
            rows = ApplicationRows(self.settings.rows)
            known = self._applications[name] = Application(rows, stages)
            self._forget()
        return known

    def _forget(self) -> None:
        while len(self._applications) > 1 and (
            len(self._applications) > self.settings.applications
            or self._bytes > self.settings.row_bytes
        ):
            name, dropped = self._applications.popitem(last=False)
            self._bytes -= dropped.rows.bytes
            self._due.pop(name, None)

    def _standing(self, workflow: Workflow) -> Standing | None:
        known = self._applications.get(workflow.application)
        if known is None or known.profile is None:
            return None
        from workflows.standing import standing_of  # noqa: PLC0415 - loaded with the first model

        return standing_of(workflow, known.profile, known.declared)


def _reduction(standing: Standing, variable: int) -> Part | None:
    from workflows.standing import reduction  # noqa: PLC0415 - loaded with the first model

    return reduction(standing, variable)
