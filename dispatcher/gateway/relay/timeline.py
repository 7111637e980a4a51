"""How far a stream's tokens are behind what was promised, while they pass.

Token k, from 0, of each sequence is due at arrival + SLO_TTFT + k SLO_TPOT (Tempo, Eq. 3): against
a timeline, so that a token which comes early makes no later one late. Where no TTFT was promised,
the timeline begins at the first token.
"""

from __future__ import annotations

from math import inf
from operator import itemgetter

from dispatcher.core.types import Slo

_MARKS_S = 1.0
"""Between two moments that are kept, at least."""
_MARKS_MAX = 512
"""Moments kept; of every two one is dropped beyond, never that which ended the longer silence."""
_PACKED = 1.1
"""Tokens to an event, from which on events do not stand for tokens."""

_silence_s = itemgetter(2)


class Timeline:
    """One call's; every attempt that its client sees tokens of goes on with it.

    Events count as tokens, as the relay counts them, and the worst delay is kept as they come.
    Where usage says in the end that the engine packed several tokens into each event, that delay
    was measured against the wrong tokens. Then the moments kept along the way decide, with the
    tokens that each event must have had: the first two, then at most one a second, those that ended
    longer silences always among them, so that no pause is overlooked.

    Example:
        >>> timeline = Timeline(100.0, Slo(ttft_s=2.0, tpot_s=0.5))
        >>> for now_s in (101.5, 102.0, 104.25):
        ...     timeline.saw(now_s, 1)
        >>> timeline.lag_s(3, 104.25)
        1.25
    """

    __slots__ = (
        "_due_s",
        "_events",
        "_first_s",
        "_mark_at_s",
        "_marked_s",
        "_marks",
        "_promised_s",
        "_sequences",
        "_step_s",
        "_worst_s",
    )

    def __init__(self, arrived_s: float, slo: Slo, sequences: int = 1) -> None:
        """A timeline without tokens.

        Args:
            arrived_s: Of the call, on the clock of all that follows.
            slo: With a `tpot_s`.
            sequences: Written side by side in the one stream.

        Raises:
            ValueError: No pace was promised.
        """
        if slo.tpot_s is None:
            raise ValueError("a timeline needs a pace")
        self._promised_s = None if slo.ttft_s is None else arrived_s + slo.ttft_s
        self._sequences = sequences
        self._step_s = slo.tpot_s / sequences
        self._first_s: float | None = None
        #: of the first token
        self._due_s = 0.0
        self._events = 0
        self._worst_s = -inf
        #: (events before it, when it came, silence before it)
        self._marks: list[tuple[int, float, float]] = []
        self._marked_s = 0.0
        self._mark_at_s = -inf

    def saw(self, now_s: float, events: int) -> None:
        """So many token events, at least one, came now; the first of them is the latest."""
        if now_s >= self._mark_at_s:
            self._mark(now_s)
        before = self._events
        lag_s = now_s - self._due_s - before * self._step_s
        if lag_s > self._worst_s:  # noqa: PLR1730 - on every token: `max` takes as long as all else
            self._worst_s = lag_s
        self._events = before + events

    def _mark(self, now_s: float) -> None:
        self._mark_at_s = now_s + _MARKS_S
        if self._first_s is None:
            self._first_s = self._mark_at_s = now_s  # what follows the first is kept as well
            self._marked_s = now_s
            self._due_s = now_s if self._promised_s is None else self._promised_s
        elif len(self._marks) >= _MARKS_MAX:
            marks = self._marks
            self._marks = [
                max(pair, key=_silence_s) for pair in zip(marks[::2], marks[1::2], strict=True)
            ]
        # since the mark before, which is never less than since the event before
        silent_s = now_s - self._marked_s
        self._marked_s = now_s
        self._marks.append((self._events, now_s, silent_s))

    def lag_s(self, output_tokens: int | None, last_s: float | None) -> float | None:
        """The worst delay of a token, negative where all were early; `None` without a token.

        Args:
            output_tokens: Of all sequences, as the engine counted; `None` where it did not say.
            last_s: When the last token came.
        """
        if self._first_s is None:
            return None
        events, due_s = self._events, self._due_s
        if output_tokens is None or output_tokens <= _PACKED * events + self._sequences:
            return self._worst_s
        # the first event has one token; the others share what is left
        packed = (output_tokens - 1) / max(1, events - 1)
        last = [] if last_s is None else [(events - 1, last_s, 0.0)]
        late_s = [
            now_s - due_s - (1 + (before - 1) * packed) * self._step_s
            for before, now_s, _ in self._marks + last
            if before > 0
        ]
        return max([self._first_s - due_s, *late_s])
