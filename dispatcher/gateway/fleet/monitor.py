"""Watches engines: health, models, gauges; tells the scheduler who is up and who is not.

Each engine has a task of its own, so that one that does not answer holds up no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterable

from dispatcher.config import EngineSettings, FleetSettings
from dispatcher.core.errors import ConfigurationError
from dispatcher.core.events import (
    Event,
    InstanceDown,
    InstanceDraining,
    InstanceObserved,
    InstanceUp,
)
from dispatcher.core.types import InstanceId
from dispatcher.gateway.fleet.engine import Engine
from dispatcher.gateway.fleet.looks import LookFailed, Looks
from dispatcher.gateway.upstream import EnginePool

log = logging.getLogger("headway.fleet")

#: Every so many looks an engine that is up is asked anew which models it serves.
_MODELS_EVERY = 30
_JITTER = 0.2


class Fleet:
    """All engines, and the tasks that watch them."""

    def __init__(
        self,
        settings: FleetSettings,
        *,
        post: Callable[[Event], None],
        lost: Callable[[str, str], None],
        clock: Callable[[], float],
        time_scale: float = 1.0,
    ) -> None:
        """Start empty.

        Args:
            settings: How to watch.
            post: Takes events.
            lost: Hears (instance id, why) of an engine that went down.
            clock: Seconds, monotonic.
            time_scale: How many times faster than their GPU types all engines run (emulated ones).
        """
        self._settings = settings
        self._time_scale = time_scale
        self._post = post
        self._lost = lost
        self._clock = clock
        self._engines: dict[str, Engine] = {}
        #: what takes the place of an engine that is leaving, under the same id
        self._next: dict[str, Engine] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wake: dict[str, asyncio.Event] = {}
        self._joined: set[str] = set()
        self._looks = Looks(settings, clock)
        self._closing: set[asyncio.Task[None]] = set()
        self._random = random.Random(0)  # noqa: S311 - spreads looks, guards nothing

    @property
    def engines(self) -> list[Engine]:
        """In the order in which they were configured."""
        return list(self._engines.values())

    def engine(self, instance_id: str) -> Engine | None:
        """By id; one that is being removed is found until it is gone."""
        return self._engines.get(instance_id)

    def has_up(self, engine: Engine) -> bool:
        """Whether it is up, and still the one that its id stands for."""
        return engine.up and self._is_here(engine)

    def _is_here(self, engine: Engine) -> bool:
        return self._engines.get(engine.settings.id) is engine

    def known_models(self) -> set[str]:
        """What any engine serves or served when it was last seen."""
        return {m for e in self._engines.values() if e.served for m in e.served.models}

    # --- membership ---

    @property
    def pending(self) -> list[Engine]:
        """What waits for an engine of its id to leave."""
        return list(self._next.values())

    def add(self, settings: EngineSettings) -> Engine:
        """Take an engine in; it joins the fleet when it first answers.

        Where one of this id is still leaving, it follows when the last call there has ended.

        Raises:
            ConfigurationError: The id is in use or waited for, or the URL cannot be used.
        """
        engine = self._made(settings)
        known = self._engines.get(settings.id)
        if known is None:
            self._start(engine)
        elif known.removing and settings.id not in self._next:
            self._next[settings.id] = engine
        else:
            raise ConfigurationError(f"engine {settings.id!r} is in the fleet already")
        return engine

    def _made(self, settings: EngineSettings) -> Engine:
        pool = EnginePool(
            settings.url, connect_timeout_s=self._settings.connect_timeout_s, head_timeout_s=None
        )
        return Engine(settings, pool, self._time_scale, since_s=self._clock())

    def _start(self, engine: Engine) -> None:
        name = engine.settings.id
        engine.since_s = engine.computing_s = self._clock()
        self._engines[name] = engine
        self._wake[name] = asyncio.Event()
        self._tasks[name] = asyncio.get_running_loop().create_task(
            self._watch(engine), name=f"watch-{name}"
        )

    def drain(self, engine: Engine, *, remove: bool = False) -> None:
        """Nothing new goes there; what runs finishes, and then (`remove`) it leaves."""
        known = engine.settings.id in self._joined and self._still_known(engine)
        engine.draining = True
        engine.removing = engine.removing or remove
        if remove:
            self._next.pop(engine.settings.id, None)
        if known:
            self._post(InstanceDraining(InstanceId(engine.settings.id), remove=engine.removing))

    def undrain(self, engine: Engine) -> None:
        """It is given new calls again.

        Raises:
            ConfigurationError: It is being removed, which cannot be taken back.
        """
        if engine.removing:
            raise ConfigurationError(f"engine {engine.settings.id!r} is being removed")
        engine.draining = False
        self._announce(engine)

    def _retune(self, engine: Engine, settings: EngineSettings) -> None:
        """Other settings for the engine at the same URL; what runs there runs on."""
        engine.retune(settings)
        self._announce(engine)
        log.info("engine %s has new settings", settings.id)

    def _announce(self, engine: Engine) -> None:
        """Tell the scheduler of an engine that may be given calls, as it is now."""
        if engine.takes_new:
            self._joined.add(engine.settings.id)
            self._post(InstanceUp(engine.spec()))

    def reap(self, busy: Callable[[str], bool]) -> None:
        """Let go of engines that were to be removed and have nothing left (`busy` says no)."""
        for engine in [e for e in self._engines.values() if e.removing]:
            if not engine.routed_in_flight and not busy(engine.settings.id):
                self._drop(engine)

    def _drop(self, engine: Engine) -> None:
        name = engine.settings.id
        self._tasks.pop(name).cancel()
        del self._engines[name], self._wake[name]
        self._joined.discard(name)
        engine.up = False
        engine.lost()
        closing = asyncio.get_running_loop().create_task(engine.pool.aclose())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        follower = self._next.pop(name, None)
        if follower is not None:
            self._start(follower)

    def reload(self, wanted: Iterable[EngineSettings]) -> None:
        """Bring the fleet to what a configuration says.

        Engines are added and removed; one at another URL takes its place when the last call of the
        old one has ended; whatever else has changed holds from the next call on.

        Raises:
            ConfigurationError: A URL cannot be used; nothing has changed.
        """
        listed = {settings.id: settings for settings in wanted}
        fresh = {n: self._made(s) for n, s in listed.items() if not self._stays(s)}
        for engine in self.engines:
            settings = listed.get(engine.settings.id)
            if engine.removing or settings == engine.settings:
                continue
            if settings is None or not self._stays(settings):
                self.drain(engine, remove=True)
            else:
                self._retune(engine, settings)
        self._next = {name: engine for name, engine in fresh.items() if name in self._engines}
        for name, engine in fresh.items():
            if name in self._next:
                log.info("engine %s: the new one follows when the old one's calls have ended", name)
            else:
                self._start(engine)
        self.reap(self._busy)

    def _stays(self, settings: EngineSettings) -> bool:
        """Whether an engine of this id and URL is in the fleet for good."""
        known = self._engines.get(settings.id)
        return known is not None and not known.removing and known.settings.url == settings.url

    def _busy(self, name: str) -> bool:
        return self.busy(name)

    busy: Callable[[str], bool] = staticmethod(lambda name: False)
    """Set by the gateway: whether an instance is still in the scheduler's fleet."""

    async def aclose(self) -> None:
        """Stop watching and close all connections."""
        tasks = [*self._tasks.values(), *self._closing]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for engine in self._engines.values():
            await engine.pool.aclose()
        await self._looks.aclose()

    # --- up and down ---

    def unreachable(self, engine: Engine, why: str) -> None:
        """A call could not reach it: it is down until a look succeeds.

        One that has left tells nothing about that which goes by its id now.
        """
        if not self._is_here(engine):
            return
        engine.failures = max(engine.failures, self._settings.failures_until_down)
        self._mark_down(engine, why)
        wake = self._wake.get(engine.settings.id)
        if wake is not None:
            wake.set()

    def stalled(self, engine: Engine) -> None:
        """A stream of it fell silent: at the next look it has to show that it still computes."""
        engine.suspect = True

    def _mark_down(self, engine: Engine, why: str) -> None:
        engine.last_error = why
        if not self.has_up(engine):
            return
        engine.up = False
        engine.since_s = self._clock()
        log.warning("engine %s is down: %s", engine.settings.id, why)
        if engine.settings.id in self._joined and self._still_known(engine):
            self._post(InstanceDown(InstanceId(engine.settings.id)))
        self._lost(engine.settings.id, why)
        engine.lost()

    def _still_known(self, engine: Engine) -> bool:
        return not engine.removing or self.busy(engine.settings.id)

    def _mark_up(self, engine: Engine) -> None:
        engine.failures = 0
        engine.last_error = ""
        if not engine.up:
            engine.up = True
            engine.since_s = self._clock()
            models = ", ".join(engine.served.models) if engine.served else "nothing"
            log.info("engine %s is up and serves %s", engine.settings.id, models)
        self._announce(engine)

    # --- looking ---

    async def _watch(self, engine: Engine) -> None:
        looks = 0
        wake = self._wake[engine.settings.id]
        while True:
            try:
                await self._look(engine, ask_models=not engine.up or looks % _MODELS_EVERY == 0)
            except LookFailed as failure:
                engine.failures += 1
                engine.last_error = str(failure)
                limit = self._settings.failures_until_down
                if engine.failures == limit and engine.served is None:
                    log.warning("engine %s is down from the start: %s", engine.settings.id, failure)
                if engine.failures >= limit:
                    self._mark_down(engine, str(failure))
            except Exception:
                log.exception("watching engine %s", engine.settings.id)
            looks += 1
            if engine.removing:
                self.reap(self._busy)
            jitter = 1.0 + self._random.uniform(-_JITTER, _JITTER)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.poll_interval_s * jitter):
                    await wake.wait()
                    wake.clear()
                    # an engine that just refused a call is not asked again at once
                    await asyncio.sleep(self._settings.poll_interval_s * jitter)

    async def _look(self, engine: Engine, *, ask_models: bool) -> None:
        await self._looks.health(engine)
        scrape = await self._looks.metrics(engine)
        await self._looks.progress(engine, scrape)
        changed = engine.note(scrape)
        if ask_models:
            served = await self._looks.served(engine)
            changed = changed or served != engine.served
            engine.served = served
            engine.refuses_key = False
        if changed or not engine.up:
            self._mark_up(engine)
        engine.failures = 0
        if engine.settings.id in self._joined and self._still_known(engine):
            self._post(InstanceObserved(InstanceId(engine.settings.id), scrape.gauges))
