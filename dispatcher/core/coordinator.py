"""The one place where scheduling state changes: `Coordinator.handle(now_s, event) -> commands`.

It knows no clock, no socket and no algorithm: time comes in, policies and predictors come in, and
what should happen goes out as commands. The gateway and the simulator drive the same class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from dispatcher.core import events as ev
from dispatcher.core.attempts import Attempts, Prepared
from dispatcher.core.call import Attempt, Call, Place
from dispatcher.core.commands import (
    Abort,
    Command,
    Preempt,
    RecordCall,
    Reject,
    WakeAt,
)
from dispatcher.core.errors import InvariantError
from dispatcher.core.fleet import Fleet
from dispatcher.core.instance import Instance
from dispatcher.core.membership import Membership
from dispatcher.core.placing import Placing
from dispatcher.core.ports import (
    CostModel,
    LengthPredictor,
    Observer,
    Policy,
    WorkflowTracker,
)
from dispatcher.core.records import Archive, call_record, call_result
from dispatcher.core.types import (
    AttemptId,
    CallId,
    CallSpec,
    Outcome,
    RejectReason,
    SeatTag,
    Usage,
)
from dispatcher.core.workflow_types import CallResult, Placement
from dispatcher.core.workflows import Workflows

_RETRY_AFTER_BOUNDS_S = (1.0, 600.0)
_GIVEN_UP_PER_EVENT = 64
"""Calls given up; more wait for the next event, so that they do not stop a gateway's event loop."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what may wait."""

    max_calls: int = 10_000
    """Waiting calls; one more is rejected."""
    max_wait_s: float = 600.0
    """Longest wait before a call's first (or next) attempt."""
    max_attempts: int = 3
    """Attempts that may fail before the call does."""


