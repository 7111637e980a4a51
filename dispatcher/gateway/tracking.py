"""The workflow tracker's part of the settings."""

from __future__ import annotations

from dispatcher.config import Settings
from workflows.settings import Structure, TrackerSettings, WorkflowDefaults
from workflows.stage_profiles import StageModel, StageModelSettings

_DEFAULT_APPLICATION = "default"


def tracker_settings(settings: Settings) -> TrackerSettings:
    """The tracker's part of the settings."""

    def defaults(application: str) -> WorkflowDefaults:
        slo_s, idle_s = settings.workflow(application)
        return WorkflowDefaults(slo_s=slo_s, idle_s=idle_s)

    named = {name: defaults(name) for name in settings.workflows if name != _DEFAULT_APPLICATION}
    return TrackerSettings(
        default=defaults(_DEFAULT_APPLICATION),
        applications=named,
        structure=Structure(settings.predictors.structure),
        graph_matches=settings.predictors.graph_matches,
        stage_models=_stage_models(settings),
    )


def _stage_models(settings: Settings) -> StageModelSettings:
    own = settings.predictors
    declared = {
        name: tuple(stage.plan() for stage in workflow.stages)
        for name, workflow in settings.workflows.items()
        if workflow.stages
    }
    return StageModelSettings(
        model=StageModel(own.stage_models),
        declared=declared,
        min_workflows=own.stage_min_workflows,
        refit_after=own.stage_refit_after,
    )
