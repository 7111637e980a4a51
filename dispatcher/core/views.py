"""What policies may see. Read-only: the coordinator's own records, behind these Protocols."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from dispatcher.core.types import (
    AttemptId,
    CallId,
    CallSpec,
    EngineGauges,
    InstanceId,
    InstanceSpec,
    LengthEstimate,
    SeatTag,
    WorkflowId,
)
from dispatcher.core.workflow_types import Placement, Remaining, StageBudget, StageShape


class CallView(Protocol):
    """A call that has not ended."""

    @property
    def spec(self) -> CallSpec:
        """What was known on arrival."""

    @property
    def sequence(self) -> int:
        """Arrival order, unique; what breaks ties."""

    @property
    def arrived_s(self) -> float:
        """When the client began to wait."""

    @property
    def enqueued_s(self) -> float:
        """When it entered the place where it waits now."""

    @property
    def length(self) -> LengthEstimate:
        """Latest estimate of its output."""

    @property
    def generated_tokens(self) -> int:
        """Output tokens so far, earlier attempts included."""

    @property
    def placement(self) -> Placement:
        """Where it stands in its workflow."""

    @property
    def budget(self) -> StageBudget:
        """Its stage's share of the remaining time."""

    @property
    def avoid(self) -> Collection[InstanceId]:
        """Instances where an attempt of it has failed."""


class AttemptView(Protocol):
    """One try of a call at one instance, in flight."""

    @property
    def attempt_id(self) -> AttemptId:
        """Unique for the life of the coordinator."""

    @property
    def call(self) -> CallView:
        """What it tries."""

    @property
    def seat(self) -> SeatTag:
        """The kind of seat it sits on."""

    @property
    def dispatched_s(self) -> float:
        """When it went out."""

    @property
    def first_token_s(self) -> float | None:
        """When its first token came."""

    @property
    def output_tokens(self) -> int:
        """Tokens of this attempt so far."""

    @property
    def stopping(self) -> bool:
        """It has been told to end, preempted or given up, and has not ended yet."""


class InstanceView(Protocol):
    """One engine and what the coordinator has put there."""

    @property
    def spec(self) -> InstanceSpec:
        """What it is."""

    @property
    def available(self) -> bool:
        """Up and not draining."""

    @property
    def seats(self) -> int:
        """Sequences it may hold in flight; at least 1."""

    @property
    def seats_in_use(self) -> int:
        """Sequences in flight, at least 0; may pass `seats` just after seats shrank."""

    @property
    def in_flight(self) -> Mapping[AttemptId, AttemptView]:
        """Attempts that are out, oldest first."""

    @property
    def queued(self) -> int:
        """Calls waiting in its own queue."""

    @property
    def in_flight_tokens(self) -> int:
        """Context tokens of what is out: prompts and what they have generated so far."""

    @property
    def gauges(self) -> EngineGauges:
        """The engine's own word, as of the last scrape."""


class SessionView(Protocol):
    """A workflow between two of its calls, or in one: what the last one that ended well left."""

    @property
    def workflow_id(self) -> WorkflowId:
        """Whose it is."""

    @property
    def instance_id(self) -> InstanceId:
        """Where that call ran."""

    @property
    def context_tokens(self) -> int:
        """Its prompt and answer: what the next call probably goes on from."""

    @property
    def ended_s(self) -> float:
        """When it ended."""

    @property
    def tool(self) -> str | None:
        """What it asked for, "" where that has no name; `None`: no tool."""

    @property
    def gap_s(self) -> float | None:
        """Median time that the tool takes; `None`: unknown, or no tool."""

    @property
    def ttl_s(self) -> float | None:
        """P90 of the same, from `ended_s` on."""

    @property
    def live(self) -> int:
        """Calls of the workflow that generate and have not ended."""


class FleetView(Protocol):
    """All instances, and what the cost model says of a call at each."""

    @property
    def instances(self) -> Mapping[InstanceId, InstanceView]:
        """Every instance, up or not, in the order in which they joined."""

    def fits(self, call: CallView, instance: InstanceView) -> bool:
        """Whether the instance can serve the call (model, task, context, modality), up or not."""

    def compute_s(self, call: CallView, instance: InstanceView) -> float:
        """t_comp: prefill and decode of the call there at its present load (Eq. 2)."""

    def prefill_s(self, call: CallView, instance: InstanceView) -> float:
        """t_pre of one prompt of the call there, what it has generated and caches included."""

    def mean_prefill_s(self, call: CallView) -> float:
        """t_pre of one prompt of the call, averaged over the instances that fit it."""

    def prefill_ahead_s(self, instance: InstanceView) -> float:
        """Prefill that is queued or out there and has not been seen done; 0 when there is none.

        One after another, and the fixed time of a prefill counted once: an engine computes several
        prompts in one iteration.
        """

    def prompt_s(self, tokens: float, instance: InstanceView) -> float:
        """t_pre of so many prompt tokens there, none of them cached; above 0."""

    def cached_tokens(self, call: CallView, instance: InstanceView) -> float:
        """Tokens of one prompt of the call that the instance's prefix cache should hold."""

    def spared_s(self, call: CallView, instance: InstanceView) -> float:
        """Prefill of one prompt that the instance's prefix cache should spare."""

    def session(self, workflow_id: WorkflowId) -> SessionView | None:
        """What the workflow did last; `None`: none of its calls has ended well, or forgotten."""

    def paused(self, instance: InstanceView) -> Sequence[SessionView]:
        """Sessions that wait for a tool and will soon go on from what they left there.

        Longest paused first, a bounded number. Their last call asked for a tool, none of their
        calls is live, and the tool's P90 has not passed.
        """

    def paused_tokens(self, instance: InstanceView) -> float:
        """Context of all `paused` there together; O(1)."""

    def gap_s(self, tool: str | None, p: float) -> float | None:
        """Seconds that the tool stays within with probability `p`; `None`: none was seen.

        `None` as tool: of tools that nobody named.
        """

    def tpot_s(self, instance: InstanceView) -> float:
        """Time per output token at the load the instance is about to have; above 0."""

    def mean_compute_s(self, call: CallView) -> float:
        """t_comp averaged over the instances that fit the call (Eq. 6)."""

    def backlog_s(self, instance: InstanceView) -> float:
        """W: seconds until what is queued and in flight there would be done; 0 when idle."""

    def remaining_s(self, attempt: AttemptView, instance: InstanceView) -> float:
        """Predicted time until an attempt that is out there ends."""

    def live_calls(self, workflow_id: WorkflowId, most: int | None = None) -> Sequence[CallView]:
        """Calls of a workflow that have not ended, in order of arrival; at most so many."""

    def call(self, call_id: CallId) -> CallView | None:
        """A call that has not ended."""

    def remaining(self, workflow_id: WorkflowId) -> Remaining | None:
        """How long a workflow still takes at the fleet's present load; `None`: not alive."""

    def uncertainty(self, call: CallView) -> float:
        """R(X) of the call's stage, bit x seconds; 0 where no application model speaks."""

    def stage_shape(self, call: CallView) -> StageShape | None:
        """Where the call's stage stands in its workflow's graph; `None`: the call has ended."""

    def application_mean_s(self, application: str) -> float | None:
        """Mean duration of the application's workflows that finished well; `None`: none has."""
