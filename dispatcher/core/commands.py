"""What the core asks its driver to do. The driver carries them out in order."""

from __future__ import annotations

from dataclasses import dataclass

from dispatcher.core.types import AttemptId, CallId, InstanceId, RejectReason
from dispatcher.core.workflow_types import CallRecord, WorkflowRecord


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Send the call to the instance now; answer with `AttemptEnded`, always, once."""

    call_id: CallId
    attempt_id: AttemptId
    instance_id: InstanceId
    engine_priority: int
    """Latest start in milliseconds since the coordinator's epoch, lower first; 0 under FCFS."""
    generated_tokens: int = 0
    """Tokens that earlier attempts of this call produced (a resume goes on from there)."""


@dataclass(frozen=True, slots=True)
class Preempt:
    """Stop the attempt, keep the call; answer `AttemptEnded` with `Outcome.PREEMPTED`."""

    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class Abort:
    """Stop the attempt for good; answer `AttemptEnded` with `Outcome.CANCELLED`."""

    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class Reject:
    """Tell the client that its call will not run (any more)."""

    call_id: CallId
    reason: RejectReason
    retry_after_s: float
    """When the backlog says that a new try makes sense; at least 1."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send `Tick` at this moment; an earlier wish still stands beside it."""

    at_s: float


@dataclass(frozen=True, slots=True)
class RecordCall:
    """A call has ended: count it, trace it, forget it."""

    record: CallRecord


@dataclass(frozen=True, slots=True)
class RecordWorkflow:
    """A workflow has ended."""

    record: WorkflowRecord


Command = Dispatch | Preempt | Abort | Reject | WakeAt | RecordCall | RecordWorkflow
