"""Who is believed, why, and since when."""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

log = logging.getLogger("headway.forest")


class State(StrEnum):
    """How the forest does; also a metric label, so the set stays small."""

    COLLECTING = "collecting"
    """Too few calls have ended to train on."""
    TRAINING = "training"
    """The first forest of this process is on its way."""
    PROBATION = "probation"
    """It is judged by calls as they end, beside the fallback, which they get."""
    IN_USE = "in_use"
    """The only state in which calls get its estimates."""
    DRIFTED = "drifted"
    """Its quantiles do not cover what they should."""
    WORSE = "worse"
    """Its quantiles are further off than those of the fallback."""
    SLOW = "slow"
    """Its latest estimates came too late."""
    FAILED = "failed"
    """There is none: its process was lost, or training it has failed."""


_TROUBLE = frozenset({State.DRIFTED, State.WORSE, State.SLOW, State.FAILED})


class Complaint(NamedTuple):
    """Why a forest that is there cannot be relied on."""

    state: State
    why: str
    """In words."""


class Health:
    """One state at a time; a change is logged, and the time of it kept."""

    def __init__(self, clock: Callable[[], float], time_of_day: Callable[[], float]) -> None:
        self._clock = clock
        self._time_of_day = time_of_day
        self.state = State.COLLECTING
        self.why = ""
        self._since_s = clock()
        self._since_unix_s = time_of_day()

    def now(self, state: State, why: str) -> None:
        """This is how it is; said over and over, most often nothing new."""
        self.why = why
        if state is self.state:
            return
        self.state = state
        self._since_s, self._since_unix_s = self._clock(), self._time_of_day()
        if state in _TROUBLE:
            log.warning("output lengths are those of the fallback now: %s", why)
        else:
            log.info("length forest: %s%s", state.value, f", {why}" if why else "")

    def told(self) -> dict[str, object]:
        """JSON-ready."""
        return {
            "speaks": "forest" if self.state is State.IN_USE else "fallback",
            "state": self.state.value,
            "why": self.why or None,
            "since_unix_s": self._since_unix_s,
            "for_s": self._clock() - self._since_s,
        }
