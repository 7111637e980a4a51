"""The ASGI application: FastAPI for what is asked seldom, the token path straight past it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.routing import Route

from dispatcher.config import Settings
from dispatcher.config.mistakes import known_keys
from dispatcher.gateway.about import VERSION
from dispatcher.gateway.admin.routes import admin_routes
from dispatcher.gateway.api.intake import request_id_or_new
from dispatcher.gateway.api.openapi import describe
from dispatcher.gateway.api.own import own_routes
from dispatcher.gateway.api.routed import ROUTED, RoutedEndpoint, StoredResponseEndpoint
from dispatcher.gateway.api.scheduled import ScheduledEndpoint
from dispatcher.gateway.api.workflows import WORKFLOWS, workflow_routes
from dispatcher.gateway.errors import ApiError, internal_error
from dispatcher.gateway.parsing.body import SCHEDULED
from dispatcher.gateway.parsing.hints import HeaderBag
from dispatcher.gateway.runtime import Gateway
from dispatcher.trained import TrainedLengths
from dispatcher.tuning import Replay
from dispatcher.wording import plain

log = logging.getLogger("headway.app")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

STATE_KEY = "headway.request_id"


class _ResponseId(StringConvertor):
    """Ids of stored responses, which become part of a request line: nothing but plain letters."""

    regex = "[A-Za-z0-9_][A-Za-z0-9_.-]{0,255}"


register_url_convertor("response_id", _ResponseId())


class GatewayApp(FastAPI):
    """FastAPI, but for the scheduled endpoints.

    These are found by their path before any middleware: FastAPI's own exception handling wraps
    `send`, which would cost on every token; they answer their errors themselves.
    """

    fast: dict[str, ScheduledEndpoint]

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one connection event."""
        if scope["type"] == "http":
            endpoint = self.fast.get(scope["path"])
            if endpoint is not None and scope["method"] == "POST":
                await endpoint(scope, receive, send)
                return
            scope[STATE_KEY] = request_id_or_new(HeaderBag(scope["headers"]))
            send = _echoing(send, scope[STATE_KEY].encode("latin-1"))
        await super().__call__(scope, receive, send)


def _echoing(send: Send, request_id: bytes) -> Send:
    """Put the request id on every answer that does not have one."""

    async def echo(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = message.setdefault("headers", [])
            if not any(name == b"x-request-id" for name, _ in headers):
                message["headers"] = [*headers, (b"x-request-id", request_id)]
        await send(message)

    return echo


def create_app(
    settings: Settings,
    *,
    engine_time_scale: float = 1.0,
    on_start: Callable[[Gateway], None] | None = None,
    replay: Replay | None = None,
    trained: TrainedLengths | None = None,
) -> GatewayApp:
    """The application; its gateway lives as long as its lifespan and is `app.state.gateway`.

    Args:
        settings: Checked.
        engine_time_scale: How much faster than their GPU types the engines run (emulated ones).
        on_start: Hears of the gateway once it has started.
        replay: What the tuner plays recent traffic with; none: alpha is not tuned.
        trained: The forest that predicts lengths; none: the catalog's.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        gateway = Gateway(
            settings, engine_time_scale=engine_time_scale, replay=replay, trained=trained
        )
        _add_routes(app, gateway)
        app.state.gateway = gateway
        await gateway.start()
        if on_start is not None:
            on_start(gateway)
        try:
            yield
        finally:
            await gateway.stop()

    app = GatewayApp(
        title="Headway",
        version=VERSION,
        description="Deadline-aware scheduling of LLM workflows over mixed vLLM fleets.",
        lifespan=lifespan,
    )
    app.fast = {}
    app.exception_handler(ApiError)(_api_error)
    app.exception_handler(HTTPException)(_http_error)
    app.exception_handler(RequestValidationError)(_validation_error)
    app.exception_handler(Exception)(_defect)
    return app


def _add_routes(app: FastAPI, gateway: Gateway) -> None:
    scheduled = {path: ScheduledEndpoint(gateway, path) for path in SCHEDULED}
    app.router.routes.extend(
        Route(path, endpoint, methods=["POST"]) for path, endpoint in scheduled.items()
    )
    app.router.routes.extend(
        Route(path, RoutedEndpoint(gateway, path), methods=["POST"]) for path in ROUTED
    )
    stored = StoredResponseEndpoint(gateway)
    one = "/v1/responses/{response_id:response_id}"
    app.router.routes.append(Route(one, stored, methods=["GET"]))
    app.router.routes.append(Route(one + "/cancel", stored, methods=["POST"]))
    app.include_router(own_routes(gateway))
    app.include_router(workflow_routes(gateway))
    app.include_router(admin_routes(gateway))
    describe(app)
    if isinstance(app, GatewayApp):
        app.fast = scheduled


def _response(error: ApiError) -> Response:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in error.headers}
    return Response(
        error.body(), status_code=error.status, media_type="application/json", headers=headers
    )


async def _api_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, ApiError):
        raise error
    return _response(error)


async def _http_error(request: Request, error: Exception) -> Response:
    """Starlette's own: an unknown route, a wrong method."""
    if not isinstance(error, HTTPException):
        raise error
    messages = {
        404: f"There is no {request.method} {request.url.path}.",
        405: f"{request.url.path} does not take {request.method}.",
    }
    headers = [(k.lower().encode(), v.encode()) for k, v in (error.headers or {}).items()]
    codes = {404: "unknown_route", 405: "method_not_allowed"}
    message = messages.get(error.status_code, str(error.detail))
    return _response(
        ApiError(error.status_code, message, code=codes.get(error.status_code), headers=headers)
    )


async def _validation_error(request: Request, error: Exception) -> Response:
    """A body of ours that does not fit: 400 where clients send it, or no JSON; else 422."""
    if not isinstance(error, RequestValidationError):
        raise error
    first = error.errors()[0]
    no_json = first["type"] == "json_invalid"
    at = [] if no_json else [str(part) for part in first["loc"][1:]]
    where = ".".join(at)
    status = 400 if no_json or request.url.path.startswith(WORKFLOWS) else 422
    what = plain(str(first["msg"]))
    model = _body_model(request)
    if no_json:
        what = f"The body is not JSON: {first['ctx']['error']} at character {first['loc'][1]}."
    elif first["type"] == "extra_forbidden" and model is not None:
        what = f"unknown key; expected one of {', '.join(known_keys(model, at))}"
    message = f"{where}: {what}" if where else what
    return _response(ApiError(status, message, param=where or None, code="invalid_body"))


def _body_model(request: Request) -> type[BaseModel] | None:
    """What the body of a route of ours has to fit."""
    route = request.scope.get("route")
    field = route.body_field if isinstance(route, APIRoute) else None
    model = None if field is None else field.field_info.annotation
    return model if isinstance(model, type) and issubclass(model, BaseModel) else None


async def _defect(request: Request, error: Exception) -> Response:
    return _response(internal_error(str(request.scope.get(STATE_KEY, "unknown"))))
