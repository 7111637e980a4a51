"""A gateway over real sockets in this process, before emulated or scripted engines."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import uvicorn
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from dispatcher.config import Settings
from dispatcher.emulator.fleet import running_fleet
from dispatcher.emulator.settings import EmulatorSettings
from dispatcher.gateway.app import GatewayApp, create_app
from dispatcher.gateway.runtime import Gateway
from dispatcher.trained import TrainedLengths
from dispatcher.tuning import Replay

MODEL = "llama-3.1-8b"


class QuietServer(uvicorn.Server):
    """Leaves the test runner's signals alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    """An ASGI application on a free port; yields its base URL."""
    config = uvicorn.Config(
        app,
        port=0,
        http="httptools",
        proxy_headers=False,
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=1,
    )
    server = QuietServer(config)
    task = asyncio.create_task(server.serve())
    try:
        while not server.started:
            if task.done():
                task.result()
                raise RuntimeError("the server ended while it was starting")
            await asyncio.sleep(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await task


@dataclass
class Running:
    """A gateway that serves."""

    app: GatewayApp
    url: str
    http: httpx.AsyncClient

    @property
    def gateway(self) -> Gateway:
        return self.app.state.gateway

    async def until(self, condition: Callable[[], object]) -> None:
        """Return once the condition holds; the test's own timeout bounds it."""
        while not condition():  # noqa: ASYNC110 - any condition, of any thing
            await asyncio.sleep(0.005)

    async def until_up(self, engines: int) -> None:
        await self.until(lambda: sum(e.up for e in self.gateway.fleet.engines) >= engines)

    async def until_empty(self) -> None:
        await self.until(
            lambda: not self.gateway.driver.live_calls and not self.gateway.coordinator.attempts
        )

    async def samples(self, name: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of all samples of that name on the metrics page."""
        page = (await self.http.get("/metrics")).text
        return [
            (sample.labels, sample.value)
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == name
        ]

    async def samples_by_class(self, name: str) -> dict[tuple[str, ...], float]:
        """Samples of that name by class, and by outcome where they have one."""
        return {
            tuple(labels[key] for key in ("class", "outcome") if key in labels): value
            for labels, value in await self.samples(name)
        }

    async def chat(self, text: str = "hello", **more: Any) -> httpx.Response:
        headers = more.pop("headers", None)
        return await self.http.post(
            "/v1/chat/completions", json=chat_body(text, **more), headers=headers
        )


def chat_body(text: str = "hello", **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], **more}


@asynccontextmanager
async def gateway(
    urls: list[str],
    *,
    seats: int | str = 4,
    expect_up: int | None = None,
    replay: Replay | None = None,
    trained: TrainedLengths | None = None,
    **sections: Any,
) -> AsyncIterator[Running]:
    """A gateway before these engines; returns once they are up in its eyes."""
    engines = [{"id": f"e{n}", "url": url, "seats": seats} for n, url in enumerate(urls)]
    settings = Settings(
        **{
            "engines": engines,
            "store": {"path": None},
            "fleet": {"poll_interval_s": 0.05, "failures_until_down": 2},
            **sections,
        }
    )
    app = create_app(settings, replay=replay, trained=trained)
    async with (
        serving(app) as url,
        httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as http,
    ):
        running = Running(app, url, http)
        await running.until_up(len(urls) if expect_up is None else expect_up)
        yield running


@asynccontextmanager
async def emulated(count: int = 2, **settings: Any) -> AsyncIterator[list[str]]:
    """Emulated engines in this process, fast."""
    fleet = [
        EmulatorSettings.model_validate(
            {
                "model": MODEL,
                "port": 0,
                "time_scale": 50,
                "max_num_seqs": 8,
                "seed": n,
                **settings,
            }
        )
        for n in range(count)
    ]
    async with running_fleet(fleet) as ports:
        yield [f"http://127.0.0.1:{port}" for port in ports]


Handler = Callable[[Request, dict[str, Any]], Awaitable[Response]]


@dataclass
class ScriptedEngine:
    """An engine that does as a test says, and remembers what it was asked."""

    handler: Handler
    model: str = MODEL
    url: str = ""
    healthy: bool = True
    bodies: list[dict[str, Any]] = field(default_factory=list)
    raw_bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    #: requests whose client went before they were answered
    abandoned: int = 0

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/health", self._health),
                Route("/metrics", self._metrics),
                Route("/v1/models", self._models),
                Route("/{path:path}", self._serve, methods=["POST", "GET"]),
            ]
        )

    async def _health(self, request: Request) -> Response:
        return PlainTextResponse("", status_code=200 if self.healthy else 503)

    async def _metrics(self, request: Request) -> Response:
        return PlainTextResponse("vllm:num_requests_running 0\n")

    async def _models(self, request: Request) -> Response:
        model = {"id": self.model, "object": "model", "max_model_len": 4096}
        return JSONResponse({"object": "list", "data": [model]})

    async def _serve(self, request: Request) -> Response:
        raw = await request.body()
        body = json.loads(raw) if raw else {}
        self.raw_bodies.append(raw)
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        self.paths.append(request.url.path)
        return await self.handler(request, body)


@asynccontextmanager
async def scripted(*handlers: Handler) -> AsyncIterator[list[ScriptedEngine]]:
    """Scripted engines, one per handler."""
    async with contextlib.AsyncExitStack() as stack:
        engines = []
        for handler in handlers:
            engine = ScriptedEngine(handler)
            engine.url = await stack.enter_async_context(serving(engine.app()))
            engines.append(engine)
        yield engines


USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}


def answer(text: str = "fine") -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "finish_reason": "stop",
            }
        ],
        "usage": USAGE,
    }


def chunk(text: str | None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": MODEL,
        "choices": [] if text is None else [choice],
        **more,
    }
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


async def ok(request: Request, body: dict[str, Any]) -> Response:
    """Two tokens, streamed or not, with usage where it is asked for."""
    if not body.get("stream"):
        return JSONResponse(answer())
    events = [chunk("a"), chunk("b")]
    if (body.get("stream_options") or {}).get("include_usage"):
        events.append(chunk(None, usage=USAGE))
    events.append(b"data: [DONE]\n\n")
    return stream(events)


def stream(events: list[bytes], then: Callable[[], Awaitable[None]] | None = None) -> Response:
    async def produce() -> AsyncIterator[bytes]:
        for event in events:
            yield event
        if then is not None:
            await then()

    return StreamingResponse(produce(), media_type="text/event-stream")


def failing(status: int, message: str = "no", headers: dict[str, str] | None = None) -> Handler:
    async def handler(request: Request, body: dict[str, Any]) -> Response:
        error = {"message": message, "type": "Error", "param": None, "code": status}
        return JSONResponse({"error": error}, status_code=status, headers=headers)

    return handler


class Gate:
    """A handler that holds every request until it is opened."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.waiting = 0
        self.gone = 0

    async def __call__(self, request: Request, body: dict[str, Any]) -> Response:
        self.waiting += 1
        opened = asyncio.create_task(self.open.wait())
        gone = asyncio.create_task(self._until_gone(request))
        done, pending = await asyncio.wait({opened, gone}, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        self.waiting -= 1
        if gone in done:
            self.gone += 1
            return PlainTextResponse("gone")
        return await ok(request, body)

    async def _until_gone(self, request: Request) -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
