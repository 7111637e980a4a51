"""The routes of the admin API."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from dispatcher.catalog import policy_entries
from dispatcher.config import EngineSettings
from dispatcher.core import reports
from dispatcher.core.errors import BadParameterError, ConfigurationError, UnknownNameError
from dispatcher.core.types import CallId
from dispatcher.gateway import slo_report
from dispatcher.gateway.admin.explained import since_arrival
from dispatcher.gateway.admin.guard import check_admin
from dispatcher.gateway.api.guarded import guarded
from dispatcher.gateway.errors import ApiError
from dispatcher.gateway.fleet.engine import Engine
from dispatcher.gateway.runtime import Gateway
from dispatcher.gateway.tuner import NotNowError

WORKFLOWS_LISTED_MAX = 1000
NO_CACHE = dict.fromkeys(
    ("in_flight_tokens", "token_room", "paused_sessions", "paused_tokens", "prompt_tokens"),
)
"""What `reports.cache_state` would say, of an engine that the scheduler does not know."""


class PolicyBody(BaseModel):
    """What to switch to."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, max_length=128)
    params: dict[str, Any] = Field(default={}, description="absent ones take their defaults")


def admin_routes(gateway: Gateway) -> APIRouter:
    """All of them, guarded."""

    def guard(request: Request) -> None:
        check_admin(gateway, request)

    router = APIRouter(prefix="/admin", tags=["admin"], route_class=guarded(gateway, guard))
    _policy_routes(router, gateway)
    _engine_routes(router, gateway)
    _report_routes(router, gateway)
    _tuner_routes(router, gateway)
    return router


def _policy_routes(router: APIRouter, gateway: Gateway) -> None:
    @router.get("/policies", summary="The catalog, parameters as JSON schema")
    async def policies() -> list[dict[str, Any]]:
        return [
            {
                "name": entry.name,
                "summary": entry.summary,
                "paper": entry.paper,
                "parameters": entry.params.model_json_schema(),
            }
            for entry in policy_entries().values()
        ]

    @router.get("/policy", summary="What decides now; `held` calls wait here for any engine")
    async def policy() -> dict[str, Any]:
        return policy_state(gateway)

    @router.put("/policy", summary="Switch; what waits is ordered anew, what runs runs on")
    async def switch(body: PolicyBody) -> dict[str, Any]:
        try:
            gateway.switch_policy(body.name, body.params)
        except UnknownNameError as error:
            raise ApiError(404, str(error), param="name", code="unknown_policy") from error
        except BadParameterError as error:
            at = next(iter(error.mistakes), None)
            param = "params" if at is None else f"params.{at}"
            raise ApiError(422, str(error), param=param, code="bad_parameter") from error
        return policy_state(gateway)


def policy_state(gateway: Gateway) -> dict[str, Any]:
    """Name, parameters as asked for and as they hold, calls by where they are."""
    policy = gateway.coordinator.policy
    known = policy_entries()[policy.name].params
    return {
        "name": policy.name,
        "params": dict(policy.params),
        "effective": known.model_validate(dict(policy.params)).effective(),
        "alpha": gateway.alpha(),
        "late_binding": policy.routing.late_binding,
        "calls": dict(reports.counts(gateway.coordinator)),
    }


def _engine_routes(router: APIRouter, gateway: Gateway) -> None:
    fleet = gateway.fleet

    def found(engine_id: str) -> Engine:
        engine = fleet.engine(engine_id)
        if engine is None:
            raise ApiError(
                404, f"No engine {engine_id[:200]!r} is in the fleet.", code="unknown_engine"
            )
        return engine

    @router.get("/engines", summary="The fleet")
    async def engines() -> list[dict[str, Any]]:
        return [engine_state(gateway, engine) for engine in fleet.engines + fleet.pending]

    @router.post("/engines", summary="Add an engine", status_code=201)
    async def add(body: EngineSettings) -> dict[str, Any]:
        known = fleet.engine(body.id)
        pending = any(engine.settings.id == body.id for engine in fleet.pending)
        if known is not None and (pending or not known.removing):
            why = f"engine {body.id!r} is {'waited for' if pending else 'in the fleet'} already"
            raise ApiError(409, why, param="id", code="engine_exists")
        try:
            engine = gateway.add_engine(body)
        except ConfigurationError as error:
            raise ApiError(422, str(error), param="url", code="invalid_engine") from error
        return engine_state(gateway, engine)

    # before the routes whose id, which may have slashes, would swallow the last word
    @router.post("/engines/{engine_id:path}/drain", summary="Give an engine nothing new")
    async def drain(engine_id: str) -> dict[str, Any]:
        engine = found(engine_id)
        fleet.drain(engine)
        return engine_state(gateway, engine)

    @router.delete("/engines/{engine_id:path}/drain", summary="Give it new calls again")
    async def undrain(engine_id: str) -> dict[str, Any]:
        engine = found(engine_id)
        try:
            fleet.undrain(engine)
        except ConfigurationError as error:
            raise ApiError(409, str(error), code="engine_leaving") from error
        return engine_state(gateway, engine)

    @router.delete(
        "/engines/{engine_id:path}", summary="Remove an engine once its calls have ended"
    )
    async def remove(engine_id: str) -> dict[str, Any]:
        engine = found(engine_id)
        fleet.drain(engine, remove=True)
        state = engine_state(gateway, engine)
        fleet.reap(gateway.driver.instance_known)
        return state


