"""What takes no seat: tried elsewhere, told in one shape, cancelled, counted as calls are."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from gateway_harness import (
    MODEL,
    Gate,
    Handler,
    Running,
    ScriptedEngine,
    chunk,
    failing,
    gateway,
    ok,
    scripted,
    stream,
)
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from dispatcher.gateway.relay.whole import HOLD_BYTES

EMBEDDED = {"data": [{"embedding": [0.5]}], "usage": {"prompt_tokens": 8, "total_tokens": 8}}


@asynccontextmanager
async def before(*handlers: Any) -> AsyncIterator[tuple[list[ScriptedEngine], Running]]:
    """A gateway before scripted engines."""
    async with scripted(*handlers) as engines, gateway([e.url for e in engines]) as running:
        yield engines, running


async def embeds(request: Request, body: dict[str, object]) -> Response:
    return JSONResponse(EMBEDDED)


async def embed(running: Running, **more: Any) -> httpx.Response:
    headers = more.pop("headers", None)
    body = {"model": MODEL, "input": "x", **more}
    return await running.http.post("/v1/embeddings", json=body, headers=headers)


def breaking_off(size: int) -> Handler:
    """An answer that announces one byte more than it has."""

    async def handler(request: Request, body: dict[str, object]) -> Response:
        async def produce() -> AsyncIterator[bytes]:
            yield b"x" * size
            raise ConnectionResetError

        return StreamingResponse(produce(), headers={"content-length": str(size + 1)})

    return handler


def falling_silent() -> Handler:
    async def handler(request: Request, body: dict[str, object]) -> Response:
        async def silence() -> None:
            await asyncio.Event().wait()

        answer = stream([b"{"], silence)
        answer.headers["content-type"] = "application/json"
        return answer

    return handler


@pytest.mark.parametrize("status", [500, 502, 302, 429, 503, 401, 403])
async def test_an_engine_that_fails_is_passed_over_and_not_seen(status: int) -> None:
    async with before(failing(status), embeds) as (engines, running):
        response = await embed(running)
        assert response.status_code == 200
        assert response.json() == EMBEDDED
        assert response.headers["x-headway-instance"] == "e1"
        assert engines[0].bodies
        page = (await running.http.get("/metrics")).text
        assert 'headway_retries_total{reason="' in page


@pytest.mark.parametrize(
    ("status", "seen", "code"),
    [
        (500, 502, "engine_status"),
        (302, 502, "engine_status"),
        (504, 504, "engine_status"),
        (401, 502, "engine_auth"),
        (429, 429, "engine_overloaded"),
        (503, 503, "engine_overloaded"),
    ],
)
async def test_what_every_engine_fails_is_told_in_openai_shape(
    status: int, seen: int, code: str
) -> None:
    engine_says = failing(status, "broken", {"retry-after": "7"})
    async with scripted(engine_says) as (engine,), gateway([engine.url]) as running:
        response = await embed(running)
        assert response.status_code == seen
        assert response.json()["error"].keys() == {"message", "type", "param", "code"}
        assert response.json()["error"]["code"] == code
        assert response.headers["x-request-id"]
        assert (response.headers.get("retry-after") == "7") is (seen in (429, 503))


async def has_no_such_route(request: Request, body: dict[str, object]) -> Response:
    return JSONResponse({"detail": "Not Found"}, status_code=404)


async def test_an_engine_without_the_endpoint_is_passed_over() -> None:
    async with before(has_no_such_route, embeds) as (engines, running):
        response = await embed(running)
        assert (response.status_code, response.json()) == (200, EMBEDDED)
        assert len(engines[0].bodies) == 1
        # that is no failure of it
        assert 'headway_retries_total{reason="' not in (await running.http.get("/metrics")).text


async def test_an_endpoint_that_no_engine_has_is_told_in_openai_shape() -> None:
    async with before(has_no_such_route, has_no_such_route) as (_, running):
        response = await embed(running)
        assert response.status_code == 404
        error = response.json()["error"]
        assert (
            error["message"]
            == f"No engine that is up takes /v1/embeddings for the model `{MODEL}`."
        )
        assert (error["type"], error["code"]) == ("not_found_error", "unknown_route")


@pytest.mark.parametrize("status", [400, 404, 413, 422])
async def test_an_engines_refusal_passes_unchanged(status: int) -> None:
    refuses = failing(status, "not so")
    async with before(refuses, refuses) as (engines, running):
        response = await embed(running)
        assert response.status_code == status
        assert response.json()["error"]["message"] == "not so"
        assert sum(len(e.bodies) for e in engines) == 1


async def test_an_answer_that_breaks_off_is_asked_for_elsewhere() -> None:
    async with before(breaking_off(10), embeds) as (engines, running):
        response = await embed(running)
        assert response.json() == EMBEDDED
        assert engines[0].bodies
    async with scripted(breaking_off(10)) as (engine,), gateway([engine.url]) as running:
        response = await embed(running)
        assert response.status_code == 502
        assert response.json()["error"]["code"] == "engine_cut_short"


async def test_an_answer_that_breaks_off_after_some_of_it_was_passed_on_breaks_off() -> None:
    async with (
        scripted(breaking_off(2 * HOLD_BYTES)) as (engine,),
        gateway([engine.url]) as running,
    ):
        with pytest.raises(httpx.RemoteProtocolError):
            await embed(running)
        page = (await running.http.get("/metrics")).text
        assert f'endpoint="/v1/embeddings",model="{MODEL}",outcome="engine_error"' in page


@pytest.mark.parametrize("handler", [Gate(), falling_silent()], ids=["no head", "half a body"])
async def test_a_call_at_an_engine_that_goes_down_is_tried_elsewhere(handler: Handler) -> None:
    async with before(handler, embeds) as (engines, running):
        call = asyncio.create_task(embed(running))
        await running.until(lambda: engines[0].bodies)
        engines[0].healthy = False
        response = await call
        assert response.json() == EMBEDDED
        assert response.headers["x-headway-instance"] == "e1"
        assert all(e.routed_in_flight == 0 for e in running.gateway.fleet.engines)


async def test_a_call_at_the_only_engine_ends_when_that_goes_down() -> None:
    gate = Gate()
    async with scripted(gate) as (engine,), gateway([engine.url]) as running:
        call = asyncio.create_task(embed(running))
        await running.until(lambda: gate.waiting == 1)
        engine.healthy = False
        response = await call
        assert response.status_code == 502
        assert response.json()["error"]["code"] == "engine_down"
        assert "e0 is down" in response.json()["error"]["message"]
        await running.until(lambda: gate.gone == 1)


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/v1/embeddings"), ("GET", "/v1/responses/resp_1")]
)
async def test_a_client_that_hangs_up_is_no_error_and_leaves_nothing(
    method: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    async with scripted(gate) as (engine,), gateway([engine.url]) as running:
        (known,) = running.gateway.fleet.engines
        body = {"model": MODEL, "input": "x"} if method == "POST" else None
        call = asyncio.create_task(running.http.request(method, path, json=body))
        await running.until(lambda: gate.waiting == 1)
        assert known.routed_in_flight == 1
        call.cancel()
        await running.until(lambda: gate.gone == 1)
        await running.until(lambda: known.routed_in_flight == 0)
        assert not known.busy
        page = (await running.http.get("/metrics")).text
        assert 'outcome="cancelled"' in page
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]


async def test_a_tenants_quotas_hold_for_what_takes_no_seat() -> None:
    gate = Gate()

    async def handler(request: Request, body: dict[str, object]) -> Response:
        return await (embeds if body["input"] == "now" else gate)(request, body)

    tenants = [
        {"name": "narrow", "api_key": "n", "max_in_flight": 1},
        {"name": "small", "api_key": "s", "tokens_per_minute": 10},
    ]
    async with scripted(handler) as (engine,), gateway([engine.url], tenants=tenants) as running:
        narrow, small = {"authorization": "Bearer n"}, {"authorization": "Bearer s"}
        first = asyncio.create_task(embed(running, headers=narrow))
        await running.until(lambda: gate.waiting == 1)
        for second in (await embed(running, headers=narrow), await running.chat(headers=narrow)):
            assert second.status_code == 429
            assert second.headers["x-headway-dropped-reason"] == "tenant_in_flight"
        gate.open.set()
        assert (await first).status_code == 200
        assert (await embed(running, headers=narrow, input="now")).status_code == 200
        answers = [await embed(running, headers=small, input="now") for _ in range(3)]
        assert [a.status_code for a in answers] == [200, 200, 429]
        assert answers[2].headers["x-headway-dropped-reason"] == "tenant_tokens"
        page = (await running.http.get("/metrics")).text
        assert 'endpoint="/v1/embeddings",model="llama-3.1-8b",outcome="rejected"' in page


async def test_a_response_whose_holder_is_not_known_is_gone_on_from_where_it_is() -> None:
    """As after a restart of the gateway: engines are asked, once."""

    def keeping(kept: str) -> Handler:
        async def handler(request: Request, body: dict[str, object]) -> Response:
            asked = body.get("previous_response_id") or request.url.path.rpartition("/")[2]
            if asked != kept:
                return await failing(404, "Response not found")(request, body)
            return JSONResponse({"id": "resp_new", "object": "response", "output": []})

        return handler

    async with before(keeping("resp_a"), keeping("resp_b")) as (engines, running):
        for kept, holder in (("resp_a", "e0"), ("resp_b", "e1"), ("resp_b", "e1")):
            follow = await running.http.post(
                "/v1/responses",
                json={"model": MODEL, "input": "go on", "previous_response_id": kept},
            )
            assert follow.status_code == 200
            assert follow.headers["x-headway-instance"] == holder
        assert engines[0].paths.count("/v1/responses/resp_b") == 1
        for odd in ("resp_c", "../../metrics", "a b", "ö"):
            follow = await running.http.post(
                "/v1/responses",
                json={"model": MODEL, "input": "go on", "previous_response_id": odd},
            )
            assert follow.status_code == 404
            assert follow.json()["error"]["message"] == "Response not found"


async def test_a_stored_response_is_looked_for_at_engines_that_can_say() -> None:
    async with before(failing(404), failing(500), ok) as (_, running):
        found = await running.http.get("/v1/responses/resp_1")
        assert found.status_code == 200
        assert found.headers["x-headway-instance"] == "e2"
    async with before(failing(404), failing(500)) as (_, running):
        # one of two may have it
        assert (await running.http.get("/v1/responses/resp_1")).status_code == 502
    async with before(failing(404), failing(404)) as (_, running):
        missing = await running.http.post("/v1/responses/resp_1/cancel")
        assert missing.status_code == 404
        assert missing.json()["error"]["code"] == "response_not_found"


async def test_an_engines_own_error_in_a_stream_has_a_code_that_says_so_once() -> None:
    wire = b'data: {"error": {"message": "no memory", "code": 500}}\n\ndata: [DONE]\n\n'

    async def fails(request: Request, body: dict[str, object]) -> Response:
        return stream([wire])

    async with scripted(fails) as (engine,), gateway([engine.url]) as running:
        response = await running.chat(stream=True)
        assert response.status_code == 502
        assert response.json()["error"]["code"] == "engine_error"


async def test_usage_that_a_client_declined_comes_with_no_event() -> None:
    async def heeds(request: Request, body: dict[str, object]) -> Response:
        options = body["stream_options"]
        assert isinstance(options, dict)
        more = {"usage": {}} if options.get("continuous_usage_stats") else {}
        return stream([chunk("a", **more), b"data: [DONE]\n\n"])

    async with scripted(heeds) as (engine,), gateway([engine.url]) as running:
        declined = {"include_usage": False, "continuous_usage_stats": True}
        response = await running.chat(stream=True, stream_options=declined)
        assert b"usage" not in response.content
        wanted = {"include_usage": True, "continuous_usage_stats": True}
        response = await running.chat(stream=True, stream_options=wanted)
        assert b"usage" in response.content
