"""Application models of a gateway: fitted in a worker process as workflows end, swapped whole.

The process is started for a fit and ended when none is due: between two fits it would only take
memory. While it works, and wherever it fails, the model that is there answers; before the first
one, the tracker's budgets do.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from dispatcher import catalog
from dispatcher.gateway.worker import Worker, WorkerError
from dispatcher.registry import PolicyServices
from dispatcher.stage_models import StageFit, fit_stages
from workflows.stage_profiles import StageModel, StageProfiles

log = logging.getLogger("headway.stages")

CHECK_S = 1.0
FIT_LIMIT_S = 120.0
RETRY_S = (30.0, 600.0)
"""Rest of an application after a failed fit, doubled with each further one, and its bound."""


class LiveStageModels:
    """Has due models fitted, one after another."""

    def __init__(
        self,
        profiles: StageProfiles,
        learner: str | None,
        clock: Callable[[], float],
        time_of_day: Callable[[], float] = time.time,
        *,
        check_s: float = CHECK_S,
    ) -> None:
        """Nothing is fitted before `start`.

        Args:
            profiles: The tracker's.
            learner: As in `StageFit`.
            clock: Seconds that never run backwards.
            time_of_day: Unix seconds, to be told.
            check_s: Between two looks at what is due.
        """
        self._profiles = profiles
        self._learner = learner
        self._clock = clock
        self._time_of_day = time_of_day
        self._check_s = check_s
        self._worker = Worker()
        self._task: asyncio.Task[None] | None = None
        #: application -> (failed fits in a row, when to try again)
        self._failed: dict[str, tuple[int, float]] = {}
        self._said: set[str] = set()
        self.fits = 0
        self.failures = 0

    def start(self) -> None:
        """Fit from now on."""
        self._task = asyncio.create_task(self._keep_fitting(), name="stage-models")

    async def stop(self) -> None:
        """End, and the worker process with it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._worker.stop()

    def stats(self) -> dict[str, object]:
        """JSON-ready."""
        return {
            "fits": self.fits,
            "failures": self.failures,
            "worker": {"pid": self._worker.pid},
        }

    async def _keep_fitting(self) -> None:
        while True:
            await asyncio.sleep(self._check_s)
            self._try_again()
            due = self._profiles.due()
            for application in due:
                await self._fit(application)
            if due:
                await self._worker.stop()

    def _try_again(self) -> None:
        now_s = self._clock()
        for application, (times, at_s) in list(self._failed.items()):
            if now_s >= at_s:
                self._failed[application] = (times, float("inf"))
                if not self._profiles.want(application):
                    del self._failed[application]

    async def _fit(self, application: str) -> None:
        job = self._profiles.job(application)
        if job is None:
            return
        try:
            state = await self._worker.run(fit_stages, StageFit(job, self._learner), FIT_LIMIT_S)
            # arrays take their time to load: not while calls wait
            await asyncio.to_thread(importlib.import_module, "workflows.standing")
            self._profiles.install(application, state, self._time_of_day())
        except (WorkerError, KeyError, TypeError, ValueError) as error:
            self._has_failed(application, error)
            return
        self.fits += 1
        self._failed.pop(application, None)
        self._say_why(state)

    def _has_failed(self, application: str, error: Exception) -> None:
        self.failures += 1
        times = self._failed.get(application, (0, 0.0))[0] + 1
        first_s, most_s = RETRY_S
        rest_s = min(most_s, first_s * 2.0 ** min(times - 1, 30))
        self._failed[application] = (times, self._clock() + rest_s)
        self._profiles.failed(application, str(error))
        log.warning("the stages of %.200r could not be modelled: %s", application, error)

    def _say_why(self, state: Mapping[str, Any]) -> None:
        """Once: what is missing stays missing."""
        why = state.get("why")
        if why is not None and why not in self._said:
            self._said = {str(why)}
            log.warning("stages are modelled as independent of each other: %s", why)


def live_stage_models(
    profiles: StageProfiles, services: PolicyServices, clock: Callable[[], float]
) -> LiveStageModels:
    """Those of a gateway, fitted as the catalog and the tracker's settings say."""
    learner = None
    if profiles.settings.model is StageModel.BAYES:
        method = catalog.trained_stages().build(catalog.DEFAULT_TRAINED_STAGES, {}, services)
        learner = method.learn
    return LiveStageModels(profiles, learner, clock)
