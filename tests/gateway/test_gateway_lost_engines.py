"""Requests that take no seat while engines go down, leave, or are given an old one's id."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest
from gateway_harness import MODEL, Gate, Running, gateway, ok, scripted

from dispatcher.gateway.upstream import UpstreamConnectError

EMBED = ("POST", "/v1/embeddings")
STORED = ("GET", "/v1/responses/resp_1")


async def ask(running: Running, method: str, path: str) -> httpx.Response:
    body = {"model": MODEL, "input": "x"} if method == "POST" else None
    return await running.http.request(method, path, json=body)


@pytest.mark.parametrize(("method", "path"), [EMBED, STORED])
async def test_an_engine_that_went_down_before_its_turn_is_not_waited_for(
    method: str, path: str
) -> None:
    async with (
        scripted(Gate(), Gate()) as engines,
        gateway([e.url for e in engines]) as running,
    ):
        call = asyncio.create_task(ask(running, method, path))
        await running.until(lambda: engines[0].bodies)
        for engine, known in reversed([*zip(engines, running.gateway.fleet.engines, strict=True)]):
            engine.healthy = False
            await running.until(lambda known=known: not known.up)
        response = await call
        assert response.status_code == 502
        assert response.json()["error"]["code"] == "engine_down"
        assert engines[1].bodies == []


async def test_what_an_old_engine_meets_says_nothing_of_the_one_that_has_its_id() -> None:
    async with scripted(ok) as (engine,), gateway([engine.url]) as running:
        fleet = running.gateway.fleet
        (old,) = fleet.engines
        # whoever holds the old one while it leaves
        waiting: list[str] = []
        with old.telling(lambda: waiting.append("told")):
            assert (await running.http.delete("/admin/engines/e0")).status_code == 200
            assert waiting == ["told"]
        body: dict[str, Any] = {"id": "e0", "url": engine.url, "seats": 4}
        assert (await running.http.post("/admin/engines", json=body)).status_code == 201
        await running.until_up(1)
        assert not old.up
        fleet.unreachable(old, "no connection")
        (fresh,) = fleet.engines
        assert fresh.up
        queues = (await running.http.get("/admin/queues")).json()
        assert queues["instances"]["e0"]["available"]
        assert (await running.chat()).status_code == 200


async def test_clients_hear_an_engines_id_and_not_its_address() -> None:
    gate, once = Gate(), {"max_attempts": 1}
    async with scripted(gate) as (engine,), gateway([engine.url], queue=once) as running:
        (known,) = running.gateway.fleet.engines
        call = asyncio.create_task(running.chat())
        await running.until(lambda: gate.waiting == 1)
        running.gateway.fleet.unreachable(known, f"{engine.url}: refused")
        answers = [await call]
        unreached = UpstreamConnectError(f"{engine.url}: refused")
        known.pool.request = AsyncMock(side_effect=unreached)  # type: ignore[method-assign]
        for asking in (ask(running, *EMBED), running.chat()):
            await running.until_up(1)
            answers.append(await asking)
        for answer in answers:
            assert answer.status_code == 502
            assert "127.0.0.1" not in answer.text
            assert "e0" in answer.json()["error"]["message"]
