"""An answer that asks for a tool names the gap until its workflow's next call, live."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from gateway_harness import MODEL, Running, emulated, gateway, scripted, stream
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dispatcher.core.types import InstanceId

USER = [{"role": "user", "content": "how many rows?"}]
TOOLS = [{"type": "function", "function": {"name": "run_sql", "parameters": {}}}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER, "tools": TOOLS},
    "/v1/responses": {
        "input": "how many rows?",
        "tools": [{"type": "function", "name": "run_sql"}],
    },
    "/v1/messages": {"messages": USER, "max_tokens": 9, "tools": [{"name": "run_sql"}]},
}

#: what leaves a model no choice but to call the tool
FORCED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"tool_choice": "required"},
    "/v1/responses": {"tool_choice": {"type": "function", "name": "run_sql"}},
    "/v1/messages": {"tool_choice": {"type": "any"}, "max_tokens": 99},
}


def event(payload: dict[str, Any]) -> bytes:
    return f"event: {payload['type']}\ndata: {json.dumps(payload)}\n\n".encode()


def whole(path: str, name: object, arguments: str) -> dict[str, Any]:
    if path == "/v1/responses":
        call = {"type": "function_call", "name": name, "arguments": arguments}
        return {
            "id": "resp_1",
            "status": "completed",
            "output": [call],
            "usage": {"input_tokens": 9, "output_tokens": 4},
        }
    if path == "/v1/messages":
        return {
            "content": [{"type": "tool_use", "name": name, "input": arguments}],
            "stop_reason": "tool_use",
            "usage": {"input_tokens": 9, "output_tokens": 4},
        }
    call = {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {
        "choices": [{"message": {"tool_calls": [call]}, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 4},
    }


def events(path: str, name: object, arguments: str) -> list[bytes]:
    answer = whole(path, name, arguments)
    if path == "/v1/responses":
        item = answer["output"][0]
        return [
            event({"type": "response.created", "response": {"id": "resp_1"}}),
            event({"type": "response.output_item.added", "item": item}),
            event({"type": "response.function_call_arguments.delta", "delta": arguments}),
            event({"type": "response.completed", "response": answer}),
        ]
    if path == "/v1/messages":
        block = {**answer["content"][0], "input": {}}
        delta = {"type": "input_json_delta", "partial_json": arguments}
        ended = {"delta": {"stop_reason": "tool_use"}, "usage": answer["usage"]}
        return [
            event({"type": "message_start", "message": {"usage": {"input_tokens": 9}}}),
            event({"type": "content_block_start", "content_block": block}),
            event({"type": "content_block_delta", "delta": delta}),
            event({"type": "message_delta", **ended}),
            event({"type": "message_stop"}),
        ]
    call = answer["choices"][0]["message"]["tool_calls"][0]
    choices = [
        {"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None},
        {"index": 0, "delta": {}, "finish_reason": "tool_calls"},
    ]
    chunks = [b"data: " + json.dumps({"id": "c", "choices": [c]}).encode() for c in choices]
    return [*(chunk + b"\n\n" for chunk in chunks), b"data: [DONE]\n\n"]


@asynccontextmanager
async def asking(name: object = "run_sql", arguments: str = "{}") -> AsyncIterator[Running]:
    """A gateway before an engine whose every answer asks for that tool."""

    async def handler(request: Request, body: dict[str, Any]) -> Response:
        path = request.url.path
        if body.get("stream"):
            return stream(events(path, name, arguments))
        return JSONResponse(whole(path, name, arguments))

    async with scripted(handler) as (engine,), gateway([engine.url]) as running:
        yield running


async def send(running: Running, path: str, *, tool: str | None = None, **more: Any) -> str:
    """One call of the workflow; what the client got."""
    headers = {"x-headway-workflow-id": "w"}
    if tool is not None:
        headers["x-headway-tool"] = tool
    body = {"model": MODEL, **BODIES[path], **more}
    answer = await running.http.post(path, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    await running.until_empty()
    return answer.text


async def gap_tools(running: Running) -> list[str | None]:
    """What is believed to have run before each stage of the workflow."""
    told = (await running.http.get("/v1/workflows/w")).json()
    return [stage["tool"] for stage in told["stages"]]


async def learned(running: Running) -> list[str]:
    told = (await running.http.get("/admin/predictors")).json()
    return [row["tool"] for row in told["workflows"]["tools"]]


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", BODIES)
async def test_the_gap_after_an_answer_has_the_name_of_the_tool_it_asks_for(
    path: str, streaming: bool
) -> None:
    async with asking() as running:
        for _ in range(2):
            await send(running, path, stream=streaming)
        assert await gap_tools(running) == [None, "run_sql"]
        assert await learned(running) == ["run_sql"]


async def test_the_header_of_the_next_call_knows_better() -> None:
    async with asking() as running:
        await send(running, "/v1/chat/completions")
        await send(running, "/v1/chat/completions", tool="sqlite")
        assert await gap_tools(running) == [None, "sqlite"]
        assert await learned(running) == ["sqlite"]


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("name", "tool"), [(None, None), ({"x": [1]}, None), ("n" * 300_000, "n" * 128)]
)
async def test_a_name_that_is_none_or_huge(
    path: str, streaming: bool, name: object, tool: str | None
) -> None:
    async with asking(name) as running:
        for _ in range(2):
            await send(running, path, stream=streaming)
        assert await gap_tools(running) == [None, tool]


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", BODIES)
async def test_arguments_that_are_no_json_reach_the_client_as_they_are(
    path: str, streaming: bool
) -> None:
    broken = '{"sql": "select'
    async with asking(arguments=broken) as running:
        for _ in range(2):
            answer = await send(running, path, stream=streaming)
            assert json.dumps(broken)[1:-1] in answer
        assert await gap_tools(running) == [None, "run_sql"]


async def test_a_stream_of_who_offered_no_tools_is_not_looked_at() -> None:
    async with asking() as running:
        for _ in range(2):
            await send(running, "/v1/chat/completions", stream=True, tools=[])
        assert await gap_tools(running) == [None, None]


async def test_names_that_clients_make_up_stay_within_bounds() -> None:
    async with asking() as running:
        most = running.gateway.tracker.tools._max_tools
        for number in range(most + 20):
            running.gateway.tracker.tools.learn(f"made-up-{number}", 1.0)
        for _ in range(2):
            await send(running, "/v1/chat/completions")
        assert len(running.gateway.tracker.tools) == most
        assert (await learned(running))[0] == "run_sql"


@pytest.mark.parametrize("path", list(FORCED))
@pytest.mark.parametrize("streamed", [False, True])
async def test_an_emulated_engine_asks_for_the_tool_that_it_has_to(
    path: str, streamed: bool
) -> None:
    async with emulated(1) as urls, gateway(urls) as running:
        for _ in range(8):
            running.gateway.tracker.tools.learn("run_sql", 3600.0)
        body = {"model": MODEL, "stream": streamed, **BODIES[path], **FORCED[path]}
        headers = {"x-headway-workflow-id": "w"}
        answer = await running.http.post(path, json=body, headers=headers)
        assert answer.status_code == 200
        assert "run_sql" in answer.text
        await running.until_empty()
        sessions = running.gateway.coordinator.fleet.sessions
        [paused] = sessions.paused(InstanceId("e0"), running.gateway.clock())
        assert paused.tool == "run_sql"
