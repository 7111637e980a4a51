"""What is said and learned of a workflow that has ended."""

from __future__ import annotations

from dispatcher.core.types import Outcome
from dispatcher.core.workflow_types import WorkflowRecord
from workflows.model import State, Workflow
from workflows.templates import VisitSummary


def close_books(workflow: Workflow, state: State) -> WorkflowRecord:
    """Mark it ended at the end of its last call, and let go of what only live ones need."""
    for visit in workflow.visits:
        if visit.ended_s is None:
            visit.ended_s = workflow.last_ended_s
        visit.stage.open = None
    workflow.by_key.clear()
    workflow.plan = None
    workflow.state = state
    ended_s = workflow.last_ended_s
    workflow.ended_s = workflow.started_s if ended_s is None else ended_s
    return WorkflowRecord(
        workflow_id=workflow.workflow_id,
        application=workflow.application,
        tenant=workflow.tenant,
        started_s=workflow.started_s,
        ended_s=workflow.ended_s,
        deadline_s=workflow.deadline_s,
        calls=workflow.calls_total,
        stages=len(workflow.stages),
        outcome=workflow.outcome,
    )


def lessons(workflow: Workflow) -> list[VisitSummary]:
    """Its visits, for the template; none where it did not go well or was not seen whole."""
    if workflow.outcome is not Outcome.OK or workflow.restored:
        return []
    return [
        VisitSummary(
            visit.stage.name,
            visit.level,
            max(visit.members, visit.declared_width),
            visit.prompt_tokens,
            visit.output_tokens,
        )
        for visit in workflow.visits
        if visit.succeeded
    ]
