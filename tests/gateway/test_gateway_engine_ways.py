"""What vLLM does that a gateway must know: its priority header, verdicts inside streams."""

from __future__ import annotations

import asyncio
import json

import pytest
from gateway_harness import MODEL, answer, chat_body, gateway, ok, scripted, stream
from starlette.responses import JSONResponse, Response

RR = {"name": "vllm", "params": {}}
OURS = "x-vllm-priority"


def event(name: str, **payload: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (
        name.encode(),
        json.dumps({"type": name, **payload}).encode(),
    )


@pytest.mark.parametrize(
    ("path", "in_body"),
    [
        ("/v1/chat/completions", True),
        ("/v1/completions", True),
        ("/v1/responses", True),
        ("/v1/messages", False),
    ],
)
async def test_priority_goes_where_the_endpoint_reads_it(path: str, in_body: bool) -> None:
    async with scripted(ok) as (engine,), gateway([engine.url]) as running:
        body = {**chat_body(), "prompt": "x", "input": "x", "max_tokens": 4, "priority": 3}
        await running.http.post(path, json=body, headers={OURS: "-1000000"})
        assert engine.paths == [path]
        assert ("priority" in engine.bodies[0]) is in_body
        assert (OURS in engine.headers[0]) is not in_body
        sent = engine.bodies[0]["priority"] if in_body else engine.headers[0][OURS]
        assert int(sent) not in (3, -1000000)


async def test_a_clients_priority_header_reaches_no_engine_anyhow() -> None:
    async with scripted(ok) as (engine,), gateway([engine.url]) as running:
        await running.http.post(
            "/tokenize", json={"model": MODEL, "prompt": "x"}, headers={OURS: "-1"}
        )
        assert engine.paths == ["/tokenize"]
        assert OURS not in engine.headers[0]


async def test_an_engine_that_refuses_the_priority_header_is_never_sent_it_again() -> None:
    async def picky(request: object, body: dict[str, object]) -> Response:
        if OURS in engine.headers[-1]:
            error = {"message": "Got priority 5 but Priority scheduling is not enabled."}
            return JSONResponse({"error": error}, status_code=400)
        return JSONResponse(answer())

    async with scripted(picky) as (engine,), gateway([engine.url]) as running:
        for _ in range(2):
            sent = {**chat_body(), "max_tokens": 4}
            assert (await running.http.post("/v1/messages", json=sent)).status_code == 200
        assert [OURS in headers for headers in engine.headers] == [True, False, False]


async def test_a_refusal_inside_a_stream_is_not_tried_elsewhere() -> None:
    wire = b'data: {"error": {"message": "Token id 9 is out", "code": 400}}\n\ndata: [DONE]\n\n'

    async def refuses(request: object, body: dict[str, object]) -> Response:
        return stream([wire])

    async with (
        scripted(refuses, refuses) as engines,
        gateway([e.url for e in engines], policy=RR) as running,
    ):
        response = await running.chat(stream=True)
        assert response.status_code == 200
        assert response.content == wire
        await running.until_empty()
        assert sum(len(engine.bodies) for engine in engines) == 1
        page = (await running.http.get("/metrics")).text
        assert 'outcome="client_error"' in page
        assert "headway_retries_total{" not in page


async def test_a_response_only_opened_is_tried_elsewhere_and_not_seen() -> None:
    opened = event("response.created", response={"id": "resp_lost"})
    whole = (
        event("response.created", response={"id": "resp_kept"})
        + event("response.output_text.delta", delta="x")
        + event("response.completed", response={"id": "resp_kept", "usage": None})
    )

    async def dies(request: object, body: dict[str, object]) -> Response:
        async def cut() -> None:
            await asyncio.sleep(0)
            raise ConnectionResetError

        return stream([opened], cut)

    async def serves(request: object, body: dict[str, object]) -> Response:
        return stream([whole])

    async with (
        scripted(dies, serves) as engines,
        gateway([e.url for e in engines], policy=RR) as running,
    ):
        body = {"model": MODEL, "input": "x", "stream": True}
        for _ in range(2):
            response = await running.http.post("/v1/responses", json=body)
            assert response.status_code == 200
            assert response.content == whole
            assert response.headers["x-headway-instance"] == "e1"
        assert engines[0].bodies
