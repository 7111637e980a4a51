"""Engines that change while calls run: other settings, another URL, taken out and given back."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from gateway_harness import (
    MODEL,
    Gate,
    Running,
    ScriptedEngine,
    chat_body,
    gateway,
    ok,
    scripted,
    serving,
)
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from dispatcher.config import EngineSettings, FleetSettings
from dispatcher.core.errors import ConfigurationError
from dispatcher.core.types import EngineGauges
from dispatcher.gateway.fleet.engine import Engine, Served
from dispatcher.gateway.fleet.looks import LookFailed, Looks
from dispatcher.gateway.fleet.monitor import Fleet
from dispatcher.gateway.fleet.scrape import Scrape, parse_scrape
from dispatcher.gateway.upstream import EnginePool

RR = {"name": "vllm", "params": {}}
STALL = {
    "poll_interval_s": 0.05,
    "poll_timeout_s": 0.1,
    "failures_until_down": 2,
    "stall_timeout_s": 0.2,
}

PATIENT = {**STALL, "poll_timeout_s": 10}


class BusyPool(EnginePool):
    """Owes an answer."""

    open_connections = 1  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:9")


def only(running: Running) -> Engine:
    (engine,) = running.gateway.fleet.engines
    return engine


def change(running: Running, **changes: Any) -> None:
    """What a reload does when a file names the one engine with other settings."""
    settings = only(running).settings
    running.gateway.fleet.reload([type(settings)(**{**settings.model_dump(), **changes})])


async def test_a_rotated_key_holds_at_once_and_what_runs_runs_on() -> None:
    gate = Gate()
    async with scripted(gate) as (engine,), gateway([engine.url]) as running:
        held = asyncio.create_task(running.chat("before"))
        await running.until(lambda: gate.waiting == 1)
        known = only(running)
        change(running, api_key="rotated", seats=2, engine_priority=False)
        assert only(running) is known
        after = asyncio.create_task(running.chat("after"))
        await running.until(lambda: gate.waiting == 2)
        assert "authorization" not in engine.headers[0]
        assert engine.headers[1]["authorization"] == "Bearer rotated"
        assert ["priority" in body for body in engine.bodies] == [True, False]
        (listed,) = (await running.http.get("/admin/engines")).json()
        assert (listed["seats"], listed["draining"], listed["in_flight"]) == (2, False, 2)
        third = asyncio.create_task(running.chat("no seat"))
        await running.until(lambda: running.gateway.driver.live_calls == 3)
        assert len(engine.bodies) == 2
        gate.open.set()
        answers = await asyncio.gather(held, after, third)
        assert [a.status_code for a in answers] == [200] * 3


async def test_looks_at_an_engine_carry_the_key_it_was_given_last() -> None:
    async def locked(request: Request) -> Response:
        if request.headers.get("authorization") != "Bearer right":
            return JSONResponse({"error": "Unauthorized"}, status_code=401)
        return await ScriptedEngine._models(engine, request)

    engine = ScriptedEngine(ok)
    engine._models = locked  # type: ignore[method-assign]
    async with (
        serving(engine.app()) as engine.url,
        gateway([engine.url], expect_up=0) as running,
    ):
        await running.until(lambda: only(running).refuses_key)
        change(running, api_key="right")
        await running.until_up(1)
        assert (await running.chat()).status_code == 200


@pytest.mark.parametrize("posted", [True, False], ids=["admin", "reload"])
async def test_an_engine_at_another_url_follows_the_last_call_of_the_old_one(posted: bool) -> None:
    gate = Gate()
    async with scripted(gate, ok) as (old, new), gateway([old.url]) as running:
        held = asyncio.create_task(running.chat())
        await running.until(lambda: gate.waiting == 1)
        if posted:
            assert (await running.http.delete("/admin/engines/e0")).status_code == 200
            body = {"id": "e0", "url": new.url, "seats": 1}
            assert (await running.http.post("/admin/engines", json=body)).status_code == 201
        else:
            change(running, url=new.url)
        assert only(running).removing
        assert (await running.chat()).status_code == 503
        gate.open.set()
        assert (await held).status_code == 200
        await running.until(lambda: not only(running).removing)
        await running.until_up(1)
        response = await running.chat("to the new one")
        assert response.headers["x-headway-instance"] == "e0"
        assert (len(old.bodies), len(new.bodies)) == (1, 1)


async def test_an_engine_that_waits_for_another_to_leave_is_listed_and_kept() -> None:
    gate = Gate()
    async with scripted(gate, ok) as (old, new), gateway([old.url]) as running:
        held = asyncio.create_task(running.chat())
        await running.until(lambda: gate.waiting == 1)
        await running.http.delete("/admin/engines/e0")
        body = {"id": "e0", "url": new.url, "seats": 1}
        made = await running.http.post("/admin/engines", json=body)
        assert made.status_code == 201
        again = await running.http.post("/admin/engines", json={**body, "url": old.url})
        assert again.status_code == 409
        assert again.json()["error"]["code"] == "engine_exists"
        leaving, waiting = (await running.http.get("/admin/engines")).json()
        assert (leaving["removing"], leaving["pending"], leaving["in_flight"]) == (True, False, 1)
        assert (waiting["removing"], waiting["pending"], waiting["in_flight"]) == (False, True, 0)
        assert waiting["url"] == new.url
        assert 0 <= waiting["since_s"] <= leaving["since_s"]
        assert made.json()["since_s"] <= waiting["since_s"]
        gate.open.set()
        assert (await held).status_code == 200
        await running.until(lambda: not only(running).removing)
        (listed,) = (await running.http.get("/admin/engines")).json()
        assert (listed["url"], listed["pending"]) == (new.url, False)


async def test_a_reload_keeps_how_fast_emulated_engines_run() -> None:
    fleet = Fleet(
        FleetSettings(),
        post=lambda event: None,
        lost=lambda name, why: None,
        clock=lambda: 0.0,
        time_scale=50.0,
    )
    try:
        fleet.reload([EngineSettings(id="e", url="http://127.0.0.1:9")])
        assert [engine.time_scale for engine in fleet.engines] == [50.0]
    finally:
        await fleet.aclose()


async def test_an_engine_whose_old_url_comes_back_before_it_has_left_is_there_again() -> None:
    gate = Gate()
    async with scripted(gate, ok) as (old, new), gateway([old.url]) as running:
        held = asyncio.create_task(running.chat())
        await running.until(lambda: gate.waiting == 1)
        change(running, url=new.url)
        change(running, url=old.url)
        gate.open.set()
        assert (await held).status_code == 200
        await running.until(lambda: not only(running).removing)
        await running.until_up(1)
        assert (await running.chat()).status_code == 200
        assert (len(old.bodies), len(new.bodies)) == (2, 0)


async def test_an_engine_that_no_file_names_any_more_does_not_come_back() -> None:
    gate = Gate()
    async with scripted(gate, ok) as (old, new), gateway([old.url]) as running:
        held = asyncio.create_task(running.chat())
        await running.until(lambda: gate.waiting == 1)
        change(running, url=new.url)
        running.gateway.fleet.reload([])
        gate.open.set()
        assert (await held).status_code == 200
        await running.until(lambda: not running.gateway.fleet.engines)
        assert (await running.http.get("/ready")).status_code == 503


async def test_a_url_that_cannot_be_used_changes_nothing() -> None:
    async with scripted(ok) as (engine,), gateway([engine.url]) as running:
        settings = only(running).settings
        wrong = settings.model_copy(update={"id": "wrong", "url": "nowhere"})
        with pytest.raises(ConfigurationError):
            running.gateway.fleet.reload([wrong])
        assert only(running).settings == settings
        assert (await running.chat()).status_code == 200


async def test_a_drained_engine_is_given_back_and_not_before() -> None:
    async with scripted(ok) as (engine,), gateway([engine.url]) as running:
        fleet, known = running.gateway.fleet, only(running)
        fleet.drain(known)
        assert (await running.chat()).status_code == 503
        engine.healthy = False
        await running.until(lambda: not known.up)
        engine.healthy = True
        await running.until_up(1)
        assert (await running.chat()).status_code == 503
        assert not engine.bodies
        fleet.undrain(known)
        assert (await running.chat()).status_code == 200
        assert (await running.http.get("/ready")).status_code == 200


async def test_an_engine_drained_before_it_was_seen_is_given_calls_when_undrained() -> None:
    engine = ScriptedEngine(ok, healthy=False)
    async with (
        serving(engine.app()) as engine.url,
        gateway([engine.url], expect_up=0) as running,
    ):
        fleet, known = running.gateway.fleet, only(running)
        fleet.drain(known)
        engine.healthy = True
        await running.until_up(1)
        assert (await running.chat()).status_code == 503
        fleet.undrain(known)
        assert (await running.chat()).status_code == 200


async def test_a_removal_is_not_taken_back_and_may_be_asked_for_twice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate = Gate()
    async with scripted(gate) as (engine,), gateway([engine.url]) as running:
        body = {"model": MODEL, "input": "x"}
        routed = asyncio.create_task(running.http.post("/v1/embeddings", json=body))
        await running.until(lambda: gate.waiting == 1)
        for _ in range(2):
            assert (await running.http.delete("/admin/engines/e0")).status_code == 200
        with pytest.raises(ConfigurationError, match="being removed"):
            running.gateway.fleet.undrain(only(running))
        gate.open.set()
        assert (await routed).status_code == 200
        await running.until(lambda: not running.gateway.fleet.engines)
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]


async def test_a_hung_engine_that_counts_no_tokens_is_down_until_it_computes() -> None:
    computes = asyncio.Event()

    async def hang(request: Request, body: dict[str, Any]) -> Response:
        await computes.wait()
        return await ok(request, body)

    async with (
        scripted(hang, ok) as (hanging, well),
        gateway([hanging.url, well.url], policy=RR, fleet=STALL) as running,
    ):
        answers = [await running.chat() for _ in range(2)]
        assert [a.headers["x-headway-instance"] for a in answers] == ["e1", "e1"]
        assert not running.gateway.fleet.engines[0].up
        computes.set()
        await running.until_up(2)


async def test_what_an_engine_sends_counts_where_it_counts_no_tokens_itself() -> None:
    now_s = 100.0
    settings = FleetSettings(stall_timeout_s=10)
    engine = Engine(EngineSettings(id="e", url="http://127.0.0.1:9"), BusyPool())
    engine.served = Served((MODEL,), 4096)
    engine.computing_s = now_s
    looks = Looks(settings, lambda: now_s)
    try:
        now_s = 109.0
        await looks.progress(engine, Scrape(EngineGauges()))
        engine.heard_s = 108.0
        now_s = 117.0
        await looks.progress(engine, Scrape(EngineGauges()))
        assert not engine.suspect
        now_s = 118.0
        with pytest.raises(
            LookFailed, match="/v1/completions"
        ):  # put to the test, at a closed port
            await looks.progress(engine, Scrape(EngineGauges()))
        assert engine.suspect
    finally:
        await looks.aclose()


async def test_what_an_engine_sends_does_not_count_where_it_counts_tokens_itself() -> None:
    now_s = 100.0
    engine = Engine(EngineSettings(id="e", url="http://127.0.0.1:9"), BusyPool())
    engine.served = Served((MODEL,), 4096)
    engine.tokens_total, engine.computing_s, engine.heard_s = 7, 90.0, 99.0
    looks = Looks(FleetSettings(stall_timeout_s=10), lambda: now_s)
    try:
        with pytest.raises(LookFailed, match="/v1/completions"):
            await looks.progress(engine, Scrape(EngineGauges(), tokens_total=7))
        await looks.progress(engine, Scrape(EngineGauges(), tokens_total=8))
        assert not engine.suspect
    finally:
        await looks.aclose()


async def test_a_silent_engine_that_counts_no_tokens_may_show_that_it_computes() -> None:
    gate = Gate()

    async def handler(request: Request, body: dict[str, Any]) -> Response:
        return JSONResponse({}) if "prompt" in body else await gate(request, body)

    async with scripted(handler) as (engine,), gateway([engine.url], fleet=PATIENT) as running:
        call = asyncio.create_task(running.http.post("/v1/chat/completions", json=chat_body()))
        await running.until(lambda: len(engine.bodies) == 3)
        assert only(running).up
        gate.open.set()
        assert (await call).status_code == 200


def test_output_tokens_are_told_where_an_engine_counts_them() -> None:
    page = b"""vllm:generation_tokens_total{engine="0"} 5.0
