"""What a call goes through: passed on, retried, refused, cut off, cancelled."""

from __future__ import annotations

import asyncio
import json

import pytest
from gateway_harness import (
    MODEL,
    Gate,
    answer,
    chat_body,
    chunk,
    emulated,
    failing,
    gateway,
    ok,
    scripted,
    stream,
)
from starlette.responses import JSONResponse, Response


async def test_an_answer_is_passed_on_with_the_headers_that_explain_it() -> None:
    async with scripted(ok) as (engine,), gateway([engine.url]) as running:
        response = await running.chat(
            headers={
                "x-request-id": "abc",
                "x-headway-workflow-id": "w1",
                "traceparent": "00-x-y-01",
            }
        )
        assert response.status_code == 200
        assert response.json() == answer()
        assert response.headers["x-request-id"] == "abc"
        assert response.headers["x-headway-instance"] == "e0"
        assert response.headers["x-headway-workflow-id"] == "w1"
        assert int(response.headers["x-headway-queue-ms"]) >= 0
        assert engine.headers[0]["x-request-id"] == "abc"
        assert engine.headers[0]["traceparent"] == "00-x-y-01"


async def test_priority_is_added_and_the_clients_own_is_not_passed_on() -> None:
    async with scripted(ok) as (engine,), gateway([engine.url]) as running:
        await running.chat(priority=-999999)
        assert engine.bodies[0]["priority"] != -999999
        assert isinstance(engine.bodies[0]["priority"], int)


async def test_the_body_is_the_clients_but_for_what_was_added() -> None:
    async with scripted(ok) as (engine,), gateway([engine.url]) as running:
        raw = (
            b'{"model": "llama-3.1-8b",  "x":1.50,'
            b' "messages":[{"role":"user","content":"h\\u00e9"}]}'
        )
        response = await running.http.post("/v1/chat/completions", content=raw)
        assert response.status_code == 200
        assert engine.raw_bodies[0].endswith(raw[1:])
        assert json.loads(engine.raw_bodies[0]).keys() - json.loads(raw).keys() == {"priority"}


async def test_usage_that_was_added_is_taken_out_again() -> None:
    async with scripted(ok) as (engine,), gateway([engine.url]) as running:
        response = await running.chat(stream=True)
        assert engine.bodies[0]["stream_options"] == {"include_usage": True}
        assert response.content == chunk("a") + chunk("b") + b"data: [DONE]\n\n"
        await running.until_empty()
        assert running.gateway.metrics.tokens.labels("prompt")._value.get() == 7


async def test_usage_that_the_client_asked_for_stays() -> None:
    async with scripted(ok) as (engine,), gateway([engine.url]) as running:
        response = await running.chat(stream=True, stream_options={"include_usage": True})
        assert b'"usage"' in response.content


async def test_an_alias_is_resolved_for_the_engine() -> None:
    models = {"aliases": {"gpt-4o": "llama-3.1-8b"}}
    async with scripted(ok) as (engine,), gateway([engine.url], models=models) as running:
        response = await running.http.post(
            "/v1/chat/completions", json={**chat_body(), "model": "gpt-4o"}
        )
        assert response.status_code == 200
        assert engine.bodies[0]["model"] == "llama-3.1-8b"
        listed = (await running.http.get("/v1/models")).json()["data"]
        assert {model["id"] for model in listed} == {"gpt-4o", "llama-3.1-8b"}
        assert (await running.http.get("/v1/models/gpt-4o")).json()["root"] == "llama-3.1-8b"


async def test_an_alias_of_what_nobody_serves_is_told_with_both_names() -> None:
    models = {"aliases": {"gpt-4o": "llama-3.1-70b"}}
    async with scripted(ok) as (engine,), gateway([engine.url], models=models) as running:
        answer = await running.http.post(
            "/v1/chat/completions", json={**chat_body(), "model": "gpt-4o"}
        )
        assert answer.status_code == 404
        error = answer.json()["error"]
        assert (error["param"], error["code"]) == ("model", "model_not_found")
        assert "`gpt-4o` stands for `llama-3.1-70b`, which no engine serves" in error["message"]


async def test_while_no_engine_has_answered_a_call_hears_so_whether_or_not_it_names_a_model() -> (
    None
):
    async with gateway(["http://127.0.0.1:9"], expect_up=0) as running:
        assert (await running.http.get("/ready")).status_code == 503
        for model in ({}, {"model": None}, {"model": MODEL}):
            body = {"messages": [{"role": "user", "content": "hi"}], **model}
            answer = await running.http.post("/v1/chat/completions", json=body)
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "no_engine"


