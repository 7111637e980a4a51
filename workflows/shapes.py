"""Where a stage stands in its workflow's graph: what orders by topology go by (Argus)."""

from __future__ import annotations

from dispatcher.core.workflow_types import StageShape
from workflows.model import Visit, Workflow
from workflows.templates import ApplicationTemplate


def shape_of(
    workflow: Workflow,
    visit: Visit,
    template: ApplicationTemplate | None,
    modelled: tuple[int, int] | None = None,
) -> StageShape:
    """As the client declared it; else as the application's finished workflows went on.

    Args:
        workflow: Whose.
        visit: To which stage.
        template: What is known of the application.
        modelled: Height and children in the application's model, where it has one.
    """
    tasks = max(1, visit.members, visit.declared_width)
    name = visit.stage.name
    plan = workflow.plan
    if plan is not None and plan.get(name) is not None:
        return StageShape(visit.stage.depth, plan.height(name), plan.children(name), tasks)
    if modelled is not None:
        return StageShape(visit.stage.depth, *modelled, tasks)
    tail = None
    if template is not None and (known := template.stages.get(name)) is not None:
        tail = known.tail(visit.number)
    height = 0 if tail is None else round(tail.levels.value)
    return StageShape(visit.stage.depth, height, min(1, height), tasks)
