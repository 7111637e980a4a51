"""One of two engines dies in the middle: only what had begun to answer is lost, and told so."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
from drive import (
    LONG,
    PATHS,
    becomes,
    body_for,
    data_of,
    eventually,
    open_stream,
    running_in,
    waiting_in,
)
from engines import FAST, MODEL, Engine
from gateway_process import Gateway

OPENED = 4
CALLS = 8
TOKENS = 200
BEGUN = ["chat", "completions", "responses"]


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
        engines={"victim": victim, "survivor": slow_engine}, seats=6, policy="vllm"
    )
    async with AsyncExitStack() as stack:
        begun = []
        for endpoint in BEGUN:
            body = body_for(endpoint, "a very long answer", LONG, model="victim-only")
            stream = open_stream(http, gateway.url, endpoint, body)
            answer, lines = await stack.enter_async_context(stream)
            assert answer.headers["x-headway-instance"] == "victim"
            begun.append(lines)
        # The engine's fourth seat computes an answer of which nothing is sent before its end.
        whole = asyncio.create_task(unsent(http, gateway, "completions", LONG, "victim-only"))
        await becomes(running_in, http, victim.url, victim.max_num_seqs)
        # Half of these wait inside the victim, which has opened their streams.
        calls = [asyncio.create_task(unsent(http, gateway, "responses")) for _ in range(OPENED)]
        await becomes(waiting_in, http, victim.url, OPENED / 2)
        calls += [asyncio.create_task(unsent(http, gateway, "completions")) for _ in range(CALLS)]
        await eventually(lambda: waits_for(http, gateway, "victim"), "calls wait for the victim")
        strike(victim)
        ends = [data_of("\n".join([line async for line in lines])) for lines in begun]
    for endpoint, events in zip(BEGUN, ends, strict=True):
        assert any(is_error(event) for event in events), (endpoint, events[-3:])
        assert (events[-1] == "[DONE]") is (endpoint != "responses")

    answers = await asyncio.gather(*calls)
    assert [answer.text for answer in answers if answer.status_code != 200] == []
    assert [tokens_of(answer) for answer in answers] == [TOKENS] * (OPENED + CALLS)
    assert {answer.headers["x-headway-instance"] for answer in answers} == {"survivor"}
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
    assert tokens_of(await whole) == LONG, "it has waited for the only engine with its model"
    await eventually(lambda: gateway.is_empty(http), "the gateway is empty")


async def unsent(
    http: httpx.AsyncClient,
    gateway: Gateway,
    endpoint: str,
    tokens: int = TOKENS,
    model: str = MODEL,
) -> httpx.Response:
    """A call that may go elsewhere, as nothing of it has been sent: whole, or still in a heap."""
    body = body_for(endpoint, "nothing of this is sent before it is computed", tokens, model=model)
    body["stream"] = endpoint == "responses"
    return await http.post(gateway.url + PATHS[endpoint], json=body, timeout=120)


def is_error(event: Any) -> bool:
    """Whether a stream's event is an error in the shape of its API."""
    return isinstance(event, dict) and (bool(event.get("error")) or event.get("type") == "error")


def tokens_of(answer: httpx.Response) -> int:
    """Output tokens by an answer's own usage, streamed or not; each stream was seen but once."""
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return int(answer.json()["usage"]["completion_tokens"])
    events = data_of(answer.text)
    assert [event["type"] for event in events].count("response.created") == 1
    assert events[0]["response"]["id"] == events[-1]["response"]["id"]
    return int(events[-1]["response"]["usage"]["output_tokens"])


async def waits_for(http: httpx.AsyncClient, gateway: Gateway, instance: str) -> bool:
    return await gateway.gauge(http, "queue_depth", instance) > 0


async def up_is(http: httpx.AsyncClient, gateway: Gateway, instance: str, wanted: float) -> bool:
    return await gateway.gauge(http, "engine_up", instance) == wanted


async def test_the_only_engine_dies_and_comes_back(
    http: httpx.AsyncClient,
    spawn_engine: Callable[..., Engine],
    start_gateway: Callable[..., Gateway],
) -> None:
    """Its calls that have sent nothing wait for it; who comes while it is down is told so."""
    key = "a-key-that-clients-do-not-know"
    only = spawn_engine(flags=("--api-key", key))
    gateway = start_gateway(engines={"only": only}, seats=2, api_key=key)
    url = gateway.url + PATHS["chat"]
    body = body_for("chat", "x", 2)
    assert (await http.post(url, json=body)).status_code == 200

    locked_out = start_gateway(engines={"only": only}, seats=2, api_key="another", expect_up=False)
    await eventually(lambda: says(http, locked_out, body, 502), "a wrong key is a 502")
    refused = await http.post(
        locked_out.url + PATHS["chat"], json=body, headers={"authorization": f"Bearer {key}"}
    )
    assert refused.status_code == 502
    assert set(refused.json()["error"]) == {"message", "type", "param", "code"}
    assert key not in refused.text
    locked_out.kill()

    long = body_for("chat", "computed twice", LONG)
    accepted = [asyncio.create_task(http.post(url, json=long, timeout=120)) for _ in range(3)]
    await becomes(running_in, http, only.url, 2)
    await eventually(lambda: waits_for(http, gateway, "only"), "one waits in the gateway")
    only.kill()
    await eventually(lambda: up_is(http, gateway, "only", 0), "the engine is seen to be down")
    turned_away = await http.post(url, json=body)
    assert turned_away.status_code == 503
    assert set(turned_away.json()["error"]) == {"message", "type", "param", "code"}
    assert int(turned_away.headers["retry-after"]) >= 1
    assert (await http.get(f"{gateway.url}/ready")).status_code == 503
    assert (await http.get(f"{gateway.url}/health")).status_code == 200

    only.start()
    await asyncio.to_thread(only.wait_healthy)
    answers = await asyncio.gather(*accepted)
    assert [answer.text for answer in answers if answer.status_code != 200] == []
    assert [a.json()["usage"]["completion_tokens"] for a in answers] == [LONG] * 3
    assert (await http.get(f"{gateway.url}/ready")).status_code == 200


async def says(
    http: httpx.AsyncClient, gateway: Gateway, body: dict[str, Any], status: int
) -> bool:
    answer = await http.post(gateway.url + PATHS["chat"], json=body)
    return answer.status_code == status
