"""Engines that a calibration meets: emulated ones, and scripted ones that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from click.testing import Result
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from typer.testing import CliRunner

from dispatcher import cli
from dispatcher.emulator import EmulatorSettings, running_fleet

#: 26 ms a token in real time, 6 ms here: enough for a client that shares a core with it
SLOW_GPU = {"gpu": "A6000", "time_scale": 4.0, "max_model_len": 2048}

Handler = Callable[[Request], Awaitable[Response]]


@asynccontextmanager
async def emulated(*engines: dict[str, Any]) -> AsyncIterator[list[str]]:
    """Emulated engines; yields their URLs."""
    fleet = [EmulatorSettings(port=0, model="tiny", **{**SLOW_GPU, **own}) for own in engines]
    async with running_fleet(fleet) as ports:
        yield [f"http://127.0.0.1:{port}" for port in ports]


async def running_in(url: str) -> float:
    """Calls that an engine is computing or keeps waiting."""
    async with httpx.AsyncClient() as http:
        page = (await http.get(f"{url}/metrics")).text
    names = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
    found = [line for line in page.splitlines() if line.startswith(names)]
    assert found, "the gauges are missing"
    return sum(float(line.rpartition(" ")[2]) for line in found)


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    """Return once the condition holds; the test's own timeout bounds it."""
    while not await condition():  # noqa: ASYNC110 - of another process
        await asyncio.sleep(0.02)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


@asynccontextmanager
async def scripted(
    complete: Handler, models: Handler | None = None, metrics: str | None = None
) -> AsyncIterator[str]:
    """An engine of which `/v1/completions`, and `/v1/models` if given, does what the test says.

    Its `/metrics` is a 404 unless given.
    """

    async def one_model(_: Request) -> Response:
        return JSONResponse({"data": [{"id": "tiny", "max_model_len": 2048}]})

    async def gauges(_: Request) -> Response:
        return PlainTextResponse(metrics or "", 404 if metrics is None else 200)

    routes = [
        Route("/metrics", gauges),
        Route("/v1/models", models or one_model),
        Route("/v1/completions", complete, methods=["POST"]),
    ]
    config = uvicorn.Config(
        Starlette(routes=routes),
        port=0,
        http="httptools",
        log_level="critical",
        timeout_graceful_shutdown=1,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve())
    try:
        while not server.started:
            assert not task.done(), "the server ended while it was starting"
            await asyncio.sleep(0.005)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


def event(tokens: int) -> bytes:
    """What an engine sends with its `tokens`-th token."""
    chunk = {
        "choices": [{"text": "x", "finish_reason": None}],
        "usage": {"prompt_tokens": 24, "completion_tokens": tokens},
    }
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


async def headway(*options: str) -> Result:
    """Run `headway calibrate` in a thread, beside the servers of the test."""
    return await asyncio.to_thread(CliRunner().invoke, cli.app, ["calibrate", *options])


def nothing_in(directory: Path) -> bool:
    """Whether nothing was written there."""
    return not any(directory.iterdir())


async def refused(url: str, out: Path, *options: str) -> str:
    """What the command says as it fails; it must have written nothing."""
    result = await headway("--engine", url, "--out", str(out), *options)
    assert result.exit_code == 2, result.output
    assert not list(out.parent.glob(out.name))
    return " ".join(result.output.split())
