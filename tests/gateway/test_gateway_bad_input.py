"""Whatever is wrong with a request, the answer says what, with the right status, in one shape."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from gateway_harness import MODEL, Running, chat_body, gateway, ok, scripted

KEYS = {"message", "type", "param", "code"}
CHAT = "/v1/chat/completions"
TENANTS = [{"name": "a", "api_key": "secret"}]


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with (
        scripted(ok) as (engine,),
        gateway([engine.url], server={"max_body_mb": 0.01}) as running,
    ):
        yield running


def without(key: str) -> dict[str, Any]:
    body = chat_body()
    del body[key]
    return body


BODIES = [
    (CHAT, b"{", 400, None, "invalid_json"),
    (CHAT, b"", 400, None, "invalid_json"),
    (CHAT, b"[1]", 400, None, "invalid_json"),
    (CHAT, b"\xff\xfe", 400, None, "invalid_json"),
    (CHAT, {**chat_body(), "model": 3}, 400, "model", None),
    (CHAT, {**chat_body(), "model": ""}, 400, "model", None),
    (CHAT, {**chat_body(), "model": "nope"}, 404, "model", "model_not_found"),
    (CHAT, {**chat_body(), "stream": "yes"}, 400, "stream", None),
    (CHAT, {**chat_body(), "n": 0}, 400, "n", None),
    (CHAT, {**chat_body(), "n": "two"}, 400, "n", None),
    (CHAT, {**chat_body(), "n": 10**9}, 400, "n", None),
    (CHAT, {**chat_body(), "max_tokens": "many"}, 400, "max_tokens", None),
    (CHAT, {**chat_body(), "max_tokens": True}, 400, "max_tokens", None),
    (CHAT, {**chat_body(), "priority": "x"}, 400, "priority", None),
    (CHAT, {**chat_body(), "messages": "hi"}, 400, "messages", None),
    (CHAT, {**chat_body(), "messages": ["hi"]}, 400, "messages", None),
    (CHAT, {**chat_body(), "tools": {}}, 400, "tools", None),
    (CHAT, without("messages"), 400, "messages", None),
    (CHAT, {**chat_body(), "metadata": {"workflow_id": 7}}, 400, "metadata.workflow_id", None),
    (
        CHAT,
        {**chat_body(), "vllm_xargs": {"agentic_context": "no json"}},
        400,
        "vllm_xargs.agentic_context",
        None,
    ),
    (
        CHAT,
        {**chat_body(), "vllm_xargs": {"agentic_context": {"deadline_seconds": -1}}},
        400,
        "vllm_xargs.agentic_context.deadline_seconds",
        None,
    ),
    ("/v1/completions", {"model": MODEL}, 400, "prompt", None),
    ("/v1/completions", {"model": MODEL, "prompt": []}, 400, "prompt", None),
    ("/v1/completions", {"model": MODEL, "prompt": ["a", 1]}, 400, "prompt", None),
    ("/v1/responses", {"model": MODEL, "input": 1}, 400, "input", None),
    ("/v1/responses", {"model": MODEL}, 400, "input", None),
    ("/v1/messages", {"model": MODEL, "messages": {}}, 400, "messages", None),
    ("/v1/embeddings", {"model": "nope", "input": "a"}, 404, "model", "model_not_found"),
    ("/v1/embeddings", b"{", 400, None, "invalid_json"),
    ("/v1/workflows", b"{", 400, None, "invalid_body"),
    ("/v1/workflows", {"slo_ms": -1}, 400, "slo_ms", "invalid_body"),
    ("/v1/workflows", {"slo": 1}, 400, "slo", "invalid_body"),
]


@pytest.mark.parametrize(("path", "body", "status", "param", "code"), BODIES)
async def test_a_body_that_does_not_fit(
    running: Running,
    path: str,
    body: bytes | dict[str, Any],
    status: int,
    param: str | None,
    code: str | None,
) -> None:
    kind = {"content": body} if isinstance(body, bytes) else {"json": body}
    headers = {"x-request-id": "r1", "content-type": "application/json"}
    response = await running.http.post(path, headers=headers, **kind)  # type: ignore[arg-type]
    error = response.json()["error"]
    assert response.status_code == status
    assert error.keys() == KEYS
    assert error["param"] == param
    assert code is None or error["code"] == code
    assert error["message"]
    assert response.headers["x-request-id"] == "r1"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-headway-slo-ms", "soon"),
        ("x-headway-slo-ms", "-5"),
        ("x-headway-slo-ms", "nan"),
        ("x-headway-slo-ttft-ms", "0"),
        ("x-llm-d-slo-tpot-ms", "x"),
        ("x-headway-class", "urgent"),
        ("x-headway-stage-width", "0"),
        ("x-headway-stage-width", "1.5"),
        ("x-headway-final", "maybe"),
        ("x-headway-workflow-id", "w" * 300),
        ("x-headway-stage", "\xe9"),
        ("x-request-id", "\xe9"),
        ("x-headway-early-headers", "2"),
    ],
)
async def test_a_header_that_cannot_be_read_is_named(
    running: Running, name: str, value: str
) -> None:
    response = await running.http.post(
        CHAT, json=chat_body(), headers=[(name.encode(), value.encode("latin-1"))]
    )
    assert response.status_code == 400
    assert response.json()["error"]["param"] == name
    assert name in response.json()["error"]["message"]
    assert response.headers["x-request-id"]


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit(running: Running, chunked: bool) -> None:
    raw = b'{"x": "' + b"a" * 20_000 + b'"}'

    async def parts() -> AsyncIterator[bytes]:
        for start in range(0, len(raw), 1000):
            yield raw[start : start + 1000]

    response = await running.http.post(CHAT, content=parts() if chunked else raw)
    assert ("content-length" in response.request.headers) is not chunked
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "body_too_large"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nothing", 404, "unknown_route"),
        ("POST", "/nothing", 404, "unknown_route"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("PUT", "/v1/responses", 405, "method_not_allowed"),
        ("GET", "/v1/workflows/none", 404, "workflow_not_found"),
        ("DELETE", "/v1/workflows/none", 404, "workflow_not_found"),
        ("GET", "/v1/models/none", 404, "model_not_found"),
        ("GET", "/admin/calls/none", 404, "call_not_found"),
        ("DELETE", "/admin/engines/none", 404, "unknown_engine"),
    ],
)
async def test_routes_that_are_not_there(
    running: Running, method: str, path: str, status: int, code: str
) -> None:
    response = await running.http.request(method, path)
    assert response.status_code == status
    assert response.json()["error"].keys() == KEYS
    assert response.json()["error"]["code"] == code
    assert response.headers["x-request-id"]


async def test_keys() -> None:
    async with scripted(ok) as (engine,), gateway([engine.url], tenants=TENANTS) as running:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic secret"}):
            for path in (CHAT, "/v1/embeddings", "/v1/workflows"):
                response = await running.http.post(path, json=chat_body(), headers=headers)
                if path == "/v1/workflows":
                    response = await running.http.post(path, json={}, headers=headers)
                assert response.status_code == 401
                assert response.json()["error"]["code"] == "invalid_api_key"
            assert (await running.http.get("/v1/models", headers=headers)).status_code == 401
        for headers in ({"authorization": "Bearer secret"}, {"x-api-key": "secret"}):
            response = await running.http.post(CHAT, json=chat_body(), headers=headers)
            assert response.status_code == 200
        assert "authorization" not in engine.headers[-1]
        assert "x-api-key" not in engine.headers[-1]


async def test_nothing_bad_is_left_behind(running: Running) -> None:
    for body in (b"{", b"[]"):
        await running.http.post(CHAT, content=body)
    assert running.gateway.driver.live_calls == 0
    page = (await running.http.get("/metrics")).text
    assert f'endpoint="{CHAT}",model="unknown",outcome="client_error"' in page
