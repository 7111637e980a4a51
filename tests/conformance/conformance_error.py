"""How a conformance check fails."""

from __future__ import annotations


class ConformanceError(AssertionError):
    """A promise of the ports that was not kept."""


def ensure(holds: bool, otherwise: str) -> None:
    """Raise `ConformanceError` with the message when it does not hold."""
    if not holds:
        raise ConformanceError(otherwise)
