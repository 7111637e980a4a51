"""Views to show a policy: plain records with the figures a test needs, nothing behind them."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from dispatcher.core.ports import CallQueue
from dispatcher.core.types import (
    PLAIN_SEAT,
    AttemptId,
    CallId,
    CallSpec,
    EngineGauges,
    InstanceId,
    InstanceSpec,
    LengthEstimate,
    SeatTag,
    WorkflowId,
)
from dispatcher.core.views import AttemptView, CallView, InstanceView, SessionView
from dispatcher.core.workflow_types import Placement, Remaining, StageBudget, StageShape

PREFILL_S_PER_TOKEN = 0.0005
DECODE_S_PER_TOKEN = 0.02


@dataclass
class FakeCall:
    """A `CallView`."""

    spec: CallSpec
    sequence: int
    arrived_s: float
    enqueued_s: float
    length: LengthEstimate
    placement: Placement
    budget: StageBudget
    generated_tokens: int = 0
    avoid: Collection[InstanceId] = ()


def fake_call(
    name: str,
    sequence: int = 1,
    *,
    workflow: str | None = None,
    arrived_s: float = 0.0,
    output_tokens: float = 100.0,
    stage_deadline_s: float = 10.0,
    deadline_s: float = 30.0,
    remaining_work_s: float = 5.0,
    **spec: object,
) -> FakeCall:
    """A call whose stage must end at `stage_deadline_s` and its workflow at `deadline_s`."""
    fields: dict[str, object] = {"model": "m", "prompt_tokens": 200, **spec}
    workflow_id = WorkflowId(workflow or f"workflow-of-{name}")
    known = CallSpec(CallId(name), workflow_id, **fields)  # type: ignore[arg-type]
    return FakeCall(
        spec=known,
        sequence=sequence,
        arrived_s=arrived_s,
        enqueued_s=arrived_s,
        length=LengthEstimate(output_tokens),
        placement=Placement(workflow_id, known.application, "0", 0, arrived_s, deadline_s),
        budget=StageBudget(
            granted_s=arrived_s,
            stage_budget_s=stage_deadline_s - arrived_s,
            stage_work_s=remaining_work_s / 2,
            remaining_work_s=remaining_work_s,
            deadline_s=deadline_s,
        ),
    )


def taken_in_order(queue: CallQueue, seat: SeatTag = PLAIN_SEAT, now_s: float = 0.0) -> list[str]:
    """Names of the calls in the order in which the queue gives them out; it is empty then."""
    taken: list[str] = []
    while len(queue):
        chosen = queue.select(seat, now_s)
        assert chosen is not None
        queue.remove(chosen.spec.call_id)
        taken.append(chosen.spec.call_id)
    return taken


@dataclass
class FakeAttempt:
    """An `AttemptView`."""

    attempt_id: AttemptId
    call: CallView
    seat: SeatTag = PLAIN_SEAT
    dispatched_s: float = 0.0
    first_token_s: float | None = None
    output_tokens: int = 0
    stopping: bool = False


@dataclass
class FakeInstance:
    """An `InstanceView`; slowness and backlog are what `FakeFleet` says of it."""

    spec: InstanceSpec
    slowness: float = 1.0
    backlog_s: float = 0.0
    prefill_ahead_s: float = 0.0
    seats: int = 4
    available: bool = True
    in_flight: dict[AttemptId, AttemptView] = field(default_factory=dict)
    queued: int = 0
    gauges: EngineGauges = field(default_factory=EngineGauges)

    @property
    def seats_in_use(self) -> int:
        """Sequences of what is in flight."""
        return sum(attempt.call.spec.seats for attempt in self.in_flight.values())

    @property
    def in_flight_tokens(self) -> int:
        """Prompts and output of what is in flight."""
        return sum(
            attempt.call.spec.prompt_tokens + attempt.output_tokens
            for attempt in self.in_flight.values()
        )

    def start(self, call: CallView, seat: SeatTag = PLAIN_SEAT, now_s: float = 0.0) -> FakeAttempt:
        """Put a call in flight here."""
        number = 1 + max(self.in_flight, default=0)
        attempt = FakeAttempt(AttemptId(number), call, seat, now_s)
        self.in_flight[attempt.attempt_id] = attempt
        return attempt


def fake_instance(name: str, **fields: object) -> FakeInstance:
    """An idle instance that serves model `m`."""
    known = ("gpu", "kv_capacity_tokens", "offload_tokens")
    own = {field: fields.pop(field, None) for field in known}
    spec = InstanceSpec(InstanceId(name), frozenset({"m"}), **own)  # type: ignore[arg-type]
    return FakeInstance(spec, **fields)  # type: ignore[arg-type]


@dataclass
class FakeSession:
    """A `SessionView`: paused as long as no call of it is live, whatever the time."""

    workflow_id: WorkflowId
    instance_id: InstanceId
    context_tokens: int = 500
    ended_s: float = 0.0
    tool: str | None = "tool"
    gap_s: float | None = 1.0
    ttl_s: float | None = 5.0
    live: int = 0
    cached: bool = True
    """Whether all of its context is still in its instance's prefix cache."""


