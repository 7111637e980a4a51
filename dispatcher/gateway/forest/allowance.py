"""How much may be done a second, and at once."""

from __future__ import annotations


class Allowance:
    """A bucket that fills up by itself.

    Example:
        >>> allowance = Allowance(per_s=1.0, at_once=2.0, now_s=0.0)
        >>> [allowance.take(0.0) for _ in range(3)], allowance.take(1.0)
        ([True, True, False], True)
    """

    def __init__(self, per_s: float, at_once: float, now_s: float) -> None:
        """It is full at first."""
        self._per_s = per_s
        self._at_once = at_once
        self._left = at_once
        self._at_s = now_s

    def take(self, now_s: float) -> bool:
        """Whether one more is allowed; it is done then."""
        passed_s = max(0.0, now_s - self._at_s)
        self._at_s = now_s
        self._left = min(self._at_once, self._left + self._per_s * passed_s)
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