vllm:generation_tokens_total{engine="1"} 7.0
vllm:prompt_tokens_total{engine="0"} 100.0
"""
    assert parse_scrape(page).gauges.output_tokens_total == 12
    assert parse_scrape(b"vllm:prompt_tokens_total 3\n").gauges.output_tokens_total is None
    assert parse_scrape(b"vllm:generation_tokens_total 0\n").gauges.output_tokens_total == 0


async def test_the_scheduler_hears_how_many_tokens_an_engine_has_written() -> None:
    async def counted(request: Request) -> Response:
        return PlainTextResponse("vllm:generation_tokens_total 41\n")

    engine = ScriptedEngine(ok)
    engine._metrics = counted  # type: ignore[method-assign]
    async with serving(engine.app()) as engine.url, gateway([engine.url]) as running:
        (instance,) = running.gateway.coordinator.fleet
        await running.until(lambda: instance.gauges.output_tokens_total == 41)


async def test_an_engine_that_is_down_from_the_start_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with gateway(["http://127.0.0.1:9"], expect_up=0) as running:
        engine = only(running)
        await running.until(lambda: engine.failures > 5)
    said = [r.getMessage() for r in caplog.records if r.name == "headway.fleet"]
    assert len(said) == 1
    assert said[0].startswith("engine e0 is down from the start: ")
