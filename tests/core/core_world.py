"""A driver for tests: posts events, keeps what is out, checks the invariants after every event."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dispatcher.core import events as ev
from dispatcher.core import invariants
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
from dispatcher.core.coordinator import Coordinator, Limits
from dispatcher.core.local_queue import HeapQueue
from dispatcher.core.ports import Admit, AttemptTiming, Defer, Policy, TrackerUpdate
from dispatcher.core.types import (
    PLAIN_SEAT,
    AttemptId,
    CallId,
    CallSpec,
    InstanceId,
    InstanceSpec,
    LengthEstimate,
    Outcome,
    RejectReason,
    Usage,
    WorkflowId,
)
from dispatcher.core.workflow_types import Placement, Remaining, StageBudget, StageShape


class FlatLengths:
    """Every call gives `tokens` output tokens."""

    def __init__(self, tokens: float = 100.0) -> None:
        self.tokens = tokens
        self.learned: list[tuple[CallId, int]] = []

    def predict(self, spec):
        return LengthEstimate(expected_tokens=self.tokens, source="flat")

    def learn(self, spec, output_tokens):
        self.learned.append((spec.call_id, output_tokens))


class FlatCosts:
    """1 ms per prompt token, 10 ms per output token, times the instance's slowness."""

    def __init__(self) -> None:
        self.slowness: dict[InstanceId, float] = {}
        self.timings: list[AttemptTiming] = []

    def add_instance(self, spec):
        self.slowness.setdefault(spec.instance_id, 1.0)

    def remove_instance(self, instance_id):
        del self.slowness[instance_id]

    def prefill_s(self, instance_id, uncached_tokens):
        return (0.001 + 0.001 * uncached_tokens) * self.slowness[instance_id]

    def tpot_s(self, instance_id, running, resident_tokens):
        return 0.01 * self.slowness[instance_id]

    def learn(self, timing):
        self.timings.append(timing)


class FlatTracker:
    """Every workflow has 10 s; every call is its own stage with all that is left."""

    def __init__(self, slo_s: float = 10.0) -> None:
        self.slo_s = slo_s
        self.started: dict[WorkflowId, float] = {}
        self.live: dict[CallId, WorkflowId] = {}
        self.rebudget_on_end = False

    def call_arrived(self, spec, now_s):
        started = self.started.setdefault(spec.workflow_id, now_s)
        self.live[spec.call_id] = spec.workflow_id
        slo_s = self.slo_s if spec.slo.end_to_end_s is None else spec.slo.end_to_end_s
        return Placement(
            spec.workflow_id, spec.application, spec.stage or "0", 0, started, started + slo_s
        )

    def budget(self, call_id, work_s, now_s):
        deadline = self.started[self.live[call_id]] + self.slo_s
        work = work_s(100.0, 100.0)
        return StageBudget(now_s, deadline - now_s, work, work, deadline)

    def call_dispatched(self, call_id, instance_id, urgency_s, now_s):
        assert call_id in self.live

    def call_ended(self, call_id, result, now_s):
        workflow = self.live.pop(call_id)
        rest = tuple(c for c, w in self.live.items() if w == workflow)
        return TrackerUpdate(rebudget=rest if self.rebudget_on_end else (), stage_ended=True)

    def declare(self, declaration, now_s):
        return TrackerUpdate()

    def stage_reported(self, workflow_id, stage, duration_s, now_s):
        return TrackerUpdate(stage_ended=True)

    def plan_posted(self, workflow_id, stages, now_s):
        return TrackerUpdate()

    def finish(self, workflow_id, now_s, *, cancelled):
        return TrackerUpdate()

    def live_calls(self, workflow_id):
        return [c for c, w in self.live.items() if w == workflow_id]

    def expire(self, now_s):
        return TrackerUpdate()

    def next_expiry_s(self):
        return None

    def gap_s(self, tool, p):
        return None if tool is None else 10.0 * p

    def remaining_work_s(self, workflow_id, work_s):
        return work_s(100.0, 100.0)

    def remaining(self, workflow_id, work_s):
        work = work_s(100.0, 100.0)
        return Remaining(work, work, work, work, known=False)

    def uncertainty(self, call_id):
        return 0.0

    def stage_shape(self, call_id):
        return StageShape(depth=0, height=0, children=0, tasks=1) if call_id in self.live else None

    def application_mean_s(self, application):
        return None

    def explain(self, workflow_id):
        return None

    def workflows(self):
        return []


class Cycle:
    """Round robin, early or late."""

    def __init__(self, late: bool = False) -> None:
        self.late_binding = late
        self._next = 0

    def route(self, call, candidates, fleet, now_s):
        if self.late_binding:
            # stateless, so that asking twice (the invariants do) gives the same answer
            return candidates[0].spec.instance_id
        chosen = candidates[self._next % len(candidates)]
        self._next += 1
        return chosen.spec.instance_id


class HoldAll:
    """Early binding that finds no place while an instance has `most` calls queued."""

    late_binding = False

    def __init__(self, most: int) -> None:
        self.most = most

    def route(self, call, candidates, fleet, now_s):
        for instance in candidates:
            if instance.queued < self.most:
                return instance.spec.instance_id
        return None


