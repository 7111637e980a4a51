"""A client that hangs up frees the engine's seat, or leaves the queue without ever reaching one."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from drive import LONG, PATHS, becomes, body_for, eventually, open_stream, running_in, total
from engines import MODEL, Engine
from gateway_process import Gateway


@pytest.mark.parametrize("endpoint", PATHS)
async def test_a_stream_hung_up_stops_the_engine(
    http: httpx.AsyncClient, gateway: Gateway, slow_engine: Engine, endpoint: str
) -> None:
    body = body_for(endpoint, "a very long answer", LONG, model=f"{MODEL}-slow")
    before = await total(http, slow_engine.url, "vllm:generation_tokens_total")
    async with open_stream(http, gateway.url, endpoint, body):
        await becomes(running_in, http, slow_engine.url, 1)
    await becomes(running_in, http, slow_engine.url, 0)
    written = await total(http, slow_engine.url, "vllm:generation_tokens_total") - before
    assert written < LONG, "the answer ran to its end instead of being aborted"


async def test_a_whole_answer_not_waited_for_stops_the_engine(
    http: httpx.AsyncClient, gateway: Gateway, slow_engine: Engine
) -> None:
    body = body_for("chat", "a very long answer", LONG, model=f"{MODEL}-slow")
    before = await total(http, slow_engine.url, "vllm:generation_tokens_total")
    call = asyncio.create_task(http.post(gateway.url + PATHS["chat"], json=body))
    await becomes(running_in, http, slow_engine.url, 1)
    call.cancel()
    await becomes(running_in, http, slow_engine.url, 0)
    written = await total(http, slow_engine.url, "vllm:generation_tokens_total") - before
    assert written < LONG, "the answer ran to its end instead of being aborted"


async def test_a_queued_call_hung_up_never_reaches_an_engine(
    http: httpx.AsyncClient, gateway: Gateway, slow_engine: Engine
) -> None:
    seats = [
        asyncio.create_task(
            http.post(
                gateway.url + PATHS["completions"],
                json=body_for("completions", f"hold {number}", LONG, model=f"{MODEL}-slow"),
            )
        )
        for number in range(slow_engine.max_num_seqs)
    ]
    await becomes(running_in, http, slow_engine.url, slow_engine.max_num_seqs)
    prompts = await total(http, slow_engine.url, "vllm:prompt_tokens_total")
    body = body_for("completions", "never read", 1, model=f"{MODEL}-slow")
    queued = asyncio.create_task(http.post(gateway.url + PATHS["completions"], json=body))
    await eventually(lambda: depth_is(http, gateway, 1), "the call waits in the gateway")
    queued.cancel()
    await eventually(lambda: depth_is(http, gateway, 0), "the call has left the gateway's queue")
    for seat in seats:
        seat.cancel()
    await becomes(running_in, http, slow_engine.url, 0)
    assert await total(http, slow_engine.url, "vllm:prompt_tokens_total") == prompts


async def depth_is(http: httpx.AsyncClient, gateway: Gateway, wanted: float) -> bool:
    return await gateway.gauge(http, "queue_depth", "slow") == wanted


async def test_many_hangups_leave_every_seat_usable(
    http: httpx.AsyncClient, gateway: Gateway, slow_engine: Engine
) -> None:
    """Three rounds of full seats, all hung up: a seat lost each time would be missed by now."""
    body = body_for("chat", "a very long answer", LONG, model=f"{MODEL}-slow")
    for _ in range(3):
        calls = [
            asyncio.create_task(http.post(gateway.url + PATHS["chat"], json=body))
            for _ in range(slow_engine.max_num_seqs)
        ]
        await becomes(running_in, http, slow_engine.url, slow_engine.max_num_seqs)
        for call in calls:
            call.cancel()
        await becomes(running_in, http, slow_engine.url, 0)
