"""Largest numbers that are believed: what is declared is refused beyond, what is told is cut."""

from __future__ import annotations

import math

MAX_WIDTH = 10_000
"""Calls of a stage side by side."""
MAX_TOKENS = 100_000_000
"""Of one call."""
MAX_S = 1e8
"""Three years: no SLO, tool or stage takes longer."""
MAX_WORK_S = 1e12
"""Of a whole plan."""


def cut(value: float, low: float, high: float) -> float:
    """The nearest that is in [low, high]; `low` for what is no number.

    Example:
        >>> cut(5, 0, 3), cut(float("nan"), 1, 3)
        (3.0, 1.0)
    """
    # `value` comes second: a comparison with NaN is false, and the other one stays.
    return float(min(high, max(low, value)))


def tokens(value: int) -> int:
    """A count of tokens, cut."""
    return min(max(0, value), MAX_TOKENS)


def stored(value: object, what: str, low: float, high: float) -> float:
    """A number read back from a store.

    Raises:
        ValueError: It is no finite number in [low, high].
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{what}: expected a number, not {value!r}")
    if not (low <= value <= high and -math.inf < value < math.inf):
        raise ValueError(f"{what}: expected a finite number in [{low}, {high}], not {value}")
    return float(value)
