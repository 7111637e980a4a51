"""What a policy, a predictor and the workflow tracker must offer the coordinator.

All of it is called from one place, never concurrently, and answers at once: no port may wait.
Times are seconds on the coordinator's clock. "Ties" say what decides between equals; where
nothing is said, arrival order (`CallView.sequence`) and then instance order decide.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from dispatcher.core.events import Dispatched, Event
from dispatcher.core.types import (
    PLAIN_SEAT,
    AttemptId,
    CallId,
    CallSpec,
    InstanceId,
    InstanceSpec,
    Key,
    LengthEstimate,
    SeatTag,
    WorkflowId,
)
from dispatcher.core.views import CallView, FleetView, InstanceView
from dispatcher.core.workflow_types import (
    CallResult,
    Placement,
    Remaining,
    StageBudget,
    StagePlan,
    StageShape,
    WorkflowDeclaration,
    WorkflowRecord,
)

# --- policy -------------------------------------------------------------------------------------


class Routing(Protocol):
    """Which instance serves a call."""

    @property
    def late_binding(self) -> bool:
        """True: every call waits centrally and is bound only when a seat frees."""

    def route(
        self, call: CallView, candidates: Sequence[InstanceView], fleet: FleetView, now_s: float
    ) -> InstanceId | None:
        """Pick one of `candidates`, or `None` to hold the call centrally.

        `candidates` is never empty, in fleet order, and holds only instances that are available
        and can serve the call. Early binding: asked on arrival, and again after every ended attempt
        for a call that got `None`. Late binding: asked when seats are free, with just the
        candidates that have one.
        """


class CallQueue(Protocol):
    """The calls that wait at one place, owned by the coordinator, built by an `Ordering`."""

    def push(self, call: CallView, now_s: float) -> None:
        """Add a call; it must not be here yet."""

    def remove(self, call_id: CallId) -> None:
        """Take a call out. Raises `KeyError` when it is not here."""

    def refresh(self, call: CallView, now_s: float) -> None:
        """The call's estimate or budget has changed: order it anew."""

    def select(self, seat: SeatTag, now_s: float) -> CallView | None:
        """The next call for a seat of this kind, left in the queue; `None`: none should go."""

    def rescore(self, now_s: float, limit: int) -> bool:
        """Re-order at most `limit` calls whose keys move with time; True when more are left."""

    def __len__(self) -> int:
        """Calls waiting."""

    def __iter__(self) -> Iterator[CallView]:
        """All of them, in no promised order."""


class Ordering(Protocol):
    """Which call goes next."""

    def queue(self, instance: InstanceView | None, fleet: FleetView) -> CallQueue:
        """An empty queue for one instance, or (`None`) for calls held centrally."""

    def key(
        self, call: CallView, instance: InstanceView | None, fleet: FleetView, now_s: float
    ) -> Key:
        """Where the call stands, smaller first; what `/admin/queues` shows.

        Between held calls of different needs it decides alone which goes first, unless the policy
        has a `held_key`.
        """

    def latest_start_s(
        self, call: CallView, instance: InstanceView, fleet: FleetView, now_s: float
    ) -> float | None:
        """Moment by which the call should start; becomes the engine's priority. `None`: FCFS."""


@dataclass(frozen=True, slots=True)
class Admit:
    """The call may go out now, on a seat of this kind."""

    seat: SeatTag = PLAIN_SEAT


@dataclass(frozen=True, slots=True)
class Defer:
    """Not yet: ask again at that moment, or earlier when a call comes or an attempt ends there."""

    until_s: float | None = None


@dataclass(frozen=True, slots=True)
class TokenRoom:
    """What calls in flight may keep of an instance's KV cache; tokens, at least 0."""

    budget_tokens: float
    used_tokens: float
    """Of the budget, as the policy counts."""
    reserved_tokens: float
    """Kept free for sessions that are away."""


