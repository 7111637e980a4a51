"""What the forest said, what came, and what follows: its corrections, and whether to believe it."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from dispatcher.core.types import CallId, LengthEstimate
from dispatcher.gateway.forest.comparison import Comparison
from dispatcher.trained import Coverage

OPEN_MAX = 20_000
"""Calls whose estimates are kept until their lengths are known."""
PAIRS_MAX = 500
"""Estimates with what came that are kept across restarts."""
PROBATION_CALLS = 100
"""So many lengths have to come before a forest is believed whose predecessor had drifted."""


class Guess(NamedTuple):
    """What was said of a call."""

    number: int
    """Of the forest that said it."""
    raw: LengthEstimate
    corrected: LengthEstimate
    """What the call was given, or would have been."""
    fallback: LengthEstimate
    features: bytes
    """Of the call, as they were packed to ask."""


class Evidence:
    """Of one forest, in shadow too: while the fallback is believed, the forest goes on guessing."""

    def __init__(self, coverage: Callable[[], Coverage]) -> None:
        self._new_coverage = coverage
        self._coverage = coverage()
        self._comparison = Comparison()
        #: of calls that have not ended, oldest first
        self._open: OrderedDict[CallId, Guess] = OrderedDict()
        #: what was said and what came, oldest first
        self._pairs: deque[tuple[LengthEstimate, int]] = deque(maxlen=PAIRS_MAX)
        #: lengths that have to come before it is believed
        self._probation = 0

    def corrected(self, raw: LengthEstimate) -> LengthEstimate:
        """Moved to where the quantiles have been right of late."""
        return self._coverage.corrected(raw)

    def said(self, call_id: CallId, guess: Guess) -> None:
        """Of a call whose length will be known, perhaps."""
        self._open[call_id] = guess
        if len(self._open) > OPEN_MAX:
            self._open.popitem(last=False)

    def taken(self, call_id: CallId) -> Guess | None:
        """What was said of a call that has ended; it is not kept any longer."""
        return self._open.pop(call_id, None)

    def length_came(self, guess: Guess, tokens: int) -> None:
        """So long did a call become of which this forest had said that; at least 1 token."""
        self._observe(guess.raw, tokens)
        self._comparison.learn(guess.corrected, guess.fallback, tokens)

    def _observe(self, raw: LengthEstimate, tokens: int) -> None:
        self._pairs.append((raw, tokens))
        self._coverage.observe(raw, tokens)
        self._probation = max(0, self._probation - 1)

    def new_forest(self, *, on_probation: bool) -> None:
        """Nothing is known of it; where the one before had drifted, it has to show first."""
        self._coverage = self._new_coverage()
        self._comparison = Comparison()
        self._pairs.clear()
        self._probation = PROBATION_CALLS if on_probation else 0

    def same_forest_again(self, number: int) -> None:
        """As good as the one before, by another number: what is known of that holds for it."""
        for call_id, guess in list(self._open.items()):
            self._open[call_id] = guess._replace(number=number)

    def complaint(self) -> str | None:
        """Why the forest cannot be relied on; `None`: it can."""
        verdict = self._coverage.verdict()
        if verdict.drifted:
            return verdict.reason
        if self._probation:
            seen = f"{PROBATION_CALLS - self._probation} of {PROBATION_CALLS} calls seen"
            return f"lengths had drifted, and the forest trained since is on probation: {seen}"
        return self._comparison.complaint()

    def stats(self) -> dict[str, object]:
        """JSON-ready."""
        return {
            "calibration": self._coverage.stats(),
            "against_fallback": self._comparison.stats(),
        }

    # --- kept across restarts ---

    def snapshot(self) -> Callable[[], dict[str, object]]:
        """What `dump` would give, put into words later, in any thread."""
        pairs, probation = tuple(self._pairs), self._probation
        return lambda: {
            "pairs": [[_flat(raw), tokens] for raw, tokens in pairs],
            "probation": probation,
        }

    def dump(self) -> dict[str, object]:
        """The latest estimates with what came."""
        return self.snapshot()()

    def load(self, state: Mapping[str, object]) -> None:
        """Observe them once more.

        Raises:
            KeyError, ValueError, TypeError: The state does not have the shape that `dump` gives;
                nothing has changed then.
        """
        pairs, probation = state["pairs"], state["probation"]
        if not isinstance(pairs, list) or not isinstance(probation, int):
            raise ValueError("expected pairs of an estimate and a length")
        found = [(_estimate(raw), int(tokens)) for raw, tokens in pairs[-PAIRS_MAX:]]
        self.new_forest(on_probation=False)
        for raw, tokens in found:
            self._observe(raw, tokens)
        self._probation = min(max(0, probation), PROBATION_CALLS)


def _flat(estimate: LengthEstimate) -> list[object]:
    probabilities = [p for p, _ in estimate.quantiles]
    tokens = [round(value, 2) for _, value in estimate.quantiles]
    return [estimate.expected_tokens, estimate.source, probabilities, tokens]


def _estimate(flat: object) -> LengthEstimate:
    if not isinstance(flat, list) or len(flat) != 4:
        raise ValueError("expected an estimate")
    expected, source, probabilities, tokens = flat
    quantiles = tuple((float(p), float(t)) for p, t in zip(probabilities, tokens, strict=True))
    return LengthEstimate(float(expected), quantiles, str(source))
