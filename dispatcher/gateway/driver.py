"""Turns the gateway's world into events and the coordinator's commands into deeds.

Every `Dispatch` becomes one task, and every task has one done-callback, `_attempt_over`, that posts
its one `AttemptEnded`: whether it returned, raised, was cancelled, or never came to run.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from typing import Protocol

from dispatcher.core.commands import (
    Abort,
    Command,
    Dispatch,
    Preempt,
    RecordCall,
    RecordWorkflow,
    Reject,
    WakeAt,
)
from dispatcher.core.coordinator import Coordinator
from dispatcher.core.events import CallArrived, CallCancelled, EstimateReady, Event, Tick
from dispatcher.core.types import (
    AttemptId,
    CallId,
    InstanceId,
    LengthEstimate,
    Outcome,
    RejectReason,
    WorkflowId,
)
from dispatcher.core.workflow_types import WorkflowRecord
from dispatcher.gateway.attempts import AttemptResult, AttemptRunner
from dispatcher.gateway.calls import LiveCall
from dispatcher.gateway.errors import ApiError, internal_error, rejection, retry_after
from dispatcher.gateway.verdict import down

log = logging.getLogger("headway.driver")


class Recorder(Protocol):
    """Hears what has happened: metrics, learning, quotas."""

    def decided(self, seconds: float) -> None:
        """One arrival took so long to decide upon."""

    def attempt_failed(self, reason: str) -> None:
        """An attempt failed before the client saw anything of it."""

    def preempted(self, instance_id: InstanceId) -> None:
        """An attempt was stopped there for another call; its own waits again."""

    def call_ended(self, call: LiveCall, result: AttemptResult | None) -> None:
        """A call is over; its record is set. `result` is of its last attempt, where one ran."""

    def workflow_ended(self, record: WorkflowRecord) -> None:
        """A workflow is over."""


class _Out:
    """An attempt that is out."""

    __slots__ = ("call", "dispatch", "result", "stopped", "task")

    def __init__(self, call: LiveCall, dispatch: Dispatch, task: asyncio.Task[AttemptResult]):
        self.call = call
        self.dispatch = dispatch
        self.task = task
        #: what to report when it was us who ended it
        self.stopped: AttemptResult | None = None


class Driver:
    """Owns the coordinator: nobody else calls `handle`."""

    def __init__(
        self,
        coordinator: Coordinator,
        runner: AttemptRunner,
        recorder: Recorder,
        clock: Callable[[], float],
    ) -> None:
        self.coordinator = coordinator
        self._runner = runner
        self._recorder = recorder
        self._clock = clock
        self._calls: dict[CallId, LiveCall] = {}
        self._out: dict[AttemptId, _Out] = {}
        self._last_result: dict[CallId, AttemptResult] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._wake_s: float | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    # --- what the gateway asks for ---

    @property
    def live_calls(self) -> int:
        """Calls whose clients wait."""
        return len(self._calls)

    def is_live(self, call_id: str) -> bool:
        """Whether a call of this id has not ended."""
        return call_id in self._calls

    def submit(self, call: LiveCall) -> None:
        """A call arrives; `call.done` is set when it is over, whichever way.

        Where its id is that of a live call, it gets another.

        Raises:
            InvariantError: A defect; the call is not known afterwards.
        """
        if call.spec.call_id in self._calls:
            call.rename()
        call_id = call.spec.call_id
        self._calls[call_id] = call
        self._idle.clear()
        started_s = self._clock()
        try:
            self.handle(CallArrived(call.spec))
        except BaseException:
            # the scheduler may have taken it in before the defect showed
            self.post(CallCancelled(call_id))
            self._forget(call_id)
            raise
        self._recorder.decided(self._clock() - started_s)

    def cancel(self, call: LiveCall, error: ApiError | None = None) -> None:
        """The client is gone, or (`error`) shall be told that its call is over."""
        if call.spec.call_id in self._calls:
            call.error = call.error or error
            self.post(CallCancelled(call.spec.call_id))

    def cancel_all(self, error: Callable[[], ApiError]) -> None:
        """End every call, each with an error of its own; the grace of a shutdown has run out."""
        for call in list(self._calls.values()):
            self.cancel(call, error())

    def estimated(self, call_id: CallId, length: LengthEstimate) -> None:
        """A slower predictor has spoken of a call."""
        self.post(EstimateReady(call_id, length))
        call, known = self._calls.get(call_id), self.coordinator.calls.get(call_id)
        if call is not None and known is not None and call.dispatched_s is not None:
            call.length = known.first_length

    def calls_of(self, workflow_id: WorkflowId) -> list[LiveCall]:
        """Live calls of one workflow."""
        return [c for c in self._calls.values() if c.spec.workflow_id == workflow_id]

    def retry_elsewhere(self, instance_id: str, why: str) -> None:
        """An instance is down: its attempts that have sent nothing end, to be tried elsewhere."""
        failed = AttemptResult(Outcome.ENGINE_ERROR, retryable=True, detail=why, reason="down")
        for out in list(self._out.values()):
            if out.dispatch.instance_id == instance_id and not out.call.visible:
                out.call.failure = down(instance_id, why).error()
                self._stop(out, failed)

    def attempts_at(self, instance_id: str) -> int:
        """Attempts that are out at an instance."""
        return sum(out.dispatch.instance_id == instance_id for out in self._out.values())

    async def wait_idle(self) -> None:
        """Return when no call is alive."""
        await self._idle.wait()

    def close(self) -> None:
        """Stop the timer; nothing may be alive any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- events ---

    def post(self, event: Event) -> None:
        """Hand an event over; a defect is logged, never raised into a socket's callback."""
        try:
            self.handle(event)
        except Exception:
            log.exception("the scheduler failed on %s", type(event).__name__)

    def handle(self, event: Event) -> None:
        """Hand an event over and carry out what comes back.

        Raises:
            HeadwayError: What the event named is unknown, or a defect.
        """
        try:
            commands = self.coordinator.handle(self._clock(), event)
        except Exception:
            # what was decided before the defect showed still holds: clients wait for it
            for command in self.coordinator.take_commands():
                self._execute(command)
            raise
        for command in commands:
            self._execute(command)
        for defect in self.coordinator.take_defects():
            log.error("the policy failed on a call, which has ended", exc_info=defect)

    def _execute(self, command: Command) -> None:
        match command:
            case Dispatch():
                self._send(command)
            case Preempt(attempt_id):
                self._preempt(attempt_id)
            case Abort(attempt_id):
                self._abort(attempt_id)
            case Reject(call_id, reason, retry_after_s, detail):
                self._reject(call_id, reason, retry_after_s, detail)
            case WakeAt(at_s):
                self._wake_at(at_s)
            case RecordCall(record):
                call = self._forget(record.call_id)
                result = self._last_result.pop(record.call_id, None)
                if call is not None:
                    call.conclude(record)
                    self._recorder.call_ended(call, result)
            case RecordWorkflow(record):
                self._recorder.workflow_ended(record)

    # --- attempts ---

    def _send(self, dispatch: Dispatch) -> None:
        call = self._calls[dispatch.call_id]
        if call.dispatched_s is None:
            call.dispatched_s = self._clock()
        known = self.coordinator.calls.get(dispatch.call_id)
        call.length = None if known is None else known.first_length
        task = asyncio.get_running_loop().create_task(
            self._runner.run(call, dispatch, self.post), name=f"attempt-{dispatch.attempt_id}"
        )
        self._out[dispatch.attempt_id] = _Out(call, dispatch, task)
        task.add_done_callback(functools.partial(self._attempt_over, dispatch.attempt_id))

    def _attempt_over(self, attempt_id: AttemptId, task: asyncio.Task[AttemptResult]) -> None:
        """The one place where an attempt ends."""
        out = self._out.pop(attempt_id)
        call = out.call
        if task.cancelled():
            result = out.stopped or AttemptResult(Outcome.CANCELLED, detail="aborted")
        elif (error := task.exception()) is not None:
            log.error("attempt of request %s failed", call.request_id, exc_info=error)
            call.error = call.error or internal_error(call.request_id)
            result = AttemptResult(Outcome.ENGINE_ERROR, detail=f"gateway defect: {error!r}")
        else:
            result = task.result()
        if result.outcome is Outcome.PREEMPTED:
            self._recorder.preempted(out.dispatch.instance_id)
        if result.retryable:
            self._recorder.attempt_failed(result.reason)
            log.warning(
                "request %s: attempt at %s failed: %s",
                call.request_id,
                out.dispatch.instance_id,
                result.detail,
            )
        self._last_result[call.spec.call_id] = result
        self.post(result.event(attempt_id))
        self._last_result.pop(call.spec.call_id, None)

    def _preempt(self, attempt_id: AttemptId) -> None:
        """Stop an attempt whose call can go on; one that the client has seen runs to its end."""
        out = self._out.get(attempt_id)
        if out is not None and not out.call.visible:
            self._stop(out, AttemptResult(Outcome.PREEMPTED))

    def _abort(self, attempt_id: AttemptId) -> None:
        out = self._out.get(attempt_id)
        if out is not None:
            self._stop(out, AttemptResult(Outcome.CANCELLED, detail="aborted"))

    def _stop(self, out: _Out, result: AttemptResult) -> None:
        if out.stopped is None or result.outcome is Outcome.CANCELLED:
            out.stopped = result
        out.task.cancel()

    # --- the rest ---

    def _reject(
        self, call_id: CallId, reason: RejectReason, retry_after_s: float, detail: str
    ) -> None:
        call = self._calls.get(call_id)
        if call is None:
            return
        if reason is RejectReason.ENGINE_FAILED:
            # without an engine's failure it was the policy that failed on it
            call.error = call.failure or internal_error(call.request_id)
            if call.error.status in (429, 503) and not call.error.headers:
                call.error.headers = retry_after(retry_after_s, "engine_overloaded")
        else:
            call.error = rejection(reason, retry_after_s, detail)

    def _wake_at(self, at_s: float) -> None:
        if self._wake_s is not None and self._wake_s <= at_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._wake_s = at_s
        delay_s = max(0.0, at_s - self._clock())
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._wake)

    def _wake(self) -> None:
        at_s, self._wake_s, self._timer = self._wake_s, None, None
        if at_s is not None and self._clock() < at_s:
            # the loop's clock is coarser than ours and rang early
            self._wake_at(at_s)
            return
        self.post(Tick())

    def _forget(self, call_id: CallId) -> LiveCall | None:
        call = self._calls.pop(call_id, None)
        if not self._calls:
            self._idle.set()
        return call

    def instance_known(self, instance_id: str) -> bool:
        """Whether the coordinator has an instance of this id."""
        return InstanceId(instance_id) in self.coordinator.fleet.instances
