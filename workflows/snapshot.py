"""A live workflow as plain JSON values, for the store; times relative to the moment of writing."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from dispatcher.core.types import Outcome, WorkflowId
from workflows.model import Workflow
from workflows.settings import TrackerSettings


def snapshot_workflow(workflow: Workflow, now_s: float) -> dict[str, object]:
    """Identity, deadline and depth; its calls are not kept."""
    last_s = workflow.last_ended_s
    return {
        "id": workflow.workflow_id,
        "application": workflow.application,
        "tenant": workflow.tenant,
        "slo_s": workflow.slo_s,
        "age_s": now_s - workflow.started_s,
        "since_last_s": None if last_s is None else now_s - last_s,
        "last_outcome": None if workflow.last_outcome is None else workflow.last_outcome.value,
        "calls": workflow.calls_total,
        "depth": workflow.deepest_depth,
        "level": workflow.deepest_level,
    }


def restore_workflow(
    entry: Mapping[str, object], now_s: float, down_s: float, settings: TrackerSettings
) -> Workflow:
    """The workflow again, silent from now on.

    Raises:
        KeyError, ValueError: The entry does not have the shape that `snapshot_workflow` gives.
    """
    application = str(entry["application"])
    since, outcome = entry["since_last_s"], entry["last_outcome"]
    workflow = Workflow(
        WorkflowId(str(entry["id"])),
        application,
        str(entry["tenant"]),
        slo_s=float(str(entry["slo_s"])),
        idle_s=settings.for_application(application).idle_s,
        started_s=now_s - down_s - float(str(entry["age_s"])),
        calls=deque(maxlen=settings.max_calls),
        visits=deque(maxlen=settings.max_calls),
        restored=True,
    )
    workflow.last_ended_s = None if since is None else now_s - down_s - float(str(since))
    workflow.last_outcome = None if outcome is None else Outcome(str(outcome))
    workflow.calls_total = int(str(entry["calls"]))
    workflow.deepest_depth = int(str(entry["depth"]))
    workflow.deepest_level = int(str(entry["level"]))
    return workflow
