"""The end of a gateway: everything that was let in is waited for, and told when that is over."""

from __future__ import annotations

import asyncio
import logging

import httpx
import pytest
from gateway_harness import MODEL, Gate, Running, gateway, scripted

CALLS = [
    ("POST", "/v1/embeddings"),
    ("GET", "/v1/responses/resp_1"),
    ("POST", "/v1/chat/completions"),
]


def ask(running: Running, method: str, path: str) -> asyncio.Task[httpx.Response]:
    body = {"model": MODEL, "input": "x", "messages": []} if method == "POST" else None
    return asyncio.create_task(running.http.request(method, path, json=body))


def refused(response: httpx.Response) -> None:
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "shutting_down"
    assert response.headers["x-headway-dropped-reason"] == "shutting_down"
    assert int(response.headers["retry-after"]) >= 1


@pytest.mark.parametrize(("method", "path"), CALLS)
async def test_what_is_here_may_end_within_the_grace(method: str, path: str) -> None:
    gate = Gate()
    async with scripted(gate) as (engine,), gateway([engine.url]) as running:
        call = ask(running, method, path)
        await running.until(lambda: gate.waiting == 1)
        draining = asyncio.create_task(running.gateway.drain(30))
        await running.until(lambda: running.gateway.closing)
        refused(await ask(running, method, path))
        assert not draining.done()
        gate.open.set()
        assert (await call).status_code == 200
        assert await draining


@pytest.mark.parametrize(("method", "path"), CALLS)
async def test_what_outlasts_the_grace_is_told_so(
    method: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    async with scripted(gate) as (engine,), gateway([engine.url]) as running:
        call = ask(running, method, path)
        await running.until(lambda: gate.waiting == 1)
        assert not await running.gateway.drain(0)
        refused(await call)
        assert running.gateway.guests.count == 0
        await running.until(lambda: gate.gone == 1)
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/chat/completions"])
async def test_a_request_that_is_still_being_sent_is_told_so(path: str) -> None:
    async with scripted(Gate()) as (engine,), gateway([engine.url]) as running:
        host, port = running.http.base_url.host, running.http.base_url.port
        reader, writer = await asyncio.open_connection(host, port)
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n"
        writer.write(head.encode() + b"{")
        await running.until(lambda: running.gateway.guests.count == 1)
        assert not await running.gateway.drain(0)
        assert (await reader.readline()).startswith(b"HTTP/1.1 503")
        writer.close()
        await writer.wait_closed()
        assert engine.bodies == []


async def test_nobody_here_is_nothing_to_wait_for() -> None:
    async with scripted(Gate()) as (engine,), gateway([engine.url]) as running:
        assert await running.gateway.drain(0)
