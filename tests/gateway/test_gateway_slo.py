"""Classes, timelines and verdicts of live calls: what `/metrics` and explanations say of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from gateway_harness import (
    USAGE,
    Handler,
    Running,
    chunk,
    failing,
    gateway,
    ok,
    scripted,
)
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

#: nothing on this machine takes so long, or is so quick
EASY = {"x-headway-slo-ttft-ms": "1e6", "x-headway-slo-tpot-ms": "1e6"}
HARD = {"x-headway-slo-ttft-ms": "0.001", "x-headway-slo-tpot-ms": "0.001"}


async def by_class(running: Running, name: str) -> dict[tuple[str, ...], float]:
    """Samples of one family that are above 0, by class and outcome."""
    return {
        labels: value for labels, value in (await running.samples_by_class(name)).items() if value
    }


async def call_of(running: Running, call_id: str) -> dict[str, Any]:
    found: dict[str, Any] = (await running.http.get(f"/admin/calls/{call_id}")).json()
    return found


def tokens_after(*pauses_s: float) -> Handler:
    """A token after each pause, and usage that says as many."""

    async def produce() -> AsyncIterator[bytes]:
        for pause_s in pauses_s:
            await asyncio.sleep(pause_s)
            yield chunk("x")
        yield chunk(None, usage={**USAGE, "completion_tokens": len(pauses_s)})
        yield b"data: [DONE]\n\n"

    async def handler(request: Request, body: dict[str, Any]) -> Response:
        return StreamingResponse(produce(), media_type="text/event-stream")

    return handler


@pytest.mark.parametrize(("headers", "outcome"), [(EASY, "met"), (HARD, "missed")])
async def test_a_stream_is_held_against_its_timeline(headers: dict[str, str], outcome: str) -> None:
    async with scripted(ok) as (engine,), gateway([engine.url]) as running:
        await running.chat(stream=True, headers={**headers, "x-request-id": "c"})
        await running.until_empty()
        assert await by_class(running, "headway_slo_total") == {("latency", outcome): 1.0}
        assert await by_class(running, "headway_token_lag_seconds_count") == {("latency",): 1.0}
        on_time = 1.0 if outcome == "met" else 0.0
        page = (await running.http.get("/metrics")).text
        assert f'headway_token_lag_seconds_bucket{{class="latency",le="0.0"}} {on_time}' in page
        told = await call_of(running, "c")
    assert (told["class"], told["slo_met"]) == ("latency", outcome == "met")
    assert (told["token_lag_s"] <= 0.0) is (outcome == "met")
    assert 0.0 < told["ttft_s"] < told["ended_s"]
    assert told["slo"]["tpot_s"] == pytest.approx(float(headers["x-headway-slo-tpot-ms"]) / 1000)
    assert "call_class" not in told


async def workflows(running: Running) -> dict[tuple[str, str], float]:
    """Workflows by application and by how their SLO was kept."""
    found = await running.samples("headway_workflow_slo_total")
    return {(labels["workflow"], labels["outcome"]): value for labels, value in found}


async def test_a_call_that_speaks_of_no_workflow_keeps_and_misses_no_workflows_slo() -> None:
    impossible = {"default": {"slo_s": 0.000_001, "idle_s": 300}}
    async with (
        scripted(ok) as (engine,),
        gateway([engine.url], workflows=impossible) as running,
    ):
        await running.chat(headers={"x-request-id": "twice"})
        await running.chat(stream=True)
        await running.until_empty()
        assert await workflows(running) == {}
        page = (await running.http.get("/metrics")).text
        assert 'headway_workflow_duration_seconds_count{workflow="default"} 2.0' in page
        # any word about a workflow makes it one; the id that a single call was given does, too
        for said in (
            {"x-headway-workflow": "reports"},
            {"x-headway-workflow-id": "w", "x-headway-final": "1"},
            {"x-headway-slo-ms": "1000000"},
            {"x-headway-workflow-id": "single-twice", "x-headway-final": "1"},
        ):
            assert (await running.chat(headers=said)).status_code == 200
            await running.chat()
        await running.until_empty()
        assert await workflows(running) == {
            ("reports", "missed"): 1.0,
            ("reports", "met"): 0.0,  # a share met is 0 then, where an absent one would be nothing
            ("default", "missed"): 2.0,
            ("default", "met"): 1.0,
        }


async def test_the_lag_is_that_of_the_latest_token_against_its_own_moment() -> None:
    """Due 0 s, 1 ms and 2 ms after the first: the pause shows, less what was due meanwhile."""
    headers = {"x-headway-slo-tpot-ms": "1", "x-request-id": "c"}
    async with (
        scripted(tokens_after(0.0, 0.0, 0.08)) as (engine,),
        gateway([engine.url]) as running,
    ):
        await running.chat(stream=True, headers=headers)
        await running.until_empty()
        told = await call_of(running, "c")
    # the sleep may be longer, never shorter, and the stream's length bounds it
    assert 0.08 - 0.002 - 0.001 <= told["token_lag_s"] <= told["ended_s"] - told["first_token_s"]
    assert told["slo_met"] is False


async def test_a_retry_counts_from_the_calls_arrival() -> None:
    async def fails_late(request: Request, body: dict[str, Any]) -> Response:
        await asyncio.sleep(0.05)
        return await failing(500)(request, body)

    tried: list[str] = []

    async def first_fails(request: Request, body: dict[str, Any]) -> Response:
        tried.append(request.url.path)
        return await (fails_late if len(tried) == 1 else ok)(request, body)

    async with (
        scripted(first_fails, first_fails) as (one, other),
        gateway([one.url, other.url]) as running,
    ):
        await running.chat(stream=True, headers={**HARD, "x-request-id": "c"})
        await running.until_empty()
        told = await call_of(running, "c")
    assert told["attempts"] == 2
    assert told["token_lag_s"] >= told["ttft_s"] - 0.001 > 0.049


@pytest.mark.parametrize(
    ("headers", "lag"),
    [({"x-headway-slo-ttft-ms": "1e6"}, True), ({}, False)],
)
async def test_without_a_pace_only_the_first_token_has_a_moment(
    headers: dict[str, str], lag: bool
) -> None:
    async with scripted(ok) as (engine,), gateway([engine.url]) as running:
        await running.chat(stream=True, headers={**headers, "x-request-id": "c"})
        await running.until_empty()
        told = await call_of(running, "c")
    if lag:
        assert told["token_lag_s"] == pytest.approx(told["ttft_s"] - 1000.0, abs=0.01)
    else:
        assert told["token_lag_s"] is None


async def test_an_answer_in_one_piece_has_an_end_only() -> None:
    async with scripted(ok) as (engine,), gateway([engine.url]) as running:
        await running.chat(headers={**EASY, "x-headway-class": "latency", "x-request-id": "c"})
        await running.chat(headers={"x-headway-slo-ms": "0.001"})
        await running.until_empty()
        told = await call_of(running, "c")
        counted = await by_class(running, "headway_slo_total")
        assert await by_class(running, "headway_token_lag_seconds_count") == {}
        durations = await by_class(running, "headway_class_request_duration_seconds_count")
    assert (told["ttft_s"], told["token_lag_s"], told["slo_met"]) == (None, None, True)
    assert counted == {("latency", "met"): 1.0, ("throughput", "missed"): 1.0}
    assert durations == {("latency",): 1.0, ("throughput",): 1.0}


async def test_collective_calls_wait_for_their_workflows_end() -> None:
    job = {"x-headway-workflow-id": "job", "x-headway-workflow": "sql"}
    async with scripted(ok) as (engine,), gateway([engine.url]) as running:
        await running.chat(headers={**job, "x-request-id": "a", "x-headway-stage": "link"})
        await running.until_empty()
        assert await by_class(running, "headway_slo_total") == {}
        assert (await call_of(running, "a"))["slo_met"] is None
        live = (await running.http.get("/v1/workflows/job")).json()
        assert live["stages"][0]["calls"][0]["slo_met"] is None
        last = {**job, **EASY, "x-request-id": "b", "x-headway-stage": "tell"}
        await running.chat(stream=True, headers={**last, "x-headway-final": "1"})
        await running.until_empty()
        counted = await by_class(running, "headway_slo_total")
        gains = await by_class(running, "headway_service_gain_total")
        goodput = await by_class(running, "headway_goodput_tokens_total")
        assert (await call_of(running, "a"))["slo_met"] is True
        told = (await running.http.get("/v1/workflows/job")).json()
    assert counted == {("collective", "met"): 1.0, ("latency", "met"): 1.0}
    # 7 prompt tokens and 2 output tokens each, by the paper's weights of 1 and 2
    assert gains == {("collective",): 11.0, ("latency",): 11.0}
    assert goodput == {("collective",): 2.0, ("latency",): 2.0}
    link, tell = (stage["calls"][0] for stage in told["stages"])
    assert (link["class"], link["ttft_s"], link["slo_met"]) == ("collective", None, True)
    assert (tell["class"], tell["slo_met"]) == ("latency", True)
    assert tell["ttft_s"] > 0.0
    assert tell["token_lag_s"] < 0.0


async def test_the_same_id_again_is_another_call() -> None:
    job = {"x-headway-workflow-id": "job", "x-request-id": "same"}
    async with scripted(ok) as (engine,), gateway([engine.url]) as running:
        await running.chat(headers={**job, "x-headway-stage": "one"})
        await running.until_empty()
        await running.chat(stream=True, headers={**job, **EASY, "x-headway-stage": "two"})
        await running.until_empty()
        told = (await running.http.get("/v1/workflows/job")).json()
    calls = [call for stage in told["stages"] for call in stage["calls"]]
    # of the first, whose place the second took, nothing is known any more
    assert [call["class"] for call in calls] == [None, "latency"]


async def test_best_effort_gains_and_promises_nothing() -> None:
    async with scripted(ok) as (engine,), gateway([engine.url]) as running:
        await running.chat(service_tier="flex", headers={"x-request-id": "c"})
        await running.until_empty()
        told = await call_of(running, "c")
        assert await by_class(running, "headway_slo_total") == {}
        assert await by_class(running, "headway_service_gain_total") == {("best-effort",): 11.0}
        queues = (await running.http.get("/admin/queues")).json()
    assert (told["class"], told["slo_met"]) == ("best-effort", None)
    assert engine.bodies[0]["service_tier"] == "flex"
    assert queues["waiting"] == 0


async def test_what_is_turned_away_has_missed() -> None:
    async with scripted(failing(500)) as (engine,), gateway([engine.url]) as running:
        await running.chat(headers={"x-headway-slo-ms": "60000"})
        await running.until_empty()
        assert await by_class(running, "headway_slo_total") == {("throughput", "missed"): 1.0}
        assert await by_class(running, "headway_service_gain_total") == {}


async def test_configured_slos_hold_for_streams_that_ask_for_none() -> None:
    slo = {"latency": {"ttft_s": 1e-6, "tpot_s": 1e-6}}
    async with scripted(ok) as (engine,), gateway([engine.url], slo=slo) as running:
        await running.chat(stream=True, headers={"x-request-id": "c"})
        await running.until_empty()
        told = await call_of(running, "c")
        assert await by_class(running, "headway_slo_total") == {("latency", "missed"): 1.0}
    assert (told["slo"]["ttft_s"], told["slo"]["tpot_s"]) == (1e-6, 1e-6)
    assert told["token_lag_s"] > 0.0
