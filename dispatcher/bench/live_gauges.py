"""How full engines are while a live run goes on, by their Prometheus metrics (vLLM's names)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from types import TracebackType

import httpx

from dispatcher.bench.live_client import LiveError
from dispatcher.traces import PlayedInstance

LOOK_EVERY_S = 0.5
_LIMIT_S = 10.0
_RUNNING = "num_requests_running"
_SAMPLE = re.compile(
    r"^vllm:(num_requests_running|prefix_cache_queries|prefix_cache_hits|num_preemptions)"
    r"(?:_total)?(?:\{[^\n]*\})?[ \t]+(\S+)",
    re.MULTILINE,
)


@dataclass(slots=True)
class _Engine:
    url: str
    first: dict[str, float] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)
    looked_at_s: float = 0.0
    running_s: float = 0.0
    """Running requests, integrated over real time."""


class Gauges:
    """Looks at engines every so often while the block lasts. Without engines it does nothing.

    What happens between two looks is taken for the mean of both: a play must last for many.

    Raises:
        LiveError: On entry, where one does not answer with vLLM's metrics; later looks that fail
            are left out.
    """

    def __init__(self, urls: Sequence[str], *, every_s: float = LOOK_EVERY_S) -> None:
        self._engines = [_Engine(_metrics_url(url)) for url in urls]
        self._http = httpx.AsyncClient(timeout=_LIMIT_S, trust_env=False)
        self._every_s = every_s
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Gauges:
        for engine in self._engines:
            try:
                engine.first = await self._look(engine)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                await self._http.aclose()
                raise LiveError(f"{engine.url}: no metrics: {error}") from error
            if _RUNNING not in engine.first:
                await self._http.aclose()
                raise LiveError(f"{engine.url}: no metrics of an engine: no vllm:{_RUNNING} there")
        if self._engines:
            self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            if exc is None:
                await asyncio.gather(
                    *(self._look(engine) for engine in self._engines), return_exceptions=True
                )
        await self._http.aclose()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            looks = (self._look(engine) for engine in self._engines)
            await asyncio.gather(*looks, return_exceptions=True)

    async def _look(self, engine: _Engine) -> dict[str, float]:
        answer = await self._http.get(engine.url)
        answer.raise_for_status()
        found: dict[str, float] = {}
        for name, value in _SAMPLE.findall(answer.text):
            found[name] = found.get(name, 0.0) + float(value)
        now_s = monotonic()
        if engine.last:
            running = 0.5 * (engine.last.get(_RUNNING, 0.0) + found.get(_RUNNING, 0.0))
            engine.running_s += running * (now_s - engine.looked_at_s)
        engine.last, engine.looked_at_s = found, now_s
        return found

    def instances(self, *, seats: int, time_scale: float) -> dict[str, PlayedInstance]:
        """What was seen, in the trace's seconds, by URL.

        Args:
            seats: Of each engine, which no metric tells.
            time_scale: The trace's seconds per real second.
        """
        return {
            engine.url: PlayedInstance(
                seat_s=engine.running_s * time_scale,
                seats=seats,
                prefix_queries_tokens=_gained(engine, "prefix_cache_queries"),
                prefix_hits_tokens=_gained(engine, "prefix_cache_hits"),
                preemptions=_gained(engine, "num_preemptions"),
            )
            for engine in self._engines
        }


def _metrics_url(url: str) -> str:
    bare = url.rstrip("/")
    return bare if bare.endswith("/metrics") else f"{bare}/metrics"


def _gained(engine: _Engine, name: str) -> int:
    return round(engine.last.get(name, 0.0) - engine.first.get(name, 0.0))
