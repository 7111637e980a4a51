"""What became of a trace that was played, by a simulator or over HTTP; what reports are made of.

Times are seconds from the trace's beginning; tokens are as the engine counted them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dispatcher.core.types import Outcome


@dataclass(frozen=True, slots=True)
class PlayedCall:
    """One call, from the moment its client sent it until the client had all of it."""

    workflow_id: str
    call_id: str
    stage: str
    instance: str | None
    """Where its last attempt ran; `None`: nowhere, or not told."""
    outcome: Outcome
    sent_s: float
    ended_s: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    first_token_s: float | None = None
    """When it came; `None`: not seen (not streamed)."""
    queue_s: float | None = None
    """Wait before its first attempt; `None`: not told."""
    attempts: int = 1
    token_lag_s: float | None = None
    """Worst delay of a token against the timeline of the call's SLOs for its first token and the
    others, from its arrival on; negative: all were early (Tempo, Eq. 3). `None`: it has none, or it
    was not seen."""


@dataclass(frozen=True, slots=True)
class PlayedWorkflow:
    """One workflow. It ends with its last call, or with the first one that fails."""

    workflow_id: str
    application: str
    tenant: str
    arrival_s: float
    ended_s: float
    slo_s: float | None
    ok: bool
    """Every call of it ended well."""

    @property
    def latency_s(self) -> float:
        """From arrival to end."""
        return self.ended_s - self.arrival_s


@dataclass(frozen=True, slots=True)
class PlayedInstance:
    """One engine over the whole play."""

    busy_s: float = 0.0
    """Time in which it computed."""
    seat_s: float = 0.0
    """Seats in use, integrated over time."""
    seats: int = 0
    prefix_queries_tokens: int = 0
    prefix_hits_tokens: int = 0
    preemptions: int = 0
    offload_hits_tokens: int = 0
    """Prompt tokens found in host memory, beyond those that the prefix cache had."""
    swapped_in_tokens: int = 0
    """Tokens whose KV came back from host memory: those, and what preempted calls had computed."""
    swapped_out_tokens: int = 0
    """Tokens whose KV went there with a preempted call."""
    recomputed_tokens: int = 0
    """Tokens computed again after preemptions."""
    preserves_dropped: int = 0
    """Paused sessions that were to be kept and were given up for want of KV blocks."""


@dataclass(frozen=True, slots=True)
class Played:
    """A whole trace, played once."""

    workflows: Sequence[PlayedWorkflow]
    """In the trace's order."""
    calls: Sequence[PlayedCall]
    """In the order in which they ended."""
    makespan_s: float
    """From the first arrival until the last end."""
    instances: Mapping[str, PlayedInstance] = field(default_factory=dict)
    """By id; empty where the player cannot see them."""
