"""One stage of an application's model: its binned durations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.workflow_types import StageKind
from workflows.bounds import stored

Values = NDArray[np.float64]


class Running(NamedTuple):
    """A stage under way."""

    variable: int
    state: int
    """It ends in this one or a later one."""
    over: float
    """Part of the time in that state that is over already, below 1: whole quarters, so that
    answers can be remembered, or exact."""


@dataclass(frozen=True, slots=True)
class Variable:
    """One stage. Durations are seconds at the pace of the fit."""

    name: str
    kind: StageKind
    level: float
    share: float
    tasks: float
    ran: float
    may_not_run: bool
    means: Values
    lows: Values
    highs: Values

    @property
    def card(self) -> int:
        """States."""
        return len(self.means)

    def state_of(self, value: float) -> int:
        """Of a duration of a stage that ran."""
        first = int(self.may_not_run)
        return first + int(np.searchsorted(self.highs[first:-1], value, side="right"))

    def running_for(self, value: float, *, exact: bool = False) -> tuple[int, float]:
        """The state in which it would end now, and the part of that state's time that is over."""
        state = self.state_of(value)
        low, high = self._from(state), float(self.highs[state])
        if high <= low:
            return state, 0.0
        over = min(1.0, max(0.0, (value - low) / (high - low)))
        return state, over if exact else min(3, int(4.0 * over)) / 4.0

    def left(self, running: Running) -> Values:
        """By state: what is left of it."""
        state = running.state
        begins, high = self._from(state), float(self.highs[state])
        over = begins + (high - begins) * running.over
        left = np.maximum(self.means - over, 0.0)
        low = float(self.lows[state])
        if over > low:
            # as much of the bin's mean as of its width
            left[state] = (float(self.means[state]) - low) * (high - over) / (high - low)
        return left

    def _from(self, state: int) -> float:
        """When it begins to count: whoever has run for no time at all is in the first state."""
        return 0.0 if state == int(self.may_not_run) else float(self.lows[state])


def read_variable(state: Mapping[str, Any]) -> Variable:
    """A variable as `fitting` wrote it. Raises `KeyError`, `TypeError`, `ValueError`."""
    bins = [[stored(x, "bin", 0.0, 1e12) for x in each] for each in state["bins"]]
    if not bins or any(len(each) != 3 for each in bins):
        raise ValueError("bins: expected a mean and two edges each")
    means, lows, highs = (np.array(column) for column in zip(*bins, strict=True))
    return Variable(
        name=str(state["name"]),
        kind=StageKind(str(state["kind"])),
        level=stored(state["level"], "level", -1.0, 1e9),
        share=stored(state["share"], "share", 0.0, 1.0 + 1e-6),
        tasks=stored(state["tasks"], "tasks", 0.0, 1e9),
        ran=stored(state["ran"], "ran", 0.0, 1.0),
        may_not_run=bool(state["may_not_run"]),
        means=means,
        lows=lows,
        highs=highs,
    )
