"""When a forest is trained: often enough, never too often, and again after what went wrong."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Protocol

from dispatcher.config import PredictorSettings
from dispatcher.gateway.forest.inside import Trained, TrainJob, train
from dispatcher.gateway.forest.rows import RowWindow
from dispatcher.gateway.forest.trial import Trial
from dispatcher.gateway.worker import Worker, WorkerError
from dispatcher.trained import TrainedLengths

log = logging.getLogger("headway.forest")

SEED = 0
"""Of every forest: the same calls give the same one, after a restart too."""
RETRY_S = (1.0, 300.0)
"""Rest after a failure, doubled with each further one, and its bound."""
_REST = 20.0
"""It rests so many times as long as the last training took: five per cent of a core at most."""
QUICK_CALLS = 4_000
"""Where there is no forest and many calls to train on, a first one comes from so many, the latest:
it takes seconds where all of them take long."""
_HURRY = 4
"""Where lengths have drifted, it waits for so many times fewer calls."""


class Hears(Protocol):
    """Who is told."""

    def trained(self, result: Trained, *, again: bool) -> None:
        """The worker has another forest now; `again`: as good as the one that was lost."""

    def refused(self) -> None:
        """What came of a training is worse than the forest that the worker has, and keeps."""

    def training_failed(self, why: str) -> None:
        """It has none, or the one that it had before."""


class Trainer:
    """Has the worker train on the window's rows."""

    def __init__(
        self,
        settings: PredictorSettings,
        method: TrainedLengths,
        *,
        window: RowWindow,
        worker: Worker,
        clock: Callable[[], float],
        hears: Hears,
    ) -> None:
        self._settings = settings
        self._method = method
        self._window = window
        self._worker = worker
        self._clock = clock
        self._hears = hears
        #: the latest forest, counting from 1; 0 before the first
        self.number = 0
        #: whether the worker has that forest
        self.present = False
        #: whether lengths have drifted from what it says
        self.hurry = False
        #: why the last training came to nothing
        self.error: str | None = None
        self.failures = 0
        self.last_s: float | None = None
        #: of the latest forest
        self.stats: dict[str, object] = {}
        #: of the latest training, where it had a forest to stand against
        self.trial: Trial | None = None
        #: nothing is trained before the forest that is there has been judged
        self.wait = False
        self.running = False
        self._ended_s = 0.0
        self._retry_s = 0.0
        #: the next forest takes the place of one that was lost, with its process or its gateway
        self._again = False
        #: the latest forest was trained on some of the rows only
        self._quick = False
        #: a later training came to a worse one: the rows that are kept would now, too
        self._passed_by = False
        #: rows that had been added when the latest forest was trained
        self._trained_total = 0
        self._wake = asyncio.Event()
        #: nothing will be due before more calls have ended
        self._waits_for_calls = False

    def call_ended(self) -> None:
        """One row more."""
        if self._waits_for_calls and self.due_s() is not None:
            self._waits_for_calls = False
            self._wake.set()

    def lost(self) -> None:
        """The worker has lost its forest."""
        self.present = False
        self._again = self.lasting
        self._failed()
        self._wake.set()

    def take_up(self) -> None:
        """The rows are those of an earlier gateway, and so is what is known of its forest."""
        self._again = True

    @property
    def lasting(self) -> bool:
        """Whether the rows that are kept would give a forest like the latest one."""
        return (self.number > 0 or self._again) and not self._passed_by

    def works(self) -> None:
        """The forest has predicted something: what failed before is forgotten."""
        self.failures = 0

    def due_s(self) -> float | None:
        """When the next training is due, which may have been long ago.

        `None`: not before more calls have ended.
        """
        settings = self._settings
        if len(self._window) < settings.min_calls:
            return None
        if not self.present or self._quick:
            return self._retry_s
        if self.wait:
            return None
        wanted = settings.train_after_calls // (_HURRY if self.hurry else 1)
        if self._window.total - self._trained_total < wanted:
            return None
        rest_s = max(settings.train_interval_s, _REST * (self.last_s or 0.0))
        return max(self._retry_s, self._ended_s + rest_s)

    async def keep_training(self) -> None:
        """For as long as the gateway lives."""
        while True:
            due_s = self.due_s()
            delay_s = 0.0 if due_s is None else due_s - self._clock()
            if due_s is None or delay_s > 0.0:
                self._waits_for_calls = due_s is None
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None if due_s is None else delay_s):
                        await self._wake.wait()
                self._wake.clear()
                continue
            await self._train()

    async def _train(self) -> None:
        total = self._window.total
        quick = not self.present and len(self._window) > QUICK_CALLS
        rows = self._window.rows(latest=QUICK_CALLS if quick else None)
        against = self.number if self.present else 0
        job = TrainJob(self._method.train, self.number + 1, rows, SEED, against)
        self.running = True
        try:
            result = await self._worker.run(train, job, self._settings.train_timeout_s)
        except WorkerError as error:
            self.error = str(error)
            self._failed()
            log.warning("a length forest could not be trained: %s", error)
            self._hears.training_failed(self.error)
        else:
            self.error, self.last_s, self.trial = None, result.seconds, result.trial
            self._trained_total, self._quick = total, quick
            log.info("trained a length forest on %d calls in %.3g s", result.rows, self.last_s)
            self._passed_by = not result.taken
            again, self._again = self._again, self._again and quick
            if result.taken:
                self.number, self.present, self.stats = result.number, True, result.stats
                self._hears.trained(result, again=again)
            else:
                log.info("it is worse than the one that is there, which stays: %s", result.trial)
                self._hears.refused()
        finally:
            self.running = False
            self._ended_s = self._clock()

    def _failed(self) -> None:
        first_s, most_s = RETRY_S
        self._retry_s = self._clock() + min(most_s, first_s * 2.0 ** min(self.failures, 30))
        self.failures += 1

    def told(self) -> dict[str, object]:
        """JSON-ready."""
        due_s = self.due_s()
        return {
            "number": self.number,
            "running": self.running,
            "last_s": self.last_s,
            "calls_since": self._window.total - self._trained_total,
            "due_in_s": None if due_s is None else max(0.0, due_s - self._clock()),
            "failures": self.failures,
            "error": self.error,
            "forest": self.stats,
            "trial": None if self.trial is None else self.trial.told(),
        }
