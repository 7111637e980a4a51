"""Whether the forest is better than what would be believed without it, over the latest calls."""

from __future__ import annotations

from collections import deque

from dispatcher.core.types import LengthEstimate

LEVELS = (0.5, 0.9, 0.95)
WINDOW = 500
LEAST_CALLS = 200
"""With fewer nothing is said."""
WORSE = 1.10
"""A loss so many times that of the fallback takes the forest out of use."""
_BACK = 1.0
"""It comes back when it is no worse."""


def pinball(estimate: LengthEstimate, tokens: float) -> float:
    """Mean loss over `LEVELS`, tokens; what quantiles are judged by (Koenker and Bassett, 1978).

    Example:
        >>> known = LengthEstimate(10.0, ((0.5, 10.0), (0.9, 10.0), (0.95, 10.0)))
        >>> round(pinball(known, 20), 2), round(pinball(known, 0), 2)
        (7.83, 2.17)
    """
    loss = 0.0
    for level in LEVELS:
        off = tokens - estimate.quantile_tokens(level)
        loss += level * off if off > 0.0 else (level - 1.0) * off
    return loss / len(LEVELS)


class Comparison:
    """Sums of both losses over a sliding window."""

    def __init__(self) -> None:
        #: (the forest's, the fallback's), oldest first
        self._losses: deque[tuple[float, float]] = deque()
        self._forest = 0.0
        self._fallback = 0.0
        self._added = 0
        self._worse = False

    def learn(self, forest: LengthEstimate, fallback: LengthEstimate, tokens: int) -> None:
        """A length has come."""
        losses = pinball(forest, tokens), pinball(fallback, tokens)
        self._losses.append(losses)
        self._forest += losses[0]
        self._fallback += losses[1]
        self._added += 1
        if len(self._losses) > WINDOW:
            old = self._losses.popleft()
            self._forest -= old[0]
            self._fallback -= old[1]
        if self._added % WINDOW == 0:
            # what rounding leaves behind does not stay
            self._forest = sum(one for one, _ in self._losses)
            self._fallback = sum(other for _, other in self._losses)
        if len(self._losses) >= LEAST_CALLS:
            bound = _BACK if self._worse else WORSE
            self._worse = self._forest > bound * self._fallback

    def complaint(self) -> str | None:
        """That it is worse; `None` where it is not, or too little is known."""
        if not self._worse:
            return None
        more = self._forest / self._fallback - 1.0 if self._fallback else float("inf")
        calls = len(self._losses)
        return f"over {calls} calls its pinball loss was {more:.0%} above that of the fallback"

    def stats(self) -> dict[str, object]:
        """JSON-ready."""
        calls = len(self._losses)
        return {
            "calls": calls,
            "pinball_tokens": self._forest / calls if calls else None,
            "fallback_pinball_tokens": self._fallback / calls if calls else None,
            "worse": self._worse,
        }
