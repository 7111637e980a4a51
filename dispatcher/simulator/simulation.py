"""Drives the coordinator in virtual time: engines are played, clients follow a trace."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dispatcher import catalog
from dispatcher.collector import SIMULATION_OBJECTS, seldom_collecting
from dispatcher.core import events as ev
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
from dispatcher.core.errors import InvariantError
from dispatcher.core.ports import CostModel, Learned, LengthPredictor
from dispatcher.core.types import (
    AttemptId,
    CallId,
    CallSpec,
    InstanceId,
    Outcome,
    Usage,
)
from dispatcher.registry import PolicyServices
from dispatcher.simulator.clients import Clients, Hints
from dispatcher.simulator.engines import Attempt, EngineControl, EnginePlayer, Timeline
from dispatcher.simulator.fleet import Fault, FaultKind, SimulatedEngine
from dispatcher.simulator.inputs import check_inputs
from dispatcher.simulator.kernel import Kernel
from dispatcher.simulator.prefixes import block_hashes
from dispatcher.traces import Played, Trace, TraceCall
from workflows.settings import TrackerSettings
from workflows.tracker import Tracker

SCRAPE_S = 1.0
PROGRESS_S = 1.0


@dataclass(frozen=True, slots=True)
class Experience:
    """What a scheduler has learned, as plain JSON values."""

    predictors: Mapping[str, Mapping[str, object]]
    """By what they predict; those that learn."""
    workflows: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Simulated:
    """A trace played in a simulation, and what the scheduler has learned by its end."""

    played: Played
    learned: Experience = field(repr=False)


def simulate(
    trace: Trace,
    fleet: Sequence[SimulatedEngine],
    *,
    policy: str,
    params: Mapping[str, object] | None = None,
    seed: int = 0,
    learned: Experience | None = None,
    lengths: LengthPredictor | None = None,
    costs: CostModel | None = None,
    faults: Sequence[Fault] = (),
    limits: Limits | None = None,
    hints: Hints | None = None,
    tracker: TrackerSettings | None = None,
    until_s: float | None = None,
) -> Simulated:
    """Play a trace to its end. The same arguments give the same result, bit by bit.

    Args:
        trace: Work, by ascending arrival.
        fleet: Engines, each of another id; at least one.
        policy: Name in the catalog.
        params: Its parameters; what is absent has a default.
        seed: Of whatever chance the policy uses.
        learned: What an earlier simulation had learned; `None`: the scheduler knows nothing.
        lengths: Predictor of output lengths; `None`: the gateway's usual one.
        costs: Model of times per engine; `None`: the gateway's usual one.
        faults: What happens to engines on the way.
        limits: Bounds on what may wait; `None`: room for the whole trace, however long it waits.
        hints: What clients tell; `None`: all they know.
        tracker: Settings of the workflow tracker; `None`: the gateway's usual ones.
        until_s: Moment at which to stop. Workflows that are not over by then are not in what was
            played, nor are their calls that are not; `None`: when all are over.

    Raises:
        ConfigurationError: Trace, fleet and faults do not fit together: see `check_inputs`.
        HeadwayError: No such policy or parameter.
    """
    check_inputs(trace, fleet, faults)
    if limits is None:
        limits = Limits(max_calls=sum(len(w.calls) for w in trace) + 1, max_wait_s=float("inf"))
    simulation = _Simulation(
        fleet,
        policy=policy,
        params=params or {},
        seed=seed,
        learned=learned,
        lengths=lengths,
        costs=costs,
        limits=limits,
        tracker=tracker,
    )
    with seldom_collecting(SIMULATION_OBJECTS):
        return simulation.play(trace, faults, hints or Hints(), until_s)


class _Simulation:
    def __init__(
        self,
        fleet: Sequence[SimulatedEngine],
        *,
        policy: str,
        params: Mapping[str, object],
        seed: int,
        learned: Experience | None,
        lengths: LengthPredictor | None,
        costs: CostModel | None,
        limits: Limits,
        tracker: TrackerSettings | None,
    ) -> None:
        self._kernel = Kernel()
        self._fleet = {engine.instance_id: engine for engine in fleet}
        services = PolicyServices(random=random.Random(seed))  # noqa: S311 - no secret
        self._lengths = lengths or catalog.length_predictors().build(
            catalog.DEFAULT_LENGTH_PREDICTOR, {}, services
        )
        self._costs = costs or catalog.cost_models().build(catalog.DEFAULT_COST_MODEL, {}, services)
        self._tracker = Tracker(tracker)
        self._learners = {
            name: part
            for name, part in (("lengths", self._lengths), ("costs", self._costs))
            if isinstance(part, Learned)
        }
        if learned is not None:
            for name in self._learners.keys() & learned.predictors.keys():
                self._learners[name].load(learned.predictors[name])
            self._tracker.restore(learned.workflows, 0.0)
        built = catalog.build_policy(policy, params, services)
        self._coordinator = Coordinator(
            policy=built,
            tracker=self._tracker,
            lengths=self._lengths,
            costs=self._costs,
            limits=limits,
            observers=services.observers,
        )
        self._players = {
            instance_id: EnginePlayer(
                engine.config,
                self._kernel,
                on_first_token=self._first_token,
                on_end=self._attempt_over,
            )
            for instance_id, engine in self._fleet.items()
        }
        self._controls: dict[InstanceId, EngineControl] = {
            instance_id: engine.control(self._players[instance_id])
            for instance_id, engine in self._fleet.items()
            if engine.control is not None
        }
        self._down: set[InstanceId] = set()
        #: `UP` faults to come, by engine
        self._returns: Counter[InstanceId] = Counter()
        self._specs: dict[CallId, tuple[CallSpec, TraceCall]] = {}
        self._out: dict[AttemptId, tuple[Attempt, InstanceId]] = {}
        self._clients: Clients | None = None
        self._executors: dict[type[Command], Callable[[Any], None]] = {
            Dispatch: self._dispatch,
            Preempt: self._preempt,
            Abort: self._abort,
            Reject: self._ignore,
            WakeAt: self._wake_at,
            RecordCall: self._record_call,
            RecordWorkflow: self._ignore,
        }

    def play(
        self, trace: Trace, faults: Sequence[Fault], hints: Hints, until_s: float | None
    ) -> Simulated:
        kernel = self._kernel
        for engine in self._fleet.values():
            self._post(ev.InstanceUp(engine.spec))
        for fault in faults:
            kernel.at(fault.at_s, self._fault, fault)
            self._returns[InstanceId(fault.instance_id)] += fault.kind is FaultKind.UP
        model = min(next(iter(self._fleet.values())).spec.models)
        clients = Clients(trace, kernel, self._arrive, model=model, hints=hints)
        self._clients = clients
        found = any(engine.spec.seats is None for engine in self._fleet.values())
        if found or self._coordinator.policy.reads_gauges:
            kernel.at(SCRAPE_S, self._scrape)
        if any(call.streaming for workflow in trace for call in workflow.calls):
            kernel.at(PROGRESS_S, self._progress)
        for control in self._controls.values():
            if control.tick_s < float("inf"):
                kernel.at(control.tick_s, self._tick, control)
        if until_s is not None:
            kernel.at(until_s, clients.leave)
        kernel.run(until=lambda: clients.done)
        if not clients.done:
            raise InvariantError(f"nothing is left to happen and {len(self._specs)} calls wait")
        return Simulated(self._played(clients, trace), self._learned())

    def _played(self, clients: Clients, trace: Trace) -> Played:
        workflows = clients.workflows
        first_s = trace[0].arrival_s if trace else 0.0
        last_s = max((w.ended_s for w in workflows), default=first_s)
        now_s = self._kernel.now_s
        instances = {}
        for instance in self._coordinator.fleet:
            instance.integrate(now_s)
            player = self._players[instance.instance_id]
            instances[str(instance.instance_id)] = player.played(
                seats=instance.seats, seat_s=instance.running_integral
            )
        return Played(workflows, clients.calls, last_s - first_s, instances)

    def _learned(self) -> Experience:
        # workflows that were not told to be over are no experience: the next trace has its own
        workflows = {**self._tracker.snapshot(self._kernel.now_s), "live": []}
        return Experience({name: part.dump() for name, part in self._learners.items()}, workflows)

    # --- events ---

    def _post(self, event: ev.Event) -> None:
        for command in self._coordinator.handle(self._kernel.now_s, event):
            self._executors[type(command)](command)
        defects = self._coordinator.take_defects()
        if defects:
            raise defects[0]

    def _arrive(self, spec: CallSpec, call: TraceCall) -> None:
        self._specs[spec.call_id] = (spec, call)
        self._post(ev.CallArrived(spec))

    def _first_token(self, attempt: Attempt) -> None:
        self._post(ev.FirstToken(attempt.attempt_id))

    def _attempt_over(self, attempt: Attempt) -> None:
        _, instance_id = self._out.pop(attempt.attempt_id)
        tool = self._tool_after(attempt.attempt_id)
        if instance_id in self._controls:
            self._controls[instance_id].ended(attempt, tool, self._kernel.now_s)
        cached_tokens = max(0, attempt.cached_tokens) + attempt.spared_tokens
        usage = Usage(
            attempt.prompt_tokens + attempt.spared_tokens, attempt.generated, cached_tokens
        )
        self._post(
            ev.AttemptEnded(
                attempt.attempt_id,
                Outcome.OK,
                usage,
                token_lag_s=attempt.token_lag_s,
                tool=tool,
            )
        )

    def _tool_after(self, attempt_id: AttemptId) -> str | None:
        if self._clients is None:
            return None
        return self._clients.tool_after(self._coordinator.attempts[attempt_id].call.call_id)

    def _tick(self, control: EngineControl) -> None:
        control.tick(self._kernel.now_s)
        self._kernel.at(self._kernel.now_s + control.tick_s, self._tick, control)

    def _scrape(self) -> None:
        running: Counter[InstanceId] = Counter()
        for attempt, instance_id in self._out.values():
            running[instance_id] += self._players[instance_id].generated(attempt)
        for instance_id, player in self._players.items():
            if instance_id in self._down:
                continue
            gauges = player.gauges(running[instance_id])
            self._post(ev.InstanceObserved(instance_id, gauges))
        self._kernel.at(self._kernel.now_s + SCRAPE_S, self._scrape)

    def _progress(self) -> None:
        for attempt, instance_id in list(self._out.values()):
            if attempt.streaming and attempt.first_token_s is not None:
                tokens = self._players[instance_id].generated(attempt)
                self._post(ev.Progress(attempt.attempt_id, tokens))
        self._kernel.at(self._kernel.now_s + PROGRESS_S, self._progress)

    def _fault(self, fault: Fault) -> None:
        instance_id = InstanceId(fault.instance_id)
        match fault.kind:
            case FaultKind.SLOW:
                self._players[instance_id].slow_down(fault.factor)
            case FaultKind.UP:
                self._down.discard(instance_id)
                self._returns[instance_id] -= 1
                self._post(ev.InstanceUp(self._fleet[instance_id].spec))
            case FaultKind.DOWN:
                self._down.add(instance_id)
                self._post(ev.InstanceDown(instance_id))
                lost = [a for a, i in self._out.values() if i == instance_id]
                for attempt in lost:
                    # what a client has seen the beginning of cannot begin again elsewhere
                    seen = attempt.streaming and attempt.first_token_s is not None
                    self._stop(attempt.attempt_id, Outcome.ENGINE_ERROR, retryable=not seen)
                self._players[instance_id].model.reset_prefix_cache()
                self._give_up()

    def _give_up(self) -> None:
        """Clients leave where no engine is left for them: no limit need ever end their wait."""
        gone = {instance_id for instance_id in self._down if not self._returns[instance_id]}
        for call_id, call in list(self._coordinator.calls.items()):
            if call.candidates <= gone:
                self._post(ev.CallCancelled(call_id))

    # --- commands ---

    def _dispatch(self, command: Dispatch) -> None:
        spec, call = self._specs[command.call_id]
        engine = self._fleet[command.instance_id]
        config = engine.config
        spared_tokens = int(engine.cached_share * (spec.prompt_tokens - 1))
        attempt = Attempt(
            command.attempt_id,
            prompt_tokens=spec.prompt_tokens - spared_tokens,
            spared_tokens=spared_tokens,
            output_tokens=call.output_tokens,
            arrival_s=self._kernel.now_s + engine.overhead_s,
            priority=command.engine_priority,
            block_hashes=block_hashes(call, config.block_size)
            if config.enable_prefix_caching and call.prefix
            else (),
            streaming=call.streaming,
            timeline=self._timeline(spec) if call.streaming else None,
            session=spec.workflow_id,
        )
        self._out[command.attempt_id] = (attempt, command.instance_id)
        if engine.overhead_s > 0.0:
            self._kernel.at(attempt.arrival_s, self._reach, attempt, command.instance_id)
        else:
            self._players[command.instance_id].add(attempt)

    def _timeline(self, spec: CallSpec) -> Timeline | None:
        slo = spec.slo
        if slo.ttft_s is None or slo.tpot_s is None:
            return None
        arrived_s = self._coordinator.calls[spec.call_id].arrived_s
        return Timeline(arrived_s + slo.ttft_s, slo.tpot_s)

    def _reach(self, attempt: Attempt, instance_id: InstanceId) -> None:
        if attempt.attempt_id in self._out:
            self._players[instance_id].add(attempt)

    def _preempt(self, command: Preempt) -> None:
        """As the gateway does: a call whose client has seen a part of it runs to its end."""
        out = self._out.get(command.attempt_id)
        if out is not None and not (out[0].streaming and out[0].first_token_s is not None):
            self._kernel.at(self._kernel.now_s, self._stop, command.attempt_id, Outcome.PREEMPTED)

    def _abort(self, command: Abort) -> None:
        self._kernel.at(self._kernel.now_s, self._stop, command.attempt_id, Outcome.CANCELLED)

    def _stop(self, attempt_id: AttemptId, outcome: Outcome, *, retryable: bool = False) -> None:
        out = self._out.pop(attempt_id, None)
        if out is None:
            return
        attempt, instance_id = out
        player = self._players[instance_id]
        tokens = player.generated(attempt)
        player.abort(attempt)
        self._post(ev.AttemptEnded(attempt_id, outcome, output_tokens=tokens, retryable=retryable))

    def _wake_at(self, command: WakeAt) -> None:
        self._kernel.at(command.at_s, self._post, ev.Tick())

    def _record_call(self, command: RecordCall) -> None:
        del self._specs[command.record.call_id]
        if self._clients is not None:
            self._clients.ended(command.record)

    def _ignore(self, command: Command) -> None:
        """Says nothing that a simulation needs."""
