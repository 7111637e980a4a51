"""Endpoints that take no seat: routed to a fit engine, the one with the least in flight."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import orjson

from dispatcher.core.types import RejectReason
from dispatcher.gateway.api.passage import Passage
from dispatcher.gateway.calls import Receive
from dispatcher.gateway.errors import ApiError, Send, rejection, response_not_found
from dispatcher.gateway.parsing.body import parse_json, read_model
from dispatcher.gateway.runtime import Gateway

ROUTED = (
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/score",
    "/v1/messages/count_tokens",
    "/tokenize",
    "/detokenize",
)


class RoutedEndpoint:
    """An ASGI application for one path."""

    def __init__(self, gateway: Gateway, path: str) -> None:
        self._gateway = gateway
        self._path = path

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one request."""
        passage = Passage(self._gateway, scope, receive, send)
        model = "unknown"

        async def answer() -> str:
            nonlocal model
            tenant = passage.identify()
            raw = await passage.body()
            parsed = parse_json(raw)
            named = read_model(parsed)
            served = None if named is None else self._gateway.resolve_model(named)
            model = served or model
            if served != named or "priority" in parsed:
                # what takes no seat does not order the engines' heaps either
                kept = {key: value for key, value in parsed.items() if key != "priority"}
                raw = orjson.dumps(kept if served is None else {**kept, "model": served})
            with passage.quota(tenant):
                ended = await passage.through(passage.candidates(served), raw, tenant)
            if ended is None:
                raise ApiError(
                    404,
                    f"No engine that is up takes {self._path}"
                    f"{f' for the model `{named}`' if named else ''}.",
                    param="model" if named else None,
                    code="unknown_route",
                )
            return ended

        outcome = "cancelled"
        try:
            outcome = await passage.serve(answer)
        finally:
            self._gateway.metrics.request(self._path, model, outcome)


class StoredResponseEndpoint:
    """`GET /v1/responses/{id}` and `POST /v1/responses/{id}/cancel`: to the engine that holds it.

    Where that is not known (a restart), the engines are asked in turn. Looking at what is there
    computes nothing, so no quota is asked for.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one request."""
        gateway = self._gateway
        passage = Passage(gateway, scope, receive, send)

        async def answer() -> str:
            tenant = passage.identify()
            response_id = scope["path_params"]["response_id"]
            body = await passage.body()
            engines = [e for e in gateway.fleet.engines if e.up]
            terms = gateway.tenants.terms_for(tenant, passage.bag)
            holder = gateway.holder_of(response_id, terms.scope)
            if holder is not None and gateway.fleet.engine(holder) is not None:
                engines = [e for e in engines if e.settings.id == holder]
            if not engines:
                raise rejection(RejectReason.NO_ENGINE, 1.0)
            ended = await passage.through(engines, body, tenant, pass_404=False)
            if ended is None:
                raise response_not_found(response_id)
            return ended

        outcome = "cancelled"
        try:
            outcome = await passage.serve(answer)
        finally:
            gateway.metrics.request("/v1/responses/{id}", "unknown", outcome)
