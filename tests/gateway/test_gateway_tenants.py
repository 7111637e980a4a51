"""Tenants beside each other: none sees, stops or overtakes what belongs to another."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from gateway_harness import MODEL, Gate, emulated, failing, gateway, ok, scripted
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

TENANTS = [
    {"name": "alice", "api_key": "a"},
    {"name": "carol", "api_key": "c"},
    {"name": "modest", "api_key": "m", "max_class": "best-effort"},
]
ALICE, CAROL, MODEST = ({"authorization": f"Bearer {key}"} for key in "acm")


async def test_two_tenants_may_call_their_workflows_the_same() -> None:
    async with scripted(ok) as (engine,), gateway([engine.url], tenants=TENANTS) as running:
        http = running.http
        job = {"x-headway-workflow-id": "job/1"}
        mine = await running.chat(headers={**ALICE, **job, "x-headway-slo-ms": "50000"})
        assert mine.headers["x-headway-workflow-id"] == "job/1"
        for method in ("GET", "DELETE"):
            foreign = await http.request(method, "/v1/workflows/job/1", headers=CAROL)
            assert foreign.status_code == 404
        await running.chat(headers={**CAROL, **job, "x-headway-slo-ms": "7000"})
        seen = [
            (await http.get("/v1/workflows/job/1", headers=key)).json() for key in (ALICE, CAROL)
        ]
        told = [(w["id"], w["tenant"], w["slo_s"], w["calls"]) for w in seen]
        assert told == [("job/1", "alice", 50.0, 1), ("job/1", "carol", 7.0, 1)]
        await running.until_empty()
        stopped = await http.delete("/v1/workflows/job/1", headers=CAROL)
        assert stopped.json() == {"id": "job/1", "cancelled_calls": 0}
        states = [
            (await http.get("/v1/workflows/job/1", headers=key)).json()["state"]
            for key in (ALICE, CAROL)
        ]
        assert states == ["live", "cancelled"]


async def test_a_declared_id_is_its_tenants_own() -> None:
    async with scripted(ok) as (engine,), gateway([engine.url], tenants=TENANTS) as running:
        http, body = running.http, {"id": "w", "workflow": "one", "slo_ms": 5000}
        made = await http.post("/v1/workflows", json=body, headers=ALICE)
        assert made.json()["id"] == "w"
        assert (await http.get("/v1/workflows/w", headers=CAROL)).status_code == 404
        again = await http.post("/v1/workflows", json={"id": "w", "slo_ms": 1}, headers=CAROL)
        assert again.json()["id"] == "w"
        kept = (await http.get("/v1/workflows/w", headers=ALICE)).json()
        assert (kept["workflow"], kept["slo_s"]) == ("one", 5.0)


async def test_cancelling_does_not_reach_another_tenants_calls() -> None:
    gate = Gate()
    async with scripted(gate) as (engine,), gateway([engine.url], tenants=TENANTS) as running:
        job = {"x-headway-workflow-id": "w"}
        calls = [asyncio.create_task(running.chat(headers={**k, **job})) for k in (ALICE, CAROL)]
        await running.until(lambda: gate.waiting == 2)
        stopped = await running.http.delete("/v1/workflows/w", headers=CAROL)
        assert stopped.json()["cancelled_calls"] == 1
        assert (await calls[1]).json()["error"]["code"] == "workflow_cancelled"
        gate.open.set()
        assert (await calls[0]).status_code == 200


async def test_a_stored_response_is_its_tenants_own() -> None:
    async with emulated(2) as urls, gateway(urls, tenants=TENANTS) as running:
        body = {"model": MODEL, "input": "hi", "max_output_tokens": 3}
        made = (await running.http.post("/v1/responses", json=body, headers=ALICE)).json()
        body["previous_response_id"] = made["id"]
        for headers, status in ((ALICE, 200), (CAROL, 404)):
            fetched = await running.http.get(f"/v1/responses/{made['id']}", headers=headers)
            assert fetched.status_code == status
            gone_on = await running.http.post("/v1/responses", json=body, headers=headers)
            assert gone_on.status_code == status
        assert gone_on.json()["error"]["code"] == "response_not_found"


async def named(request: Request, body: dict[str, Any]) -> Response:
    """An engine whose clients choose the ids of responses."""
    return JSONResponse({"id": body.get("request_id", "resp_x"), "object": "response"})


async def test_a_response_stays_with_the_tenant_that_made_it_first() -> None:
    async with scripted(named) as (engine,), gateway([engine.url], tenants=TENANTS) as running:
        body = {"model": MODEL, "input": "hi", "request_id": "resp_a"}
        for headers in (ALICE, CAROL):
            made = await running.http.post("/v1/responses", json=body, headers=headers)
            assert made.status_code == 200
        for headers, status in ((ALICE, 200), (CAROL, 404)):
            fetched = await running.http.get("/v1/responses/resp_a", headers=headers)
            assert fetched.status_code == status


async def test_with_tenants_a_response_that_nobody_is_known_to_have_made_is_nobodys() -> None:
    async with (
        scripted(named, named) as engines,
        gateway([e.url for e in engines], tenants=TENANTS) as running,
    ):
        body = {"model": MODEL, "input": "hi", "previous_response_id": "resp_a"}
        for _ in range(2):
            for headers in (CAROL, ALICE):
                for asking in (
                    running.http.get("/v1/responses/resp_a", headers=headers),
                    running.http.post("/v1/responses/resp_a/cancel", headers=headers),
                    running.http.post("/v1/responses", json=body, headers=headers),
                ):
                    answer = await asking
                    assert answer.status_code == 404
                    assert answer.json()["error"]["code"] == "response_not_found"
        assert [engine.paths for engine in engines] == [[], []]


@pytest.mark.parametrize(
    "hurry",
    [
        {"headers": {"x-headway-slo-ms": "1"}},
        {"headers": {"x-headway-slo-ttft-ms": "1", "x-headway-class": "latency"}},
        {"vllm_xargs": {"agentic_context": {"deadline_seconds": 0.001}}},
    ],
)
async def test_a_modest_tenant_does_not_overtake_by_its_slo(hurry: dict[str, Any]) -> None:
    gate = Gate()
    async with (
        scripted(gate) as (engine,),
        gateway([engine.url], seats=1, tenants=TENANTS) as running,
    ):
        headers = {**MODEST, **hurry.get("headers", {})}
        more = {key: value for key, value in hurry.items() if key != "headers"}
        driver = running.gateway.driver
        calls = []
        for text, who, body in (
            ("first", ALICE, {}),
            ("second", ALICE, {}),
            ("hurried", headers, more),
        ):
            calls.append(asyncio.create_task(running.chat(text, headers=who, **body)))
            await running.until(lambda: driver.live_calls == len(calls))
        gate.open.set()
        assert [(await call).status_code for call in calls] == [200] * 3
        order = [body["messages"][0]["content"] for body in engine.bodies]
        assert order == ["first", "second", "hurried"]


async def test_a_modest_tenant_may_declare_no_tighter_slo_than_is_usual() -> None:
    workflows = {"fast": {"slo_s": 20}}
    async with (
        scripted(ok) as (engine,),
        gateway([engine.url], tenants=TENANTS, workflows=workflows) as running,
    ):
        for who, application, slo_ms, expected_s in (
            (MODEST, "default", 1, 60.0),
            (MODEST, "fast", 1, 20.0),
            (MODEST, "default", 90_000, 90.0),
            (ALICE, "default", 1000, 1.0),
        ):
            body = {"workflow": application, "slo_ms": slo_ms}
            made = await running.http.post("/v1/workflows", json=body, headers=who)
            told = await running.http.get(f"/v1/workflows/{made.json()['id']}", headers=who)
            assert told.json()["slo_s"] == expected_s


async def test_calls_that_never_ran_are_not_charged() -> None:
    gate = Gate()
    tenants = [{"name": "t", "api_key": "t", "tokens_per_minute": 1000}]
    async with (
        scripted(gate) as (engine,),
        gateway([engine.url], seats=1, tenants=tenants, queue={"max_wait_s": 0.05}) as running,
    ):
        key = {"authorization": "Bearer t"}
        first = asyncio.create_task(running.chat(headers=key))
        await running.until(lambda: gate.waiting == 1)
        for _ in range(3):
            late = await running.chat("long " * 2000, headers=key)
            assert late.headers["x-headway-dropped-reason"] == "queue_timeout"
        gate.open.set()
        assert (await first).status_code == 200


async def test_calls_that_every_engine_failed_are_not_charged() -> None:
    tenants = [{"name": "t", "api_key": "t", "tokens_per_minute": 100}]
    queue = {"max_attempts": 1}
    async with (
        scripted(failing(400)) as (engine,),
        gateway([engine.url], tenants=tenants, queue=queue) as running,
    ):
        key = {"authorization": "Bearer t"}
        answers = [await running.chat("long " * 200, headers=key) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [400] * 3


async def test_what_a_client_dropped_while_it_ran_is_charged() -> None:
    gate = Gate()
    tenants = [{"name": "t", "api_key": "t", "tokens_per_minute": 100}]
    async with scripted(gate) as (engine,), gateway([engine.url], tenants=tenants) as running:
        key = {"authorization": "Bearer t"}
        dropped = asyncio.create_task(running.chat("long " * 200, headers=key))
        await running.until(lambda: gate.waiting == 1)
        dropped.cancel()
        await running.until_empty()
        refused = await running.chat(headers=key)
        assert refused.headers["x-headway-dropped-reason"] == "tenant_tokens"


async def test_each_call_that_is_cut_off_hears_of_itself_alone() -> None:
    gate = Gate()
    async with scripted(gate) as (engine,), gateway([engine.url], seats=1) as running:
        calls = [
            asyncio.create_task(running.chat(headers={"x-headway-workflow-id": f"w{n}"}))
            for n in range(3)
        ]
        await running.until(lambda: running.gateway.driver.live_calls == 3)
        assert await running.gateway.drain(0.01) is False
        for n, call in enumerate(calls):
            headers = (await call).headers
            assert headers.get_list("x-headway-workflow-id") == [f"w{n}"]
            assert headers.get_list("x-headway-dropped-reason") == ["shutting_down"]
