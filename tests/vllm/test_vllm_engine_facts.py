"""What the project relies on in vLLM itself, without a gateway between."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import httpx
import pytest
from drive import (
    LONG,
    PATHS,
    QueuedCall,
    becomes,
    body_for,
    data_of,
    eventually,
    open_stream,
    order_of_service,
    running_in,
    seats_held,
    total,
    waiting_in,
)
from engines import Engine

PRIORITIES = [30, -5, 20, 10, 40]
ARRIVAL = [str(priority) for priority in PRIORITIES]
RANKED = [str(priority) for priority in sorted(PRIORITIES)]


@pytest.mark.parametrize(
    ("endpoint", "by", "expected"),
    [
        ("chat", "body", RANKED),
        ("completions", "body", RANKED),
        ("responses", "body", RANKED),
        ("messages", "body", ARRIVAL),  # Anthropic's request has no such field: accepted, ignored
        ("chat", "header", RANKED),
        ("messages", "header", RANKED),
    ],
)
async def test_priority_orders_the_waiting_heap(
    http: httpx.AsyncClient, slow_engine: Engine, endpoint: str, by: str, expected: list[str]
) -> None:
    calls = [
        QueuedCall(str(priority), headers={"x-vllm-priority": str(priority)})
        if by == "header"
        else QueuedCall(str(priority), body={"priority": priority})
        for priority in PRIORITIES
    ]
    served = await order_of_service(
        http,
        slow_engine.url,
        slow_engine,
        endpoint,
        calls,
        queued=lambda: waiting_in(http, slow_engine.url),
    )
    assert served == expected


async def test_priority_does_not_evict_a_running_call(
    http: httpx.AsyncClient, slow_engine: Engine
) -> None:
    body = body_for("completions", "urgent", 4, priority=-1000)
    async with seats_held(http, slow_engine.url, slow_engine.max_num_seqs):
        await becomes(running_in, http, slow_engine.url, slow_engine.max_num_seqs)
        urgent = asyncio.create_task(http.post(f"{slow_engine.url}/v1/completions", json=body))
        await becomes(waiting_in, http, slow_engine.url, 1)
        assert not urgent.done()
    assert (await urgent).status_code == 200
    assert await total(http, slow_engine.url, "vllm:num_preemptions_total") == 0


@pytest.mark.parametrize(
    ("priority", "status"),
    [(-(2**63), 200), (2**63 - 1, 200), (2**63, 400), (1.5, 400), (None, 400)],
)
async def test_priority_must_be_a_64_bit_integer(
    http: httpx.AsyncClient, fast_engine: Engine, priority: float | None, status: int
) -> None:
    body = body_for("completions", "x", 1, priority=priority)
    answer = await http.post(f"{fast_engine.url}/v1/completions", json=body)
    assert answer.status_code == status


@pytest.mark.parametrize("endpoint", PATHS)
async def test_headers_of_a_stream_come_while_the_call_waits(
    http: httpx.AsyncClient, slow_engine: Engine, endpoint: str
) -> None:
    """A 200 says nothing yet: what may still be retried must be told by the first body bytes."""
    body = {**body_for(endpoint, "x", 1), "stream": True}
    url = slow_engine.url
    async with seats_held(http, url, slow_engine.max_num_seqs):
        await becomes(running_in, http, url, slow_engine.max_num_seqs)
        async with http.stream("POST", url + PATHS[endpoint], json=body) as answer:
            assert answer.status_code == 200
            await becomes(waiting_in, http, url, 1)
    await becomes(running_in, http, url, 0)


@pytest.mark.parametrize("streaming", [True, False])
async def test_hanging_up_frees_the_seat(
    http: httpx.AsyncClient, slow_engine: Engine, streaming: bool
) -> None:
    url = slow_engine.url
    body = body_for("completions", "a very long answer", LONG)
    before = await total(http, url, "vllm:generation_tokens_total")
    if streaming:
        async with open_stream(http, url, "completions", body):
            await becomes(running_in, http, url, 1)
    else:
        call = asyncio.create_task(http.post(f"{url}/v1/completions", json=body))
        await becomes(running_in, http, url, 1)
        call.cancel()
    await becomes(running_in, http, url, 0)
    written = await total(http, url, "vllm:generation_tokens_total") - before
    assert written < LONG, "the answer ran to its end instead of being aborted"


async def test_hanging_up_while_queued_leaves_the_heap(
    http: httpx.AsyncClient, slow_engine: Engine
) -> None:
    url = slow_engine.url
    async with seats_held(http, url, slow_engine.max_num_seqs):
        await becomes(running_in, http, url, slow_engine.max_num_seqs)
        body = body_for("completions", "x", 1)
        call = asyncio.create_task(http.post(f"{url}/v1/completions", json=body))
        await becomes(waiting_in, http, url, 1)
        call.cancel()
        await becomes(waiting_in, http, url, 0)
        assert await running_in(http, url) == slow_engine.max_num_seqs
    await becomes(running_in, http, url, 0)


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
async def test_usage_comes_in_a_chunk_of_its_own(
    http: httpx.AsyncClient, fast_engine: Engine, endpoint: str
) -> None:
    """The gateway adds ``include_usage`` and must take out exactly what that adds."""
    plain = body_for(endpoint, "count me", 5, stream=True)
    asked = {**plain, "stream_options": {"include_usage": True}}
    url = fast_engine.url + PATHS[endpoint]
    without = data_of((await http.post(url, json=plain)).text)
    with_usage = data_of((await http.post(url, json=asked)).text)
    assert without[-1] == with_usage[-1] == "[DONE]"
    assert not any("usage" in chunk for chunk in without[:-1] + with_usage[:-2])
    assert with_usage[-2]["choices"] == []
    assert with_usage[-2]["usage"]["completion_tokens"] == 5
    # The fingerprint moves from the last ordinary chunk to the usage chunk.
    assert "system_fingerprint" in without[-2]
    assert "system_fingerprint" in with_usage[-2]
    assert "system_fingerprint" not in with_usage[-3]


@pytest.mark.parametrize("endpoint", ["responses", "messages"])
async def test_usage_comes_unasked(
    http: httpx.AsyncClient, fast_engine: Engine, endpoint: str
) -> None:
    body = body_for(endpoint, "count me", 5, stream=True)
    events = data_of((await http.post(fast_engine.url + PATHS[endpoint], json=body)).text)
    assert "[DONE]" not in events
    if endpoint == "responses":
        assert events[-1]["type"] == "response.completed"
        usage = events[-1]["response"]["usage"]
    else:
        assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
        usage = events[-2]["usage"]
    assert usage["input_tokens"] > 0
    assert 1 <= usage["output_tokens"] <= 5


async def test_request_id_becomes_the_response_id(
    http: httpx.AsyncClient, fast_engine: Engine
) -> None:
    answer = await http.post(
        f"{fast_engine.url}/v1/chat/completions",
        json=body_for("chat", "x", 1),
        headers={"x-request-id": "named-by-us"},
    )
    assert answer.headers["x-request-id"] == "named-by-us"
    assert answer.json()["id"] == "chatcmpl-named-by-us"


async def test_a_repeated_prompt_is_read_from_the_prefix_cache(
    http: httpx.AsyncClient, fast_engine: Engine
) -> None:
    body = body_for("completions", "the same words again " * 60, 1)
    url = f"{fast_engine.url}/v1/completions"
    first = (await http.post(url, json=body)).json()["usage"]
    second = (await http.post(url, json=body)).json()["usage"]
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert 0 < second["prompt_tokens_details"]["cached_tokens"] < second["prompt_tokens"]


async def test_a_dying_engine_core_ends_its_streams(
    http: httpx.AsyncClient, spawn_engine: Callable[..., Engine]
) -> None:
    """A chat stream ends with an error event; an unfinished answer is a 500; the port closes."""
    engine = spawn_engine()
    body = body_for("chat", "a very long answer", LONG)
    whole = asyncio.create_task(http.post(f"{engine.url}/v1/chat/completions", json=body))
    async with open_stream(http, engine.url, "chat", body) as (_, lines):
        await becomes(running_in, http, engine.url, 2)
        os.kill(engine.core_pid(), signal.SIGKILL)
        rest = data_of("\n".join([line async for line in lines]))
    assert rest[-1] == "[DONE]"
    assert rest[-2]["error"]["code"] == 500
    assert (await whole).status_code == 500
    await eventually(lambda: not engine.running, "the API server ends with its core")
