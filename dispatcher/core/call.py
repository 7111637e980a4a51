"""The coordinator's own record of a call and of its attempts. Policies see them as views."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from dispatcher.core.types import (
    AttemptId,
    CallId,
    CallSpec,
    InstanceId,
    LengthEstimate,
    SeatTag,
)
from dispatcher.core.workflow_types import Placement, StageBudget

if TYPE_CHECKING:
    from dispatcher.core.instance import Instance

_REFINE_TOKENS = 50
"""Per sequence; Tempo, section 4.1, settled."""


class Place(StrEnum):
    """Where a call is; always exactly one of these."""

    MOVING = "moving"
    """Waiting to be placed anew (a policy switch, a lost instance)."""
    HELD = "held"
    QUEUED = "queued"
    IN_FLIGHT = "in_flight"
    ENDED = "ended"


class Lane(NamedTuple):
    """Held calls that the same instances can serve, and prefer, share a queue."""

    candidates: frozenset[InstanceId]
    avoid: frozenset[InstanceId]


@dataclass(slots=True, eq=False)
class Call:
    """A call from arrival to end."""

    spec: CallSpec
    sequence: int
    arrived_s: float
    enqueued_s: float
    #: as predicted, before its tokens began to tell; `length` is refined as they come
    first_length: LengthEstimate
    length: LengthEstimate
    placement: Placement
    budget: StageBudget
    place: Place = Place.MOVING
    #: where it is queued or in flight
    instance: Instance | None = None
    #: instances that can serve it, up or not; as of its last placement
    candidates: frozenset[InstanceId] = frozenset()
    avoid: set[InstanceId] = field(default_factory=set)
    generated_tokens: int = 0
    #: output that those instances have room for
    room_tokens: float = float("inf")
    #: per sequence, when `length` was last refined
    refined_at_tokens: float = 0.0
    attempts_made: int = 0
    failures: int = 0
    #: as it was when it was last held
    lane: Lane | None = None
    attempt: Attempt | None = None
    #: where its last attempt went
    served_by: InstanceId | None = None
    cancelled: bool = False
    #: what it adds to its instance's queued load
    queued_prefill_s: float = 0.0
    queued_output_tokens: float = 0.0
    first_dispatched_s: float | None = None
    first_token_s: float | None = None
    token_lag_s: float | None = None
    predicted_compute_s: float | None = None
    #: time per output token at its last instance, at the mean load while it ran there
    ran_tpot_s: float | None = None
    urgency_s: float | None = None
    backlog_s: float | None = None

    @property
    def call_id(self) -> CallId:
        """Short for `spec.call_id`."""
        return self.spec.call_id

    def begin_again(self) -> None:
        """What it had generated reached nobody: it is lost, and what it said with it."""
        self.generated_tokens = 0
        self.first_token_s = None
        self.token_lag_s = None
        self.estimate(self.first_length)

    def estimate(self, length: LengthEstimate, room_tokens: float | None = None) -> None:
        """Take an estimate that knows nothing of what has been generated, and the room as it is."""
        if room_tokens is not None:
            self.room_tokens = room_tokens
        self.first_length = self.length = length.capped(self.room_tokens)
        self.refined_at_tokens = 0.0
        self.refine()

    def refine(self) -> None:
        """What has been generated says how long it may still become, every so many tokens."""
        done = self.generated_tokens / self.spec.seats
        if done >= self.refined_at_tokens + _REFINE_TOKENS:
            self.refined_at_tokens = done
            limit = self.room_tokens
            if self.spec.max_tokens is not None:
                limit = min(limit, self.spec.max_tokens)
            self.length = self.first_length.longer_than(done).capped(limit)

    @property
    def remaining_tokens(self) -> float:
        """max(1, L_hat - g) per sequence (what is left of L_hat)."""
        return max(1.0, self.length.expected_tokens - self.generated_tokens / self.spec.seats)


@dataclass(slots=True, eq=False)
class Attempt:
    """One try of a call at one instance, from `Dispatch` to `AttemptEnded`."""

    attempt_id: AttemptId
    call: Call
    instance: Instance
    seat: SeatTag
    dispatched_s: float
    #: tokens that earlier attempts had produced
    resumed_tokens: int = 0
    first_token_s: float | None = None
    output_tokens: int = 0
    #: per sequence; guessed from the time it took, where nothing is seen before the end
    assumed_tokens: float = 0.0
    preempting: bool = False
    aborting: bool = False
    #: what it adds to its instance's load
    pending_prefill_s: float = 0.0
    remaining_tokens: float = 0.0
    context_tokens: int = 0
    #: of one prompt, what its session was thought to have left there when it went out
    left_tokens: float = 0.0
    #: of all its prompts, what the prefix cache was expected to hold when it went out
    expected_cached_tokens: float = 0.0
    #: the instance's integrals when it went out (calls x seconds, tokens x seconds)
    running_integral: float = 0.0
    resident_integral: float = 0.0

    @property
    def stopping(self) -> bool:
        """It has been told to end, preempted or given up, and has not ended yet."""
        return self.preempting or self.aborting
