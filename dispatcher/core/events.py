"""What may happen. A driver (gateway or simulator) turns the world into these.

Every event is a frozen record; the time at which it happened is passed beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dispatcher.core.types import (
    AttemptId,
    CallId,
    CallSpec,
    EngineGauges,
    InstanceId,
    InstanceSpec,
    LengthEstimate,
    Outcome,
    Usage,
    WorkflowId,
)
from dispatcher.core.workflow_types import StagePlan, WorkflowDeclaration

if TYPE_CHECKING:
    from dispatcher.core.ports import Policy
    from dispatcher.core.views import CallView


@dataclass(frozen=True, slots=True)
class CallArrived:
    """A client waits for this call from now on."""

    spec: CallSpec


@dataclass(frozen=True, slots=True)
class EstimateReady:
    """A slower predictor has spoken; ignored when the call is gone."""

    call_id: CallId
    length: LengthEstimate


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The engine's first token of an attempt has come."""

    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class Progress:
    """Tokens of an attempt so far; coalesced by the driver."""

    attempt_id: AttemptId
    output_tokens: int


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """An attempt is over; the driver has let go of its connection."""

    attempt_id: AttemptId
    outcome: Outcome
    usage: Usage | None = None
    """As the engine counted, where it said so."""
    output_tokens: int = 0
    """As the driver counted; `usage` wins."""
    first_token_s: float | None = None
    """For drivers that learn it only at the end (non-streaming: unknown, `None`)."""
    resumable: bool = False
    """A preempted attempt's tokens can be gone on from; else the call begins again."""
    retryable: bool = False
    """Nothing has reached the client, so another instance may try."""
    detail: str = ""
    token_lag_s: float | None = None
    """Worst delay of its tokens against the call's timeline (see `CallRecord.token_lag_s`)."""
    tool: str | None = None
    """What the answer asks for, "" where that has no name; `None`: no tool."""


@dataclass(frozen=True, slots=True)
class CallCancelled:
    """The client is gone."""

    call_id: CallId


@dataclass(frozen=True, slots=True)
class WorkflowDeclared:
    """A client announces a workflow before its first call."""

    declaration: WorkflowDeclaration


@dataclass(frozen=True, slots=True)
class StageReported:
    """A client says that a stage that ran at its side (a tool, a join) has ended."""

    workflow_id: WorkflowId
    stage: str
    duration_s: float


@dataclass(frozen=True, slots=True)
class PlanPosted:
    """A client's planner has decided which stages follow."""

    workflow_id: WorkflowId
    stages: tuple[StagePlan, ...]


@dataclass(frozen=True, slots=True)
class WorkflowFinished:
    """A client says that nothing more will come."""

    workflow_id: WorkflowId


@dataclass(frozen=True, slots=True)
class WorkflowCancelled:
    """A client drops the workflow: its queued and running calls end."""

    workflow_id: WorkflowId


@dataclass(frozen=True, slots=True)
class InstanceUp:
    """An instance joined, came back, or changed what it serves."""

    spec: InstanceSpec


@dataclass(frozen=True, slots=True)
class InstanceObserved:
    """A scrape of the engine's own gauges."""

    instance_id: InstanceId
    gauges: EngineGauges


@dataclass(frozen=True, slots=True)
class InstanceDown:
    """An instance does not answer; its attempts end on their own."""

    instance_id: InstanceId


@dataclass(frozen=True, slots=True)
class InstanceDraining:
    """An instance takes nothing new; what runs there finishes.

    `remove`: it leaves the fleet when its last attempt has ended.
    """

    instance_id: InstanceId
    remove: bool = False


@dataclass(frozen=True, slots=True)
class ModelSwapped:
    """A policy parameter was learned anew (`name`, for example alpha)."""

    name: str
    value: float


@dataclass(frozen=True, slots=True)
class PolicySwitched:
    """Another policy orders what waits, from now on."""

    policy: Policy


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: sent at (or after) the moment a `WakeAt` asked for."""


@dataclass(frozen=True, slots=True)
class Dispatched:
    """The coordinator has sent a call out. For observers; no driver posts it."""

    call: CallView
    attempt_id: AttemptId
    instance_id: InstanceId


Event = (
    CallArrived
    | EstimateReady
    | FirstToken
    | Progress
    | AttemptEnded
    | CallCancelled
    | WorkflowDeclared
    | StageReported
    | PlanPosted
    | WorkflowFinished
    | WorkflowCancelled
    | InstanceUp
    | InstanceObserved
    | InstanceDown
    | InstanceDraining
    | ModelSwapped
    | PolicySwitched
    | Tick
)
