"""The words of a trace. Times are seconds from its beginning, lengths are tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dispatcher.core.types import CallClass


class PrefixPart(NamedTuple):
    """What a prompt begins with, up to a token, and shares with prompts of the same content."""

    content: str
    """Names the text up to `end_tokens`, all that comes before included."""
    end_tokens: int
    """Tokens from the beginning of the prompt, at least 1."""


@dataclass(frozen=True, slots=True)
class TraceCall:
    """One call of a workflow, as it would run anywhere.

    Raises:
        ValueError: A number is out of range, or prefix parts do not ascend.
    """

    call_id: str
    """Unique within its workflow."""
    stage: str
    prompt_tokens: int
    """At least 1."""
    output_tokens: int
    """At least 1. The truth: no scheduler may look at it before the call has ended."""
    parents: tuple[str, ...] = ()
    """Earlier calls of its workflow that must have ended; none: it may begin with the workflow."""
    gap_s: float = 0.0
    """From the end of its last parent (or the workflow's beginning) until it is sent: a tool, or
    the client's own work."""
    tool: str | None = None
    """What ran in the gap, where it has a name."""
    prefix: tuple[PrefixPart, ...] = ()
    """By ascending `end_tokens`. The last part may reach into the output: a later prompt that
    goes on from this answer finds it in a prefix cache."""
    streaming: bool = False
    call_class: CallClass = CallClass.COLLECTIVE
    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1 or self.output_tokens < 1:
            raise ValueError(
                f"call {self.call_id}: prompt_tokens and output_tokens must be at least 1, not"
                f" {self.prompt_tokens} and {self.output_tokens}"
            )
        if not 0.0 <= self.gap_s < float("inf"):
            raise ValueError(f"call {self.call_id}: gap_s must be at least 0, not {self.gap_s}")
        before = 0
        for part in self.prefix:
            if not before < part.end_tokens <= self.prompt_tokens + self.output_tokens:
                raise ValueError(
                    f"call {self.call_id}: prefix {part.content!r} ends at {part.end_tokens}"
                    f" tokens; expected more than {before} and at most prompt and output together"
                )
            before = part.end_tokens


@dataclass(frozen=True, slots=True)
class TraceWorkflow:
    """One job from its arrival on.

    Raises:
        ValueError: It has no call, two calls of one id, or a parent that no earlier call is.
    """

    workflow_id: str
    """Unique within its trace."""
    application: str
    arrival_s: float
    calls: tuple[TraceCall, ...]
    """Every call after its parents; at least one."""
    slo_s: float | None = None
    """End to end, from arrival; `None`: none is asked for."""
    tenant: str = "default"
    model: str | None = None
    """`None`: whichever the fleet serves."""

    def __post_init__(self) -> None:
        if not self.calls:
            raise ValueError(f"workflow {self.workflow_id}: expected at least one call")
        if not 0.0 <= self.arrival_s < float("inf"):
            raise ValueError(
                f"workflow {self.workflow_id}: arrival_s must be at least 0, not {self.arrival_s}"
            )
        if self.slo_s is not None and not 0.0 < self.slo_s < float("inf"):
            raise ValueError(
                f"workflow {self.workflow_id}: slo_s must be above 0, not {self.slo_s}"
            )
        known: set[str] = set()
        for call in self.calls:
            if call.call_id in known:
                raise ValueError(f"workflow {self.workflow_id}: two calls are {call.call_id!r}")
            unknown = [parent for parent in call.parents if parent not in known]
            if unknown:
                raise ValueError(
                    f"workflow {self.workflow_id}: call {call.call_id!r} follows {unknown[0]!r},"
                    " which is no earlier call of it"
                )
            known.add(call.call_id)


Trace = Sequence[TraceWorkflow]
"""By ascending `arrival_s`."""