@pytest.mark.parametrize("status", [400, 404, 413, 422])
async def test_an_engines_refusal_passes_unchanged(status: int) -> None:
    async with scripted(failing(status, "not so")) as (engine,), gateway([engine.url]) as running:
        response = await running.chat()
        assert response.status_code == status
        assert response.json()["error"]["message"] == "not so"
        assert len(engine.bodies) == 1


@pytest.mark.parametrize("status", [500, 502, 503, 429])
async def test_a_failure_before_the_first_byte_is_tried_elsewhere_and_not_seen(status: int) -> None:
    async with scripted(failing(status), ok) as engines:
        urls = [engine.url for engine in engines]
        policy = {"name": "vllm", "params": {}}
        async with gateway(urls, policy=policy) as running:
            answers = [await running.chat() for _ in range(4)]
            assert [a.status_code for a in answers] == [200] * 4
            assert engines[0].bodies
            page = (await running.http.get("/metrics")).text
            assert 'headway_retries_total{reason="' in page


@pytest.mark.parametrize(
    ("status", "seen"), [(500, 502), (401, 502), (403, 502), (503, 503), (429, 429), (504, 504)]
)
async def test_a_failure_everywhere_is_told_in_openai_shape(status: int, seen: int) -> None:
    engine_says = failing(status, "broken", {"retry-after": "7"})
    async with scripted(engine_says) as (engine,), gateway([engine.url]) as running:
        response = await running.chat()
        assert response.status_code == seen
        assert response.json()["error"].keys() == {"message", "type", "param", "code"}
        assert response.headers["x-request-id"]
        assert len(engine.bodies) == 3
        if seen in (429, 503):
            assert response.headers["retry-after"] == "7"
            assert response.headers["x-headway-dropped-reason"]


async def test_an_engine_that_refuses_priority_is_never_sent_it_again() -> None:
    async def picky(request: object, body: dict[str, object]) -> Response:
        if "priority" in body:
            error = {"message": "Unknown field: priority", "type": "BadRequest"}
            return JSONResponse({"error": error}, status_code=400)
        return JSONResponse(answer())

    async with scripted(picky) as (engine,), gateway([engine.url]) as running:
        for _ in range(2):
            assert (await running.chat()).status_code == 200
        assert ["priority" in body for body in engine.bodies] == [True, False, False]


async def test_a_stream_that_breaks_after_its_first_byte_ends_with_an_error_event() -> None:
    async def breaks(request: object, body: dict[str, object]) -> Response:
        async def cut() -> None:
            raise ConnectionResetError

        return stream([chunk("a")], cut)

    async with scripted(breaks, ok) as engines:
        policy = {"name": "vllm", "params": {}}
        async with gateway([e.url for e in engines], policy=policy) as running:
            broken = [
                r
                for r in [await running.chat(stream=True) for _ in range(2)]
                if b"error" in r.content
            ]
            assert len(broken) == 1
            events = broken[0].content.split(b"\n\n")
            assert events[0] + b"\n\n" == chunk("a")
            assert "error" in json.loads(events[1].removeprefix(b"data: "))
            await running.until_empty()


async def test_no_call_waits_for_an_engine_that_refuses_connections() -> None:
    async with (
        emulated(1) as (url,),
        scripted(ok) as (engine,),
        gateway([url, engine.url], policy={"name": "vllm", "params": {}}) as running,
    ):
        dead = running.gateway.fleet.engine("e0")
        assert dead is not None
        await dead.pool.aclose()  # every connection from here on fails
        answers = [await running.chat(max_tokens=2) for _ in range(3)]
        assert [a.status_code for a in answers] == [200] * 3


async def test_a_client_that_hangs_up_stops_the_engine_and_frees_the_seat() -> None:
    gate = Gate()
    async with scripted(gate) as (engine,), gateway([engine.url], seats=1) as running:
        running_call = asyncio.create_task(running.chat("runs"))
        await running.until(lambda: gate.waiting == 1)
        queued_call = asyncio.create_task(running.chat("waits"))
        await running.until(lambda: running.gateway.driver.live_calls == 2)
        queued_call.cancel()
        await running.until(lambda: running.gateway.driver.live_calls == 1)
        running_call.cancel()
        await running.until(lambda: gate.gone == 1)
        await running.until_empty()
        assert len(engine.bodies) == 1
        gate.open.set()
        assert (await running.chat("next")).status_code == 200


