"""Settings of the alpha tuner, and of the recording of traces."""

from __future__ import annotations

from pydantic import Field, model_validator

from dispatcher.config.section import Section
from dispatcher.tuning import TestName, TuningRules

_RULES = TuningRules()


class TuningSettings(Section):
    """How alpha is found while traffic flows, for policies with `alpha: auto`."""

    enabled: bool = Field(default=True, description="tune, and keep recent traffic for it")
    window_s: float = Field(
        default=_RULES.window_s, ge=0.1, le=86_400, description="length of a window, seconds"
    )
    min_workflows: int = Field(
        default=_RULES.min_workflows,
        ge=2,
        le=5_000,
        description="workflows that a window needs; with fewer it goes on",
    )
    max_window_s: float = Field(
        default=_RULES.max_window_s,
        ge=0.1,
        le=864_000,
        description="workflows that ended longer ago are forgotten, seconds",
    )
    test: TestName = Field(
        default=_RULES.test,
        description="what tells a regression: permutation, welch_log, batch_p95",
    )
    p_value: float = Field(
        default=_RULES.p_value, gt=0, lt=1, description="below it, latency counts as worse"
    )
    draws: int = Field(
        default=_RULES.draws, ge=100, le=100_000, description="draws of the permutation test"
    )
    min_gain: float = Field(
        default=_RULES.min_gain,
        ge=0,
        lt=1,
        description="share of the simulated P95 that another alpha must save",
    )
    max_calls: int = Field(
        default=_RULES.max_calls, ge=1, le=100_000, description="most calls replayed, the latest"
    )
    timeout_s: float = Field(
        default=120.0, gt=0, le=3_600, description="a replay that takes longer is given up, seconds"
    )

    @model_validator(mode="after")
    def _in_order(self) -> TuningSettings:
        if self.max_window_s < self.window_s:
            raise ValueError("expected max_window_s to be at least window_s")
        return self

    def rules(self) -> TuningRules:
        """The part that the tuner itself goes by."""
        return TuningRules(
            window_s=self.window_s,
            min_workflows=self.min_workflows,
            max_window_s=self.max_window_s,
            test=self.test,
            p_value=self.p_value,
            draws=self.draws,
            min_gain=self.min_gain,
            max_calls=self.max_calls,
        )


class RecordingSettings(Section):
    """Live traffic as a trace file: lengths, times and names of stages; no text."""

    path: str | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        pattern=r"^[^\x00]+$",
        description="JSONL file; null: off",
    )
    max_mb: float = Field(
        default=256.0, ge=0.001, le=1_000_000, description="it stops there, 10^6 bytes"
    )
