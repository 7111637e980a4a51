"""Candidates of dynamic stages: how long each one takes, and a plan of them as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dispatcher.core.workflow_types import StageKind
from workflows.bounds import MAX_S, stored
from workflows.spans import Span, longest
from workflows.stage_rows import INSIDE, candidate_name
from workflows.stage_variable import Values

_PARTS = 16
"""Of the longest that a candidate took: how finely it counts what has run of one."""


class Step(NamedTuple):
    """A stage of a plan that is not over."""

    candidate: str
    waits_for: tuple[int, ...]
    """Others of the same plan, by their place in it."""
    over_s: float = 0.0
    """How long it has run for, at the pace of the fit."""


class Candidates:
    """Those of all dynamic stages of one application.

    Args:
        states: As `fitting` wrote them.
        tpot_s: The pace of the fit.

    Raises:
        KeyError, TypeError, ValueError: They are none.
    """

    def __init__(self, states: Sequence[Mapping[str, Any]], tpot_s: float) -> None:
        self._tpot_s = tpot_s
        #: name -> quantiles of its duration, evenly spaced, and the part of it that is decoding
        self._known: dict[str, tuple[Values, float]] = {}
        self._ran: dict[str, float] = {}
        self._at_client: set[str] = set()
        for state in states:
            name = str(state["name"])
            quantiles = [stored(q, "quantile", 0.0, 2 * MAX_S) for q in state["quantiles"]]
            if not quantiles:
                raise ValueError("quantiles: expected some")
            share = stored(state["share"], "share", 0.0, 1.0 + 1e-6)
            self._known[name] = np.array(sorted(quantiles)), share
            self._ran[name] = stored(state["ran"], "ran", 0.0, 1.0)
            if StageKind(str(state["kind"])) is StageKind.REGULAR:
                self._at_client.add(name)

    def shares_of(self, dynamic: str) -> list[float]:
        """In which part of all workflows each candidate of a dynamic stage ran."""
        inside = candidate_name(dynamic, "")
        return [ran for name, ran in self._ran.items() if name.startswith(inside)]

    def run_at_client(self, candidate: str) -> bool:
        """Whether it makes no calls, as far as it was seen."""
        return candidate in self._at_client

    def over_s(
        self, candidate: str, seconds: float, tpot_s: float, *, exact: bool = False
    ) -> float:
        """How long one has run at the pace of the fit: exact, or in parts of the longest."""
        known = self._of(candidate)
        if known is None or seconds <= 0.0:
            return 0.0
        quantiles, share = known
        most_s = float(quantiles[-1])
        value_s = min(seconds / (share * tpot_s / self._tpot_s + 1.0 - share), most_s)
        if exact or most_s <= 0.0:
            return value_s
        return int(_PARTS * value_s / most_s) / _PARTS * most_s

    def span(self, steps: Sequence[Step], cases: int, tpot_s: float) -> Span:
        """What is left of a plan in each case, along its critical path."""
        nothing = Span.nothing(cases)
        ends: list[Span] = []
        for number, step in enumerate(steps):
            before = [ends[earlier] for earlier in step.waits_for if earlier < number]
            ends.append(longest(before, nothing).then(self._left(step, number, cases, tpot_s)))
        return longest(ends, nothing)

    def _left(self, step: Step, number: int, cases: int, tpot_s: float) -> Span:
        """One of them: its quantiles above what has run, shuffled alike for every question."""
        known = self._of(step.candidate)
        if known is None:
            return Span.nothing(cases)
        quantiles, share = known
        levels = np.linspace(0.0, 1.0, len(quantiles))
        passed = float(np.interp(step.over_s, quantiles, levels)) if step.over_s > 0.0 else 0.0
        # a low-discrepancy walk: no two candidates move together, nor with the network's draws
        at = (np.arange(cases) * 0.6180339887498949 * (number + 1) + 0.5 / (number + 1)) % 1.0
        drawn = np.interp(passed + at * (1.0 - passed), levels, quantiles) - step.over_s
        return Span.at_pace(np.maximum(drawn, 0.0), share, tpot_s, self._tpot_s)

    def _of(self, name: str) -> tuple[Values, float] | None:
        """Of one never seen as of its stage's others together."""
        own = self._known.get(name)
        if own is not None:
            return own
        inside = name.split(INSIDE, 1)[0] + INSIDE
        others = [known for other, known in self._known.items() if other.startswith(inside)]
        if not others:
            return None
        together = np.sort(np.concatenate([quantiles for quantiles, _ in others]))
        return together, float(np.mean([share for _, share in others]))