async def test_cancelling_a_workflow_ends_its_queued_and_its_running_calls() -> None:
    gate = Gate()
    async with scripted(gate) as (engine,), gateway([engine.url], seats=1) as running:
        headers = {"x-headway-workflow-id": "w"}
        calls = [asyncio.create_task(running.chat(headers=headers)) for _ in range(2)]
        await running.until(lambda: gate.waiting and running.gateway.driver.live_calls == 2)
        deleted = await running.http.delete("/v1/workflows/w")
        assert deleted.json()["cancelled_calls"] == 2
        for call in calls:
            response = await call
            assert response.status_code == 410
            assert response.json()["error"]["code"] == "workflow_cancelled"
        await running.until(lambda: gate.gone == 1)
        await running.until_empty()


async def test_early_headers_come_while_the_call_waits() -> None:
    gate = Gate()
    async with scripted(gate) as (engine,), gateway([engine.url], seats=1) as running:
        first = asyncio.create_task(running.chat())
        await running.until(lambda: gate.waiting == 1)
        async with running.http.stream(
            "POST",
            "/v1/chat/completions",
            json=chat_body(stream=True),
            headers={"x-headway-early-headers": "1"},
        ) as response:
            assert response.status_code == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            gate.open.set()
            content = await response.aread()
        assert content.endswith(b"data: [DONE]\n\n")
        assert (await first).status_code == 200


async def test_an_engine_that_dies_loses_no_call_that_has_sent_nothing() -> None:
    gate = Gate()
    async with scripted(gate, ok) as engines:
        policy = {"name": "vllm", "params": {}}
        async with gateway([e.url for e in engines], seats=2, policy=policy) as running:
            calls = [asyncio.create_task(running.chat()) for _ in range(6)]
            await running.until(lambda: gate.waiting == 2)
            engines[0].healthy = False
            answers = await asyncio.gather(*calls)
            assert [a.status_code for a in answers] == [200] * 6
            assert {a.headers["x-headway-instance"] for a in answers} == {"e1"}
            assert (await running.http.get("/ready")).status_code == 200
            engines[0].healthy = True
            gate.open.set()
            await running.until_up(2)
            later = [await running.chat() for _ in range(2)]
            assert {a.headers["x-headway-instance"] for a in later} == {"e0", "e1"}


async def test_an_engine_that_is_not_there_at_the_start_does_not_stop_the_gateway() -> None:
    async with gateway(["http://127.0.0.1:9"], expect_up=0) as running:
        assert (await running.http.get("/health")).status_code == 200
        assert (await running.http.get("/ready")).status_code == 503
        response = await running.chat()
        assert response.status_code == 503
        assert response.headers["x-headway-dropped-reason"] == "no_engine"
        assert int(response.headers["retry-after"]) >= 1


async def test_a_stored_response_is_fetched_where_it_is_and_gone_on_from_there() -> None:
    async with emulated(2) as urls, gateway(urls) as running:
        made = await running.http.post(
            "/v1/responses", json={"model": "llama-3.1-8b", "input": "hi", "max_output_tokens": 3}
        )
        assert made.status_code == 200
        holder = made.headers["x-headway-instance"]
        response_id = made.json()["id"]
        for _ in range(3):
            fetched = await running.http.get(f"/v1/responses/{response_id}")
            assert fetched.status_code == 200
            assert fetched.headers["x-headway-instance"] == holder
            follow = await running.http.post(
                "/v1/responses",
                json={
                    "model": "llama-3.1-8b",
                    "input": "go on",
                    "previous_response_id": response_id,
                    "max_output_tokens": 3,
                },
            )
            assert follow.headers["x-headway-instance"] == holder
        unknown = await running.http.get("/v1/responses/resp_nope")
        assert unknown.status_code == 404
        assert unknown.json()["error"]["code"] == "response_not_found"


async def test_what_takes_no_seat_is_routed_past_the_queue() -> None:
    gate = Gate()
    gate.open.set()
    async with emulated(1) as (url,), gateway([url], seats=1) as running:
        response = await running.http.post(
            "/tokenize", json={"model": "llama-3.1-8b", "prompt": "a b c"}
        )
        assert response.status_code == 200
        assert response.json()["count"] >= 1
        assert response.headers["x-headway-instance"] == "e0"


async def test_a_call_sent_again_under_its_id_is_served() -> None:
    async with scripted(ok) as (engine,), gateway([engine.url]) as running:
        headers = {"x-request-id": "same"}
        first = await running.chat(headers=headers)
        again = await running.chat(headers=headers)
        assert first.status_code == again.status_code == 200
        assert (await running.http.get("/admin/calls/same")).json()["state"] == "ended"
