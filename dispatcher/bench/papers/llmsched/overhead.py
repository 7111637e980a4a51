"""What deciding takes: process time of a policy's queue, and of all that it asks for.

A coordinator meets a case's jobs; engines are stood in for by the times that their profiles
promise, so that as much waits as would. Timed is everything that the queue is asked: a call enters
it, something becomes known of its job, some of the jobs are looked at anew, the next call is asked
for, a call leaves. Posteriors, entropies and the inference behind them are in it. An invocation is
one call that is asked for and found, as the paper divides by invocations. Process time is the
machine's: the one figure that is not the simulation's.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ParamSpec, TypeVar

from dispatcher import catalog
from dispatcher.bench.papers.llmsched import play
from dispatcher.bench.papers.llmsched.cases import Case, Contender
from dispatcher.core import events as ev
from dispatcher.core.commands import Command, Dispatch, RecordCall, WakeAt
from dispatcher.core.coordinator import Coordinator, Limits
from dispatcher.core.ports import CallQueue, Ordering
from dispatcher.core.types import CallId, CallSpec, Key, Outcome, SeatTag, Usage
from dispatcher.core.views import CallView, FleetView, InstanceView
from dispatcher.registry import PolicyServices
from dispatcher.simulator.clients import Clients, Hints
from dispatcher.simulator.kernel import Kernel
from dispatcher.traces import TraceCall
from workflows.tracker import Tracker

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Overhead:
    """Of one contender on one case."""

    invocations: int
    mean_ms: float
    """Process time, all of the queue's over invocations."""


class _Clock:
    def __init__(self) -> None:
        self.taken_s = 0.0
        self.invocations = 0

    def timed(
        self, what: Callable[_Args, _Result], *args: _Args.args, **kwargs: _Args.kwargs
    ) -> _Result:
        begun_s = time.process_time()
        try:
            return what(*args, **kwargs)
        finally:
            self.taken_s += time.process_time() - begun_s


class _TimedQueue:
    def __init__(self, queue: CallQueue, clock: _Clock) -> None:
        self._queue, self._clock = queue, clock

    def push(self, call: CallView, now_s: float) -> None:
        self._clock.timed(self._queue.push, call, now_s)

    def remove(self, call_id: CallId) -> None:
        self._clock.timed(self._queue.remove, call_id)

    def refresh(self, call: CallView, now_s: float) -> None:
        self._clock.timed(self._queue.refresh, call, now_s)

    def rescore(self, now_s: float, limit: int) -> bool:
        return self._clock.timed(self._queue.rescore, now_s, limit)

    def select(self, seat: SeatTag, now_s: float) -> CallView | None:
        found = self._clock.timed(self._queue.select, seat, now_s)
        self._clock.invocations += found is not None
        return found

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[CallView]:
        return iter(self._queue)


class _TimedOrdering:
    def __init__(self, ordering: Ordering, clock: _Clock) -> None:
        self._ordering, self._clock = ordering, clock

    def queue(self, instance: InstanceView | None, fleet: FleetView) -> CallQueue:
        return _TimedQueue(self._ordering.queue(instance, fleet), self._clock)

    def key(
        self, call: CallView, instance: InstanceView | None, fleet: FleetView, now_s: float
    ) -> Key:
        return self._ordering.key(call, instance, fleet, now_s)

    def latest_start_s(
        self, call: CallView, instance: InstanceView, fleet: FleetView, now_s: float
    ) -> float | None:
        return self._ordering.latest_start_s(call, instance, fleet, now_s)


def overhead_of(case: Case, contender: Contender, seed: int = 0) -> Overhead:
    """Time the decisions of a case."""
    clock = _Clock()
    services = PolicyServices(random=random.Random(seed))  # noqa: S311 - no secret
    policy = catalog.build_policy(contender.policy, dict(contender.params), services)
    learned = play.learned_before(case.mix, play.WARM_UP_PER_APPLICATION)
    lengths = catalog.length_predictors().build(catalog.DEFAULT_LENGTH_PREDICTOR, {}, services)
    tracker = Tracker(play.tracker_settings())
    tracker.restore(learned.workflows, 0.0)
    coordinator = Coordinator(
        policy=replace(policy, ordering=_TimedOrdering(policy.ordering, clock)),
        tracker=tracker,
        lengths=lengths,
        costs=catalog.cost_models().build(catalog.DEFAULT_COST_MODEL, {}, services),
        limits=Limits(max_calls=1_000_000, max_wait_s=float("inf")),
        observers=services.observers,
    )
    _Driver(coordinator, case).play(seed)
    return Overhead(clock.invocations, 1e3 * clock.taken_s / max(1, clock.invocations))


class _Driver:
    """Jobs in virtual time; attempts end when their engine's profile says so."""

    def __init__(self, coordinator: Coordinator, case: Case) -> None:
        self._coordinator = coordinator
        self._case = case
        self._kernel = Kernel()
        self._seats = case.fleet.seats
        engines = case.fleet.engines()
        self._profiles = {engine.instance_id: engine.spec.profile for engine in engines}
        self._specs: dict[CallId, tuple[CallSpec, TraceCall]] = {}
        self._clients: Clients | None = None
        self._model = min(engines[0].spec.models)
        for engine in engines:
            self._handle(ev.InstanceUp(engine.spec))

    def play(self, seed: int) -> None:
        """Until all is over."""
        trace = self._case.trace(seed)
        clients = Clients(trace, self._kernel, self._arrive, model=self._model, hints=Hints())
        self._clients = clients
        self._kernel.run(until=lambda: clients.done)

    def _arrive(self, spec: CallSpec, call: TraceCall) -> None:
        self._specs[spec.call_id] = (spec, call)
        self._handle(ev.CallArrived(spec))

    def _handle(self, event: ev.Event) -> None:
        self._execute(self._coordinator.handle(self._kernel.now_s, event))

    def _execute(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Dispatch():
                    self._dispatch(command)
                case WakeAt(at_s=at_s):
                    self._kernel.at(at_s, self._handle, ev.Tick())
                case RecordCall(record=record):
                    if self._clients is not None:
                        self._clients.ended(record)
                case _:
                    pass  # records of workflows

    def _dispatch(self, command: Dispatch) -> None:
        spec, call = self._specs.pop(command.call_id)
        profile = self._profiles[command.instance_id]
        assert profile is not None  # noqa: S101 - simulated engines have one
        token_s = profile.tpot_s(self._seats, self._seats * spec.prompt_tokens)
        ended_s = (
            self._kernel.now_s
            + profile.prefill_s(spec.prompt_tokens)
            + call.output_tokens * token_s
        )
        usage = Usage(spec.prompt_tokens, call.output_tokens)
        self._kernel.at(
            ended_s, self._handle, ev.AttemptEnded(command.attempt_id, Outcome.OK, usage)
        )
