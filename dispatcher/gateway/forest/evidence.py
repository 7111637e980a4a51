"""What the forest said, what came, and what follows: its corrections, and whether to believe it.

Lengths count in the order in which their calls were asked about, not in that in which they come:
of the calls in flight the short ones end first, and by these alone any forest says too much.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from math import isfinite
from typing import NamedTuple

from dispatcher.core.types import CallId, LengthEstimate
from dispatcher.gateway.forest.comparison import LEAST_CALLS, Comparison
from dispatcher.gateway.forest.health import Complaint, State
from dispatcher.trained import Coverage

OPEN_MAX = 20_000
"""Calls whose estimates are kept until all that were asked about before have ended."""
OBSERVED_AT_ONCE = 8
"""Lengths that count with each call that ends: behind a long call many may wait."""
PAIRS_MAX = 500
"""Estimates with what came that are kept across restarts."""
_POSSIBLE = 0.99
"""A call that is longer than this quantile is longer than the forest held possible."""
PROBATION_CALLS = LEAST_CALLS
"""So many lengths have to come before a forest is believed of which nothing is known; with fewer
it would be believed before it can be told from the fallback."""


class Guess(NamedTuple):
    """What was said of a call."""

    raw: LengthEstimate
    corrected: LengthEstimate
    """What the call was given, or would have been."""
    fallback: LengthEstimate
    features: bytes
    """Of the call, as they were packed to ask."""
    limited: bool
    """Its own limits decide: its length tells nothing of coverage, only whom to believe."""


class _Open:
    """A call that was asked about."""

    __slots__ = ("ended", "guess", "tokens")

    def __init__(self, guess: Guess) -> None:
        self.guess = guess
        self.ended = False
        #: its length, where that counts
        self.tokens: int | None = None


class Evidence:
    """Of one forest, in shadow too: while the fallback is believed, the forest goes on guessing."""

    def __init__(self, coverage: Callable[[], Coverage]) -> None:
        self._new_coverage = coverage
        self._coverage = coverage()
        self._comparison = Comparison()
        #: in the order in which this forest was asked
        self._open: OrderedDict[CallId, _Open] = OrderedDict()
        #: what was said and what came, oldest first
        self._pairs: deque[tuple[LengthEstimate, int]] = deque(maxlen=PAIRS_MAX)
        #: lengths that have to come before it is believed
        self._probation = PROBATION_CALLS

    def corrected(self, raw: LengthEstimate) -> LengthEstimate:
        """Moved to where the quantiles have been right of late."""
        return self._coverage.corrected(raw)

    def said(self, call_id: CallId, guess: Guess) -> None:
        """Of a call whose length will be known, perhaps."""
        self._open.pop(call_id, None)
        self._open[call_id] = _Open(guess)
        if len(self._open) > OPEN_MAX:
            self._open.popitem(last=False)

    def ended(self, call_id: CallId, tokens: int | None) -> Guess | None:
        """A call has ended; what this forest had said of it, if anything.

        Args:
            call_id: Which.
            tokens: So long did it become, at least 1; `None`: that shall not count.
        """
        found = self._open.get(call_id)
        if found is None or found.ended:
            return None
        found.ended, found.tokens = True, tokens
        return found.guess

    def catch_up(self, so_far: Callable[[CallId], float | None]) -> None:
        """Let lengths count whose turn has come.

        A call that is longer than this forest held possible counts at once: how much longer it
        gets is no matter, and what has ended since need not wait for it.

        Args:
            so_far: What a call has generated, tokens per sequence; `None`: it will not end well,
                and is waited for no longer.
        """
        for _ in range(OBSERVED_AT_ONCE):
            if not self._open:
                return
            call_id, first = next(iter(self._open.items()))
            if not first.ended:
                tokens = so_far(call_id)
                if tokens is not None and tokens <= first.guess.raw.quantile_tokens(_POSSIBLE):
                    return
                if tokens is not None and not first.guess.limited:
                    self._observe(first.guess.raw, int(tokens))
            del self._open[call_id]
            if first.tokens is not None:
                self._length_came(first.guess, first.tokens)

    def _length_came(self, guess: Guess, tokens: int) -> None:
        if not guess.limited:
            self._observe(guess.raw, tokens)
        self._comparison.learn(guess.corrected, guess.fallback, tokens)
        self._probation = max(0, self._probation - 1)

    def _observe(self, raw: LengthEstimate, tokens: int) -> None:
        self._pairs.append((raw, tokens))
        self._coverage.observe(raw, tokens)

    def new_forest(self, *, on_probation: bool) -> None:
        """Nothing has come yet; `on_probation`: nor is it known to be as good as one believed."""
        self._coverage = self._new_coverage()
        self._comparison = Comparison()
        self._open.clear()
        self._pairs.clear()
        self._probation = PROBATION_CALLS if on_probation else 0

    def complaint(self) -> Complaint | None:
        """Why the forest cannot be relied on; `None`: it can."""
        verdict = self._coverage.verdict()
        if verdict.drifted:
            return Complaint(State.DRIFTED, verdict.reason)
        if self._probation:
            seen = f"{PROBATION_CALLS - self._probation} of {PROBATION_CALLS} calls have ended"
            return Complaint(State.PROBATION, f"{seen} that a new forest is judged by first")
        worse = self._comparison.complaint()
        return None if worse is None else Complaint(State.WORSE, worse)

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
    levels, lengths = [p for p, _ in quantiles], [t for _, t in quantiles]
    ascending = sorted(set(levels)) == levels and sorted(lengths) == lengths
    if not (ascending and all(0.0 < p < 1.0 for p in levels) and all(map(isfinite, lengths))):
        raise ValueError("expected quantiles that ascend")
    return LengthEstimate(float(expected), quantiles, str(source))
