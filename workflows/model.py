"""A workflow as the tracker keeps it: calls in visits to stages. Times are absolute seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from dispatcher.core.types import CallId, InstanceId, Outcome, WorkflowId
from dispatcher.core.workflow_types import StageBudget
from workflows.graph_match import Match
from workflows.names import visit_name
from workflows.plan import Plan

if TYPE_CHECKING:
    from workflows.resolving import Resolution
    from workflows.standing import Standing


class State(StrEnum):
    """Where a workflow stands."""

    LIVE = "live"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


@dataclass(slots=True)
class Stage:
    """Calls under one name."""

    name: str
    depth: int
    visits: int = 0
    open: Visit | None = None
    done: int = 0
    """Visits that ended with a call that succeeded, or were reported: a plan goes on after them."""


@dataclass(slots=True)
class Visit:
    """One pass through a stage: calls side by side. A stage that repeats is visited again."""

    stage: Stage
    number: int
    """1 for the first visit."""
    level: int
    """One more than the deepest level on which a visit had ended when this one began."""
    started_s: float
    declared_width: int = 0
    """Calls that the client announced; 0: it did not."""
    members: int = 0
    """Calls that arrived, one sent again counted once."""
    live: int = 0
    ended: int = 0
    succeeded: int = 0
    prompt_tokens: int = 0
    """Of the longest member."""
    output_tokens: int = 0
    """Of the longest member that has ended."""
    asked_tokens: int = 0
    """Prompts of all members together, as estimated on arrival."""
    total_input_tokens: int = 0
    """Prompts of all members that succeeded together, as measured."""
    total_output_tokens: int = 0
    """Of all members that succeeded together."""
    max_tokens: int | None = 0
    """Most that a member may put out; `None`: one of them has no limit."""
    exact_output_tokens: int = 0
    """Of members whose output length is fixed in advance."""
    all_exact: bool = True
    """So far every member's is."""
    ended_s: float | None = None
    at_client: bool = False
    """A tool or a join that the client ran and reported."""
    counted: bool = False
    """It is one of the stage's visits that are done."""
    budget_version: int = -1
    granted_s: float = 0.0
    matches: Sequence[Match] = ()
    """Finished workflows that its latest budget is taken from, most alike first."""
    matched_for: tuple[object, ...] = ()
    """What they were looked up for."""
    time_share: float | None = None
    """Its part of the remaining time, as of its latest budget."""
    gap_s: float | None = None
    """Silence before its first call, where none ran then."""
    tool: str | None = None
    """What filled it: as the client says, else as the answer before it asked for."""
    predicted_s: float | None = None
    """Stage work when its first budget was granted."""
    budget_s: float | None = None
    steps: float = 0.0
    """Time that its longest member ran, in output tokens at the pace of its instance then."""
    work_steps: float = 0.0
    """The same of all its members together."""

    @property
    def name(self) -> str:
        """What it is called in plans and models."""
        return visit_name(self.stage.name, self.number)

    @property
    def complete(self) -> bool:
        """Nothing of it runs, and nothing that was announced is missing."""
        return self.live == 0 and self.ended >= self.declared_width


@dataclass(slots=True)
class Call:
    """One call of a workflow."""

    call_id: CallId
    visit: Visit
    prompt_tokens: int
    final: bool
    dedupe_key: str | None
    arrived_s: float
    asked_tokens: int = 0
    """Its prompt as estimated on arrival."""
    superseded: bool = False
    """The same call was sent again: this one no longer counts."""
    attempts: int = 0
    dispatched_s: float | None = None
    instance_id: InstanceId | None = None
    urgency_s: float | None = None
    ended_s: float | None = None
    outcome: Outcome | None = None
    output_tokens: int = 0


@dataclass(slots=True)
class Workflow:
    """Everything the tracker knows of one workflow."""

    workflow_id: WorkflowId
    application: str
    tenant: str
    slo_s: float
    idle_s: float
    started_s: float
    calls: deque[Call]
    """Remembered for `explain`, oldest first."""
    visits: deque[Visit]
    """In order of their beginning."""
    state: State = State.LIVE
    stages: dict[str, Stage] = field(default_factory=dict)
    live: dict[CallId, Call] = field(default_factory=dict)
    by_key: dict[str, Call] = field(default_factory=dict)
    plan: Plan | None = None
    deepest_depth: int = -1
    """Of calls that have ended."""
    deepest_level: int = -1
    """Of visits of which a call has ended."""
    calls_total: int = 0
    version: int = 0
    """Grows when what remains has changed, so that budgets are granted anew."""
    closing: State | None = None
    """How it ends once no call is live."""
    last_ended_s: float | None = None
    last_outcome: Outcome | None = None
    final_outcome: Outcome | None = None
    remaining_work_s: float | None = None
    """As of the latest budget."""
    tool_gap_s: float = 0.0
    """All tool gaps together."""
    asked_tool: str | None = None
    """What answers have asked for since a call last arrived, where that has a name."""
    ended_s: float | None = None
    declared: bool = False
    """Its client announced it: it waits for calls, however long until silence ends it."""
    ran: bool = False
    """Some of it was more than turned away."""
    resolution: Resolution | None = None
    """Its declared stages, and what planners have put into the dynamic ones; `None`: there are
    none, and a plan is all that follows."""
    planned: tuple[str, ...] | None = None
    """All stages as of the plan that its client posted last, none before what it waits for."""
    planned_edges: tuple[tuple[str, str], ...] = ()
    """Which of them wait for which."""
    standing: Standing | None = None
    """Where it stands in its application's model, as of the latest question."""
    restored: bool = False
    """Its first stages were seen before a restart: it teaches templates nothing."""

    @property
    def deadline_s(self) -> float:
        """Absolute moment at which its SLO runs out."""
        return self.started_s + self.slo_s

    @property
    def outcome(self) -> Outcome:
        """`OK` where its last calls succeeded; `CANCELLED` where nothing ever ran."""
        if self.closing is State.CANCELLED:
            return Outcome.CANCELLED
        return self.final_outcome or self.last_outcome or Outcome.CANCELLED

    def remember(self, call: Call) -> None:
        """Count a call and keep it for `explain`; the oldest is forgotten beyond the bound."""
        self.calls_total += 1
        if len(self.calls) == self.calls.maxlen:
            oldest = self.calls[0]
            if oldest.dedupe_key is not None and self.by_key.get(oldest.dedupe_key) is oldest:
                del self.by_key[oldest.dedupe_key]
        self.calls.append(call)
        if call.dedupe_key is not None:
            self.by_key[call.dedupe_key] = call


def dispatched_s(workflow: Workflow) -> dict[int, float]:
    """When the first of a visit's live calls was dispatched, by the visit's `id`."""
    found: dict[int, float] = {}
    for call in workflow.live.values():
        if call.dispatched_s is not None:
            began_s = found.get(id(call.visit), call.dispatched_s)
            found[id(call.visit)] = min(began_s, call.dispatched_s)
    return found


def new_budget(
    workflow: Workflow, visit: Visit, stage_work_s: float, remaining_work_s: float, budget_s: float
) -> StageBudget:
    """The record of a budget that has just been computed, also kept for `explain`."""
    if visit.predicted_s is None:
        visit.predicted_s = stage_work_s
    visit.budget_s = budget_s
    workflow.remaining_work_s = remaining_work_s
    return StageBudget(
        granted_s=visit.granted_s,
        stage_budget_s=budget_s,
        stage_work_s=stage_work_s,
        remaining_work_s=remaining_work_s,
        deadline_s=workflow.deadline_s,
    )