class Coordinator:
    """Calls, attempts and instances, and every decision about them."""

    def __init__(
        self,
        *,
        policy: Policy,
        tracker: WorkflowTracker,
        lengths: LengthPredictor,
        costs: CostModel,
        limits: Limits | None = None,
        epoch_s: float = 0.0,
        observers: Sequence[Observer] = (),
    ) -> None:
        """`epoch_s` is the moment that engine priorities count from."""
        self.tracker = tracker
        self.limits = limits or Limits()
        self.calls: dict[CallId, Call] = {}
        self.archive = Archive()
        self.fleet = Fleet(costs, tracker, self.calls)
        self._attempts = Attempts(self.fleet, lengths, costs, epoch_s)
        self.placing = Placing(policy, self.fleet, self._prepare, self._dispatch)
        self._membership = Membership(self.fleet, self.placing)
        self._workflows = Workflows(
            tracker, self.calls, self.fleet, self.placing, cancel=self._cancel, say=self._say
        )
        self.lengths = lengths
        self._observers = tuple(observers)
        self._now_s = epoch_s
        self._sequence = 0
        self._commands: list[Command] = []
        self._defects: list[Exception] = []
        #: the earliest `WakeAt` that has not come back as a tick
        self._wake_s: float | None = None
        self._policy_tick_s: float | None = None
        self._schedule_policy_tick()
        self._handlers: dict[type, Callable[[Any], None]] = {
            ev.CallArrived: self._call_arrived,
            ev.EstimateReady: self._estimate_ready,
            ev.FirstToken: self._first_token,
            ev.Progress: self._progress,
            ev.AttemptEnded: self._attempt_ended,
            ev.CallCancelled: self._call_cancelled,
            ev.WorkflowDeclared: self._workflows.declared,
            ev.StageReported: self._workflows.stage_reported,
            ev.PlanPosted: self._workflows.plan_posted,
            ev.WorkflowFinished: self._workflows.finished,
            ev.WorkflowCancelled: self._workflows.cancelled,
            ev.InstanceUp: self._membership.up,
            ev.InstanceObserved: self._membership.observed,
            ev.InstanceDown: self._membership.down,
            ev.InstanceDraining: self._membership.draining,
            ev.ModelSwapped: self._model_swapped,
            ev.PolicySwitched: self._policy_switched,
            ev.Tick: self._tick,
        }

    # --- the driver's side ---

    @property
    def policy(self) -> Policy:
        """The one that decides now."""
        return self.placing.policy

    @property
    def attempts(self) -> Mapping[AttemptId, Attempt]:
        """What is in flight."""
        return self._attempts.live

    @property
    def now_s(self) -> float:
        """Time of the last event."""
        return self._now_s

    def handle(self, now_s: float, event: ev.Event) -> list[Command]:
        """Take one event, change state, say what to do.

        Time must not run backwards; a step back (clocks differ by a hair between threads) is
        taken as no time at all. Where a policy raises on a call, that call ends, the others go on
        and `take_defects` tells of it. Where anything else raises, so does this, and what was
        decided before it holds: see `take_commands`.
        """
        self._now_s = now_s = max(now_s, self._now_s)
        self.fleet.now_s = now_s
        self._handlers[type(event)](event)
        self._tell(event)
        self._workflows.catch_up()
        for _ in range(_GIVEN_UP_PER_EVENT):
            try:
                self.placing.pump(now_s)
            except Exception as defect:
                if not self._give_up_what_is_at_hand(defect):
                    raise
            else:
                break
        self._wish_to_wake(now_s)
        return self.take_commands()

    def take_commands(self) -> list[Command]:
        """What has been decided and not yet been handed out; only where `handle` has raised."""
        commands, self._commands = self._commands, []
        return commands

    def take_defects(self) -> list[Exception]:
        """What policies have raised on single calls since it was last asked."""
        defects, self._defects = self._defects, []
        return defects

    def _give_up_what_is_at_hand(self, defect: Exception) -> bool:
        """A policy has raised on a call; it would again on every event, and nothing would go."""
        call, self.placing.at_hand = self.placing.at_hand, None
        if call is None or call.attempt is not None:
            return False
        self._defects = [*self._defects[-_GIVEN_UP_PER_EVENT:], defect]
        self.placing.remove(call)
        why = "the policy failed on this call"
        self._say(Reject(call.call_id, RejectReason.ENGINE_FAILED, _RETRY_AFTER_BOUNDS_S[0], why))
        self._end(call, Outcome.ENGINE_ERROR)
        return True

    def _say(self, command: Command) -> None:
        self._commands.append(command)

    def _tell(self, event: ev.Event | ev.Dispatched) -> None:
        for observer in self._observers:
            observer.observe(event, self.fleet, self._now_s)

    # --- calls ---

    def _call_arrived(self, event: ev.CallArrived) -> None:
        spec, now_s = event.spec, self._now_s
        if spec.call_id in self.calls:
            raise InvariantError(f"call {spec.call_id} arrived twice")
        self._sequence += 1
        placement = self.tracker.call_arrived(spec, now_s)
        try:
            call = self._new_call(spec, placement)
        except Exception:
            # a predictor has raised: the tracker must not wait for a call that nobody has
            turned_away = CallResult(Outcome.REJECTED, None, spec.prompt_tokens, 0)
            self._workflows.apply(self.tracker.call_ended(spec.call_id, turned_away, now_s))
            raise
        self._workflows.stale(placement.rebudget)
        self.calls[spec.call_id] = call
        if spec.reject_late and placement.deadline_s <= now_s:
            self._reject(call, RejectReason.DEADLINE)
        elif not self.fleet.available(call):
            self._reject(call, RejectReason.NO_ENGINE)
        elif len(self.placing) >= self.limits.max_calls:
            self._reject(call, RejectReason.QUEUE_FULL)
        else:
            self.fleet.sessions.arrived(call.spec, now_s)
            self._wait(call)

    def _new_call(self, spec: CallSpec, placement: Placement) -> Call:
        now_s = self._now_s
        # predictors know a stage and an application by the names the tracker gave them
        if (spec.stage, spec.application) != (placement.stage, placement.application):
            spec = replace(spec, stage=placement.stage, application=placement.application)
        candidates = self.fleet.candidates(spec)
        room_tokens = self.fleet.longest_output_tokens(candidates, spec.prompt_tokens)
        budget = self.tracker.budget(spec.call_id, self.fleet.work_s(candidates), now_s)
        length = self.lengths.predict(spec).capped(room_tokens)
        return Call(
            spec=spec,
            sequence=self._sequence,
            arrived_s=now_s,
            enqueued_s=now_s,
            first_length=length,
            length=length,
            placement=placement,
            budget=budget,
            candidates=candidates,
            room_tokens=room_tokens,
        )

    def _wait(self, call: Call) -> None:
        self.placing.add(call, self._now_s + self.limits.max_wait_s)

    def _estimate_ready(self, event: ev.EstimateReady) -> None:
        call = self.calls.get(event.call_id)
        if call is None:
            return
        room_tokens = self.fleet.longest_output_tokens(call.candidates, call.spec.prompt_tokens)
        call.estimate(event.length, room_tokens)
        if call.attempt is not None:
            call.attempt.instance.progress(call.attempt, self._now_s)
        else:
            self.placing.refresh(call, self._now_s)

    def _call_cancelled(self, event: ev.CallCancelled) -> None:
        call = self.calls.get(event.call_id)
        if call is not None:
            self._cancel(call)

    def _cancel(self, call: Call) -> None:
        call.cancelled = True
        if call.attempt is not None:
            # also where a preemption is under way, which the driver may have passed over
            if not call.attempt.aborting:
                call.attempt.aborting = True
                self._commands.append(Abort(call.attempt.attempt_id))
            return
        self.placing.remove(call)
        self._end(call, Outcome.CANCELLED)

    def _reject(self, call: Call, reason: RejectReason, detail: str = "") -> None:
        self._commands.append(Reject(call.call_id, reason, self.retry_after_s(call), detail))
        failed = reason is RejectReason.ENGINE_FAILED
        self._end(call, Outcome.ENGINE_ERROR if failed else Outcome.REJECTED)

    def retry_after_s(self, call: Call) -> float:
        """When the least loaded instance that fits will have worked off what it has now."""
        low, high = _RETRY_AFTER_BOUNDS_S
        return min(high, max(low, self.placing.wait_s(self.fleet.available(call))))

    def _end(
        self, call: Call, outcome: Outcome, usage: Usage | None = None, tool: str | None = None
    ) -> None:
        """The one way out for a call."""
        now_s = self._now_s
        del self.calls[call.call_id]
        call.place = Place.ENDED
        record = call_record(call, outcome, usage, tool, now_s)
        self.archive.keep(record)
        self._commands.append(RecordCall(record))
        instance = call.instance if outcome is Outcome.OK else None
        self.fleet.sessions.ended(call.spec, instance, usage, tool, now_s)
        result = call_result(call, record)
        self._workflows.apply(self.tracker.call_ended(call.call_id, result, now_s))

    # --- attempts ---

    def _prepare(self, call: Call, instance: Instance, seat: SeatTag) -> Prepared:
        return self._attempts.prepare(call, instance, seat, self.policy, self._now_s)

    def _dispatch(self, prepared: Prepared) -> None:
        call, instance_id = prepared.attempt.call, prepared.attempt.instance.instance_id
        command = self._attempts.send(prepared, self._now_s)
        urgency_s = call.urgency_s or 0.0
        self.tracker.call_dispatched(call.call_id, instance_id, urgency_s, self._now_s)
        self._commands.append(command)
        self._tell(ev.Dispatched(call, command.attempt_id, instance_id))

    def _first_token(self, event: ev.FirstToken) -> None:
        self._attempts.first_token(event.attempt_id, self._now_s)

    def _progress(self, event: ev.Progress) -> None:
        self._attempts.progress(event.attempt_id, event.output_tokens, self._now_s)

    def _attempt_ended(self, event: ev.AttemptEnded) -> None:
        attempt = self._attempts.end(event, self._now_s)
        instance = attempt.instance
        self.placing.touch(instance)
        self._after_attempt(attempt.call, instance, event)
        self._membership.leave_when_empty(instance)

    def _after_attempt(self, call: Call, instance: Instance, event: ev.AttemptEnded) -> None:
        outcome = event.outcome
        if outcome is Outcome.OK or outcome is Outcome.CLIENT_ERROR:
            self._end(call, outcome, event.usage, event.tool)
        elif call.cancelled or outcome is Outcome.CANCELLED:
            self._end(call, Outcome.CANCELLED, event.usage)
        elif outcome is Outcome.PREEMPTED:
            if not event.resumable:
                call.begin_again()
            self._wait_again(call)
        elif not event.retryable:
            self._end(call, Outcome.ENGINE_ERROR, event.usage)
        else:
            call.avoid.add(instance.instance_id)
            call.begin_again()
            call.failures += 1
            if call.failures >= self.limits.max_attempts:
                self._reject(call, RejectReason.ENGINE_FAILED, event.detail)
            else:
                self._wait_again(call)

    def _wait_again(self, call: Call) -> None:
        """Its budget may have changed while it was out."""
        work_s = self.fleet.work_s(call.candidates)
        call.budget = self.tracker.budget(call.call_id, work_s, self._now_s)
        self._wait(call)

    # --- policy and time ---

    def _model_swapped(self, event: ev.ModelSwapped) -> None:
        if self.policy.tunable is not None:
            self.policy.tunable.tune(event.name, event.value)

    def _policy_switched(self, event: ev.PolicySwitched) -> None:
        self.placing.switch(event.policy)
        self._schedule_policy_tick()

    def _schedule_policy_tick(self) -> None:
        period_s = self.policy.tick_s
        self._policy_tick_s = None if period_s is None else self._now_s + period_s

    def _tick(self, event: ev.Tick) -> None:
        now_s = self._now_s
        if self._wake_s is not None and now_s >= self._wake_s:
            self._wake_s = None
        for call in islice(self.placing.impatient(now_s), _GIVEN_UP_PER_EVENT):
            self.placing.remove(call)
            self._reject(call, RejectReason.QUEUE_TIMEOUT)
        expiry_s = self.tracker.next_expiry_s()
        if expiry_s is not None and expiry_s <= now_s:
            self._workflows.apply(self.tracker.expire(now_s))
        if self._policy_tick_s is not None and now_s >= self._policy_tick_s:
            self._schedule_policy_tick()
            self.placing.tick(now_s)
            self._preempt()

    def _preempt(self) -> None:
        part = self.policy.preemption
        for attempt_id in () if part is None else part.preempt(self.fleet, self._now_s):
            attempt = self.attempts.get(attempt_id)
            if attempt is not None and not attempt.stopping:
                attempt.preempting = True
                self._commands.append(Preempt(attempt_id))

    def _wish_to_wake(self, now_s: float) -> None:
        earliest_s = self._wake_s
        for at_s in (
            now_s if self._workflows.behind else None,
            self.placing.next_wake_s(now_s),
            self.tracker.next_expiry_s(),
            self._policy_tick_s,
        ):
            if at_s is not None and (earliest_s is None or at_s < earliest_s):
                earliest_s = at_s
        if earliest_s is not None and earliest_s != self._wake_s:
            self._wake_s = earliest_s
            self._commands.append(WakeAt(earliest_s))
