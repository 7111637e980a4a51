"""What is said and learned of a workflow that has ended."""

from __future__ import annotations

from dispatcher.core.types import Outcome
from dispatcher.core.workflow_types import WorkflowRecord
from workflows.model import Call, State, Workflow
from workflows.templates import VisitSummary


def closing_of(workflow: Workflow, call: Call) -> State | None:
    """How a workflow is to end, now that a call of it has; `None`: it goes on.

    A final call ends it once it went well or its client has gone. One that failed may be sent
    again, so the workflow waits for that, as after every other call, unless it has nothing to keep
    for it: that call is all it ever was, or none of it ever ran, and nobody declared it.
    """
    if workflow.closing is not None:
        return workflow.closing
    if call.final and call.outcome in (Outcome.OK, Outcome.CANCELLED):
        return State.FINISHED
    lone = call.final and workflow.calls_total == 1
    if not workflow.live and not workflow.declared and (lone or not workflow.ran):
        return State.FINISHED
    return None


def close_books(workflow: Workflow, state: State) -> WorkflowRecord:
    """Mark it ended at the end of its last call, and let go of what only live ones need.

    One of which no call has ended, ended with the last stage that its client reported.
    """
    ended_s = workflow.last_ended_s
    if ended_s is None:
        reported = (visit.ended_s for visit in workflow.visits if visit.ended_s is not None)
        ended_s = max(reported, default=workflow.started_s)
    for visit in workflow.visits:
        if visit.ended_s is None:
            visit.ended_s = workflow.last_ended_s
        visit.stage.open = None
    workflow.by_key.clear()
    # where it stood names the model of that time, which later ones take the place of
    workflow.plan = workflow.resolution = workflow.standing = None
    workflow.state = state
    workflow.ended_s = ended_s
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
