"""What deciding takes: processor time of handling an arrival, the one figure the machine decides.

A coordinator meets the paper's requests at 0.9 of what its fleet can serve. Engines are stood in
for by the times that their profiles promise, so that as much is in flight as would be. Timed is
everything between a call's arrival and its dispatch: the workflow, the estimate, the routing, the
queue, the admission. Beside it the routing alone. What other processes take does not count, what
Python's cycle collector takes does: it runs as seldom as it does in a gateway.
"""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dispatcher import catalog
from dispatcher.bench.papers.heteroserve.cases import Case, Contender
from dispatcher.bench.report import percentile
from dispatcher.collector import GATEWAY_OBJECTS, leave_out_what_is_here, seldom_collecting
from dispatcher.core import events as ev
from dispatcher.core.commands import Command, Dispatch, WakeAt
from dispatcher.core.coordinator import Coordinator
from dispatcher.core.ports import Routing
from dispatcher.core.types import CallId, CallSpec, InstanceId, Outcome, Slo, Usage, WorkflowId
from dispatcher.core.views import CallView, FleetView, InstanceView
from dispatcher.registry import PolicyServices
from dispatcher.simulator import SimulatedEngine
from dispatcher.simulator.clients import call_id_of
from dispatcher.traces import TraceCall, TraceWorkflow
from workflows.tracker import Tracker

DECISIONS = 2_000
_RUNS = 3
"""The least P99 of so many counts: caches that other work empties are no decision's."""
_WARM_UP = 500
"""Arrivals that are not counted: until as much is in flight as there will be."""
_RUNNING, _CONTEXT_TOKENS = 40, 1100
"""Calls that an engine's times are taken at, and what each of them keeps there."""


@dataclass(frozen=True, slots=True)
class DecisionTimes:
    """Of one fleet. Microseconds of the deciding thread's time."""

    devices: int
    decisions: int
    p50_us: float
    p99_us: float
    routing_p50_us: float
    routing_p99_us: float
    in_flight: int
    """When the last call had arrived."""

    def described(self) -> dict[str, float]:
        """For reports."""
        return {name: getattr(self, name) for name in self.__slots__}


class _TimedRouting:
    """A routing, and how long each of its answers took."""

    def __init__(self, routing: Routing) -> None:
        self.late_binding = routing.late_binding
        self.taken_s: list[float] = []
        self._routing = routing

    def route(
        self, call: CallView, candidates: Sequence[InstanceView], fleet: FleetView, now_s: float
    ) -> InstanceId | None:
        begun_s = time.thread_time()
        chosen = self._routing.route(call, candidates, fleet, now_s)
        self.taken_s.append(time.thread_time() - begun_s)
        return chosen


@dataclass(order=True, slots=True)
class _Due:
    at_s: float
    number: int
    event: ev.Event = field(compare=False)


def decision_times(
    contender: Contender, devices: int, *, count: int = DECISIONS, seed: int = 0
) -> DecisionTimes:
    """Time the handling of arrivals, the best of three runs.

    Args:
        contender: Whose decisions.
        devices: Of the fleet, a multiple of four.
        count: Arrivals that are timed.
        seed: Of the requests.
    """
    case = Case(load=0.9, devices=devices, count=count + _WARM_UP)
    runs = [_timed(contender, case, seed) for _ in range(_RUNS)]
    return min(runs, key=lambda run: run.p99_us)


