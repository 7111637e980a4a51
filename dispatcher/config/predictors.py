"""Settings of what predicts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from dispatcher.config.section import Section


class PredictorSettings(Section):
    """How output lengths are predicted.

    A forest needs a worker process, some time to train and calls to train on. Until it speaks,
    and whenever it cannot be relied on, rolling quantiles do.
    """

    lengths: Literal["forest", "rolling-quantiles"] = Field(
        default="forest", description="forest: in a worker process; rolling-quantiles: never one"
    )
    window: int = Field(
        default=20_000, ge=100, le=100_000, description="ended calls to train on, the latest"
    )
    min_calls: int = Field(default=1_000, ge=20, le=100_000, description="no forest from fewer")
    train_after_calls: int = Field(
        default=1_000, ge=1, le=100_000, description="ended calls after which it is trained anew"
    )
    train_interval_s: float = Field(
        default=60.0, ge=0, le=864_000, description="least time between two trainings, seconds"
    )
    train_timeout_s: float = Field(
        default=300.0, gt=0, le=86_400, description="a training that takes longer is given up"
    )
    late_s: float = Field(
        default=1.0, gt=0, le=60, description="an estimate that takes longer is not used, seconds"
    )
    max_waiting: int = Field(
        default=256, ge=1, le=100_000, description="calls that wait for an estimate; more get none"
    )

    structure: Literal["templates", "graphs", "none"] = Field(
        default="templates",
        description="what is left of a workflow: means by stage, or the finished one most like it",
    )
    graph_matches: int = Field(
        default=1, ge=1, le=100, description="most alike workflows over which graphs average"
    )

    stage_models: Literal["bayes", "independent", "none"] = Field(
        default="bayes",
        description="what a stage's end tells of later ones; independent: nothing; none: no models",
    )
    stage_min_workflows: int = Field(
        default=20, ge=5, le=100_000, description="no application model from fewer"
    )
    stage_refit_after: int = Field(
        default=100, ge=1, le=100_000, description="workflows after which one is fitted anew"
    )

    @model_validator(mode="after")
    def _in_order(self) -> PredictorSettings:
        if self.min_calls > self.window:
            raise ValueError("expected min_calls to be at most window")
        return self