@dataclass
class FakeFleet:
    """A `FleetView`: time is tokens times the instance's slowness, backlogs are as set."""

    instances: dict[InstanceId, InstanceView] = field(default_factory=dict)
    calls: dict[CallId, CallView] = field(default_factory=dict)
    sessions: dict[WorkflowId, FakeSession] = field(default_factory=dict)
    remainders: dict[WorkflowId, Remaining] = field(default_factory=dict)
    uncertainties: dict[CallId | WorkflowId, float] = field(default_factory=dict)
    shapes: dict[CallId, StageShape] = field(default_factory=dict)
    application_means_s: dict[str, float] = field(default_factory=dict)

    def fits(self, call: CallView, instance: InstanceView) -> bool:
        """By model and task."""
        spec, own = call.spec, instance.spec
        return spec.model in own.models and spec.task in own.tasks

    def compute_s(self, call: CallView, instance: InstanceView) -> float:
        """Eq. 2 with two constants."""
        assert isinstance(instance, FakeInstance)
        return instance.slowness * (
            PREFILL_S_PER_TOKEN * call.spec.prompt_tokens
            + DECODE_S_PER_TOKEN * call.length.expected_tokens
        )

    def prefill_s(self, call: CallView, instance: InstanceView) -> float:
        """Of its prompt and what it has generated."""
        assert isinstance(instance, FakeInstance)
        tokens = call.spec.prompt_tokens + call.generated_tokens / call.spec.seats
        return instance.slowness * PREFILL_S_PER_TOKEN * tokens

    def mean_prefill_s(self, call: CallView) -> float:
        """Over all instances."""
        times_s = [self.prefill_s(call, instance) for instance in self.instances.values()]
        return sum(times_s) / len(times_s)

    def prefill_ahead_s(self, instance: InstanceView) -> float:
        """As set."""
        assert isinstance(instance, FakeInstance)
        return instance.prefill_ahead_s

    def prompt_s(self, tokens: float, instance: InstanceView) -> float:
        """With one constant."""
        assert isinstance(instance, FakeInstance)
        return instance.slowness * PREFILL_S_PER_TOKEN * tokens

    def cached_tokens(self, call: CallView, instance: InstanceView) -> float:
        """What its session has left there."""
        session = self.sessions.get(call.spec.workflow_id)
        here = session is not None and session.instance_id == instance.spec.instance_id
        if session is None or not here or not session.cached:
            return 0.0
        return float(min(call.spec.prompt_tokens, session.context_tokens))

    def spared_s(self, call: CallView, instance: InstanceView) -> float:
        """Prefill of that."""
        return self.prompt_s(self.cached_tokens(call, instance), instance)

    def session(self, workflow_id: WorkflowId) -> SessionView | None:
        """One of `sessions`."""
        return self.sessions.get(workflow_id)

    def paused(self, instance: InstanceView) -> Sequence[SessionView]:
        """Those that wait for a tool, by when they began."""
        own = (s for s in self.sessions.values() if s.instance_id == instance.spec.instance_id)
        paused = (session for session in own if session.tool is not None and not session.live)
        return sorted(paused, key=lambda session: session.ended_s)

    def paused_tokens(self, instance: InstanceView) -> float:
        """Their context."""
        return float(sum(session.context_tokens for session in self.paused(instance)))

    def gap_s(self, tool: str | None, p: float) -> float | None:
        """A second, and more for rarer ones."""
        return 2.0 * p

    def remaining(self, workflow_id: WorkflowId) -> Remaining | None:
        """As set, else nothing is known."""
        return self.remainders.get(workflow_id)

    def uncertainty(self, call: CallView) -> float:
        """As set for the call, or for all stages of its workflow; else none."""
        of_job = self.uncertainties.get(call.spec.workflow_id, 0.0)
        return self.uncertainties.get(call.spec.call_id, of_job)

    def stage_shape(self, call: CallView) -> StageShape | None:
        """As set, else a lone stage."""
        lone = StageShape(depth=0, height=0, children=0, tasks=1)
        return self.shapes.get(call.spec.call_id, lone)

    def application_mean_s(self, application: str) -> float | None:
        """As set, else unknown."""
        return self.application_means_s.get(application)

    def tpot_s(self, instance: InstanceView) -> float:
        """The same at every load."""
        assert isinstance(instance, FakeInstance)
        return instance.slowness * DECODE_S_PER_TOKEN

    def mean_compute_s(self, call: CallView) -> float:
        """Over all instances."""
        times_s = [self.compute_s(call, instance) for instance in self.instances.values()]
        return sum(times_s) / len(times_s)

    def backlog_s(self, instance: InstanceView) -> float:
        """As set."""
        assert isinstance(instance, FakeInstance)
        return instance.backlog_s

    def remaining_s(self, attempt: AttemptView, instance: InstanceView) -> float:
        """What is left of its tokens."""
        assert isinstance(instance, FakeInstance)
        left = max(1.0, attempt.call.length.expected_tokens - attempt.output_tokens)
        return instance.slowness * DECODE_S_PER_TOKEN * left

    def live_calls(self, workflow_id: WorkflowId, most: int | None = None) -> Sequence[CallView]:
        """By arrival."""
        own = (call for call in self.calls.values() if call.spec.workflow_id == workflow_id)
        return sorted(own, key=lambda call: call.sequence)[:most]

    def call(self, call_id: CallId) -> CallView | None:
        """One of `calls`."""
        return self.calls.get(call_id)


