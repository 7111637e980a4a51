"""What the coordinator and the workflow tracker say to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from dispatcher.core.types import CallClass, CallId, InstanceId, Outcome, Slo, WorkflowId


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a call stands in its workflow."""

    workflow_id: WorkflowId
    application: str
    stage: str
    depth: int
    """0 for the first stage; one deeper than the deepest call that had ended on arrival."""
    workflow_started_s: float
    deadline_s: float
    """Absolute moment at which the end-to-end SLO runs out."""
    rebudget: tuple[CallId, ...] = ()
    """Live calls of the same workflow whose budget this call's arrival has changed."""


@dataclass(frozen=True, slots=True)
class StageBudget:
    """The share of a workflow's remaining time given to one stage (HexGen-Flow, Eq. 5)."""

    granted_s: float
    """When it was computed."""
    stage_budget_s: float
    """t_SLO; negative when the workflow is already late."""
    stage_work_s: float
    """Predicted time of this stage, mean over instances."""
    remaining_work_s: float
    """This stage and all that follow, along the critical path; mean over instances."""
    deadline_s: float
    """The workflow's deadline, absolute."""

    @property
    def stage_deadline_s(self) -> float:
        """Absolute moment at which the stage's share runs out."""
        return self.granted_s + self.stage_budget_s


@dataclass(frozen=True, slots=True)
class Remaining:
    """How long a workflow still takes, as far as finished ones tell (LLMSched, section IV-B).

    Seconds from now at the fleet's present load, waiting not counted: 0 <= low <= high, and the
    mean between them.
    """

    mean_s: float
    """Expected, along the critical path."""
    low_s: float
    """5 % quantile."""
    high_s: float
    """95 % quantile."""
    work_s: float
    """Expected work of engines on all that is left, what runs side by side added up."""
    known: bool
    """An application model says so; else budgets do, and the interval may have no width."""


@dataclass(frozen=True, slots=True)
class StageShape:
    """Where a stage stands in its workflow's graph, as far as it is known."""

    depth: int
    """0 for the first stage."""
    height: int
    """Stages on the longest path after it."""
    children: int
    """Stages that wait for it."""
    tasks: int
    """Calls side by side, at least 1."""


class StageKind(StrEnum):
    """What a stage runs (LLMSched, section IV-A)."""

    LLM = "llm"
    """Calls."""
    REGULAR = "regular"
    """Something at the client: a gap between calls, or reported."""
    DYNAMIC = "dynamic"
    """What a planner before it decides, out of candidates."""


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One stage as declared or posted by a client; lengths in tokens where known."""

    name: str
    width: int = 1
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    after: tuple[str, ...] = ()
    """Stages that must have ended; empty: the one before it in the list."""
    kind: StageKind = StageKind.LLM
    candidates: tuple[str, ...] = ()
    """Stages that a dynamic one may be made of; others have none."""


@dataclass(frozen=True, slots=True)
class WorkflowDeclaration:
    """`POST /v1/workflows`."""

    workflow_id: WorkflowId
    application: str
    tenant: str = "default"
    slo_s: float | None = None
    stages: tuple[StagePlan, ...] = ()


@dataclass(frozen=True, slots=True)
class CallResult:
    """What the tracker learns of a call that has ended."""

    outcome: Outcome
    instance_id: InstanceId | None
    prompt_tokens: int
    output_tokens: int
    """Per sequence: what it took, however many ran side by side in this call."""
    cached_tokens: int = 0
    tool: str | None = None
    """What the answer asks for, "" where that has no name; `None`: no tool."""
    tpot_s: float | None = None
    """Time per output token of its instance, as loaded as it was while the call ran; `None`: it
    did not end well."""


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One ended call: metrics, traces, `explain`. Times on the coordinator's clock."""

    call_id: CallId
    placement: Placement
    tenant: str
    model: str
    outcome: Outcome
    instance_id: InstanceId | None
    """Of the last attempt."""
    arrived_s: float
    dispatched_s: float | None
    """Of the first attempt."""
    first_token_s: float | None
    ended_s: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    attempts: int
    predicted_output_tokens: float
    predicted_compute_s: float | None
    """t_comp at the chosen instance when it was dispatched."""
    urgency_s: float | None
    """Eq. 7 when it was dispatched: positive is already late."""
    budget: StageBudget | None
    call_class: CallClass
    slo: Slo
    streaming: bool
    token_lag_s: float | None
    """Worst delay of a token against its timeline, negative when all were early: token k (from 0)
    is due at arrival + SLO_TTFT + k SLO_TPOT (Tempo, Eq. 3). `None`: no such SLO, or not seen."""
    sequences: int = 1
    """That its output tokens are of, side by side."""
    tool: str | None = None
    """As in `CallResult`: what its answer asks for."""


@dataclass(frozen=True, slots=True)
class WorkflowRecord:
    """One ended workflow."""

    workflow_id: WorkflowId
    application: str
    tenant: str
    started_s: float
    ended_s: float
    """End of its last call (not the moment at which silence ended it)."""
    deadline_s: float
    calls: int
    stages: int
    outcome: Outcome
    """`OK` where its last calls succeeded; else why not."""

    @property
    def duration_s(self) -> float:
        """From the first call's arrival to the last call's end."""
        return self.ended_s - self.started_s

    @property
    def met_slo(self) -> bool:
        """Finished well and in time."""
        return self.outcome is Outcome.OK and self.ended_s <= self.deadline_s


@dataclass(frozen=True, slots=True)
class Quote:
    """What a declared workflow may expect."""

    feasible: bool
    earliest_finish_s: float
    """Seconds from now."""
    details: Mapping[str, float] = field(default_factory=dict)
