"""The ASGI application of one emulated engine."""

from __future__ import annotations

import hmac
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dispatcher.emulator import errors, tokens
from dispatcher.emulator.engine import VERSION, Engine
from dispatcher.emulator.generation import (
    ADDED_HEADERS,
    Chat,
    Completion,
    Messages,
)
from dispatcher.emulator.responses_route import Responses, not_stored
from dispatcher.emulator.responses_shape import ResponseStore
from dispatcher.emulator.schema import CountTokensRequest, DetokenizeRequest, TokenizeRequest
from dispatcher.emulator.settings import EmulatorSettings

_Handler = Callable[[Request], Awaitable[Response]]


def create_app(settings: EmulatorSettings) -> ASGIApp:
    """Return an application that answers as one vLLM engine would; its lifespan runs the engine.

    Raises:
        ValueError: The replies file cannot be used.
    """
    engine = Engine(settings)
    store = ResponseStore()

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        engine.driver.start()
        yield
        await engine.driver.stop()

    control = _Control(engine, store)
    generating: dict[str, ASGIApp] = {
        "/v1/chat/completions": Chat(engine),
        "/v1/completions": Completion(engine),
        "/v1/responses": Responses(engine, store),
        "/v1/messages": Messages(engine),
    }
    app = Starlette(
        routes=[
            *(Route(path, route, methods=["POST"]) for path, route in generating.items()),
            Route("/v1/messages/count_tokens", _json(control.count_tokens), methods=["POST"]),
            Route("/v1/responses/{response_id}", _json(control.get_response), methods=["GET"]),
            Route(
                "/v1/responses/{response_id}/cancel",
                _json(control.cancel_response),
                methods=["POST"],
            ),
            Route("/v1/models", _json(control.models), methods=["GET"]),
            Route("/health", control.health, methods=["GET"]),
            Route("/ping", control.health, methods=["GET", "POST"]),
            Route("/version", _json(control.version), methods=["GET"]),
            Route("/load", _json(control.load), methods=["GET"]),
            Route("/metrics", control.metrics, methods=["GET"]),
            Route("/tokenize", _json(control.tokenize), methods=["POST"]),
            Route("/detokenize", _json(control.detokenize), methods=["POST"]),
        ],
        exception_handlers={HTTPException: _http_error, errors.EngineApiError: _api_error},
        lifespan=lifespan,
    )
    return _Envelope(
        app,
        generating,
        api_key=settings.api_key,
        request_id_headers=settings.enable_request_id_headers,
    )


class _Envelope:
    """What surrounds every route: the key for /v1, and the headers that vLLM adds.

    Generating routes are called straight from here, since every layer that wraps `send` costs
    each token.
    """

    def __init__(
        self,
        app: ASGIApp,
        generating: dict[str, ASGIApp],
        *,
        api_key: str | None,
        request_id_headers: bool,
    ) -> None:
        self._app = app
        self._generating = generating
        self._authorization = f"Bearer {api_key}".encode() if api_key is not None else None
        self._request_id_headers = request_id_headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if not self._allowed(scope["path"], headers):
            response = Response(b'{"error":"Unauthorized"}', 401, media_type="application/json")
            await response(scope, receive, send)
            return
        added = [(b"vary", b"Origin")]
        if self._request_id_headers:
            request_id = headers.get("x-request-id") or uuid.uuid4().hex
            added.append((b"x-request-id", request_id.encode("latin-1")))
        route = self._generating.get(scope["path"]) if scope["method"] == "POST" else None
        if route is not None:
            scope[ADDED_HEADERS] = added
            await route(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *added]
            await send(message)

        await self._app(scope, receive, send_with_headers)

    def _allowed(self, path: str, headers: Headers) -> bool:
        if self._authorization is None or not path.startswith("/v1"):
            return True
        given = headers.get("authorization", "").encode()
        return hmac.compare_digest(given, self._authorization)