class CountingFleet(FakeFleet):
    """Counts questions to the cost model; a mean counts as one, since it is kept ready."""

    asked = 0
    _inside = False

    def compute_s(self, call: CallView, instance: InstanceView) -> float:
        if not self._inside:
            self.asked += 1
        return super().compute_s(call, instance)

    def mean_compute_s(self, call: CallView) -> float:
        self.asked += 1
        self._inside = True
        mean_s = super().mean_compute_s(call)
        self._inside = False
        return mean_s

    def prefill_s(self, call: CallView, instance: InstanceView) -> float:
        self.asked += 1
        return super().prefill_s(call, instance)

    def mean_prefill_s(self, call: CallView) -> float:
        asked = self.asked
        mean_s = super().mean_prefill_s(call)
        self.asked = asked + 1
        return mean_s

    def prefill_ahead_s(self, instance: InstanceView) -> float:
        self.asked += 1
        return super().prefill_ahead_s(instance)

    def prompt_s(self, tokens: float, instance: InstanceView) -> float:
        if not self._inside:
            self.asked += 1
        return super().prompt_s(tokens, instance)

    def spared_s(self, call: CallView, instance: InstanceView) -> float:
        self.asked += 1
        self._inside = True
        spared_s = super().spared_s(call, instance)
        self._inside = False
        return spared_s

    def tpot_s(self, instance: InstanceView) -> float:
        self.asked += 1
        return super().tpot_s(instance)

    def backlog_s(self, instance: InstanceView) -> float:
        self.asked += 1
        return super().backlog_s(instance)


