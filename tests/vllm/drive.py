"""Driving engines and gateways over HTTP: bounded waits, streams, seats held open."""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from engines import MODEL, Engine
from prometheus_client.parser import text_string_to_metric_families

POLL_S = 0.02
#: Long enough to hold a seat for a whole test, short enough to fit the context.
LONG = 1900

PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}


async def eventually(
    condition: Callable[[], Awaitable[object] | object], what: str, limit_s: float = 30.0
) -> None:
    """Await a condition of another process by polling it; fail with its name at the limit."""
    deadline_s = time.monotonic() + limit_s
    while True:
        result = condition()
        if inspect.isawaitable(result):
            result = await result
        if result:
            return
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not within {limit_s:g} s: {what}")
        await asyncio.sleep(POLL_S)


async def samples(
    http: httpx.AsyncClient, url: str, name: str
) -> list[tuple[dict[str, str], float]]:
    """All samples of one name on a server's ``/metrics``, with their labels."""
    answer = await http.get(f"{url}/metrics")
    answer.raise_for_status()
    return [
        (sample.labels, sample.value)
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if sample.name == name
    ]


async def total(http: httpx.AsyncClient, url: str, name: str, **labels: str) -> float:
    """The sum of a sample over the label sets that carry these labels; 0 where there are none."""
    return sum(
        value
        for found, value in await samples(http, url, name)
        if all(found.get(key) == wanted for key, wanted in labels.items())
    )


async def running_in(http: httpx.AsyncClient, engine_url: str) -> float:
    """Requests that an engine is computing."""
    return await total(http, engine_url, "vllm:num_requests_running")


async def waiting_in(http: httpx.AsyncClient, engine_url: str) -> float:
    """Requests in an engine's own waiting heap."""
    return await total(http, engine_url, "vllm:num_requests_waiting")


async def becomes(
    probe: Callable[[httpx.AsyncClient, str], Awaitable[float]],
    http: httpx.AsyncClient,
    engine_url: str,
    wanted: float,
) -> None:
    """Await that a gauge of an engine has exactly this value."""

    async def reached() -> bool:
        return await probe(http, engine_url) == wanted

    await eventually(reached, f"{probe.__name__} {engine_url} is {wanted}")


def body_for(endpoint: str, text: str, tokens: int, **more: Any) -> dict[str, Any]:
    """A request body for one of the scheduled endpoints.

    ``/v1/messages`` knows no ``ignore_eos``: there an answer may be shorter than ``tokens``.
    """
    common = {"model": MODEL, "temperature": 0, **more}
    message = [{"role": "user", "content": text}]
    match endpoint:
        case "chat":
            return {"messages": message, "max_tokens": tokens, "ignore_eos": True, **common}
        case "completions":
            return {"prompt": text, "max_tokens": tokens, "ignore_eos": True, **common}
        case "responses":
            return {"input": text, "max_output_tokens": tokens, "ignore_eos": True, **common}
        case "messages":
            return {"messages": message, "max_tokens": tokens, **common}
    raise ValueError(endpoint)


def data_of(text: str) -> list[Any]:
    """The data of server-sent events; JSON decoded, the closing ``[DONE]`` kept as a string."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def text_of(answer: str, endpoint: str, streaming: bool) -> str:
    """What the model said, from a whole answer or from the deltas of a stream."""
    if not streaming:
        whole = json.loads(answer)
        match endpoint:
            case "chat":
                return str(whole["choices"][0]["message"]["content"])
            case "completions":
                return str(whole["choices"][0]["text"])
            case "responses":
                return str(whole["output"][0]["content"][0]["text"])
            case _:
                return str(whole["content"][0]["text"])
    events = [event for event in data_of(answer) if event != "[DONE]"]
    match endpoint:
        case "chat":
            parts = [event["choices"][0]["delta"].get("content") or "" for event in events]
        case "completions":
            parts = [event["choices"][0]["text"] for event in events]
        case "responses":
            parts = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
        case _:
            parts = [e["delta"]["text"] for e in events if e["type"] == "content_block_delta"]
    return "".join(parts)


@asynccontextmanager
async def open_stream(
    http: httpx.AsyncClient,
    url: str,
    endpoint: str,
    body: dict[str, Any],
    headers: dict[str, str] | None = None,
) -> AsyncIterator[tuple[httpx.Response, AsyncIterator[str]]]:
    """A streaming call whose first bytes have arrived; leaving the context hangs up."""
    target = url + PATHS[endpoint]
    async with http.stream(
        "POST", target, json={**body, "stream": True}, headers=headers
    ) as answer:
        assert answer.status_code == 200, await answer.aread()
        async with aclosing(answer.aiter_lines()) as lines:
            await anext(lines)
            yield answer, lines


@asynccontextmanager
async def seats_held(http: httpx.AsyncClient, url: str, count: int) -> AsyncIterator[None]:
    """Hold seats, at an engine or through a gateway, with answers much longer than the test."""
    async with AsyncExitStack() as stack:
        for number in range(count):
            body = body_for("completions", f"hold {number}", LONG)
            await stack.enter_async_context(open_stream(http, url, "completions", body))
        yield


@dataclass(frozen=True)
class QueuedCall:
    """One call of an ordering test: its name, and what it says about its rank."""

    name: str
    headers: dict[str, str] = field(default_factory=dict)
    body: dict[str, Any] = field(default_factory=dict)


async def order_of_service(
    http: httpx.AsyncClient,
    url: str,
    engine: Engine,
    endpoint: str,
    calls: list[QueuedCall],
    queued: Callable[[], Awaitable[float]],
) -> list[str]:
    """Queue calls behind an engine's full seats, free one, return the order in which they end.

    All other seats stay taken, so the calls pass one by one through the one that is free and end
    in the order in which they left the queue. (First bytes would not tell: ``/v1/responses`` sends
    its first events before the engine has looked at the call.)

    Args:
        http: the client.
        url: where the calls go: the engine, or a gateway before it.
        engine: the engine whose seats are filled; nothing else may use it.
        endpoint: a key of ``PATHS``.
        calls: sent in this order, each when the one before it is queued.
        queued: how many calls wait, wherever they are expected to.
    """
    served: list[str] = []

    async def send(call: QueuedCall) -> None:
        body = {**body_for(endpoint, f"call {call.name}", 4), **call.body}
        async with open_stream(http, url, endpoint, body, call.headers) as (_, lines):
            async for _ in lines:
                pass
        served.append(call.name)

    async with (
        seats_held(http, url, engine.max_num_seqs - 1),
        asyncio.TaskGroup() as group,
        seats_held(http, url, 1),  # ends first: its seat is the one that the calls pass through
    ):
        await becomes(running_in, http, engine.url, engine.max_num_seqs)
        for count, call in enumerate(calls, start=1):
            group.create_task(send(call))
            await eventually(lambda n=count: _equals(queued, n), f"{count} calls wait")
    await becomes(running_in, http, engine.url, 0)
    return served


async def _equals(probe: Callable[[], Awaitable[float]], wanted: float) -> bool:
    return await probe() == wanted
