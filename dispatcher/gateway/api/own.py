"""Endpoints that the gateway answers itself: models, health, readiness, metrics."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from dispatcher.core.types import RejectReason
from dispatcher.gateway.errors import ApiError, rejection
from dispatcher.gateway.metrics import CONTENT_TYPE
from dispatcher.gateway.parsing.hints import HeaderBag
from dispatcher.gateway.runtime import Gateway


def own_routes(gateway: Gateway) -> APIRouter:
    """The routes."""
    router = APIRouter(tags=["gateway"])

    @router.get("/health", summary="Is the process alive?")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @router.get("/ready", summary="Would a call find an engine?")
    async def ready() -> dict[str, str]:
        gateway.refuse_if_closing()
        if not gateway.ready():
            raise rejection(RejectReason.NO_ENGINE, 1.0)
        return {"status": "ready"}

    @router.get("/metrics", summary="Prometheus metrics", response_class=Response)
    async def metrics() -> Response:
        page = await gateway.metrics.page()
        return Response(page, headers={"content-type": CONTENT_TYPE})

    @router.get("/v1/models", summary="All models of the fleet, aliases included")
    async def models(request: Request) -> dict[str, Any]:
        gateway.tenants.identify(HeaderBag(request.scope["headers"]))
        return {"object": "list", "data": list(_models(gateway).values())}

    @router.get("/v1/models/{model:path}", summary="One model")
    async def model(model: str, request: Request) -> dict[str, Any]:
        gateway.tenants.identify(HeaderBag(request.scope["headers"]))
        found = _models(gateway).get(model)
        if found is None:
            raise ApiError(
                404,
                f"The model `{model[:200]}` does not exist.",
                param="model",
                code="model_not_found",
            )
        return found

    return router


def _models(gateway: Gateway) -> dict[str, dict[str, Any]]:
    """Union over the engines that have been seen; the longest context where they differ."""
    union: dict[str, dict[str, Any]] = {}
    for engine in gateway.fleet.engines:
        for item in engine.served.details if engine.served else ():
            name = str(item["id"])
            known = union.get(name)
            if known is None or _context(item) > _context(known):
                union[name] = {"object": "model", "owned_by": "vllm", **item}
    for alias, target in gateway.settings.models.aliases.items():
        if target in union and alias not in union:
            union[alias] = {**union[target], "id": alias, "root": target}
    return union


def _context(item: dict[str, Any]) -> int:
    length = item.get("max_model_len")
    return length if isinstance(length, int) else 0