def fake_fleet(
    *instances: FakeInstance,
    calls: Sequence[CallView] = (),
    sessions: Sequence[FakeSession] = (),
) -> FakeFleet:
    """A fleet of these, in this order."""
    return FakeFleet(
        {instance.spec.instance_id: instance for instance in instances},
        {call.spec.call_id: call for call in calls},
        {session.workflow_id: session for session in sessions},
    )


def random_fleet(rng: random.Random, size: int, generation: int = 0) -> FakeFleet:
    """Unequal instances, some idle, some loaded, some full."""
    gpus = ("H100", "A100", "A6000", "L40S", None)
    instances = []
    for number in range(size):
        instance = fake_instance(
            f"i{generation}-{number}",
            slowness=rng.choice((0.5, 1.0, 1.0, 2.5)),
            backlog_s=rng.choice((0.0, 0.0, rng.uniform(0.1, 50.0))),
            prefill_ahead_s=(generation + number) % 3 * 0.2,
            seats=rng.randint(1, 6),
            gpu=rng.choice(gpus),
        )
        for running in range(rng.randint(0, instance.seats)):
            instance.start(fake_call(f"running-{generation}-{number}-{running}"))
        instances.append(instance)
    fleet = fake_fleet(*instances, sessions=_random_sessions(instances, generation))
    _know_some_jobs(fleet, generation)
    return fleet


def _know_some_jobs(fleet: FakeFleet, generation: int) -> None:
    """Application models speak of some workflows of `random_call`; some calls have shapes."""
    rng = random.Random(1000 + generation)
    for number in range(1, 6, 2):
        low_s, mean_s, high_s = sorted(rng.uniform(0.0, 60.0) for _ in range(3))
        work_s = mean_s * rng.uniform(1.0, 4.0)
        left = Remaining(mean_s, low_s, high_s, work_s, known=True)
        fleet.remainders[WorkflowId(f"workflow-{number}")] = left
        fleet.uncertainties[WorkflowId(f"workflow-{number}")] = rng.uniform(0.0, 40.0)
    for sequence in range(0, 30, 3):
        shape = StageShape(rng.randint(0, 3), 1, rng.randint(0, 3), 1)
        fleet.shapes[CallId(f"call-{sequence}")] = shape


def _random_sessions(instances: Sequence[FakeInstance], generation: int) -> list[FakeSession]:
    """Sessions of some of the workflows of `random_call`, where one of its calls is live."""
    if not instances:
        return []
    rng = random.Random(generation)
    return [
        FakeSession(
            WorkflowId(f"workflow-{number}"),
            rng.choice(instances).spec.instance_id,
            context_tokens=rng.randint(0, 3_000),
            ended_s=rng.uniform(0.0, 10.0),
            tool=rng.choice(("search", "", None)),
            gap_s=rng.choice((0.1, 5.0, None)),
            live=rng.choice((0, 1)),
            cached=rng.random() < 0.5,
        )
        for number in range(0, 6, 2)
    ]


def random_call(rng: random.Random, sequence: int) -> FakeCall:
    """A call of one of a few workflows, early or late, short or long."""
    return fake_call(
        f"call-{sequence}",
        sequence,
        workflow=f"workflow-{rng.randint(0, 5)}",
        arrived_s=float(sequence),
        output_tokens=float(rng.randint(1, 800)),
        stage_deadline_s=rng.uniform(-20.0, 80.0),
        deadline_s=rng.uniform(-20.0, 200.0),
        remaining_work_s=rng.uniform(0.0, 60.0),
        prompt_tokens=rng.randint(0, 4_000),
        client_priority=rng.choice((0, 0, 0, 5, -5)),
        tenant=rng.choice(("default", "other")),
    )


def copy_figures(source: FakeCall, target: FakeCall) -> None:
    """Change a call in place, as the coordinator does."""
    target.length, target.budget = source.length, source.budget