class ByKey:
    """A heap on any key function; latest start = the stage's deadline."""

    def __init__(self, key=lambda call: (float(call.sequence),), priority: bool = False) -> None:
        self._of = key
        self._priority = priority

    def queue(self, instance, fleet):
        return HeapQueue(lambda call, now_s: self.key(call, instance, fleet, now_s))

    def key(self, call, instance, fleet, now_s):
        return self._of(call)

    def latest_start_s(self, call, instance, fleet, now_s):
        return call.budget.stage_deadline_s if self._priority else None


class Seats:
    """Plain seats."""

    def open_seats(self, instance, now_s):
        return (PLAIN_SEAT,) if instance.seats_in_use < instance.seats else ()

    def admit(self, call, seat, instance, now_s):
        if instance.seats_in_use == 0 or instance.seats_in_use + call.spec.seats <= instance.seats:
            return Admit(seat)
        return Defer()

    def token_room(self, instance, now_s):
        return None


def policy(name="test", *, routing=None, ordering=None, admission=None, **ports) -> Policy:
    return Policy(
        name=name,
        routing=routing or Cycle(),
        ordering=ordering or ByKey(),
        admission=admission or Seats(),
        **ports,
    )


@dataclass
class World:
    """One coordinator under test."""

    policy: Policy = field(default_factory=policy)
    limits: Limits = field(default_factory=Limits)
    tracker: FlatTracker = field(default_factory=FlatTracker)
    lengths: FlatLengths = field(default_factory=FlatLengths)
    costs: FlatCosts = field(default_factory=FlatCosts)
    observers: Sequence[object] = ()
    now_s: float = 100.0

    def __post_init__(self) -> None:
        self.coordinator = Coordinator(
            policy=self.policy,
            tracker=self.tracker,
            lengths=self.lengths,
            costs=self.costs,
            limits=self.limits,
            epoch_s=self.now_s,
            observers=self.observers,
        )
        #: what the driver has out: attempt -> (call, instance)
        self.out: dict[AttemptId, tuple[CallId, InstanceId]] = {}
        self.to_stop: set[AttemptId] = set()
        self.waiting_clients: set[CallId] = set()
        self.ended: dict[CallId, Outcome] = {}
        self.rejected: dict[CallId, RejectReason] = {}
        self.workflows_ended = []
        self.wake_s: float | None = None

    def post(self, event, after_s: float = 0.0) -> list[Command]:
        self.now_s += after_s
        if isinstance(event, ev.Tick) and self.wake_s is not None and self.now_s >= self.wake_s:
            self.wake_s = None
        commands = self.coordinator.handle(self.now_s, event)
        for command in commands:
            self._carry_out(command)
        invariants.check(self.coordinator)
        assert set(self.coordinator.attempts) == set(self.out)
        assert set(self.coordinator.calls) == self.waiting_clients
        return commands

    def _carry_out(self, command: Command) -> None:
        match command:
            case Dispatch():
                assert command.attempt_id not in self.out
                assert command.call_id in self.waiting_clients
                self.out[command.attempt_id] = (command.call_id, command.instance_id)
            case Preempt() | Abort():
                assert command.attempt_id in self.out
                self.to_stop.add(command.attempt_id)
            case Reject():
                assert command.retry_after_s >= 1.0
                self.rejected[command.call_id] = command.reason
            case RecordCall():
                call_id = command.record.call_id
                assert call_id not in self.ended, "a call ended twice"
                self.ended[call_id] = command.record.outcome
                self.waiting_clients.remove(call_id)
            case RecordWorkflow():
                self.workflows_ended.append(command.record)
            case WakeAt():
                self.wake_s = (
                    command.at_s if self.wake_s is None else min(self.wake_s, command.at_s)
                )

    def up(self, instance_id: str, seats: int | None = 1, **spec) -> list[Command]:
        models = spec.pop("models", frozenset({"m"}))
        return self.post(
            ev.InstanceUp(InstanceSpec(InstanceId(instance_id), models, seats=seats, **spec))
        )

    def arrive(self, call_id: str, workflow: str | None = None, **spec) -> list[Command]:
        spec.setdefault("model", "m")
        spec.setdefault("prompt_tokens", 100)
        call = CallSpec(CallId(call_id), WorkflowId(workflow or f"w-{call_id}"), **spec)
        self.waiting_clients.add(call.call_id)
        return self.post(ev.CallArrived(call))

    def attempt_of(self, call_id: str) -> AttemptId:
        return next(a for a, (c, _) in self.out.items() if c == call_id)

    def where(self, call_id: str) -> str | None:
        return next((i for c, i in self.out.values() if c == call_id), None)

    def end(self, call_id: str, outcome=Outcome.OK, after_s: float = 0.0, **fields):
        attempt = self.attempt_of(call_id)
        return self.end_attempt(attempt, outcome, after_s, **fields)

    def end_attempt(self, attempt: AttemptId, outcome=Outcome.OK, after_s=0.0, **fields):
        del self.out[attempt]
        self.to_stop.discard(attempt)
        if outcome is Outcome.OK:
            fields.setdefault("usage", Usage(prompt_tokens=100, output_tokens=50))
        return self.post(ev.AttemptEnded(attempt, outcome, **fields), after_s)

    def sent(self, commands) -> list[tuple[str, str]]:
        return [(c.call_id, c.instance_id) for c in commands if isinstance(c, Dispatch)]

    def in_flight(self) -> list[str]:
        return [call for call, _ in self.out.values()]
