"""What a user may ask of a workflow, as plain JSON values. Offsets are seconds from its start."""

from __future__ import annotations

from dispatcher.core.types import Outcome
from workflows.model import Call, State, Visit, Workflow


def explain(workflow: Workflow, now_s: float) -> dict[str, object]:
    """Everything: stages in order of their beginning, budgets, predicted against actual, calls.

    A stage that is visited again is listed again. `remaining_work_s` is as of the latest budget.
    """
    calls: dict[int, list[dict[str, object]]] = {}
    for call in workflow.calls:
        calls.setdefault(id(call.visit), []).append(_call(call, workflow.started_s))
    return {
        **line(workflow, now_s),
        "tool_gap_s": workflow.tool_gap_s,
        "remaining_work_s": workflow.remaining_work_s if workflow.state is State.LIVE else 0.0,
        "calls_forgotten": workflow.calls_total - len(workflow.calls),
        "stages": [
            _visit(visit, calls.get(id(visit), []), workflow.started_s, now_s)
            for visit in workflow.visits
        ],
    }


def line(workflow: Workflow, now_s: float) -> dict[str, object]:
    """The same in one line."""
    over = workflow.state is not State.LIVE
    outcome = workflow.outcome if over else None
    until_s = workflow.ended_s if workflow.ended_s is not None else now_s
    elapsed_s = until_s - workflow.started_s
    # one that was cancelled has neither kept nor missed anything
    judged = outcome is not None and outcome is not Outcome.CANCELLED
    met_slo = outcome is Outcome.OK and elapsed_s <= workflow.slo_s if judged else None
    return {
        "id": workflow.workflow_id,
        "workflow": workflow.application,
        "tenant": workflow.tenant,
        "state": workflow.state.value,
        "outcome": None if outcome is None else outcome.value,
        "met_slo": met_slo,
        "slo_s": workflow.slo_s,
        "elapsed_s": elapsed_s,
        "calls": workflow.calls_total,
        "live_calls": len(workflow.live),
        "stage": workflow.visits[-1].stage.name if workflow.visits else None,
    }


def _visit(
    visit: Visit, calls: list[dict[str, object]], started_s: float, now_s: float
) -> dict[str, object]:
    ended_s = visit.ended_s
    return {
        "name": visit.stage.name,
        "visit": visit.number,
        "depth": visit.stage.depth,
        "width": max(visit.members, visit.declared_width),
        "at_client": visit.at_client,
        "started_s": visit.started_s - started_s,
        "ended_s": None if ended_s is None else ended_s - started_s,
        "budget_s": visit.budget_s,
        "predicted_s": visit.predicted_s,
        "actual_s": (now_s if ended_s is None else ended_s) - visit.started_s,
        "gap_s": visit.gap_s,
        "tool": visit.tool,
        "match": _match(visit),
        "calls": calls,
    }


def _match(visit: Visit) -> dict[str, object] | None:
    """The finished workflow that its budget was taken from; `None`: it was not."""
    if visit.time_share is None or not visit.matches:
        return None
    best = visit.matches[0]
    return {
        "similarity": best.similarity,
        "of": best.candidates,
        "averaged": len(visit.matches),
        "time_share": visit.time_share,
        "stage": best.graph.stages[best.position],
        "remaining": [
            {"stage": stage, "prompt_tokens": prompt, "output_tokens": output}
            for stage, prompt, output in best.remaining
        ],
    }


def _call(call: Call, started_s: float) -> dict[str, object]:
    return {
        "call_id": call.call_id,
        "instance": call.instance_id,
        "arrived_s": call.arrived_s - started_s,
        "queued_s": None if call.dispatched_s is None else call.dispatched_s - call.arrived_s,
        "ended_s": None if call.ended_s is None else call.ended_s - started_s,
        "urgency_s": call.urgency_s,
        "prompt_tokens": call.prompt_tokens,
        "output_tokens": call.output_tokens,
        "outcome": None if call.outcome is None else call.outcome.value,
        "attempts": call.attempts,
        "superseded": call.superseded,
    }
