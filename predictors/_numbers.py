"""Numbers read back from a store or handed in: finite and within bounds, or refused or moved."""

from __future__ import annotations

import math


def within(value: float, low: float, high: float) -> float:
    """The nearest that is in [low, high]; `low` for what is no number."""
    if low < value < high:
        return float(value)
    # `value` comes second: a comparison with NaN is false, and the other one stays.
    return float(min(high, max(low, value)))


def number(value: object, what: str, low: float = -math.inf, high: float = math.inf) -> float:
    """The value as a finite float within [low, high].

    Raises:
        ValueError: It is no number, not finite, or outside.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{what}: expected a number, not {value!r}")
    # Compared before it is converted: an int may be too large for a float.
    if not (low <= value <= high and -math.inf < value < math.inf):
        raise ValueError(f"{what}: expected a finite number in [{low}, {high}], not {value}")
    return float(value)


def count(value: object, what: str, low: int = 0, high: int = 2**53) -> int:
    """The same for whole numbers."""
    return int(number(value, what, low, high))
