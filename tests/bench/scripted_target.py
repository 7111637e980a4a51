"""An OpenAI endpoint for tests: notes what it is asked, answers as it is told."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route


@dataclass
class Asked:
    """One chat completion that came in."""

    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def prompt(self) -> str:
        return self.body["messages"][0]["content"]


@dataclass
class Target:
    """Counts two tokens a word and seven for the template; has no /tokenize."""

    #: gives a response to send instead, or nothing
    instead: Callable[[Asked], Response | None] = lambda asked: None
    #: of streams: events before the connection just ends; none: all, and the end mark
    cut_after: int | None = None
    #: what /metrics says; nothing: there is none
    metrics: str = ""
    looks: int = 0
    asked: list[Asked] = field(default_factory=list)
    url: str = ""
    never: asyncio.Event = field(default_factory=asyncio.Event)

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/metrics", self._metrics),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
            ]
        )

    async def _models(self, _request: Request) -> Response:
        return JSONResponse({"data": [{"id": "some-model"}]})

    async def _metrics(self, _request: Request) -> Response:
        self.looks += 1
        return PlainTextResponse(self.metrics, 200 if self.metrics else 404)

    async def _chat(self, request: Request) -> Response:
        asked = Asked(dict(request.headers), await request.json())
        self.asked.append(asked)
        instead = self.instead(asked)
        if instead is not None:
            return instead
        usage = {
            "prompt_tokens": 7 + 2 * len(asked.prompt.split()),
            "completion_tokens": asked.body["max_tokens"],
        }
        if asked.body.get("stream"):
            return StreamingResponse(self._events(usage), media_type="text/event-stream")
        choices = [{"index": 0, "message": {"role": "assistant", "content": "x"}}]
        return JSONResponse(
            {"choices": choices, "usage": usage},
            headers={"x-headway-instance": "one", "x-headway-queue-ms": "250"},
        )

    async def _events(self, usage: dict[str, int]) -> AsyncIterator[str]:
        def event(choices: list[Any], **more: Any) -> str:
            return f"data: {json.dumps({'choices': choices, **more})}\n\n"

        yield event([{"index": 0, "delta": {"role": "assistant", "content": ""}}])
        for number in range(usage["completion_tokens"]):
            if number == self.cut_after:
                return
            yield event([{"index": 0, "delta": {"content": "y"}}])
        yield event([], usage=usage)
        yield "data: [DONE]\n\n"


class _QuietServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


@asynccontextmanager
async def serving(target: Target) -> AsyncIterator[Target]:
    """Serve on a free port while the block lasts."""
    config = uvicorn.Config(
        target.app(), port=0, access_log=False, log_level="critical", timeout_graceful_shutdown=1
    )
    server = _QuietServer(config)
    task = asyncio.create_task(server.serve())
    try:
        while not server.started:
            if task.done():
                task.result()
                raise RuntimeError("the server ended while it was starting")
            await asyncio.sleep(0.005)
        target.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        yield target
    finally:
        target.never.set()
        server.should_exit = True
        await task
