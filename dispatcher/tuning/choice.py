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
    """The one with the least simulated tail (Eq. 10)."""
    gain: float
    """Share of the present alpha's simulated tail that the best one saves; at least 0."""
    adopted: bool
    why: str
    curve: tuple[AlphaScore, ...]

    @property
    def after(self) -> float:
        """The alpha to go on with."""
        return self.best if self.adopted else self.before


def choose(result: ReplayResult, present: float, min_gain: float) -> Choice:
    """The least tail wins; ties: the alpha nearest to the present one, then the lower.

    The tail is the P95 of latency over SLO where every workflow has one (what the paper's
    evaluation calls tail latency, section 5.1), else the P95 of latency: where SLOs differ, the
    seconds of the longest workflows say little of how the others fare.

    Args:
        result: Scores, the present alpha's among them.
        present: The alpha in use.
        min_gain: Share of the present tail that must be saved; below it nothing changes, since the
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
    by_slo = all(score.p95_slo_ratio is not None for score in curve)
    tails = {s.alpha: (s.p95_slo_ratio or 0.0) if by_slo else s.p95_s for s in curve}
    if present not in tails:
        raise ReplayError(f"the replay says nothing of alpha {present}, which is in use")
    best = min(tails, key=lambda alpha: (tails[alpha], abs(alpha - present), alpha))
    if math.isinf(tails[present]):
        gain = 0.0 if math.isinf(tails[best]) else 1.0
    else:
        gain = 1.0 - tails[best] / tails[present] if tails[present] > 0.0 else 0.0
    unit = " times the SLO" if by_slo else " s"
    times = f"P95 {tails[best]:.4g}{unit} instead of {tails[present]:.4g}{unit} in the replay"
    if best == present:
        why = f"no alpha does better than {present:g} in the replay"
    elif gain < min_gain:
        why = f"{times}: a gain of {gain:.1%}, {min_gain:.1%} are asked for"
    else:
        return Choice(present, best, gain, adopted=True, why=times, curve=curve)
    return Choice(present, best, gain, adopted=False, why=why, curve=curve)