def engine_state(gateway: Gateway, engine: Engine) -> dict[str, Any]:
    """One engine, JSON-ready; never its key."""
    gauges, seats = None, None
    cache: dict[str, object] = {}
    # whose id is another one's as yet
    pending = engine in gateway.fleet.pending
    for instance in gateway.coordinator.fleet:
        if instance.instance_id == engine.settings.id and not pending:
            gauges, seats = instance.gauges, instance.seats
            cache = reports.cache_state(gateway.coordinator, instance, gateway.clock())
    return {
        "id": engine.settings.id,
        "url": engine.settings.url,
        "gpu": engine.settings.gpu,
        "up": engine.up,
        "draining": engine.draining,
        "removing": engine.removing,
        "pending": pending,
        "since_s": gateway.clock() - engine.since_s,
        "last_error": engine.last_error or None,
        "models": list(engine.served.models) if engine.served else [],
        "max_model_len": engine.served.max_model_len if engine.served else None,
        "kv_block_tokens": engine.kv_block_tokens,
        "kv_capacity_tokens": engine.kv_capacity_tokens,
        "offload_tokens": engine.spec().offload_tokens if engine.served else None,
        **NO_CACHE,
        **cache,
        "seats": seats,
        "seats_setting": engine.settings.seats,
        "in_flight": 0 if pending else gateway.driver.attempts_at(engine.settings.id),
        "sends_priority": engine.sends_priority,
        "engine_says": None
        if gauges is None
        else {
            "running": gauges.running,
            "waiting": gauges.waiting,
            "kv_usage": gauges.kv_usage,
            "preemptions_total": gauges.preemptions_total,
            "prefix_cache": None
            if engine.prefix_cache is None
            else dataclasses.asdict(engine.prefix_cache),
        },
    }


def _report_routes(router: APIRouter, gateway: Gateway) -> None:
    @router.get("/queues", summary="What waits and what is in flight, per instance")
    async def queues() -> Mapping[str, object]:
        return reports.queues(gateway.coordinator, gateway.clock())

    @router.get("/workflows", summary="Live workflows, oldest first")
    async def workflows() -> list[Mapping[str, object]]:
        return list(gateway.tracker.workflows()[:WORKFLOWS_LISTED_MAX])

    @router.get("/calls/{call_id:path}", summary="One decision explained, live or of late")
    async def call(call_id: str) -> Mapping[str, object]:
        now_s = gateway.clock()
        found = reports.explain_call(gateway.coordinator, CallId(call_id), now_s)
        if found is None:
            raise ApiError(
                404, f"No call {call_id[:200]!r} is known (any more).", code="call_not_found"
            )
        told = {key: value for key, value in found.items() if key != "call_class"}
        judged = slo_report.of_call(gateway.coordinator, CallId(call_id))
        return {**since_arrival(told, now_s), **judged}

    @router.get("/predictors", summary="Samples, coverage, error, fallbacks")
    async def predictors() -> dict[str, object]:
        return {
            **gateway.predictors.told(),
            "workflows": gateway.tracker.stats(),
            "stage_fits": gateway.stage_models.stats(),
            "coverage": {str(q): s for q, s in gateway.metrics.coverage.shares().items()},
        }


def _tuner_routes(router: APIRouter, gateway: Gateway) -> None:
    @router.get("/tuner", summary="Alpha: its value, its history and the reasons")
    async def tuner() -> dict[str, object]:
        return gateway.tuner.state()

    @router.post("/tuner/run", summary="Tune now; answers when it is done")
    async def tune() -> Mapping[str, object]:
        try:
            return await gateway.tuner.run_now()
        except NotNowError as error:
            raise ApiError(409, f"Nothing is tuned: {error}.", code=error.code) from error

    @router.get("/recording", summary="The trace file that live traffic is recorded to")
    async def recording() -> dict[str, object]:
        own = gateway.recording
        return {"path": None, "status": "off"} if own is None else own.state()
