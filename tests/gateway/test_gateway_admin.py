"""The admin API, metrics and workflows: what a user sees and changes while calls flow."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from gateway_harness import Gate, chat_body, emulated, failing, gateway, ok, scripted
from prometheus_client.parser import text_string_to_metric_families

from dispatcher.catalog import policy_entries

FAMILIES = {
    "headway_requests": "counter",
    "headway_request_duration_seconds": "histogram",
    "headway_time_to_first_token_seconds": "histogram",
    "headway_time_per_output_token_seconds": "histogram",
    "headway_queue_wait_seconds": "histogram",
    "headway_queue_depth": "gauge",
    "headway_in_flight": "gauge",
    "headway_backlog_seconds": "gauge",
    "headway_seats": "gauge",
    "headway_in_flight_tokens": "gauge",
    "headway_kv_capacity_tokens": "gauge",
    "headway_paused_sessions": "gauge",
    "headway_paused_tokens": "gauge",
    "headway_prompt_tokens": "counter",
    "headway_engine_up": "gauge",
    "headway_dispatch_decision_seconds": "histogram",
    "headway_workflow_duration_seconds": "histogram",
    "headway_workflow_slo": "counter",
    "headway_slo": "counter",
    "headway_service_gain": "counter",
    "headway_goodput_tokens": "counter",
    "headway_token_lag_seconds": "histogram",
    "headway_class_time_to_first_token_seconds": "histogram",
    "headway_class_request_duration_seconds": "histogram",
    "headway_length_prediction_coverage": "gauge",
    "headway_length_estimates": "counter",
    "headway_length_estimate_seconds": "histogram",
    "headway_length_forest_trainings": "counter",
    "headway_length_forest_state": "gauge",
    "headway_length_forest_calls": "gauge",
    "headway_tokens": "counter",
    "headway_retries": "counter",
    "headway_preemptions": "counter",
    "headway_policy_info": "gauge",
    "headway_alpha": "gauge",
}


async def test_metrics_parse_and_have_every_family() -> None:
    async with emulated(1) as (url,), gateway([url]) as running:
        headers = {"x-headway-workflow-id": "w", "x-headway-final": "1"}
        for _ in range(8):
            await running.chat(max_tokens=4, stream=True, headers=headers)
        await running.until_empty()
        page = await running.http.get("/metrics")
        assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
        families = {f.name: f for f in text_string_to_metric_families(page.text)}
        assert {name: f.type for name, f in families.items()} == FAMILIES
        values = {
            (s.name, *s.labels.values()): s.value for f in families.values() for s in f.samples
        }
        assert values["headway_requests_total", "/v1/chat/completions", "llama-3.1-8b", "ok"] == 8
        assert values["headway_tokens_total", "output"] == 32
        assert values["headway_engine_up", "e0"] == 1
        assert values["headway_policy_info", "hexgen-flow"] == 1
        assert values["headway_workflow_slo_total", "met", "default"] == 8
        assert values["headway_time_to_first_token_seconds_count",] == 8


async def test_client_supplied_labels_are_bounded() -> None:
    from dispatcher.gateway.metrics import BoundedLabels

    labels = BoundedLabels(2)
    assert [labels(name) for name in ("a", "b", "c", "a")] == ["a", "b", "other", "a"]


async def test_policies_are_switched_while_calls_wait_and_none_is_lost() -> None:
    gate = Gate()
    async with (
        scripted(gate, gate) as engines,
        gateway([e.url for e in engines], seats=2) as running,
    ):
        calls = [asyncio.create_task(running.chat(str(n))) for n in range(60)]
        await running.until(lambda: running.gateway.driver.live_calls == 60)
        for name in [*policy_entries(), *policy_entries()]:
            switched = await running.http.put("/admin/policy", json={"name": name})
            assert switched.status_code == 200
            assert switched.json()["name"] == name
            assert switched.json()["calls"]["waiting"] == 56
            page = (await running.http.get("/metrics")).text
            assert f'headway_policy_info{{name="{name}"}} 1.0' in page
        gate.open.set()
        answers = await asyncio.gather(*calls)
        assert {a.status_code for a in answers} == {200}
        await running.until_empty()


async def test_what_a_form_makes_of_parameters_is_shown() -> None:
    async with scripted(ok) as (engine,), gateway([engine.url]) as running:
        asked = {"name": "llmsched", "params": {"form": "paper", "measure": "work"}}
        switched = (await running.http.put("/admin/policy", json=asked)).json()
        assert switched == (await running.http.get("/admin/policy")).json()
        # as asked for, so that another form can be asked for with the rest as it is
        names = ("form", "placement", "measure", "overdue_share")
        assert [switched["params"][n] for n in names] == ["paper", None, "work", None]
        assert [switched["effective"][n] for n in names] == ["paper", "count", "work", 0.0]
        again = {"name": "llmsched", "params": {**switched["params"], "form": "settled"}}
        settled = (await running.http.put("/admin/policy", json=again)).json()
        assert [settled["effective"][n] for n in names] == ["settled", "speed", "work", 0.02]


@pytest.mark.parametrize(
    ("body", "status", "param", "says"),
    [
        ({"name": "nope"}, 404, "name", "no policy is called 'nope'"),
        (
            {"name": "hexgen-flow", "params": {"alpha": 7}},
            422,
            "params.alpha",
            "hexgen-flow: alpha = 7: expected",
        ),
        (
            {"name": "hexgen-flow", "params": {"beta2": 1}},
            422,
            "params.beta2",
            "hexgen-flow: beta2 = 1: no such",
        ),
        (
            {"name": "heteroserve", "params": {"bins": [5, 3]}},
            422,
            "params.bins",
            "heteroserve: bins must be",
        ),
        (
            {"name": "augserve", "params": {"beta_low": 2.0}},
            422,
            "params.beta_low",
            "augserve: beta_low = 2.0",
        ),
        ({}, 422, "name", "name: missing"),
        ({"name": "vllm", "params": 7}, 422, "params", "params: expected keys and values"),
    ],
)
async def test_a_switch_that_cannot_be_changes_nothing(
    body: dict[str, Any], status: int, param: str, says: str
) -> None:
    async with scripted(ok) as (engine,), gateway([engine.url]) as running:
        before = (await running.http.get("/admin/policy")).json()
        response = await running.http.put("/admin/policy", json=body)
        assert response.status_code == status
        error = response.json()["error"]
        assert error["param"] == param
        assert error["message"].startswith(says)
        assert (await running.http.get("/admin/policy")).json() == before


async def test_the_catalog_is_listed_with_schemas() -> None:
    async with scripted(ok) as (engine,), gateway([engine.url]) as running:
        listed = (await running.http.get("/admin/policies")).json()
        assert [entry["name"] for entry in listed] == list(policy_entries())
        hexgen = next(entry for entry in listed if entry["name"] == "hexgen-flow")
        assert "alpha" in hexgen["parameters"]["properties"]
        assert hexgen["paper"]


async def test_engines_are_added_drained_and_removed_live() -> None:
    gate = Gate()
    async with scripted(gate, ok) as (first, second), gateway([first.url]) as running:
        held = asyncio.create_task(running.chat())
        await running.until(lambda: gate.waiting == 1)
        added = await running.http.post(
            "/admin/engines", json={"id": "new", "url": second.url, "seats": 2}
        )
        assert added.status_code == 201
        twice = await running.http.post("/admin/engines", json={"id": "new", "url": second.url})
        assert twice.status_code == 409
        await running.until_up(2)
        removed = await running.http.delete("/admin/engines/e0")
        assert removed.json()["removing"] is True
        assert (await running.chat()).headers["x-headway-instance"] == "new"
        assert not held.done()
        gate.open.set()
        assert (await held).status_code == 200
        await running.until(lambda: len(running.gateway.fleet.engines) == 1)
        drained = await running.http.post("/admin/engines/new/drain")
        assert drained.json()["draining"] is True
        assert (await running.chat()).status_code == 503
        assert (await running.http.get("/ready")).status_code == 503


async def test_queues_and_calls_explain_themselves() -> None:
    gate = Gate()
    async with scripted(gate) as (engine,), gateway([engine.url], seats=1) as running:
        calls = [
            asyncio.create_task(running.chat(headers={"x-request-id": f"c{n}"})) for n in range(3)
        ]
        await running.until(lambda: running.gateway.driver.live_calls == 3)
        queues = (await running.http.get("/admin/queues")).json()
        own = queues["instances"]["e0"]
        assert own["seats"] == 1
        assert len(own["in_flight"]) == 1
        assert {"call_id", "key", "urgency_s", "slack_s"} <= own["waiting"][0].keys()
        waiting = own["waiting"][0]["call_id"]
        explained = (await running.http.get(f"/admin/calls/{waiting}")).json()
        assert explained["state"] == "queued"
        gate.open.set()
        await asyncio.gather(*calls)
        explained = (await running.http.get(f"/admin/calls/{waiting}")).json()
        assert explained["state"] == "ended"
        assert (await running.http.get("/admin/predictors")).json()["prompt_tokens"]
        assert "alpha" in (await running.http.get("/admin/tuner")).json()
        assert (await running.http.post("/admin/tuner/run")).status_code == 409


async def test_a_workflow_is_quoted_explained_and_listed() -> None:
    async with scripted(ok) as (engine,), gateway([engine.url]) as running:
        declared = await running.http.post(
            "/v1/workflows",
            json={
                "workflow": "text2sql",
                "slo_ms": 60000,
                "stages": [{"name": "link"}, {"name": "write", "width": 3}],
            },
        )
        assert declared.status_code == 201
        quote = declared.json()["quote"]
        assert quote["feasible"] is True
        assert quote["earliest_finish_s"] > 0
        workflow_id = declared.json()["id"]
        listed = (await running.http.get("/admin/workflows")).json()
        assert [entry["id"] for entry in listed] == [workflow_id]
        headers = {
            "x-headway-workflow-id": workflow_id,
            "x-headway-workflow": "text2sql",
            "x-headway-stage": "link",
        }
        await running.chat(headers=headers)
        await running.until_empty()
        explained = (await running.http.get(f"/v1/workflows/{workflow_id}")).json()
        assert explained["stages"][0]["name"] == "link"
        assert explained["workflow"] == "text2sql"
        circular = await running.http.post(
            "/v1/workflows", json={"stages": [{"name": "a", "after": ["a"]}]}
        )
        assert circular.status_code == 400


async def test_the_admin_api_asks_for_its_token() -> None:
    server = {"admin_token": "t0ken"}
    async with scripted(ok) as (engine,), gateway([engine.url], server=server) as running:
        for headers in ({}, {"authorization": "Bearer wrong"}):
            response = await running.http.get("/admin/policy", headers=headers)
            assert response.status_code == 401
        good = {"authorization": "Bearer t0ken"}
        assert (await running.http.get("/admin/policy", headers=good)).status_code == 200


async def test_quotas_of_a_tenant() -> None:
    gate = Gate()
    tenants = [
        {"name": "narrow", "api_key": "n", "max_in_flight": 1},
        {"name": "small", "api_key": "s", "tokens_per_minute": 10},
    ]
    async with scripted(gate) as (engine,), gateway([engine.url], tenants=tenants) as running:
        narrow, small = {"authorization": "Bearer n"}, {"authorization": "Bearer s"}
        first = asyncio.create_task(running.chat(headers=narrow))
        await running.until(lambda: gate.waiting == 1)
        second = await running.chat(headers=narrow)
        assert second.status_code == 429
        assert second.headers["x-headway-dropped-reason"] == "tenant_in_flight"
        assert int(second.headers["retry-after"]) >= 1
        gate.open.set()
        assert (await first).status_code == 200
        assert (await running.chat(headers=narrow)).status_code == 200
        assert [(await running.chat(headers=small)).status_code for _ in range(3)] == [
            200,
            200,
            429,
        ]


async def test_a_full_queue_says_when_to_come_back() -> None:
    gate = Gate()
    queue = {"max_calls": 1}
    async with scripted(gate) as (engine,), gateway([engine.url], seats=1, queue=queue) as running:
        calls = [asyncio.create_task(running.chat()) for _ in range(2)]
        await running.until(lambda: running.gateway.driver.live_calls == 2)
        response = await running.chat()
        assert response.status_code == 429
        assert response.headers["x-headway-dropped-reason"] == "queue_full"
        assert int(response.headers["retry-after"]) >= 1
        gate.open.set()
        await asyncio.gather(*calls)


async def test_a_call_that_waits_too_long_is_told_so() -> None:
    gate = Gate()
    queue = {"max_wait_s": 0.05}
    async with scripted(gate) as (engine,), gateway([engine.url], seats=1, queue=queue) as running:
        first = asyncio.create_task(running.chat())
        await running.until(lambda: gate.waiting == 1)
        response = await running.chat()
        assert response.status_code == 429
        assert response.headers["x-headway-dropped-reason"] == "queue_timeout"
        gate.open.set()
        assert (await first).status_code == 200


async def test_a_gateway_that_ends_finishes_what_is_here_and_takes_nothing_new() -> None:
    gate = Gate()
    async with scripted(gate) as (engine,), gateway([engine.url], seats=1) as running:
        calls = [asyncio.create_task(running.chat()) for _ in range(3)]
        await running.until(lambda: running.gateway.driver.live_calls == 3)
        draining = asyncio.create_task(running.gateway.drain(30))
        await asyncio.sleep(0)
        refused = await running.chat()
        assert refused.status_code == 503
        assert refused.headers["x-headway-dropped-reason"] == "shutting_down"
        assert refused.headers["retry-after"]
        assert (await running.http.get("/ready")).status_code == 503
        gate.open.set()
        assert await draining is True
        assert [(await call).status_code for call in calls] == [200] * 3


async def test_a_gateway_whose_grace_runs_out_tells_the_clients() -> None:
    gate = Gate()
    async with scripted(gate) as (engine,), gateway([engine.url], seats=1) as running:
        calls = [asyncio.create_task(running.chat()) for _ in range(2)]
        await running.until(lambda: running.gateway.driver.live_calls == 2)
        assert await running.gateway.drain(0.01) is False
        for call in calls:
            response = await call
            assert response.status_code == 503
            assert response.json()["error"]["code"] == "shutting_down"
        await running.until(lambda: gate.gone == 1)


async def test_docs_list_the_scheduled_endpoints() -> None:
    async with scripted(failing(500)) as (engine,), gateway([engine.url]) as running:
        paths = (await running.http.get("/openapi.json")).json()["paths"]
        assert {
            "/v1/chat/completions",
            "/v1/responses",
            "/v1/messages",
            "/tokenize",
        } <= paths.keys()
        assert (await running.http.get("/docs")).status_code == 200
        assert chat_body()["model"]
