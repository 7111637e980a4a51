"""What a restart must not lose, as plain JSON values; times relative to the moment of writing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dispatcher.core.types import Outcome, WorkflowId
from workflows.beginning import new_workflow
from workflows.bounds import MAX_S, stored
from workflows.learned import LearnedStructure
from workflows.model import Workflow
from workflows.settings import TrackerSettings

_VERSION = 1
_MAX_AGE_S = 1e12


def take(
    workflows: Iterable[Workflow], learned: LearnedStructure, now_s: float
) -> dict[str, object]:
    """What was learned, and of each live workflow its identity, deadline and depth."""
    return {
        "version": _VERSION,
        **learned.dump(),
        "live": [snapshot_workflow(workflow, now_s) for workflow in workflows],
    }


def take_over(
    snapshot: Mapping[str, object],
    learned: LearnedStructure,
    settings: TrackerSettings,
    now_s: float,
    down_s: float,
) -> list[Workflow]:
    """Load what was learned from what `take` gave; its live workflows again.

    Raises:
        KeyError, ValueError: The snapshot does not have the shape that `take` gives; nothing has
            changed then.
    """
    version, live = snapshot["version"], snapshot["live"]
    if version != _VERSION:
        raise ValueError(f"snapshot: expected version {_VERSION}, not {version!r}")
    if not isinstance(live, list):
        raise ValueError("live: expected a list")
    try:
        latest = live[-settings.max_live :]
        workflows = [restore_workflow(entry, now_s, down_s, settings) for entry in latest]
    except TypeError as error:
        raise ValueError(f"snapshot: not as expected ({error})") from error
    learned.load(snapshot)
    return workflows


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
    since, outcome = entry["since_last_s"], entry["last_outcome"]
    workflow = new_workflow(
        WorkflowId(str(entry["id"])),
        str(entry["application"]),
        str(entry["tenant"]),
        started_s=now_s - down_s - stored(entry["age_s"], "age_s", 0.0, _MAX_AGE_S),
        settings=settings,
    )
    workflow.slo_s = stored(entry["slo_s"], "slo_s", 0.0, MAX_S)
    workflow.ran = workflow.restored = True
    if since is not None:
        since_s = stored(since, "since_last_s", 0.0, _MAX_AGE_S)
        workflow.last_ended_s = now_s - down_s - since_s
    workflow.last_outcome = None if outcome is None else Outcome(str(outcome))
    workflow.calls_total = int(stored(entry["calls"], "calls", 0, 2**53))
    workflow.deepest_depth = int(stored(entry["depth"], "depth", -1, 2**53))
    workflow.deepest_level = int(stored(entry["level"], "level", -1, 2**53))
    return workflow
