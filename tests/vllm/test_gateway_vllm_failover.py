"""One of two engines dies in the middle: only what had begun to answer is lost, and told so."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import httpx
import pytest
from drive import LONG, PATHS, becomes, body_for, data_of, eventually, open_stream, running_in
from engines import FAST, MODEL, Engine
from gateway_process import Gateway

CALLS = 16
TOKENS = 300


def kill_core(engine: Engine) -> None:
    """The API server outlives its core for a moment and answers 500."""
    os.kill(engine.core_pid(), signal.SIGKILL)


def kill_all(engine: Engine) -> None:
    """Connections break off without a word."""
    engine.kill()


@pytest.mark.parametrize("strike", [kill_all, kill_core])
async def test_an_engine_killed_in_the_middle(
    http: httpx.AsyncClient,
    slow_engine: Engine,
    spawn_engine: Callable[..., Engine],
    start_gateway: Callable[..., Gateway],
    strike: Callable[[Engine], None],
) -> None:
    victim = spawn_engine(shape=FAST, names=(MODEL, "victim-only"))
    gateway = start_gateway(
        engines={"victim": victim, "survivor": slow_engine}, seats=2, policy="vllm"
    )
    begun = body_for("chat", "a very long answer", LONG, model="victim-only")
    unsent = body_for("completions", "no byte of this is sent before the end", TOKENS)
    async with open_stream(http, gateway.url, "chat", begun) as (answer, lines):
        assert answer.headers["x-headway-instance"] == "victim"
        calls = [
            asyncio.create_task(http.post(gateway.url + PATHS["completions"], json=unsent))
            for _ in range(CALLS)
        ]
        # One seat streams, the other computes an answer of which nothing was sent; more wait.
        await becomes(running_in, http, victim.url, 2)
        await eventually(lambda: waits_for(http, gateway, "victim"), "calls wait for the victim")
        strike(victim)
        rest = data_of("\n".join([line async for line in lines]))
    assert any("error" in event for event in rest if event != "[DONE]"), rest[-3:]

    answers = await asyncio.gather(*calls)
    assert [answer.text for answer in answers if answer.status_code != 200] == []
    assert all(a.json()["usage"]["completion_tokens"] == TOKENS for a in answers)
    assert any(answer.headers["x-headway-instance"] == "survivor" for answer in answers)
    await eventually(lambda: up_is(http, gateway, "victim", 0), "the victim is seen to be down")
    assert await gateway.gauge(http, "retries_total") >= 1

    victim.kill()
    victim.start()
    await asyncio.to_thread(victim.wait_healthy)
    await eventually(lambda: up_is(http, gateway, "victim", 1), "the victim is taken back")
    again = await http.post(
        gateway.url + PATHS["chat"], json=body_for("chat", "back?", 2, model="victim-only")
    )
    assert again.status_code == 200, again.text
    assert again.headers["x-headway-instance"] == "victim"
    await eventually(lambda: gateway.is_empty(http), "the gateway is empty")


async def waits_for(http: httpx.AsyncClient, gateway: Gateway, instance: str) -> bool:
    return await gateway.gauge(http, "queue_depth", instance) > 0


async def up_is(http: httpx.AsyncClient, gateway: Gateway, instance: str, wanted: float) -> bool:
    return await gateway.gauge(http, "engine_up", instance) == wanted


async def test_with_every_engine_dead_the_client_is_told(
    http: httpx.AsyncClient,
    spawn_engine: Callable[..., Engine],
    start_gateway: Callable[..., Gateway],
) -> None:
    only = spawn_engine()
    gateway = start_gateway(engines={"only": only}, seats=2)
    body = body_for("chat", "x", 2)
    assert (await http.post(gateway.url + PATHS["chat"], json=body)).status_code == 200
    only.kill()
    answer = await http.post(gateway.url + PATHS["chat"], json=body)
    assert answer.status_code in (502, 503)
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    await eventually(lambda: up_is(http, gateway, "only", 0), "the engine is seen to be down")
    assert (await http.get(f"{gateway.url}/ready")).status_code == 503
    assert (await http.get(f"{gateway.url}/health")).status_code == 200
