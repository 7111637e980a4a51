"""Engines whose server is well but which do no work: they hang, or do not take our key."""

from __future__ import annotations

import asyncio

from gateway_harness import (
    MODEL,
    Gate,
    ScriptedEngine,
    chunk,
    gateway,
    ok,
    scripted,
    serving,
    stream,
)
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from dispatcher.gateway.fleet.scrape import parse_scrape

RR = {"name": "vllm", "params": {}}
STALL = {
    "poll_interval_s": 0.05,
    "poll_timeout_s": 0.1,
    "failures_until_down": 2,
    "stall_timeout_s": 0.2,
}


class CountingEngine(ScriptedEngine):
    """Counts tokens as it is told to, and how often it was looked at; may ask for a key."""

    tokens = 5
    looks = 0
    locked = False

    async def _metrics(self, request: Request) -> Response:
        self.looks += 1
        return PlainTextResponse(f'vllm:generation_tokens_total{{engine="0"}} {self.tokens}\n')

    async def _models(self, request: Request) -> Response:
        if self.locked:
            return JSONResponse({"error": "Unauthorized"}, status_code=401)
        return await super()._models(request)


def test_tokens_are_counted_over_all_engines_of_a_server() -> None:
    page = b"""vllm:generation_tokens_total{engine="0"} 5.0
vllm:generation_tokens_total{engine="1"} 7.0
vllm:prompt_tokens_total{engine="0"} 100.0
vllm:prompt_tokens_cached_total{engine="0"} 1e9
vllm:generation_tokens_created{engine="0"} 1.7e9
"""
    assert parse_scrape(page).tokens_total == 112
    assert parse_scrape(b"vllm:num_requests_running 1\n").tokens_total is None


async def test_an_engine_that_no_longer_computes_is_down_until_it_does() -> None:
    """Nothing but silence tells: its server is healthy, and no stream of it has begun."""
    computes = asyncio.Event()

    async def hang(request: Request, body: dict[str, object]) -> Response:
        await computes.wait()
        return await ok(request, body)

    hanging = CountingEngine(hang)
    async with (
        serving(hanging.app()) as hanging.url,
        scripted(ok) as (well,),
        gateway([hanging.url, well.url], policy=RR, fleet=STALL) as running,
    ):
        answers = [await running.chat() for _ in range(2)]
        assert [a.headers["x-headway-instance"] for a in answers] == ["e1", "e1"]
        hung = running.gateway.fleet.engines[0]
        assert not hung.up
        probes = [body for body in hanging.bodies if "prompt" in body]
        assert probes[0] == {"model": MODEL, "prompt": "x", "max_tokens": 1}
        looks = hanging.looks
        await running.until(lambda: hanging.looks > looks + 3)
        assert not hung.up
        computes.set()
        await running.until_up(2)
        answers = [await running.chat() for _ in range(2)]
        assert {a.headers["x-headway-instance"] for a in answers} == {"e0", "e1"}


async def test_an_engine_that_is_silent_but_computes_is_left_alone() -> None:
    """A long answer that is no stream: tokens are counted all the while."""
    gate = Gate()
    engine = CountingEngine(gate)

    async def count(request: Request) -> Response:
        engine.tokens += 1
        return await CountingEngine._metrics(engine, request)

    engine._metrics = count  # type: ignore[method-assign]
    async with (
        serving(engine.app()) as engine.url,
        gateway([engine.url], fleet=STALL) as running,
    ):
        call = asyncio.create_task(running.chat())
        looks = engine.looks
        await running.until(lambda: engine.looks > looks + 20)
        assert running.gateway.fleet.engines[0].up
        assert len(engine.bodies) == 1
        gate.open.set()
        assert (await call).status_code == 200


async def test_a_stream_that_falls_silent_ends_and_puts_its_engine_to_the_test() -> None:
    async def falls_silent(request: Request, body: dict[str, object]) -> Response:
        if "prompt" in body:
            return JSONResponse({})

        async def silence() -> None:
            await asyncio.Event().wait()

        return stream([chunk("a")], silence)

    async with (
        scripted(falls_silent) as (engine,),
        gateway([engine.url], fleet=STALL) as running,
    ):
        response = await running.chat(stream=True)
        assert response.status_code == 200
        assert response.content.startswith(chunk("a"))
        assert b'"error"' in response.content
        await running.until(lambda: len(engine.bodies) == 2)
        assert running.gateway.fleet.engines[0].up


async def test_engines_that_refuse_our_key_are_a_502_that_says_so() -> None:
    engine = CountingEngine(ok)
    engine.locked = True
    async with (
        serving(engine.app()) as engine.url,
        gateway([engine.url], expect_up=0) as running,
    ):
        await running.until(lambda: running.gateway.fleet.engines[0].refuses_key)
        response = await running.chat()
        assert response.status_code == 502
        error = response.json()["error"]
        assert error["code"] == "engine_auth"
        assert "e0" in error["message"]
        page = (await running.http.get("/metrics")).text
        assert 'outcome="engine_error"' in page
        engine.locked = False
        await running.until_up(1)
        assert (await running.chat()).status_code == 200


async def test_a_call_outlives_the_moment_in_which_its_only_engine_dies() -> None:
    """A dying engine fails faster than it is seen to be down: it is not asked thrice at once."""
    dying = 0.2
    loop = asyncio.get_running_loop()
    first_s: list[float] = []

    async def dies(request: Request, body: dict[str, object]) -> Response:
        first_s.append(loop.time())
        if loop.time() - first_s[0] < dying:
            return JSONResponse({"error": {"message": "dying"}}, status_code=500)
        return await ok(request, body)

    async with scripted(dies) as (engine,), gateway([engine.url]) as running:
        response = await running.chat()
        assert response.status_code == 200
        assert len(engine.bodies) == 2
