"""Declared stages of an application: checked, and as plain JSON values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dispatcher.core.workflow_types import StageKind, StagePlan
from workflows.plan import MAX_PLAN_STAGES, Plan, PlanError

MAX_DECLARED_STAGES = 64
"""Of one application."""

StageShape = tuple[str, StageKind, tuple[str, ...], tuple[str, ...]]
Shape = tuple[StageShape, ...]


def check_stages(stages: Sequence[StagePlan]) -> None:
    """Refuse what is no application.

    Raises:
        PlanError: No graph, too many stages, or candidates of a stage that is not dynamic.
    """
    Plan(stages)
    if len(stages) > MAX_DECLARED_STAGES:
        raise PlanError(f"stages: expected at most {MAX_DECLARED_STAGES}, not {len(stages)}")
    for stage in stages:
        if len(stage.candidates) > MAX_PLAN_STAGES:
            raise PlanError(f"stage {stage.name!r}: expected at most {MAX_PLAN_STAGES} candidates")


def shape_of(stage: StagePlan) -> StageShape:
    """What makes two declarations of an application the same one: lengths may differ."""
    return stage.name, stage.kind, stage.after, stage.candidates


def dump_stage(stage: StagePlan) -> dict[str, object]:
    """Plain JSON values."""
    return {
        "name": stage.name,
        "width": stage.width,
        "after": list(stage.after),
        "kind": stage.kind.value,
        "candidates": list(stage.candidates),
    }


def load_stage(state: Mapping[str, Any]) -> StagePlan:
    """What `dump_stage` gave. Raises `KeyError`, `TypeError`, `ValueError`."""
    return StagePlan(
        name=str(state["name"]),
        width=int(state["width"]),
        after=tuple(str(each) for each in state["after"]),
        kind=StageKind(str(state["kind"])),
        candidates=tuple(str(each) for each in state["candidates"]),
    )
