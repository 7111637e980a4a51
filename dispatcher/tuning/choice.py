"""Which alpha to go on with, given the curve that a replay has drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dispatcher.core.errors import HeadwayError
from dispatcher.tuning.replay import AlphaScore, ReplayResult


class ReplayError(HeadwayError):
    """A replay whose answer cannot be used."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A tune's outcome."""

    before: float
    """The alpha that was in use."""
    best: float
    """The one with the least simulated P95 (Eq. 10)."""
    gain: float
    """Share of the present alpha's simulated P95 that the best one saves; at least 0."""
    adopted: bool
    why: str
    curve: tuple[AlphaScore, ...]

    @property
    def after(self) -> float:
        """The alpha to go on with."""
        return self.best if self.adopted else self.before


def choose(result: ReplayResult, present: float, min_gain: float) -> Choice:
    """The least P95 wins; ties: the alpha nearest to the present one, then the lower.

    Args:
        result: Scores, the present alpha's among them.
        present: The alpha in use.
        min_gain: Share of the present P95 that must be saved; below it nothing changes, since the
            simulated curve has a noise of its own.

    Raises:
        ReplayError: A score is no time, or the present alpha has none.

    Example:
        >>> curve = (AlphaScore(0.0, 10.0), AlphaScore(0.5, 8.0), AlphaScore(1.0, 9.0))
        >>> choice = choose(ReplayResult(curve), 0.0, 0.03)
        >>> choice.after, round(choice.gain, 2), choice.why
        (0.5, 0.2, 'P95 8 s instead of 10 s in the replay')
    """
    curve = tuple(sorted(result.curve, key=lambda score: score.alpha))
    for score in curve:
        if not (score.p95_s > 0.0 and 0.0 <= score.alpha <= 1.0):
            raise ReplayError(
                f"the replay gave alpha {score.alpha} a P95 of {score.p95_s} s; expected an alpha"
                " in [0, 1] and more than 0 s"
            )
    now = next((score for score in curve if score.alpha == present), None)
    if now is None:
        raise ReplayError(f"the replay says nothing of alpha {present}, which is in use")
    best = min(curve, key=lambda score: (score.p95_s, abs(score.alpha - present), score.alpha))
    if math.isinf(now.p95_s):
        gain = 0.0 if math.isinf(best.p95_s) else 1.0
    else:
        gain = 1.0 - best.p95_s / now.p95_s
    times = f"P95 {best.p95_s:.4g} s instead of {now.p95_s:.4g} s in the replay"
    if best.alpha == present:
        why = f"no alpha does better than {present:g} in the replay"
    elif gain < min_gain:
        why = f"{times}: a gain of {gain:.1%}, {min_gain:.1%} are asked for"
    else:
        return Choice(present, best.alpha, gain, adopted=True, why=times, curve=curve)
    return Choice(present, best.alpha, gain, adopted=False, why=why, curve=curve)
