"""Everything one gateway has, wired together; what the routes and the command line work on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path

from dispatcher import catalog
from dispatcher.config import EngineSettings, Settings
from dispatcher.core.coordinator import Coordinator, Limits
from dispatcher.core.events import Event, PolicySwitched
from dispatcher.core.ports import Learned
from dispatcher.core.types import InstanceId, Outcome, RejectReason, Usage
from dispatcher.core.workflow_types import CallRecord, WorkflowRecord
from dispatcher.gateway.attempts import AttemptResult, AttemptRunner
from dispatcher.gateway.calls import LiveCall
from dispatcher.gateway.driver import Driver
from dispatcher.gateway.errors import ApiError, rejection, response_not_found
from dispatcher.gateway.fleet.engine import Engine
from dispatcher.gateway.fleet.monitor import Fleet
from dispatcher.gateway.guests import Guests
from dispatcher.gateway.metrics import Metrics
from dispatcher.gateway.predictors import Predictors
from dispatcher.gateway.recording import Recording, Traffic
from dispatcher.gateway.stage_models import live_stage_models
from dispatcher.gateway.store import Store, TrackerState
from dispatcher.gateway.tenants import Tenants
from dispatcher.gateway.tracking import tracker_settings
from dispatcher.gateway.tuner import LiveTuner, Subject
from dispatcher.registry import PolicyServices
from dispatcher.trained import TrainedLengths
from dispatcher.tuning import Replay
from workflows.tracker import Tracker

log = logging.getLogger("headway")

RESPONSES_REMEMBERED = 10_000
"""Stored responses of which it is known which engine holds them."""
_LAST_WORDS_S = 1.0
"""For what a shutdown cuts off to be told so."""


class Gateway:
    """One gateway. Made inside a running event loop; `start`, serve, `stop`."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Callable[[], float] = time.monotonic,
        engine_time_scale: float = 1.0,
        replay: Replay | None = None,
        trained: TrainedLengths | None = None,
    ) -> None:
        """A gateway that has not started.

        Args:
            settings: Checked.
            clock: Seconds that never run backwards.
            engine_time_scale: How much faster than real their GPUs the engines run (emulated).
            replay: What the tuner plays recent traffic with; none: alpha is not tuned.
            trained: The forest that predicts lengths; none: the catalog's.
        """
        self.settings = settings
        self.clock = clock
        self.services = PolicyServices(random=random.Random(0))  # noqa: S311 - no secret
        self.metrics = Metrics()
        self.tenants = Tenants(settings.tenants)
        self.predictors = Predictors(
            settings.predictors,
            self.services,
            registry=self.metrics.registry,
            clock=clock,
            trained=trained,
        )
        self.tracker = Tracker(tracker_settings(settings))
        self.stage_models = live_stage_models(self.tracker.profiles, self.services, clock)
        queue = settings.queue
        self.coordinator = Coordinator(
            policy=catalog.build_policy(
                settings.policy.name, settings.policy.params, self.services
            ),
            tracker=self.tracker,
            lengths=self.predictors.lengths,
            costs=self.predictors.costs,
            limits=Limits(queue.max_calls, queue.max_wait_s, queue.max_attempts),
            epoch_s=clock(),
            observers=(*catalog.observers(self.services), *self.predictors.observers),
        )
        self.fleet = Fleet(
            settings.fleet,
            post=self._post,
            lost=self._lost,
            clock=clock,
            time_scale=engine_time_scale,
        )
        runner = AttemptRunner(
            self.fleet,
            clock=clock,
            stall_timeout_s=settings.fleet.stall_timeout_s,
            remember_response=self.remember_response,
        )
        self.driver = Driver(self.coordinator, runner, self, clock)
        self.fleet.busy = self.driver.instance_known
        self.metrics.watch(self.coordinator, self.fleet, self.alpha)
        self.guests = Guests()
        self.closing = False
        self._grace: asyncio.Timeout | None = None
        self._store = None if settings.store.path is None else Store(Path(settings.store.path))
        self._saver: asyncio.Task[None] | None = None
        #: by response id: the tenant's scope, and the engine that holds it
        self._responses: OrderedDict[str, tuple[str, str]] = OrderedDict()
        subject = Subject(self.coordinator, self.predictors.costs, self._post)
        self.tuner = LiveTuner(settings.tuning, subject, replay, clock)
        own = settings.recording
        path = None if own.path is None else Path(own.path)
        self.recording = None if path is None else Recording(path, int(own.max_mb * 1e6))
        self._traffic = Traffic(clock, self.recording, self.tuner)

    # --- life ---

    async def start(self) -> None:
        """Take up what was learned, take the engines in."""
        if self._store is not None:
            taken = await self._store.load(self._learned())
            if taken:
                log.info("taken up from %s: %s", self.settings.store.path, ", ".join(taken))
            self._saver = asyncio.create_task(self._keep_saving(self._store))
        if self.recording is not None:
            await self.recording.start()
        self.tuner.start()
        self.stage_models.start()
        if self.predictors.forest is not None:
            self.predictors.forest.start(self.coordinator.calls, self.driver.estimated)
        for engine in self.settings.engines:
            self.fleet.add(engine)

    def add_engine(self, settings: EngineSettings) -> Engine:
        """Take one more engine in. Raises `ConfigurationError`."""
        return self.fleet.add(settings)

    def begin_shutdown(self) -> None:
        """New calls are turned away from now on; what is here goes on."""
        self.closing = True

    async def drain(self, grace_s: float) -> bool:
        """Wait for what is here; False where some of it had to be cut off."""
        self.begin_shutdown()
        if await self._idle_within(grace_s):
            return True
        self.guests.cut_off()
        self.driver.cancel_all(lambda: rejection(RejectReason.SHUTDOWN, 1.0))
        await self.driver.wait_idle()
        with contextlib.suppress(TimeoutError):
            # clients that take nothing any more are the server's to close
            async with asyncio.timeout(_LAST_WORDS_S):
                await self.guests.wait_none()
        return False

    def end_grace(self) -> None:
        """Whoever drains waits no longer: what is here is cut off now."""
        if self._grace is not None and not self._grace.expired():
            self._grace.reschedule(asyncio.get_running_loop().time())

    async def _idle_within(self, grace_s: float) -> bool:
        try:
            async with asyncio.timeout(grace_s) as self._grace:
                await self.guests.wait_none()
                await self.driver.wait_idle()
        except TimeoutError:
            return False
        finally:
            self._grace = None
        return True

    async def stop(self) -> None:
        """End; whatever is still alive is cut off. Saves what was learned."""
        await self.drain(0.0)
        self.driver.close()
        await self.tuner.stop()
        await self.stage_models.stop()
        if self.predictors.forest is not None:
            await self.predictors.forest.stop()
        await self._traffic.stop()
        await self.fleet.aclose()
        if self._saver is not None:
            self._saver.cancel()
            await asyncio.gather(self._saver, return_exceptions=True)
        if self._store is not None:
            await self._store.save(self._learned())

    def _learned(self) -> dict[str, Learned]:
        return {
            **self.predictors.learned(),
            "workflows": TrackerState(self.tracker, self.clock, time.time),
            "alpha": self.tuner,
        }

    async def _keep_saving(self, store: Store) -> None:
        while True:
            await asyncio.sleep(self.settings.store.save_interval_s)
            await store.save(self._learned())

    # --- what routes ask ---

    def ready(self) -> bool:
        """Whether a call would find an engine."""
        return not self.closing and any(engine.takes_new for engine in self.fleet.engines)

    def refuse_if_closing(self) -> None:
        """Raises the 503 of a gateway that is shutting down."""
        if self.closing:
            wait_s = max(1.0, self.settings.server.shutdown_grace_s)
            raise rejection(RejectReason.SHUTDOWN, wait_s)

    def resolve_model(self, name: str) -> str:
        """The served name that an alias (or the name itself) stands for.

        Raises:
            ApiError: 404 for a model that no engine serves; while none has said what it serves, 502
                where they refuse the gateway's keys, else 503.
        """
        served = self.settings.models.aliases.get(name, name)
        known = self._known_models()
        if served in known:
            return served
        aliases = [a for a, m in self.settings.models.aliases.items() if m in known]
        names = ", ".join(sorted(known | set(aliases))[:50])
        why = f"The model `{name}` does not exist."
        if served != name:
            why = f"The model `{name}` stands for `{served}`, which no engine serves."
        raise ApiError(404, f"{why} There are: {names}.", param="model", code="model_not_found")

    def _known_models(self) -> set[str]:
        """What is served, or was when it was last seen. Raises the `ApiError` of a cold fleet."""
        known = self.fleet.known_models()
        if known:
            return known
        refusing = [e.settings.id for e in self.fleet.engines if e.refuses_key]
        if refusing and len(refusing) == len(self.fleet.engines):
            why = f"Engine {refusing[0]} does not take the gateway's key."
            raise ApiError(502, why, code="engine_auth")
        raise rejection(RejectReason.NO_ENGINE, 1.0, "no engine has answered yet")

    def only_model(self) -> str | None:
        """The model that is meant where a body names none: the only one there is.

        Raises:
            ApiError: As `resolve_model`, while no engine has said what it serves.
        """
        self._known_models()
        firsts = {e.served.models[0] for e in self.fleet.engines if e.served}
        return firsts.pop() if len(firsts) == 1 else None

    def usual_slo_s(self, application: str) -> float:
        """The SLO of an application's workflows where no client asks for one."""
        return self.settings.workflow(application)[0]

    def remember_response(self, response_id: str, instance_id: str, scope: str = "") -> None:
        """An engine holds this response, made for the tenant of that scope.

        Clients may choose ids: one that is another tenant's already stays with that.
        """
        owner, _ = self._responses.get(response_id, (scope, None))
        if owner != scope:
            return
        self._responses[response_id] = (scope, instance_id)
        self._responses.move_to_end(response_id)
        if len(self._responses) > RESPONSES_REMEMBERED:
            self._responses.popitem(last=False)

    def holder_of(self, response_id: str, scope: str = "") -> str | None:
        """The instance that holds a response, where that is known.

        Raises:
            ApiError: 404 where it is known to be another tenant's, or (with tenants) not known at
                all: the engines cannot say whose it is.
        """
        owner, instance_id = self._responses.get(response_id, ("", None))
        if owner != scope:
            raise response_not_found(response_id)
        return instance_id

    def switch_policy(self, name: str, params: Mapping[str, object]) -> None:
        """Another policy decides from now on.

        Raises:
            UnknownNameError, BadParameterError: Nothing has changed.
        """
        policy = catalog.build_policy(name, params, self.services)
        self.driver.handle(PolicySwitched(policy))
        self.tuner.policy_switched()
        log.info("policy is now %s %s", name, dict(policy.params))

    def alpha(self) -> float | None:
        """The running policy's alpha; `None` where it has none."""
        alpha = self.coordinator.policy.alpha
        return None if alpha is None else alpha()

    # --- what the fleet tells ---

    def _post(self, event: Event) -> None:
        self.driver.post(event)

    def _lost(self, instance_id: str, why: str) -> None:
        self.driver.retry_elsewhere(instance_id, why)

    # --- what the driver tells (Recorder) ---

    def decided(self, seconds: float) -> None:
        """One arrival took so long to decide upon."""
        self.metrics.decision.observe(seconds)

    def attempt_failed(self, reason: str) -> None:
        """An attempt failed before the client saw anything of it."""
        self.metrics.retries.labels(reason).inc()

    def preempted(self, instance_id: InstanceId) -> None:
        """An attempt was stopped there, so that another call is served."""
        self.metrics.preemptions.labels(instance_id).inc()

    def workflow_ended(self, record: WorkflowRecord) -> None:
        """A workflow is over."""
        self.metrics.workflow(record)
        self._traffic.workflow_ended(record)

    def call_ended(self, call: LiveCall, result: AttemptResult | None) -> None:
        """A call is over: count it, learn from it, charge its tenant."""
        record, metrics = call.record, self.metrics
        if record is None:
            return
        self._traffic.call_ended(call.spec, record)
        metrics.request(call.path, call.spec.model, record.outcome.value)
        metrics.call(record, call.spec.seats, single=call.single)
        usage = None if result is None else result.usage
        if usage is not None:
            metrics.used(usage)
            self._learn_prompt(call, usage.prompt_tokens)
            if call.length is not None and record.outcome is Outcome.OK:
                per_seat = round(usage.output_tokens / call.spec.seats)
                metrics.coverage.learn(call.length, per_seat)
        tenant = self.tenants.get(call.spec.tenant)
        if tenant is not None:
            tenant.charge(_tokens_used(record, usage), self.clock())
        self.fleet.reap(self.driver.instance_known)

    def _learn_prompt(self, call: LiveCall, prompt_tokens: int) -> None:
        """Only from prompts that are all text and all here."""
        facts = call.facts
        if facts.prompt_bytes and not facts.modalities and facts.previous_response_id is None:
            seen = prompt_tokens - facts.prompt_token_ids
            self.predictors.prompt_tokens.learn(call.spec.model, facts.prompt_bytes, seen)


def _tokens_used(record: CallRecord, usage: Usage | None) -> int:
    """What a call is charged: as the engine counted, else as estimated for what it computed."""
    if usage is not None:
        return usage.prompt_tokens + usage.output_tokens
    ran = record.first_token_s is not None or (
        record.dispatched_s is not None and record.outcome in (Outcome.OK, Outcome.CANCELLED)
    )
    return record.prompt_tokens + record.output_tokens if ran else 0