class Admission(Protocol):
    """How much an instance may hold in flight."""

    def open_seats(self, instance: InstanceView, now_s: float) -> Sequence[SeatTag]:
        """Kinds of seats that are free, in the order in which to fill them; empty: none."""

    def admit(
        self, call: CallView, seat: SeatTag, instance: InstanceView, now_s: float
    ) -> Admit | Defer:
        """Whether this call, chosen for that seat, may go out now."""

    def token_room(self, instance: InstanceView, now_s: float) -> TokenRoom | None:
        """Its limit in tokens, for explanations; `None`: there is none."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """A held call, and where it is to run."""

    call_id: CallId
    instance_id: InstanceId


class Planner(Protocol):
    """A global order over what is held; for policies that bind late."""

    def plan(
        self,
        held: Sequence[CallView],
        free_seats: Mapping[InstanceId, int],
        fleet: FleetView,
        now_s: float,
    ) -> Sequence[Assignment]:
        """Who goes where, most pressing first; it may be longer than there are free seats.

        Kept until a call arrives, a stage ends or the fleet changes, so that a coin is tossed
        once. An assignment whose instance has no seat free waits for it; one whose call is gone
        is dropped.
        """


class Stealing(Protocol):
    """Lets an instance with a free seat and an empty queue take a call from another queue."""

    def steal(self, instance: InstanceView, fleet: FleetView, now_s: float) -> CallId | None:
        """A call queued elsewhere that fits this instance; `None`: leave things as they are."""


class Preemption(Protocol):
    """Stops attempts so that their calls go on later."""

    def preempt(self, fleet: FleetView, now_s: float) -> Sequence[AttemptId]:
        """Attempts to stop now; asked on every policy tick."""


class Tunable(Protocol):
    """A policy part with a parameter that is learned while it runs."""

    def tune(self, name: str, value: float) -> bool:
        """Take a new value; False when the parameter is not its own."""


class Observer(Protocol):
    """State that must be warm when a policy is switched in (counters, attained service)."""

    def observe(self, event: Event | Dispatched, fleet: FleetView, now_s: float) -> None:
        """Sees every event whatever policy is active, before the seats it frees are filled.

        Then `Dispatched` for each call that goes out, before the next one is selected.
        """


HeldKey = Callable[[CallView, SeatTag, FleetView, float], Key]
"""Where a held call stands for a kind of seat among those of other needs, now; smaller first."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A named set of ports with parameters. `None`: the policy has no such part."""

    name: str
    routing: Routing
    ordering: Ordering
    admission: Admission
    params: Mapping[str, object] = field(default_factory=dict)
    planner: Planner | None = None
    stealing: Stealing | None = None
    preemption: Preemption | None = None
    tunable: Tunable | None = None
    held_key: HeldKey | None = None
    """Where seats of some kinds are not for the first by `Ordering.key`."""
    alpha: Callable[[], float] | None = None
    """The weight that `headway_alpha` shows (HexGen-Flow, Eq. 4), where the policy has one."""
    tick_s: float | None = None
    """How often preemption and rescoring are asked; `None`: never."""
    reads_gauges: bool = False
    """Whether it decides by what engines say of themselves (`InstanceView.gauges`)."""


# --- predictors ---------------------------------------------------------------------------------


class LengthPredictor(Protocol):
    """Output length."""

    def predict(self, spec: CallSpec) -> LengthEstimate:
        """At once, from what is learned; pure: the same state gives the same answer."""

    def learn(self, spec: CallSpec, output_tokens: int) -> None:
        """One call has ended well with that many tokens per sequence."""


@dataclass(frozen=True, slots=True)
class AttemptTiming:
    """What one attempt taught about its instance. Times are seconds, counts are tokens."""

    instance_id: InstanceId
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    ttft_s: float | None
    """Dispatch to first token; `None` when the answer was not streamed."""
    decode_s: float | None
    """First token to end."""
    total_s: float
    """Dispatch to end."""
    mean_running: float
    """Calls in flight there, itself included, averaged over its life; at least 1."""
    mean_resident_tokens: float
    """Context tokens in flight there, averaged over its life."""


class CostModel(Protocol):
    """Time on an instance: linear prefill, linear TPOT."""

    def add_instance(self, spec: InstanceSpec) -> None:
        """Start from its profile; what was learned under the same id is kept."""

    def remove_instance(self, instance_id: InstanceId) -> None:
        """It has left the fleet; what was learned of it may be kept a while."""

    def prefill_s(self, instance_id: InstanceId, uncached_tokens: float) -> float:
        """Time to first token without queueing; above 0."""

    def tpot_s(self, instance_id: InstanceId, running: float, resident_tokens: float) -> float:
        """Time per output token with so many calls running, so many tokens resident; above 0."""

    def learn(self, timing: AttemptTiming) -> None:
        """One attempt has ended well."""


