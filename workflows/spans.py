"""Durations that go partly with the load of the fleet: decoding does, what runs at clients not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dispatcher.core.workflow_types import Remaining
from workflows.stage_variable import Values


class Part(NamedTuple):
    """A number in two parts: times output tokens, and times seconds."""

    steps: float
    """Multiplied by the time per output token."""
    seconds: float

    def at(self, tpot_s: float) -> float:
        """What it is worth at a pace (LLMSched, Eq. 2)."""
        return self.steps * tpot_s + self.seconds

    def plus(self, other: Part, times: float = 1.0) -> Part:
        """With another one added, that many times."""
        return Part(self.steps + times * other.steps, self.seconds + times * other.seconds)


class Span(NamedTuple):
    """A duration in each of several cases, seconds at one pace."""

    total: Values
    decoding: Values
    """Its part that goes with the load."""

    @staticmethod
    def nothing(cases: int) -> Span:
        """No time at all."""
        zero = np.zeros(cases)
        return Span(zero, zero)

    @staticmethod
    def at_pace(values: Values, share: float, tpot_s: float, fitted_s: float) -> Span:
        """Durations as of one time per output token at another; a share of them goes with it."""
        decoding = values * (share * tpot_s / fitted_s)
        return Span(decoding + values * (1.0 - share), decoding)

    def then(self, other: Span) -> Span:
        """One after the other."""
        return Span(self.total + other.total, self.decoding + other.decoding)

    def mean(self, weights: Values, tpot_s: float) -> Part:
        """Over all cases, in parts."""
        decoding = float(weights @ self.decoding)
        return Part(decoding / tpot_s, max(0.0, float(weights @ self.total) - decoding))

    def part(self, case: int, tpot_s: float) -> Part:
        """One case, in parts."""
        total, decoding = float(self.total[case]), float(self.decoding[case])
        return Part(decoding / tpot_s, max(0.0, total - decoding))


class Posterior(NamedTuple):
    """What is left of a workflow, in parts; good for paces near the one it was worked out at."""

    mean: Part
    low: Part
    high: Part
    work: Part

    def at(self, tpot_s: float) -> Remaining:
        """At a pace."""
        mean_s = self.mean.at(tpot_s)
        return Remaining(
            mean_s=mean_s,
            low_s=min(self.low.at(tpot_s), mean_s),
            high_s=max(self.high.at(tpot_s), mean_s),
            # what runs at clients is no work of anybody that calls wait for
            work_s=self.work.steps * tpot_s,
            known=True,
        )


def longest(spans: Sequence[Span], nothing: Span) -> Span:
    """In each case the longest of them; of none, nothing."""
    if not spans:
        return nothing
    found = spans[0]
    for span in spans[1:]:
        longer = span.total > found.total
        found = Span(
            np.where(longer, span.total, found.total),
            np.where(longer, span.decoding, found.decoding),
        )
    return found
