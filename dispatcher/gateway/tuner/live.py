"""The task that asks once a window, and tunes where latency has grown worse (section 4.3)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict

from dispatcher.config import TuningSettings
from dispatcher.core.errors import HeadwayError
from dispatcher.gateway.tuner.subject import Subject
from dispatcher.gateway.worker import Worker, WorkerError
from dispatcher.traces.assembly import Assembled
from dispatcher.tuning import (
    Choice,
    Monitor,
    RegressionTest,
    Replay,
    ReplayError,
    ReplayRequest,
    ReplayResult,
    Window,
    choose,
    regression_p,
    replay_from_zero,
    with_present,
)

log = logging.getLogger("headway.tuner")

HISTORY_MAX = 100
"""Changes of alpha and tunes kept."""
WINDOWS_MAX = 50
"""Windows kept, of which most say that nothing has changed."""


class NotNowError(HeadwayError):
    """Why no tune can be had now; `code` is for programs."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code = code


class LiveTuner:
    """Owns alpha, where the running policy leaves it to a tuner.

    It listens only while there is something to tune: a policy whose alpha may be set, and a
    replay.
    """

    def __init__(
        self,
        settings: TuningSettings,
        subject: Subject,
        replay: Replay | None,
        clock: Callable[[], float],
        time_of_day: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._rules = settings.rules()
        self._subject = subject
        self._replay = replay
        self._clock = clock
        self._time_of_day = time_of_day
        self._monitor = Monitor(self._rules, clock())
        self._worker = Worker()
        #: held while a window is judged or a tune runs
        self._at_work = asyncio.Lock()
        self._watch: asyncio.Task[None] | None = None
        self._history: deque[Mapping[str, object]] = deque(maxlen=HISTORY_MAX)
        self._windows: deque[Mapping[str, object]] = deque(maxlen=WINDOWS_MAX)
        self._last_run_s: float | None = None
        self._note("start")

    # --- life ---

    def start(self) -> None:
        """Watch windows from now on."""
        if self._settings.enabled and self._replay is not None:
            self._monitor.restart(self._clock())
            self._watch = asyncio.create_task(self._keep_watch(), name="tuner")

    async def stop(self) -> None:
        """End, and the worker process with it."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        await self._worker.stop()

    def policy_switched(self) -> None:
        """Another policy decides: what was seen says nothing of it."""
        self._note("policy switched")
        self._monitor.restart(self._clock())

    @property
    def worker_pid(self) -> int | None:
        """Of the process that tests and replays, while there is one."""
        return self._worker.pid

    # --- kept across restarts (Learned) ---

    def dump(self) -> Mapping[str, object]:
        """The alpha that was found, and for which policy."""
        found = self._subject.alpha if self._subject.tunable else None
        return {"policy": self._subject.policy.name, "alpha": found}

    def load(self, state: Mapping[str, object]) -> None:
        """Go on with the alpha that was found, where the same policy leaves it to the tuner.

        Raises:
            KeyError, ValueError: The state does not have the shape that `dump` gives.
        """
        policy, alpha = state["policy"], state["alpha"]
        if alpha is None or policy != self._subject.policy.name or not self._subject.tunable:
            return
        if not isinstance(alpha, float | int) or not 0.0 <= alpha <= 1.0:
            raise ValueError(f"alpha: expected a number in [0, 1], not {alpha!r}")
        if alpha != self._subject.alpha:
            self._subject.adopt(float(alpha))
            self._note("taken up from the store")

    # --- what happens ---

    @property
    def listening(self) -> bool:
        """Whether ended workflows are of use."""
        return self._settings.enabled and self._replay is not None and self._subject.tunable

    def workflow_ended(self, ended: Assembled) -> None:
        """One more for the present window."""
        self._monitor.add(ended, self._clock())

    def _why_not(self) -> tuple[str, str] | None:
        """What stands against tuning at all: a code, and a sentence."""
        policy = self._subject.policy
        if not self._settings.enabled:
            return "tuner_disabled", "tuning.enabled is false"
        if policy.alpha is None:
            return "not_tunable", f"policy {policy.name} has no alpha"
        if not self._subject.tunable:
            return (
                "not_tunable",
                f"alpha was set to {self._subject.alpha:g} by value; `alpha: auto` leaves it to"
                " the tuner",
            )
        if self._replay is None:
            return "no_replay", "no replay is wired into this gateway"
        return None

    async def run_now(self) -> Mapping[str, object]:
        """Tune on what ended of late; what was found, as in the history.

        Raises:
            NotNowError: There is nothing to tune, or to tune with, or a tune runs already.
        """
        against = self._why_not()
        if against is not None:
            raise NotNowError(*against)
        if self._at_work.locked():
            raise NotNowError("tuner_running", "the tuner is at work already")
        async with self._at_work:
            window = self._monitor.recent(self._clock())
            ended, needed = len(window.latencies_s), self._rules.min_workflows
            if ended < needed:
                raise NotNowError(
                    "too_little_traffic",
                    f"{ended} workflows have ended well within {self._rules.max_window_s:g} s;"
                    f" {needed} are needed",
                )
            entry = await self._tune(window, "asked for")
            if entry is None:
                raise NotNowError("no_engine", "no engine is up to replay on")
            return entry

    async def _keep_watch(self) -> None:
        while True:
            delay_s = self._monitor.due_s - self._clock()
            if delay_s > 0.0:
                await asyncio.sleep(delay_s)
                continue
            async with self._at_work:
                window = self._monitor.close(self._clock())
                if window is not None and self._why_not() is None:
                    try:
                        await self._judge(window)
                    except WorkerError as error:
                        log.warning("a window could not be tested: %s", error)
                        self._note_window(window, f"not tested: {error}")
                    except Exception as defect:
                        # whoever watches goes on watching
                        log.exception("a window could not be judged")
                        self._note_window(window, f"not judged: {defect!r}")

    async def _judge(self, window: Window) -> None:
        """Tune on the first window, and on one that is worse than the one last tuned on."""
        reference = self._monitor.reference
        if reference is None:
            self._note_window(window, "the first one")
            await self._tune(window, "the first window")
            return
        job = RegressionTest(
            reference.latencies_s,
            window.latencies_s,
            self._rules.test,
            self._rules.draws,
            seed=window.number,
        )
        p_value = await self._worker.run(regression_p, job, self._settings.timeout_s)
        if self._monitor.reference is not reference:
            self._note_window(window, "not judged: the policy was switched meanwhile", p_value)
            return
        if p_value >= self._rules.p_value:
            self._note_window(window, "no worse than the reference", p_value)
            return
        self._note_window(window, "worse than the reference", p_value)
        why = f"P95 went from {reference.p95_s:.4g} s to {window.p95_s:.4g} s (p = {p_value:.2g})"
        await self._tune(window, why, p_value)

    async def _tune(
        self, window: Window, trigger: str, p_value: float | None = None
    ) -> Mapping[str, object] | None:
        """Replay, choose, adopt, write down; `None` where there is no engine to replay on."""
        subject, policy, alpha = self._subject, self._subject.policy, self._subject.alpha
        fleet = subject.fleet()
        if self._replay is None or alpha is None or not fleet:
            return None
        request = ReplayRequest(
            trace=window.trace,
            fleet=fleet,
            policy=policy.name,
            params=dict(policy.params),
            alphas=with_present(alpha),
            seed=window.number,
        )
        choice: Choice | None = None
        began_s = self._clock()
        try:
            job = (self._replay, request)
            result = await self._worker.run(replay_from_zero, job, self._settings.timeout_s)
            if not isinstance(result, ReplayResult):
                raise ReplayError(f"the replay gave a {type(result).__name__}, not a curve")
            choice = choose(result, alpha, self._rules.min_gain)
        except (WorkerError, ReplayError) as error:
            outcome, why = "failed", str(error)
            log.warning("alpha stays %g, its replay failed: %s", alpha, error)
        else:
            outcome, why = "adopted" if choice.adopted else "kept", choice.why
            if subject.policy is not policy or subject.alpha != alpha:
                outcome, why = "discarded", "the policy or its alpha changed meanwhile"
            else:
                self._settle(choice, window)
        self._last_run_s = self._clock() - began_s
        return self._note(
            trigger,
            outcome=outcome,
            reason=why,
            alpha_before=alpha,
            gain=None if choice is None else choice.gain,
            curve=[] if choice is None else [_json(asdict(score)) for score in choice.curve],
            window=_told(window),
            p_value=p_value,
            seconds=self._last_run_s,
        )

    def _settle(self, choice: Choice, window: Window) -> None:
        self._monitor.tuned(window)
        if choice.adopted:
            self._subject.adopt(choice.after)
            log.info("alpha is now %g, not %g: %s", choice.after, choice.before, choice.why)

    # --- what is told ---

    def _note(self, why: str, **more: object) -> Mapping[str, object]:
        entry = {
            "at_unix_s": self._time_of_day(),
            "policy": self._subject.policy.name,
            "alpha": self._subject.alpha,
            "why": why,
            **more,
        }
        self._history.append(entry)
        return entry

    def _note_window(self, window: Window, verdict: str, p_value: float | None = None) -> None:
        at = {"at_unix_s": self._time_of_day(), "number": window.number}
        self._windows.append({**at, **_told(window), "p_value": p_value, "verdict": verdict})

    def state(self) -> dict[str, object]:
        """JSON-ready; what `GET /admin/tuner` answers."""
        against, now_s = self._why_not(), self._clock()
        reference = self._monitor.reference
        return {
            "alpha": self._subject.alpha,
            "enabled": against is None,
            "why_not": None if against is None else against[1],
            "running": self._at_work.locked(),
            "last_run_s": self._last_run_s,
            "worker_pid": self.worker_pid,
            "settings": self._settings.model_dump(),
            "window": None
            if against is not None
            else {
                "workflows": self._monitor.open_workflows(),
                "open_for_s": now_s - self._monitor.opened_s,
                "closes_in_s": max(0.0, self._monitor.due_s - now_s),
                "collecting": self._monitor.collecting,
            },
            "reference": None if reference is None else _told(reference),
            "windows": list(self._windows),
            "history": list(self._history),
        }


def _told(window: Window) -> dict[str, object]:
    """A window in numbers. The reference has kept no calls, so it tells none."""
    told: dict[str, object] = {
        "workflows": len(window.latencies_s),
        "span_s": window.span_s,
        "p95_s": window.p95_s,
    }
    if window.trace:
        told["calls_replayed"] = window.calls
    return told


def _json(score: Mapping[str, float | None]) -> dict[str, float | None]:
    """JSON knows no infinity."""
    return {key: None if value == float("inf") else value for key, value in score.items()}
