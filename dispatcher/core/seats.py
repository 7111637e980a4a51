"""Seats found by themselves: keep an engine just full.

An engine's API does not tell how many sequences it runs at once, and calls that wait inside it are
beyond our ordering. So seats grow while the engine's own waiting queue stays empty and its
throughput still rises with them, and shrink when it does not.
"""

from __future__ import annotations

from dataclasses import dataclass

from dispatcher.core.types import EngineGauges

INITIAL_SEATS = 16
MIN_SEATS = 1
MAX_SEATS = 1024

_WINDOW_S = 2.0
"""Shortest span over which throughput is compared."""
_GROWTH = 8
"""Seats grow by one part in so many, at least one."""
_WORTHWHILE = 1.02
"""A growth step must raise throughput by this factor to be kept."""
_REST_WINDOWS = 15
"""Windows without growth after a step that did not pay."""


@dataclass(slots=True)
class SeatController:
    """Hill climbing on tokens per second, with the engine's waiting queue as a hard sign."""

    seats: int = INITIAL_SEATS
    _window_from_s: float | None = None
    _window_tokens: int = 0
    _saturated: bool = True
    _crowded_scrapes: int = 0
    #: seats before the step under trial, and the rate they reached
    _trial: tuple[int, float] | None = None
    _rest: int = 0

    def observe(
        self, now_s: float, gauges: EngineGauges, *, in_use: int, backlog: bool, tokens_total: int
    ) -> int:
        """Take one scrape; the seats from now on.

        Args:
            now_s: When it was taken.
            gauges: What the engine said.
            in_use: Sequences that we have in flight there.
            backlog: Whether more calls wait for a seat there.
            tokens_total: Output tokens from there since it joined.
        """
        if self._crowded(gauges, in_use):
            return self.seats
        self._saturated = self._saturated and backlog and in_use >= self.seats
        if self._window_from_s is None:
            self._restart(now_s, tokens_total)
            return self.seats
        span_s = now_s - self._window_from_s
        if span_s < _WINDOW_S:
            return self.seats
        rate = (tokens_total - self._window_tokens) / span_s
        if self._saturated:
            self._climb(rate)
        else:
            self._trial = None
        self._restart(now_s, tokens_total)
        return self.seats

    def _crowded(self, gauges: EngineGauges, in_use: int) -> bool:
        """Calls wait inside the engine twice in a row: it runs fewer than we sent."""
        # While more are out than there are seats, those that wait were sent before seats shrank.
        crowded = gauges.waiting > 0 and in_use <= self.seats
        self._crowded_scrapes = self._crowded_scrapes + 1 if crowded else 0
        if self._crowded_scrapes < 2 or in_use < self.seats:
            return False
        # The engine's gauges are older than our count, so the kinder of two estimates counts; the
        # one step is for what others send to the same engine.
        runs = max(gauges.running, in_use - gauges.waiting)
        self.seats = max(MIN_SEATS, min(self.seats - 1, runs))
        self._crowded_scrapes = 0
        self._trial = None
        self._rest = _REST_WINDOWS
        self._window_from_s = None
        return True

    def _climb(self, rate: float) -> None:
        if rate <= 0.0:
            return  # answers that come whole have told nothing in this window
        if self._trial is not None:
            before, rate_before = self._trial
            self._trial = None
            if rate < rate_before * _WORTHWHILE:
                self.seats = before
                self._rest = _REST_WINDOWS
                return
        if self._rest > 0:
            self._rest -= 1
            return
        if self.seats < MAX_SEATS:
            self._trial = (self.seats, rate)
            self.seats = min(MAX_SEATS, self.seats + max(1, self.seats // _GROWTH))

    def _restart(self, now_s: float, tokens_total: int) -> None:
        self._window_from_s = now_s
        self._window_tokens = tokens_total
        self._saturated = True
