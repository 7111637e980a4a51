"""The forest at work: hears of calls, has them predicted elsewhere, says who is to be believed.

A call gets the fallback's estimate as it arrives, and waits for no other. Its features go to the
worker process with those of the other calls of these milliseconds; what comes back is handed on
where the call is still there.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from dispatcher.config import PredictorSettings
from dispatcher.core.call import Call
from dispatcher.core.events import CallArrived, Dispatched, Event
from dispatcher.core.ports import LengthPredictor
from dispatcher.core.types import CallId, CallSpec, LengthEstimate
from dispatcher.core.views import FleetView
from dispatcher.gateway.forest.allowance import Allowance
from dispatcher.gateway.forest.evidence import Evidence, Guess
from dispatcher.gateway.forest.health import Health, State
from dispatcher.gateway.forest.inside import Batch, Trained, predict
from dispatcher.gateway.forest.limits import known_exactly, limits_decide, within_limits
from dispatcher.gateway.forest.metrics import Counters, Fate
from dispatcher.gateway.forest.rows import RowWindow, packed, to_json
from dispatcher.gateway.forest.training import Trainer
from dispatcher.gateway.worker import Worker, WorkerError
from dispatcher.trained import TrainedLengths

log = logging.getLogger("headway.forest")

BATCH_CALLS = 16
LINGER_S = 0.004
"""A batch that is not full waits so long for more calls."""
LEARNED_PER_S, LEARNED_AT_ONCE = 100.0, 1_000.0
"""Calls that are taken into account: of more, the forest would learn no more, and the event loop
would do it all the time."""
_STUCK = 10.0
"""A worker that takes so many times `late_s` for a batch is killed."""

Hand = Callable[[CallId, LengthEstimate], None]
"""Gives a call another estimate."""


class _Asked(NamedTuple):
    """A call that waits for an estimate."""

    call: Call
    features: bytes
    at_s: float


class LiveForest:
    """Length predictor and observer for the coordinator: `LengthPredictor`, `Observer`, `Learned`.

    It predicts as the fallback does, and teaches both.
    """

    def __init__(
        self,
        settings: PredictorSettings,
        method: TrainedLengths,
        fallback: LengthPredictor,
        *,
        counters: Counters,
        clock: Callable[[], float],
        time_of_day: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._method = method
        self._fallback = fallback
        self._counters = counters
        self._clock = clock
        self._window = RowWindow(len(method.names), settings.window)
        #: a lane to predict in while the other trains
        self._worker = Worker(lanes=2, on_lost=self._lost)
        self._trainer = Trainer(
            settings, method, window=self._window, worker=self._worker, clock=clock, hears=self
        )
        self._health = Health(clock, time_of_day)
        self._evidence = Evidence(method.coverage)
        self._allowance = Allowance(LEARNED_PER_S, LEARNED_AT_ONCE, clock())
        #: ended calls beyond the allowance
        self._passed_over = 0
        self._asked: deque[_Asked] = deque()
        self._wake = asyncio.Event()
        #: why there is no forest where there was one, or should be
        self._trouble: str | None = None
        #: how long the latest estimates took, where that was too long
        self._slow_s: float | None = None
        self._last_s: float | None = None
        self._calls: Mapping[CallId, Call] = {}
        self._hand: Hand | None = None
        self._tasks: list[asyncio.Task[None]] = []
        counters.watch(lambda: self._health.state, lambda: len(self._window))
        self._settle()

    # --- life ---

    def start(self, calls: Mapping[CallId, Call], hand: Hand) -> None:
        """Train and predict from now on.

        Args:
            calls: The coordinator's live calls.
            hand: What estimates are handed to.
        """
        self._calls, self._hand = calls, hand
        self._tasks = [
            asyncio.create_task(self._trainer.keep_training(), name="forest-training"),
            asyncio.create_task(self._keep_predicting(), name="forest-predicting"),
        ]
        self._settle()

    async def stop(self) -> None:
        """End, and the worker process with it."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._worker.stop()

    # --- for the coordinator ---

    def predict(self, spec: CallSpec) -> LengthEstimate:
        """The fallback's estimate, at once."""
        return self._fallback.predict(spec)

    def learn(self, spec: CallSpec, output_tokens: int) -> None:
        """A call has ended well: one more to train on, and to judge the forest by."""
        self._fallback.learn(spec, output_tokens)
        try:
            self._take_in(spec, output_tokens)
        except Exception:
            # the scheduler has a call to end, whatever its predictor thinks of it
            log.exception("the length forest cannot learn from call %s", spec.call_id)

    def _take_in(self, spec: CallSpec, output_tokens: int) -> None:
        counts = output_tokens >= 1 and not known_exactly(spec)
        allowed = counts and self._allowance.take(self._clock())
        guess = self._evidence.ended(spec.call_id, output_tokens if allowed else None)
        self._evidence.catch_up(self._so_far)
        if not allowed:
            self._passed_over += counts
            return
        features = packed(self._method.features(spec)) if guess is None else guess.features
        self._window.add(features, spec.workflow_id, output_tokens)
        self._settle()
        self._trainer.call_ended()

    def observe(self, event: Event | Dispatched, fleet: FleetView, now_s: float) -> None:
        """An arrival is asked about, where there is a forest to ask."""
        if type(event) is CallArrived and self._trainer.present:
            call = self._calls.get(event.spec.call_id)
            if call is not None and not known_exactly(call.spec):
                self._ask(call)

    def _ask(self, call: Call) -> None:
        if len(self._asked) >= self._settings.max_waiting:
            self._counters.count(Fate.DROPPED)
            return
        try:
            features = packed(self._method.features(call.spec))
        except Exception:
            log.exception("the length forest cannot be asked about call %s", call.call_id)
            self._counters.count(Fate.FAILED)
            return
        self._asked.append(_Asked(call, features, self._clock()))
        self._wake.set()

    # --- predicting ---

    async def _keep_predicting(self) -> None:
        while True:
            await self._wake.wait()
            if len(self._asked) < BATCH_CALLS:
                await asyncio.sleep(LINGER_S)
            batch = self._next_batch()
            if not self._asked:
                self._wake.clear()
            if not batch:
                continue
            try:
                await self._predict(batch)
            except Exception as error:
                # a forest that answers nonsense: the next calls are to be predicted all the same
                log.exception("estimates of %d calls cannot be used", len(batch))
                self._forget(f"predicting failed: {error!r}")

    def _next_batch(self) -> list[_Asked]:
        """The longest waiting calls that have not ended."""
        batch: list[_Asked] = []
        while self._asked and len(batch) < BATCH_CALLS:
            asked = self._asked.popleft()
            if self._is_here(asked.call):
                batch.append(asked)
            else:
                self._counters.count(Fate.GONE)
        return batch

    async def _predict(self, batch: list[_Asked]) -> None:
        if not self._trainer.present:
            self._counters.count(Fate.FAILED, len(batch))
            return
        began_s = self._clock()
        job = Batch(self._window.width, b"".join(asked.features for asked in batch))
        try:
            limit_s = _STUCK * self._settings.late_s
            said = await self._worker.run(predict, job, limit_s, small=True)
        except WorkerError as error:
            self._counters.count(Fate.FAILED, len(batch))
            self._forget(f"predicting failed: {error}")
            return
        self._last_s = self._clock() - began_s
        self._slow_s = self._last_s if self._last_s > self._settings.late_s else None
        self._trainer.works()
        self._settle()
        if said.number != self._trainer.number:
            # the worker has a newer forest, of which the news is under way
            self._counters.count(Fate.FAILED, len(batch))
            return
        for asked, estimate in zip(batch, said.estimates, strict=True):
            self._take(asked, estimate)

    def _take(self, asked: _Asked, raw: LengthEstimate) -> None:
        call = asked.call
        if not self._is_here(call):
            self._counters.count(Fate.GONE)
            return
        corrected = within_limits(self._evidence.corrected(raw), call.spec)
        limited = limits_decide(raw, call.spec)
        guess = Guess(raw, corrected, call.first_length, asked.features, limited)
        self._evidence.said(call.call_id, guess)
        took_s = self._clock() - asked.at_s
        self._counters.seconds.observe(took_s)
        if took_s > self._settings.late_s:
            self._counters.count(Fate.LATE)
        elif self._health.state is not State.IN_USE or self._hand is None:
            self._counters.count(Fate.UNUSED)
        else:
            self._counters.count(Fate.USED)
            self._hand(call.call_id, corrected)

    def _so_far(self, call_id: CallId) -> float | None:
        """Tokens per sequence of a call that lives."""
        call = self._calls.get(call_id)
        return None if call is None else call.generated_tokens / call.spec.seats

    def _is_here(self, call: Call) -> bool:
        return self._calls.get(call.call_id) is call

    # --- what is told of the worker ---

    def trained(self, result: Trained, *, again: bool) -> None:
        """The worker has another forest now."""
        self._counters.trained.inc()
        self._trouble = self._slow_s = None
        if not again:
            # whoever is no worse than one that is believed need not show it once more
            proved = result.trial is not None and self._evidence.complaint() is None
            self._evidence.new_forest(on_probation=not proved)
        self._settle()

    def refused(self) -> None:
        """The worker keeps the forest that it has."""
        self._counters.refused.inc()
        self._settle()

    def training_failed(self, why: str) -> None:
        """The worker has the forest that it had before, or none."""
        self._counters.not_trained.inc()
        if not self._trainer.present:
            self._trouble = f"training failed: {why}"
        elif self._worker.pid is None:
            # one that took too long was killed, and the forest with it
            self._forget(f"training failed: {why}")
        self._settle()

    def _lost(self, why: str) -> None:
        self._forget(why)

    def _forget(self, why: str) -> None:
        """There is no forest any more; another one is trained on the same calls."""
        if not self._trainer.present:
            return
        self._trouble = why
        self._trainer.lost()
        self._settle()

    # --- who is believed ---

    def _settle(self) -> None:
        state, why = self._judged()
        self._health.now(state, why)
        self._trainer.hurry = state in (State.DRIFTED, State.WORSE)
        # another forest would have to begin its probation anew
        self._trainer.wait = state is State.PROBATION

    def _judged(self) -> tuple[State, str]:
        if not self._trainer.present:
            ended, wanted = len(self._window), self._settings.min_calls
            if self._trouble is not None:
                return State.FAILED, self._trouble
            if ended < wanted:
                return State.COLLECTING, f"{ended} calls have ended; {wanted} are needed"
            return State.TRAINING, "the first forest is being trained"
        if self._slow_s is not None:
            late_s = self._settings.late_s
            return State.SLOW, f"estimates took {self._slow_s:.3g} s; {late_s:g} s is too late"
        return self._evidence.complaint() or (State.IN_USE, "")

    def stats(self) -> dict[str, object]:
        """JSON-ready; the part of `GET /admin/predictors` about the forest."""
        return {
            **self._health.told(),
            "calls": len(self._window),
            "calls_max": self._settings.window,
            "calls_passed_over": self._passed_over,
            "training": self._trainer.told(),
            "worker": {
                "pid": self._worker.pid,
                "memory_bytes": None if self._worker.pid is None else _held_by(self._worker.pid),
            },
            "estimates": dict(self._counters.by_fate),
            "waiting": len(self._asked),
            "last_batch_s": self._last_s,
            **self._evidence.stats(),
        }

    # --- kept across restarts (Learned) ---

    def snapshot(self) -> Callable[[], Mapping[str, object]]:
        """What `dump` would give, put into words later, in any thread."""
        rows, evidence, names = self._window.rows(), self._evidence.snapshot(), self._method.names
        lasting = self._trainer.lasting
        return lambda: {
            "names": names,
            "rows": to_json(rows),
            "evidence": evidence(),
            "trained": lasting,
        }

    def dump(self) -> Mapping[str, object]:
        """The calls that a forest is trained on, and what is known of the latest forest."""
        return self.snapshot()()

    def load(self, state: Mapping[str, object]) -> None:
        """Go on where another gateway ended: the forest is trained again as soon as it starts.

        Raises:
            KeyError, ValueError, TypeError: The state does not have the shape that `dump` gives,
                or features are other ones now.
        """
        names, rows, evidence = state["names"], state["rows"], state["evidence"]
        if names != list(self._method.names):
            raise ValueError("the features of calls are other ones now")
        if not isinstance(rows, Mapping) or not isinstance(evidence, Mapping):
            raise ValueError("expected rows and evidence")
        self._window.take(rows)
        self._evidence.load(evidence)
        if state["trained"] is True:
            self._trainer.take_up()
        self._settle()


def _held_by(pid: int) -> int | None:
    """Memory of a process, where the system tells."""
    try:
        with Path(f"/proc/{pid}/statm").open(encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
