"""What became of one relayed attempt."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dispatcher.core.types import Usage


class Finish(StrEnum):
    """How the engine's answer ended; a small set, fit for a metric label."""

    COMPLETE = "complete"
    CUT_SHORT = "cut_short"
    """The connection closed, or the stream ended, before its end mark."""
    ENGINE_ERROR = "engine_error"
    """The engine said itself, inside a stream, that it failed."""
    REFUSED = "refused"
    """The engine said, inside a stream, that the request is at fault: no engine would take it."""
    STALLED = "stalled"
    """Nothing came for longer than the caller allows."""
    CLIENT_GONE = "client_gone"


_ENGINES_FAULT = frozenset({Finish.CUT_SHORT, Finish.ENGINE_ERROR, Finish.STALLED})


@dataclass(slots=True)
class RelayOutcome:
    """The account of one attempt; times are of the injected clock, in seconds."""

    status: int
    """The engine's HTTP status."""
    finish: Finish = Finish.COMPLETE
    first_byte_sent: bool = False
    """Whether the client has been sent anything; if not, another engine may be tried."""
    response_complete: bool = False
    """Whether the client's response was ended; if not, and `first_byte_sent`, the caller must."""
    events: int = 0
    """Server-sent events that came from the engine, taken-out ones included."""
    output_tokens: int = 0
    """Events that carried output, as an estimate of tokens; `usage` is exact."""
    usage: Usage | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    last_tokens: bytes = b""
    """A stream's last token event, and what was read with it."""
    error: str = ""
    """For people: what went wrong."""

    @property
    def retryable(self) -> bool:
        """Whether the attempt failed and the client has seen nothing of it."""
        return not self.first_byte_sent and self.finish in _ENGINES_FAULT

    def learn_usage(self, found: Usage | None) -> None:
        """An event told of usage; told in parts, each is a running total."""
        if found is not None:
            self.usage = found if self.usage is None else larger_usage(found, self.usage)


def larger_usage(one: Usage, other: Usage) -> Usage:
    """Put together what was told in parts, each a running total."""
    return Usage(
        prompt_tokens=max(one.prompt_tokens, other.prompt_tokens),
        output_tokens=max(one.output_tokens, other.output_tokens),
        cached_tokens=max(one.cached_tokens, other.cached_tokens),
    )
