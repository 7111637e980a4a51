"""One application's model with all that it was made from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dispatcher.core.workflow_types import Remaining, StagePlan
from workflows.declarations import Shape, shape_of
from workflows.stage_history import ApplicationRows
from workflows.stage_rows import Declared

if TYPE_CHECKING:
    from workflows.stage_profile import StageProfile


class Application:
    """One application."""

    def __init__(self, rows: ApplicationRows, stages: Sequence[StagePlan]) -> None:
        self.rows = rows
        self.declared = Declared(stages)
        self.profile: StageProfile | None = None
        self.fitted_at = 0
        """Workflows taken in when the latest fit was asked for."""
        self.fitted_unix_s: float | None = None
        """When the model was fitted."""
        self.error: str | None = None
        self.shape = tuple(shape_of(stage) for stage in stages)
        #: another shape that clients have declared of late, and how many times in a row
        self.rival: tuple[Shape, int] | None = None

    @property
    def source(self) -> str:
        """Where its stages are known from."""
        return "declared" if self.declared.stages else "learned"

    def rivals(self, shape: Shape) -> int:
        """How many times in a row this one was declared, counting now."""
        times = self.rival[1] + 1 if self.rival is not None and self.rival[0] == shape else 1
        self.rival = (shape, times)
        return times


def remaining_told(remaining: Remaining) -> dict[str, object]:
    """JSON-ready; where no model speaks nobody knows an interval."""
    return {
        "mean_s": remaining.mean_s,
        "low_s": remaining.low_s if remaining.known else None,
        "high_s": remaining.high_s if remaining.known else None,
        "work_s": remaining.work_s,
        "known": remaining.known,
    }


def application_told(known: Application) -> dict[str, object]:
    """JSON-ready."""
    profile = known.profile
    return {
        "source": known.source,
        "workflows": known.rows.total,
        "kept": len(known.rows),
        "bytes": known.rows.bytes,
        "method": None if profile is None else profile.method,
        "samples": 0 if profile is None else profile.samples,
        "why": None if profile is None else profile.state.get("why"),
        "fitted_unix_s": known.fitted_unix_s,
        "error": known.error,
        "stages": [] if profile is None else profile.told(),
    }