def _timed(contender: Contender, case: Case, seed: int) -> DecisionTimes:
    services = PolicyServices(random=random.Random(seed))  # noqa: S311 - no secret
    policy = catalog.build_policy(contender.policy, dict(contender.params), services)
    routing = _TimedRouting(policy.routing)
    coordinator = Coordinator(
        policy=replace(policy, routing=routing),
        tracker=Tracker(),
        lengths=catalog.length_predictors().build(catalog.DEFAULT_LENGTH_PREDICTOR, {}, services),
        costs=catalog.cost_models().build(catalog.DEFAULT_COST_MODEL, {}, services),
        observers=services.observers,
    )
    driver, trace = _Driver(coordinator, case.engines()), case.trace(seed)
    with seldom_collecting(GATEWAY_OBJECTS):
        leave_out_what_is_here()
        taken_s = driver.play(trace)[_WARM_UP:]
    routed_s = routing.taken_s[_WARM_UP:]
    return DecisionTimes(
        case.devices,
        len(taken_s),
        p50_us=1e6 * percentile(taken_s, 0.50),
        p99_us=1e6 * percentile(taken_s, 0.99),
        routing_p50_us=1e6 * percentile(routed_s, 0.50),
        routing_p99_us=1e6 * percentile(routed_s, 0.99),
        in_flight=sum(len(instance.in_flight) for instance in coordinator.fleet),
    )


class _Driver:
    """Arrivals in virtual time; attempts end when their engine's profile says so."""

    def __init__(self, coordinator: Coordinator, engines: Sequence[SimulatedEngine]) -> None:
        self._coordinator = coordinator
        self._profiles = {engine.instance_id: engine.spec.profile for engine in engines}
        self._specs: dict[CallId, tuple[CallSpec, TraceCall]] = {}
        self._due: list[_Due] = []
        self._number = 0
        self._model = min(next(iter(engines)).spec.models)
        for engine in engines:
            self._handle(0.0, ev.InstanceUp(engine.spec))

    def play(self, trace: Sequence[TraceWorkflow]) -> list[float]:
        """Time of every arrival's handling, seconds."""
        taken_s = []
        for workflow in trace:
            now_s = workflow.arrival_s
            while self._due and self._due[0].at_s <= now_s:
                due = heapq.heappop(self._due)
                self._handle(due.at_s, due.event)
            spec, call = _spec(workflow, self._model)
            self._specs[spec.call_id] = (spec, call)
            arrived = ev.CallArrived(spec)
            begun_s = time.thread_time()
            commands = self._coordinator.handle(now_s, arrived)
            taken_s.append(time.thread_time() - begun_s)
            self._execute(now_s, commands)
        return taken_s

    def _handle(self, now_s: float, event: ev.Event) -> None:
        self._execute(now_s, self._coordinator.handle(now_s, event))

    def _execute(self, now_s: float, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Dispatch():
                    self._dispatch(now_s, command)
                case WakeAt(at_s=at_s):
                    self._at(at_s, ev.Tick())
                case _:
                    pass  # records

    def _dispatch(self, now_s: float, command: Dispatch) -> None:
        spec, call = self._specs.pop(command.call_id)
        profile = self._profiles[command.instance_id]
        assert profile is not None  # noqa: S101 - simulated engines have one
        first_s = now_s + profile.prefill_s(spec.prompt_tokens)
        tpot_s = profile.tpot_s(_RUNNING, _RUNNING * _CONTEXT_TOKENS)
        ended_s = first_s + call.output_tokens * tpot_s
        usage = Usage(spec.prompt_tokens, call.output_tokens)
        self._at(first_s, ev.FirstToken(command.attempt_id))
        self._at(ended_s, ev.AttemptEnded(command.attempt_id, Outcome.OK, usage))

    def _at(self, at_s: float, event: ev.Event) -> None:
        self._number += 1
        heapq.heappush(self._due, _Due(at_s, self._number, event))


def _spec(workflow: TraceWorkflow, model: str) -> tuple[CallSpec, TraceCall]:
    (call,) = workflow.calls
    spec = CallSpec(
        call_id=call_id_of(workflow, call),
        workflow_id=WorkflowId(workflow.workflow_id),
        model=model,
        prompt_tokens=call.prompt_tokens,
        application=workflow.application,
        stage=call.stage,
        call_class=call.call_class,
        slo=Slo(ttft_s=call.slo_ttft_s),
        final=True,
        streaming=True,
    )
    return spec, call


def described(times: Mapping[int, DecisionTimes]) -> list[dict[str, float]]:
    """All of them, for reports."""
    return [found.described() for found in times.values()]
