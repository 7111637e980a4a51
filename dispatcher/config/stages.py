"""Settings of an application's stages."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dispatcher.config.section import Section
from dispatcher.core.workflow_types import StageKind, StagePlan

StageName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[\x20-\x7e]+$")]


class StageSettings(Section):
    """One stage of an application."""

    name: StageName = Field(description="as calls name it")
    kind: StageKind = Field(
        default=StageKind.LLM,
        description="llm: calls; regular: runs at clients; dynamic: what a planner decides",
    )
    after: tuple[StageName, ...] = Field(
        default=(), max_length=64, description="stages it waits for; none: the one before it"
    )
    width: int = Field(default=1, ge=1, le=10_000, description="calls side by side")
    candidates: tuple[StageName, ...] = Field(
        default=(), max_length=200, description="what a dynamic stage may be made of"
    )

    def plan(self) -> StagePlan:
        """The same for the tracker."""
        return StagePlan(
            self.name,
            width=self.width,
            after=self.after,
            kind=self.kind,
            candidates=self.candidates,
        )