def _json(handler: Callable[[Request], Awaitable[Any]]) -> _Handler:
    async def respond(request: Request) -> Response:
        try:
            content = await handler(request)
        except ClientDisconnect:
            return Response(status_code=499)
        body = content if isinstance(content, bytes) else orjson.dumps(content)
        return Response(body, media_type="application/json")

    return respond


async def _http_error(_request: Request, error: Exception) -> Response:
    """Unknown route or method, as FastAPI words it."""
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for nothing else
    headers = dict(error.headers or {})
    if "Allow" in headers:
        headers["allow"] = headers.pop("Allow").replace("GET, HEAD", "GET").replace("HEAD, ", "")
    body = orjson.dumps({"detail": error.detail})
    return Response(body, error.status_code, headers, media_type="application/json")


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, errors.EngineApiError)  # noqa: S101 - registered for nothing else
    anthropic = request.url.path.startswith("/v1/messages")
    body = error.anthropic_body() if anthropic else error.openai_body()
    return Response(body, error.status, media_type="application/json")


class _Control:
    """Routes that generate nothing."""

    def __init__(self, engine: Engine, store: ResponseStore) -> None:
        self._engine = engine
        self._store = store

    async def health(self, _request: Request) -> Response:
        return Response(status_code=200 if self._engine.driver.healthy else 503)

    async def version(self, _request: Request) -> dict[str, str]:
        return {"version": VERSION}

    async def load(self, _request: Request) -> dict[str, int]:
        return {"server_load": self._engine.load}

    async def metrics(self, _request: Request) -> Response:
        body = self._engine.metrics.render()
        return Response(body, headers={"content-type": CONTENT_TYPE_LATEST})

    async def models(self, _request: Request) -> dict[str, Any]:
        engine = self._engine
        return {"object": "list", "data": [_model_card(engine, name) for name in engine.names]}

    async def get_response(self, request: Request) -> bytes:
        response_id = request.path_params["response_id"]
        stored = self._store.get(response_id)
        if stored is None:
            raise not_stored(response_id)
        return stored.body()

    async def cancel_response(self, request: Request) -> bytes:
        response_id = request.path_params["response_id"]
        stored = self._store.get(response_id)
        if stored is None:
            raise not_stored(response_id)
        if stored.status not in ("queued", "in_progress"):
            raise errors.response_error(400, "Cannot cancel a synchronous response.")
        self._engine.driver.abort(stored.call)
        return stored.body()

    async def count_tokens(self, request: Request) -> dict[str, Any]:
        _raw, body = self._engine.parse(await request.body(), CountTokensRequest)
        prompt = self._engine.chat_prompt(body.messages, tools=body.tools, system=body.system)
        count = len(prompt.ids)
        return {"input_tokens": count, "context_management": {"original_input_tokens": count}}

    async def tokenize(self, request: Request) -> dict[str, Any]:
        raw, body = self._engine.parse(await request.body(), TokenizeRequest)
        if body.messages is not None:
            ids = self._engine.chat_prompt(body.messages, ask=body.add_generation_prompt).ids
        elif body.prompt is not None:
            self._engine.check_chars(len(body.prompt))
            ids = [tokens.BEGIN_ID, *tokens.encode(body.prompt)]
        else:
            raise errors.missing_field("prompt", raw)
        strings = [tokens.decode_one(i) for i in ids] if body.return_token_strs else None
        return {
            "count": len(ids),
            "max_model_len": self._engine.config.max_model_len,
            "tokens": ids,
            "token_strs": strings,
        }

    async def detokenize(self, request: Request) -> dict[str, Any]:
        _raw, body = self._engine.parse(await request.body(), DetokenizeRequest)
        return {"prompt": tokens.decode(body.tokens)}


def _model_card(engine: Engine, name: str) -> dict[str, Any]:
    permission = {
        "id": f"modelperm-{engine.fresh_id()}",
        "object": "model_permission",
        "created": engine.started_at,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    return {
        "id": name,
        "object": "model",
        "created": engine.started_at,
        "owned_by": "vllm",
        "root": engine.names[0],
        "parent": None,
        "max_model_len": engine.config.max_model_len,
        "permission": [permission],
    }
