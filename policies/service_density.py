"""Service density: what a call is worth per second of serving it, in three readings (Tempo, LSDF).

Tempo, sections 3.1 and 4.2. Calls are ranked by projected gain over remaining time (Eq. 4). The
printed equation does not say what the text around it says, and what the text says makes deadlines
count for little, so there are three readings of it. With `worth` the tokens' weights, SLO and
metric as in section 3.1, and `rem` the time that the call would still run:

`definition` (default; what section 3.1 defines and the authors' code computes):
    sum of worth * min{1, (SLO / metric)^a} / rem
`printed` (Eq. 4 to the letter, with the inverse ratio: who has most time is worth least):
    sum of worth * min{1, (metric / SLO)^a} / rem
`slack` ("remaining time budget", and an earlier version of the code): what is worth most per second
    until it must be started, and calls that can no longer be in time ("doomed") after all others
    sum of worth / min(SLO - metric)

By definition every call that is in time has f = 1, so that its density hardly depends on its SLO:
a call of 200 prompt and 50 output tokens at 30 ms a token comes to 200 whether it has 5, 20 or 60 s
(as printed: 60, 15, 5). What tells calls apart then is the length of prompts against outputs, and
lateness once there is some. See docs/decisions/0008 for what each reading gives.

Plain numbers: seconds, tokens. Nothing here knows an engine or a queue.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from dispatcher.core.service_gain import degradation

Reading = Literal["definition", "printed", "slack"]

SHORTEST_S = 1e-3
"""Remaining times and slacks count as no less: densities stay finite."""


class Part(NamedTuple):
    """A part of a call's worth with an SLO of its own: its prompt by TTFT, its output by its end.

    `slo_s` and `took_s` count from the same moment; `None`: nothing was asked for, all is gained.
    """

    worth: float
    slo_s: float | None
    took_s: float


@dataclass(frozen=True, slots=True)
class Density:
    """How pressing a call is."""

    value: float
    """Weighted tokens per second; the larger, the sooner."""
    doomed: bool = False
    """It can no longer be in time, and this reading puts such calls last."""


def density(
    parts: Sequence[Part], remaining_s: float, reading: Reading, penalty: float = 1.0
) -> Density:
    """Eq. 4 in one of its readings.

    Args:
        parts: What is gained, and by when each of it is due.
        remaining_s: Serving time that the call (its stage's longest call) still takes.
        reading: See above.
        penalty: a, above 0.

    Example:
        >>> def of(slo_s, reading):
        ...     return round(density([Part(300.0, slo_s, 1.5)], 1.5, reading).value)
        >>> [of(slo_s, "definition") for slo_s in (5.0, 20.0, 60.0)]
        [200, 200, 200]
        >>> [of(slo_s, "printed") for slo_s in (5.0, 20.0, 60.0)]
        [60, 15, 5]
        >>> [of(slo_s, "slack") for slo_s in (5.0, 20.0, 60.0)]
        [86, 16, 5]
        >>> density([Part(300.0, 1.0, 2.0)], 1.5, "slack")
        Density(value=100.0, doomed=True)
    """
    remaining_s = max(remaining_s, SHORTEST_S)
    if reading == "slack":
        slack_s = min(
            (slo_s - took_s for _, slo_s, took_s in parts if slo_s is not None), default=math.inf
        )
        if slack_s >= 0.0:
            worth = sum(part.worth for part in parts)
            return Density(worth / max(slack_s, SHORTEST_S))
        return Density(_gain(parts, penalty) / remaining_s, doomed=True)
    if reading == "printed":
        parts = [
            part if part.slo_s is None else Part(part.worth, part.took_s, part.slo_s)
            for part in parts
        ]
    return Density(_gain(parts, penalty) / remaining_s)


def _gain(parts: Sequence[Part], penalty: float) -> float:
    return sum(
        worth if slo_s is None else worth * degradation(slo_s, took_s, penalty)
        for worth, slo_s, took_s in parts
    )
