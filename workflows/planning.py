"""Declared and posted plans of a running workflow."""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher.core.workflow_types import StageKind, StagePlan
from workflows.model import Workflow
from workflows.names import base_name, listed
from workflows.plan import Plan, PlanError
from workflows.resolving import Resolution, resolvable


def declared(workflow: Workflow, plan: Plan) -> None:
    """Its client has declared it, or anew: what a planner had decided is to be posted again."""
    workflow.resolution = Resolution(plan) if resolvable(tuple(plan.stages.values())) else None
    workflow.planned, workflow.planned_edges = None, ()
    _go_on(workflow, plan)


def posted(
    workflow: Workflow, application: Sequence[StagePlan], stages: Sequence[StagePlan]
) -> Resolution | None:
    """A planner has decided.

    Args:
        workflow: Whose.
        application: Stages of its application as declared, for a workflow that was not.
        stages: The plan.

    Returns:
        What it makes of the declared dynamic stages; `None`: there is none, and the plan is all
        that follows.

    Raises:
        PlanError: The stages are no graph, or one is no candidate; nothing has changed then.
    """
    known = workflow.resolution
    # one that was declared without a dynamic stage is as its client said, not as its application is
    if known is None and workflow.plan is None and resolvable(application):
        known = Resolution(Plan(application))
    if known is None:
        plan = Plan(stages, workflow.stages)
        workflow.plan = plan
        workflow.version += 1
    else:
        known = known.take(stages, workflow.stages)
        plan = known.plan(workflow.stages)
        workflow.resolution = known
        _go_on(workflow, plan)
    workflow.planned, workflow.planned_edges = plan.order, plan.edges
    return known


def check_reported(workflow: Workflow, application: Sequence[StagePlan], stage: str) -> None:
    """Refuse the report of a stage that a declared application does not have.

    Where nothing is declared, or a dynamic stage without candidates, any stage may come.

    Raises:
        PlanError: It has none of that name; the message tells those it has.
    """
    names = {each.name: None for each in application}
    names |= {candidate: None for each in application for candidate in each.candidates}
    dynamic = [each for each in application if each.kind is StageKind.DYNAMIC]
    if not application or not all(each.candidates for each in dynamic):
        return
    also = workflow.stages.keys() | (workflow.plan.stages.keys() if workflow.plan else set())
    if {stage, base_name(stage)}.isdisjoint(names.keys() | also):
        raise PlanError(
            f"stage {stage!r} is none of {workflow.application!r}; expected: {listed(names)}"
        )


def _go_on(workflow: Workflow, plan: Plan) -> None:
    """Follow a plan that speaks of what has ended, too."""
    for stage in workflow.stages.values():
        planned = plan.visits(stage.name)
        # the last one is not done while a visit to it goes on
        for _ in range(min(stage.done, planned if stage.open is None else planned - 1)):
            plan.mark_done(stage.name)
    workflow.plan = plan
    workflow.version += 1