@runtime_checkable
class Learned(Protocol):
    """Something that learns, and can be put away and taken up again."""

    def dump(self) -> Mapping[str, object]:
        """What was learned, as plain JSON values."""

    def load(self, state: Mapping[str, object]) -> None:
        """Replace what was learned by what `dump` gave. Raises `KeyError`, `ValueError`."""


# --- workflows ----------------------------------------------------------------------------------

WorkSeconds = Callable[[float, float], float]
"""Seconds for (prompt tokens, output tokens), averaged over the fleet (Eq. 6)."""


@dataclass(frozen=True, slots=True)
class TrackerUpdate:
    """What an event meant to the workflows."""

    rebudget: tuple[CallId, ...] = ()
    """Live calls whose budget should be computed anew."""
    ended: tuple[WorkflowRecord, ...] = ()
    """Workflows that are over."""
    stage_ended: bool = False


class WorkflowTracker(Protocol):
    """Knows every live workflow: stages, deadlines, budgets, templates."""

    def call_arrived(self, spec: CallSpec, now_s: float) -> Placement:
        """Put a call into its workflow, made on first sight."""

    def budget(self, call_id: CallId, work_s: WorkSeconds, now_s: float) -> StageBudget:
        """The call's stage's share of the remaining time, as of now."""

    def call_dispatched(
        self, call_id: CallId, instance_id: InstanceId, urgency_s: float, now_s: float
    ) -> None:
        """An attempt went out (`explain` shows where and how urgent)."""

    def call_ended(self, call_id: CallId, result: CallResult, now_s: float) -> TrackerUpdate:
        """A call is over, well or not."""

    def declare(self, declaration: WorkflowDeclaration, now_s: float) -> TrackerUpdate:
        """A workflow announced before its first call; a second time updates it."""

    def stage_reported(
        self, workflow_id: WorkflowId, stage: str, duration_s: float, now_s: float
    ) -> TrackerUpdate:
        """A stage that ran at the client has ended; unknown workflows are ignored."""

    def plan_posted(
        self, workflow_id: WorkflowId, stages: Sequence[StagePlan], now_s: float
    ) -> TrackerUpdate:
        """The rest of the workflow is known now; unknown workflows are ignored."""

    def finish(self, workflow_id: WorkflowId, now_s: float, *, cancelled: bool) -> TrackerUpdate:
        """Nothing more will come; a workflow with live calls ends with the last of them."""

    def live_calls(self, workflow_id: WorkflowId) -> Collection[CallId]:
        """Its calls that have not ended, in order of arrival."""

    def expire(self, now_s: float) -> TrackerUpdate:
        """End workflows that have been silent too long."""

    def next_expiry_s(self) -> float | None:
        """When `expire` has something to do; `None`: nothing is alive."""

    def remaining_work_s(self, workflow_id: WorkflowId, work_s: WorkSeconds) -> float:
        """Predicted work left along the critical path; 0 when unknown."""

    def remaining(self, workflow_id: WorkflowId, work_s: WorkSeconds) -> Remaining | None:
        """How long it still takes, given what of it has ended; `None`: it is not alive."""

    def uncertainty(self, call_id: CallId) -> float:
        """R(X) of the call's stage: what its end would tell of later ones, in bit x seconds.

        At least 0; 0 where no model speaks, or the call is not live (LLMSched, Eq. 6).
        """

    def stage_shape(self, call_id: CallId) -> StageShape | None:
        """Where the call's stage stands in its workflow's graph; `None`: the call is not live."""

    def application_mean_s(self, application: str) -> float | None:
        """Mean duration of its workflows that finished well; `None`: none has."""

    def gap_s(self, tool: str | None, p: float) -> float | None:
        """Seconds that a tool stays within with probability `p`; `None`: none was ever seen.

        `None` as tool, or "": one that nobody named.
        """

    def explain(self, workflow_id: WorkflowId) -> Mapping[str, object] | None:
        """Everything a user would ask, JSON-ready; `None` when unknown or forgotten."""

    def workflows(self) -> Sequence[Mapping[str, object]]:
        """Live workflows, oldest first, JSON-ready, one line each."""
