"""What takes no seat: how often it is tried, what is told of it, streams of it as they come."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from gateway_harness import MODEL, Running, failing, gateway, scripted, stream
from starlette.requests import Request
from starlette.responses import Response


async def embed(running: Running, **more: object) -> httpx.Response:
    return await running.http.post("/v1/embeddings", json={"model": MODEL, "input": "x", **more})


@pytest.mark.parametrize(("status", "seen"), [(429, 429), (503, 503), (408, 503)])
async def test_an_overloaded_fleet_says_when_to_come_again(status: int, seen: int) -> None:
    async with scripted(failing(status)) as (engine,), gateway([engine.url]) as running:
        response = await embed(running)
        assert response.status_code == seen
        assert response.headers["retry-after"] == "1"
        assert response.headers["x-headway-dropped-reason"] == "engine_overloaded"


async def test_no_more_engines_fail_a_request_than_it_may_try() -> None:
    async with (
        scripted(*[failing(500)] * 3) as engines,
        gateway([e.url for e in engines], queue={"max_attempts": 2}) as running,
    ):
        assert (await embed(running)).status_code == 502
        assert sum(len(engine.bodies) for engine in engines) == 2


async def test_a_clients_priority_does_not_pass_where_it_orders_nothing() -> None:
    async with scripted(failing(400)) as (engine,), gateway([engine.url]) as running:
        await embed(running, priority=-1_000_000, dimensions=3)
        assert engine.bodies == [{"model": MODEL, "input": "x", "dimensions": 3}]


async def test_a_stored_stream_comes_as_it_is_written() -> None:
    more, pieces = asyncio.Event(), [b"data: {}\n\n", b"data: [DONE]\n\n"]

    async def replay(request: Request, body: dict[str, object]) -> Response:
        return stream(pieces[:1], more.wait)

    async with (
        scripted(replay) as (engine,),
        gateway([engine.url]) as running,
        running.http.stream("GET", "/v1/responses/resp_1?stream=true") as response,
    ):
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-headway-instance"] == "e0"
        coming = response.aiter_raw()
        assert await anext(coming) == pieces[0]
        more.set()
        assert [piece async for piece in coming] == []


@pytest.mark.parametrize("way", ["engine goes down", "shutdown"])
async def test_a_stored_stream_that_cannot_go_on_breaks_off(way: str) -> None:
    async def replay(request: Request, body: dict[str, object]) -> Response:
        return stream([b"data: {}\n\n"], asyncio.Event().wait)

    async with (
        scripted(replay) as (engine,),
        gateway([engine.url]) as running,
        running.http.stream("GET", "/v1/responses/resp_1?stream=true") as response,
    ):
        coming = response.aiter_raw()
        await anext(coming)
        if way == "shutdown":
            assert not await running.gateway.drain(0)
        else:
            engine.healthy = False
        with pytest.raises(httpx.RemoteProtocolError):
            await anext(coming)
        await running.until(lambda: not running.gateway.guests.count)
