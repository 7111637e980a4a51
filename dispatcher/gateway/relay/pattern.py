"""How a stream's token events look, learned from one of them."""

from __future__ import annotations

from typing import NamedTuple

from dispatcher.gateway.relay.dialects import Dialect

#: No event starts with it, nor has it inside: the value while no prefix has been learned.
NO_PREFIX = b"\x00"


class TokenPattern(NamedTuple):
    """What tells a token event without taking it apart."""

    prefix: bytes
    """How it starts; `NO_PREFIX` where none can be told by it."""
    end: bytes
    """How it ends."""
    joint: bytes
    """What lies between two of them: an end and a prefix."""
    lines: int
    """Line feeds it has."""
    hazard: bytes
    """What makes it worth a second look although it starts as a token event does."""

    def count(self, data: bytes) -> int:
        """How many token events `data` is, each whole; 0 if it is not. It starts with `prefix`."""
        events, more_lines = divmod(data.count(b"\n"), self.lines)
        return 0 if more_lines or data.count(self.joint) != events - 1 else events


#: Before the first token.
NOTHING_LEARNED = TokenPattern(NO_PREFIX, b"\n\n", NO_PREFIX, 2, NO_PREFIX)


def learn_pattern(dialect: Dialect, event: bytes, known: bytes) -> TokenPattern:
    """Take one token event as the pattern of those that follow.

    Args:
        dialect: of the endpoint.
        event: a whole token event.
        known: a prefix that was learned before and is not how this one starts; or `NO_PREFIX`.
    """
    other = b"" if known is NO_PREFIX else known
    end = b"\r\n\r\n" if event.endswith(b"\r\n\r\n") else b"\n\n"
    prefix = dialect.token_prefix(event, other) or NO_PREFIX
    joint = end + prefix
    lines = joint.count(b"\n")
    empty_choices = dialect.usage_on_request and not prefix.endswith(b"[{")
    hazard = b"[]" if empty_choices else dialect.look_out or NO_PREFIX
    if event.count(b"\n") != lines or (empty_choices and dialect.look_out is not None):
        prefix = NO_PREFIX  # What the pattern does not tell: none is taken as one.
    return TokenPattern(prefix, end, joint, lines, hazard)
