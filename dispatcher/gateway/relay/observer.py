"""Who hears about a stream while it runs."""

from __future__ import annotations

from typing import Protocol


class StreamObserver(Protocol):
    """Hears about a stream, inside a socket's callback: must be quick and must not raise."""

    def first_token(self, now_s: float) -> None:
        """The first event that carries output has come."""

    def progress(self, now_s: float, output_tokens: int) -> None:
        """So many events carried output so far; coalesced, monotonic."""


class Silent:
    """Hears nothing."""

    def first_token(self, now_s: float) -> None:
        """Nobody listens."""

    def progress(self, now_s: float, output_tokens: int) -> None:
        """Nobody listens."""
