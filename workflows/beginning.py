"""A workflow at its beginning."""

from __future__ import annotations

from collections import deque

from dispatcher.core.types import WorkflowId
from workflows.model import Workflow
from workflows.settings import TrackerSettings


def new_workflow(
    workflow_id: WorkflowId,
    application: str,
    tenant: str,
    *,
    started_s: float,
    settings: TrackerSettings,
) -> Workflow:
    """With what holds for its application, and nothing in it yet."""
    defaults = settings.for_application(application)
    return Workflow(
        workflow_id,
        application,
        tenant,
        slo_s=defaults.slo_s,
        idle_s=defaults.idle_s,
        started_s=started_s,
        calls=deque(maxlen=settings.max_calls),
        visits=deque(maxlen=settings.max_calls),
    )
