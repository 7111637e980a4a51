"""What the gateway answers itself: who may ask, how much, how deep, and under which ids."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from gateway_harness import Gate, Running, chat_body, gateway, ok, scripted
from prometheus_client.parser import text_string_to_metric_families

from dispatcher.gateway.calls import LiveCall
from dispatcher.gateway.metrics import OTHER, WORKFLOWS_MAX, Metrics

CHAT = "/v1/chat/completions"
OWN_BODIES = [("POST", "/v1/workflows"), ("POST", "/admin/engines"), ("PUT", "/admin/policy")]
JSON = {"content-type": "application/json"}


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with (
        scripted(ok) as (engine,),
        gateway([engine.url], server={"max_body_mb": 0.01}) as running,
    ):
        yield running


@pytest.mark.parametrize(("method", "path"), OWN_BODIES)
@pytest.mark.parametrize("chunked", [False, True])
async def test_our_own_endpoints_bound_the_body(
    running: Running, method: str, path: str, chunked: bool
) -> None:
    raw = b'{"name": "' + b"a" * 20_000 + b'"}'

    async def parts() -> AsyncIterator[bytes]:
        for start in range(0, len(raw), 1000):
            yield raw[start : start + 1000]

    content = parts() if chunked else raw
    response = await running.http.request(method, path, content=content, headers=JSON)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "body_too_large"


@pytest.mark.parametrize(("method", "path"), OWN_BODIES)
async def test_who_calls_is_asked_before_the_body_is_read(method: str, path: str) -> None:
    server = {"admin_token": "t0ken", "max_body_mb": 0.001}
    tenants = [{"name": "a", "api_key": "secret"}]
    async with (
        scripted(ok) as (engine,),
        gateway([engine.url], server=server, tenants=tenants) as running,
    ):
        headers = {**JSON, "authorization": "Bearer wrong"}
        for body in (b"{", b"x" * 5000):
            response = await running.http.request(method, path, content=body, headers=headers)
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
@pytest.mark.parametrize(
    "more", [{"tools": ["deep"]}, {"priority": 1, "x": "deep"}, {"stream_options": {"x": "deep"}}]
)
async def test_a_body_too_deep_to_be_passed_on_is_refused(
    running: Running, path: str, more: dict[str, Any]
) -> None:
    text = json.dumps({**chat_body(stream=True), "input": "a", **more})
    for levels, status in ((240, 200), (300, 400)):
        deep = text.replace('"deep"', "[" * levels + "]" * levels)
        response = await running.http.post(path, content=deep, headers=JSON)
        assert response.status_code == status
    assert "nested too deep" in response.json()["error"]["message"]


@pytest.mark.parametrize(("method", "path"), OWN_BODIES)
async def test_our_own_bodies_may_not_be_too_deep_either(
    running: Running, method: str, path: str
) -> None:
    deep = b'{"name": ' + b"[" * 4000 + b"]" * 4000 + b"}"
    response = await running.http.request(method, path, content=deep, headers=JSON)
    assert response.status_code in (400, 422)
    assert response.json()["error"]["message"]


@pytest.mark.parametrize("letters", ["%0d%0aabc", "a%20b", "a%3fb", "%2e%2e", "a%2fb", "r" * 300])
async def test_only_the_id_of_a_response_reaches_a_request_line(letters: str) -> None:
    async with scripted(ok) as (engine,), gateway([engine.url]) as running:
        for method, path in (("GET", letters), ("POST", letters + "/cancel")):
            response = await running.http.request(method, f"/v1/responses/{path}")
            assert response.status_code == 404
            assert response.json()["error"]["code"] == "unknown_route"
        assert engine.paths == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"stages": [{"name": "a", "prompt_tokens": 10**30}]}, "stages.0.prompt_tokens"),
        ({"stages": [{"name": "a", "output_tokens": 1 << 32}]}, "stages.0.output_tokens"),
        ({"stages": [{"name": "a", "width": "2"}]}, "stages.0.width"),
        ({"slo_ms": True}, "slo_ms"),
        ({"slo_ms": "500"}, "slo_ms"),
        ({"slo_ms": -1}, "slo_ms"),
        ({"stages": {}}, "stages"),
        ({"slo": 1}, "slo"),
    ],
)
async def test_a_declaration_that_does_not_fit(
    running: Running, body: dict[str, Any], param: str
) -> None:
    response = await running.http.post("/v1/workflows", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("engine", "param", "message"),
    [
        ({"url": "http://h:99999"}, "url", "port"),
        ({"url": "ftp://h"}, "url", "expected http"),
        ({"url": "http://user:pass@h"}, "url", "api_key"),
        ({"seats": 0}, "seats", "seats: expected auto, or a whole number"),
        ({"seat": 1}, "seat", "seat: unknown key; expected one of id, url, gpu, "),
    ],
)
async def test_an_engine_that_cannot_be(
    running: Running, engine: dict[str, Any], param: str, message: str
) -> None:
    body = {"id": "x", "url": "http://h", **engine}
    response = await running.http.post("/admin/engines", json=body)
    assert response.status_code == 422
    error = response.json()["error"]
    assert error["param"] == param
    assert message in error["message"]
    assert "Value error" not in error["message"]
    assert [e.settings.id for e in running.gateway.fleet.engines] == ["e0"]


async def test_a_drained_engine_is_taken_back() -> None:
    gate = Gate()
    async with scripted(gate) as (engine,), gateway([engine.url]) as running:
        gate.open.set()
        http, path = running.http, "/admin/engines/e0/drain"
        assert (await http.post(path)).json()["draining"] is True
        assert (await running.chat()).status_code == 503
        assert (await http.delete(path)).json()["draining"] is False
        assert (await running.chat()).status_code == 200
        assert (await http.delete("/admin/engines/none/drain")).status_code == 404
        gate.open.clear()
        held = asyncio.create_task(running.chat())
        await running.until(lambda: gate.waiting == 1)
        await http.delete("/admin/engines/e0")
        refused = await http.delete(path)
        assert refused.status_code == 409
        assert refused.json()["error"]["code"] == "engine_leaving"
        gate.open.set()
        assert (await held).status_code == 200


async def test_ids_may_have_slashes() -> None:
    async with scripted(ok, ok) as engines, gateway([engines[0].url]) as running:
        http = running.http
        added = {"id": "rack/1", "url": engines[1].url}
        assert (await http.post("/admin/engines", json=added)).status_code == 201
        await running.until_up(2)
        for method in ("POST", "DELETE"):
            answer = await http.request(method, "/admin/engines/rack/1/drain")
            assert (answer.status_code, answer.json()["id"]) == (200, "rack/1")
        headers = {"x-request-id": "a/b", "x-headway-workflow-id": "job/7"}
        await running.chat(headers=headers)
        await running.until_empty()
        assert (await http.get("/admin/calls/a/b")).json()["call_id"] == "a/b"
        assert (await http.get("/v1/workflows/job/7")).json()["id"] == "job/7"
        assert (await http.delete("/v1/workflows/job/7")).status_code == 200
        assert (await http.delete("/admin/engines/rack/1")).json()["removing"] is True
        assert [e.settings.id for e in running.gateway.fleet.engines] == ["e0"]


async def test_a_call_is_explained_in_seconds_from_its_arrival() -> None:
    gate = Gate()
    async with scripted(gate) as (engine,), gateway([engine.url], seats=1) as running:
        calls = [
            asyncio.create_task(running.chat(headers={"x-request-id": f"c{n}"})) for n in range(2)
        ]
        await running.until(lambda: running.gateway.driver.live_calls == 2)
        live = (await running.http.get("/admin/calls/c1")).json()
        assert live["state"] == "queued"
        assert live["placement"]["deadline_s"] == pytest.approx(60.0)
        assert live["placement"]["workflow_started_s"] == pytest.approx(0.0)
        gate.open.set()
        await asyncio.gather(*calls)
        ended = (await running.http.get("/admin/calls/c1")).json()
        assert ended["arrived_s"] == 0.0
        assert 0.0 < ended["dispatched_s"] <= ended["ended_s"]
        assert ended["ended_s"] == pytest.approx(ended["dispatched_s"], abs=30.0)
        assert ended["placement"]["deadline_s"] == pytest.approx(60.0)
        assert ended["budget"]["deadline_s"] == pytest.approx(60.0)


async def test_an_id_beyond_ascii_comes_back_percent_encoded(running: Running) -> None:
    response = await running.chat(metadata={"workflow_id": "Müller 17"})
    shown = response.headers["x-headway-workflow-id"]
    assert shown == "M%C3%BCller 17"
    told = await running.http.get(f"/v1/workflows/{shown}")
    assert told.json()["id"] == "Müller 17"


async def test_two_calls_of_one_id_that_arrive_together_are_both_served(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = asyncio.Barrier(2)
    start = LiveCall.start_early

    async def start_together(call: LiveCall) -> None:
        await both.wait()
        await start(call)

    monkeypatch.setattr(LiveCall, "start_early", start_together)
    headers = {"x-request-id": "same", "x-headway-early-headers": "1"}
    calls = [running.chat(stream=True, headers=headers) for _ in range(2)]
    for answer in await asyncio.gather(*calls):
        assert answer.headers["x-request-id"] == "same"
        assert answer.text.count('"content":') == 2
        assert "error" not in answer.text
    await running.until_empty()


async def test_the_page_of_metrics_is_written_aside(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    render = Metrics.render

    def noting(metrics: Metrics) -> bytes:
        threads.append(threading.get_ident())
        return render(metrics)

    monkeypatch.setattr(Metrics, "render", noting)
    page = await running.http.get("/metrics")
    assert 'headway_seats{instance="e0"} 4.0' in page.text
    assert 'headway_queue_depth{instance="central"} 0.0' in page.text
    assert threads
    assert threading.get_ident() not in threads


async def test_workflows_that_clients_make_up_do_not_swell_the_metrics(running: Running) -> None:
    for n in range(WORKFLOWS_MAX + 20):
        await running.chat(headers={"x-headway-workflow": f"made-up-{n}"})
    await running.until_empty()
    page = (await running.http.get("/metrics")).text
    families = {f.name: f for f in text_string_to_metric_families(page)}
    names = {s.labels["workflow"] for s in families["headway_workflow_slo"].samples}
    assert len(names) == WORKFLOWS_MAX + 1 <= 200
    assert OTHER in names


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-headway-stage-width", "1" * 5000),
        ("x-headway-stage-width", "12345678901"),
        ("x-headway-stage-width", "00000000001"),
        ("x-headway-slo-ms", "1_000"),
        ("x-headway-final", ""),
    ],
)
async def test_a_number_or_flag_in_a_header_is_read_strictly(
    running: Running, name: str, value: str
) -> None:
    response = await running.http.post(CHAT, json=chat_body(), headers={name: value})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == name
    assert response.json()["error"]["code"] == "invalid_header"


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", None])
async def test_a_body_of_ours_is_json_whatever_it_calls_itself(
    running: Running, kind: str | None
) -> None:
    headers = {} if kind is None else {"content-type": kind}
    cases = [
        ("PUT", "/admin/policy", {"name": "vllm"}, 200),
        ("POST", "/admin/engines", {"id": "new", "url": "http://127.0.0.1:9"}, 201),
        ("POST", "/v1/workflows", {"workflow": "text2sql"}, 201),
    ]
    for method, path, body, status in cases:
        raw = json.dumps(body).encode()
        answer = await running.http.request(method, path, content=raw, headers=headers)
        assert answer.status_code == status
        answer = await running.http.request(method, path, content=raw[:-1], headers=headers)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith("The body is not JSON: ")
    assert (await running.http.get("/admin/policy")).json()["name"] == "vllm"


@pytest.mark.parametrize(
    ("path", "body", "keys"),
    [
        ("/admin/policy", {"name": "vllm", "parms": {}}, "name, params"),
        ("/v1/workflows", {"slo": 1}, "id, workflow, slo_ms, stages"),
        (
            "/v1/workflows",
            {"stages": [{"name": "a", "widht": 2}]},
            "name, width, prompt_tokens, output_tokens, after, kind, candidates",
        ),
    ],
)
async def test_an_unknown_key_is_told_which_there_are(
    running: Running, path: str, body: dict[str, Any], keys: str
) -> None:
    method = "PUT" if path == "/admin/policy" else "POST"
    answer = await running.http.request(method, path, json=body)
    error = answer.json()["error"]
    assert error["message"] == f"{error['param']}: unknown key; expected one of {keys}"


@pytest.mark.parametrize("token", [None, "t0ken"])
async def test_pages_of_other_sites_cannot_use_an_open_admin_api(token: str | None) -> None:
    server = {"admin_token": token}
    async with scripted(ok) as (engine,), gateway([engine.url], server=server) as running:
        bearer = {} if token is None else {"authorization": f"Bearer {token}"}
        path = "/admin/engines/e0/drain"
        for origin in ("https://elsewhere.example", "null"):
            foreign = await running.http.post(path, headers={**bearer, "origin": origin})
            assert foreign.status_code == (403 if token is None else 200)
        own = await running.http.delete(path, headers={**bearer, "origin": running.url})
        assert own.status_code == 200
