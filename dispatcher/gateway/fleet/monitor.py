"""Watches engines: health, models, gauges; tells the scheduler who is up and who is not.

Each engine has a task of its own, so that one that does not answer holds up no other. What it
fetches is small and bounded, off the token path, over httpx.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterable

import httpx

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
from dispatcher.gateway.fleet.engine import Engine, Served
from dispatcher.gateway.fleet.scrape import SCRAPE_BYTES_MAX, Scrape, parse_scrape
from dispatcher.gateway.upstream import EnginePool

log = logging.getLogger("headway.fleet")

#: Every so many looks an engine that is up is asked anew which models it serves.
_MODELS_EVERY = 30
_MODELS_BYTES_MAX = 1024 * 1024
_JITTER = 0.2
_DEFAULT_CONTEXT_TOKENS = 1 << 20


class LookFailed(Exception):  # noqa: N818 - it is no error of ours
    """An engine did not answer as it should; says how."""


class Fleet:
    """All engines, and the tasks that watch them."""

    def __init__(
        self,
        settings: FleetSettings,
        *,
        post: Callable[[Event], None],
        lost: Callable[[str, str], None],
        clock: Callable[[], float],
    ) -> None:
        """`post` takes events; `lost(instance id, why)` hears of an engine that went down."""
        self._settings = settings
        self._post = post
        self._lost = lost
        self._clock = clock
        self._engines: dict[str, Engine] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wake: dict[str, asyncio.Event] = {}
        self._joined: set[str] = set()
        self._client: httpx.AsyncClient | None = None
        self._random = random.Random(0)  # noqa: S311 - spreads looks, guards nothing

    @property
    def engines(self) -> list[Engine]:
        """In the order in which they were configured."""
        return list(self._engines.values())

    def engine(self, instance_id: str) -> Engine | None:
        """By id; one that is being removed is found until it is gone."""
        return self._engines.get(instance_id)

    def known_models(self) -> set[str]:
        """What any engine serves or served when it was last seen."""
        return {m for e in self._engines.values() if e.served for m in e.served.models}

    # --- membership ---

    def add(self, settings: EngineSettings, *, time_scale: float = 1.0) -> Engine:
        """Take an engine in; it joins the fleet when it first answers.

        Raises:
            ConfigurationError: The id is in use.
        """
        if settings.id in self._engines:
            raise ConfigurationError(f"engine {settings.id!r} is in the fleet already")
        pool = EnginePool(
            settings.url, connect_timeout_s=self._settings.connect_timeout_s, head_timeout_s=None
        )
        engine = Engine(settings, pool, time_scale, since_s=self._clock())
        self._engines[settings.id] = engine
        self._wake[settings.id] = asyncio.Event()
        self._tasks[settings.id] = asyncio.get_running_loop().create_task(
            self._watch(engine), name=f"watch-{settings.id}"
        )
        return engine

    def drain(self, engine: Engine, *, remove: bool = False) -> None:
        """Nothing new goes there; what runs finishes, and then (`remove`) it leaves."""
        engine.draining = True
        engine.removing = engine.removing or remove
        if engine.settings.id in self._joined:
            self._post(InstanceDraining(InstanceId(engine.settings.id), remove=engine.removing))

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
        closing = asyncio.get_running_loop().create_task(engine.pool.aclose())
        self._tasks[f"close {name}"] = closing
        closing.add_done_callback(lambda _: self._tasks.pop(f"close {name}", None))

    def reload(self, wanted: Iterable[EngineSettings]) -> None:
        """Bring the fleet to what a configuration says: add, remove, replace what changed."""
        listed = {settings.id: settings for settings in wanted}
        for engine in self.engines:
            if listed.get(engine.settings.id) != engine.settings and not engine.removing:
                self.drain(engine, remove=True)
        self.reap(lambda name: name in self._joined and self._busy(name))
        for name, settings in listed.items():
            if name not in self._engines:
                self.add(settings)
            elif self._engines[name].removing:
                log.warning("engine %s: its old calls still run; reload again to add it anew", name)

    def _busy(self, name: str) -> bool:
        return self.busy(name)

    busy: Callable[[str], bool] = staticmethod(lambda name: False)
    """Set by the gateway: whether an instance is still in the scheduler's fleet."""

    async def aclose(self) -> None:
        """Stop watching and close all connections."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for engine in self._engines.values():
            await engine.pool.aclose()
        if self._client is not None:
            await self._client.aclose()

    # --- up and down ---

    def unreachable(self, engine: Engine, why: str) -> None:
        """A call could not reach it: it is down until a look succeeds."""
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
        if not engine.up:
            return
        engine.up = False
        engine.since_s = self._clock()
        log.warning("engine %s is down: %s", engine.settings.id, why)
        if engine.settings.id in self._joined and self._still_known(engine):
            self._post(InstanceDown(InstanceId(engine.settings.id)))
        self._lost(engine.settings.id, why)

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
        self._joined.add(engine.settings.id)
        self._post(InstanceUp(engine.spec()))
        if engine.draining:
            self._post(InstanceDraining(InstanceId(engine.settings.id), remove=engine.removing))

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
                if engine.failures >= self._settings.failures_until_down:
                    self._mark_down(engine, str(failure))
            except Exception:
                log.exception("watching engine %s", engine.settings.id)
            looks += 1
            jitter = 1.0 + self._random.uniform(-_JITTER, _JITTER)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.poll_interval_s * jitter):
                    await wake.wait()
                    wake.clear()
                    # an engine that just refused a call is not asked again at once
                    await asyncio.sleep(self._settings.poll_interval_s * jitter)

    async def _look(self, engine: Engine, *, ask_models: bool) -> None:
        await self._get(engine, "/health", 64 * 1024)
        scrape = parse_scrape(await self._get(engine, "/metrics", SCRAPE_BYTES_MAX))
        await self._check_progress(engine, scrape)
        changed = self._note_capacity(engine, scrape)
        if ask_models:
            served = read_models(await self._get(engine, "/v1/models", _MODELS_BYTES_MAX))
            changed = changed or served != engine.served
            engine.served = served
            engine.refuses_key = False
        if changed or not engine.up:
            self._mark_up(engine)
        engine.failures = 0
        if self._still_known(engine):
            self._post(InstanceObserved(InstanceId(engine.settings.id), scrape.gauges))

    def _note_capacity(self, engine: Engine, scrape: Scrape) -> bool:
        changed = scrape.kv_capacity_tokens != engine.kv_capacity_tokens
        engine.kv_capacity_tokens = scrape.kv_capacity_tokens
        return changed

    async def _check_progress(self, engine: Engine, scrape: Scrape) -> None:
        """Have an engine that owes answers, but counts no tokens, write one.

        A server outlives the process that computes when that one hangs: `/health` and `/metrics`
        say 200 then, with numbers that no longer move. Raises `LookFailed`.
        """
        moved = scrape.tokens_total != engine.tokens_total
        engine.tokens_total = scrape.tokens_total
        if moved or not (engine.busy or engine.suspect):
            engine.computing_s = self._clock()
            engine.suspect = False
            return
        silent_s = self._clock() - engine.computing_s
        if scrape.tokens_total is not None and silent_s >= self._settings.stall_timeout_s:
            engine.suspect = True
        if engine.suspect and engine.served is not None:
            asked = {"model": engine.served.models[0], "prompt": "x", "max_tokens": 1}
            await self._get(engine, "/v1/completions", _MODELS_BYTES_MAX, post=asked)
            engine.computing_s = self._clock()
            engine.suspect = False

    async def _get(
        self, engine: Engine, path: str, limit_bytes: int, *, post: object = None
    ) -> bytes:
        """Fetch a page, cut at `limit_bytes`; `post` is sent as JSON. Raises `LookFailed`."""
        url = engine.settings.url + path
        method = "GET" if post is None else "POST"
        try:
            async with (
                asyncio.timeout(self._settings.poll_timeout_s),
                self._http().stream(method, url, headers=engine.headers, json=post) as response,
            ):
                if response.status_code in (401, 403):
                    engine.refuses_key = True
                # an engine without this API answers a probe too, in its way
                if response.status_code != 200 and (post is None or response.status_code >= 500):
                    raise LookFailed(f"{path}: status {response.status_code}")
                parts, size = [], 0
                async for part in response.aiter_bytes():
                    parts.append(part)
                    size += len(part)
                    if size > limit_bytes:
                        break
                return b"".join(parts)[:limit_bytes]
        except TimeoutError:
            raise LookFailed(f"{path}: no answer in {self._settings.poll_timeout_s} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise LookFailed(f"{path}: {type(error).__name__}: {error}") from error

    def _http(self) -> httpx.AsyncClient:
        if self._client is None:
            self._client = httpx.AsyncClient(
                timeout=self._settings.poll_timeout_s,
                limits=httpx.Limits(max_connections=None, keepalive_expiry=4.0),
                trust_env=False,
            )
        return self._client


def read_models(page: bytes) -> Served:
    """What `/v1/models` says. Raises `LookFailed` where it is not a list of models."""
    try:
        listed = httpx.Response(200, content=page).json()["data"]
        details = tuple(dict(item) for item in listed)
        models = tuple(str(item["id"]) for item in details)
        lengths = [int(item["max_model_len"]) for item in details if item.get("max_model_len")]
    except (ValueError, KeyError, TypeError) as error:
        raise LookFailed(f"/v1/models: not a list of models: {error!r}") from error
    if not models:
        raise LookFailed("/v1/models: serves no model")
    return Served(models, max(lengths, default=_DEFAULT_CONTEXT_TOKENS), details)
