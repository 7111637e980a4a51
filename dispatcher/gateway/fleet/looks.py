"""Asking engines how they are: small, bounded pages over httpx, off the token path."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx

from dispatcher.config import FleetSettings
from dispatcher.gateway.fleet.engine import Engine, Served
from dispatcher.gateway.fleet.scrape import SCRAPE_BYTES_MAX, Scrape, parse_scrape

_PAGE_BYTES_MAX = 1024 * 1024
_DEFAULT_CONTEXT_TOKENS = 1 << 20


class LookFailed(Exception):  # noqa: N818 - it is no error of ours
    """An engine did not answer as it should; says how."""


class Looks:
    """What is fetched from engines. Every method but `aclose` raises `LookFailed`."""

    def __init__(self, settings: FleetSettings, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock
        self._client: httpx.AsyncClient | None = None

    async def health(self, engine: Engine) -> None:
        """It says that it is well."""
        await self._get(engine, "/health", 64 * 1024)

    async def metrics(self, engine: Engine) -> Scrape:
        """What it counts."""
        return parse_scrape(await self._get(engine, "/metrics", SCRAPE_BYTES_MAX))

    async def served(self, engine: Engine) -> Served:
        """What it serves."""
        return read_models(await self._get(engine, "/v1/models", _PAGE_BYTES_MAX))

    async def progress(self, engine: Engine, scrape: Scrape) -> None:
        """Have an engine that owes answers, but counts no tokens, write one.

        A server outlives the process that computes when that one hangs: `/health` and `/metrics`
        say 200 then, with numbers that no longer move. One that counts no tokens at all is taken at
        what reaches us, and gets longer to write: its silence may be a long queue.
        """
        counts = scrape.tokens_total is not None
        moved = scrape.tokens_total != engine.tokens_total
        engine.tokens_total = scrape.tokens_total
        now_s = self._clock()
        if moved or not (engine.busy or engine.suspect):
            engine.computing_s = now_s
            engine.suspect = False
            return
        stall_s = self._settings.stall_timeout_s
        alive_s = engine.computing_s if counts else max(engine.computing_s, engine.heard_s)
        if now_s - alive_s >= stall_s:
            engine.suspect = True
        if engine.suspect and engine.served is not None:
            timeout_s = self._settings.poll_timeout_s
            if not counts:
                timeout_s = max(timeout_s, stall_s / self._settings.failures_until_down)
            asked = {"model": engine.served.models[0], "prompt": "x", "max_tokens": 1}
            await self._get(
                engine, "/v1/completions", _PAGE_BYTES_MAX, post=asked, timeout_s=timeout_s
            )
            engine.computing_s = self._clock()
            engine.suspect = False

    async def aclose(self) -> None:
        """Close all connections."""
        if self._client is not None:
            await self._client.aclose()

    async def _get(
        self,
        engine: Engine,
        path: str,
        limit_bytes: int,
        *,
        post: object = None,
        timeout_s: float | None = None,
    ) -> bytes:
        """Fetch a page, cut at `limit_bytes`; `post` is sent as JSON."""
        url = engine.settings.url + path
        method = "GET" if post is None else "POST"
        timeout_s = self._settings.poll_timeout_s if timeout_s is None else timeout_s
        request = self._http().stream(
            method, url, headers=engine.headers, json=post, timeout=timeout_s
        )
        try:
            async with asyncio.timeout(timeout_s), request as response:
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
            raise LookFailed(f"{path}: no answer in {timeout_s:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise LookFailed(f"{path}: {type(error).__name__}: {error}") from error

    def _http(self) -> httpx.AsyncClient:
        if self._client is None:
            self._client = httpx.AsyncClient(
                limits=httpx.Limits(max_connections=None, keepalive_expiry=4.0), trust_env=False
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
