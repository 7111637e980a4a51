"""Endpoints that take no seat: routed to a fit engine, the one with the least in flight."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

import orjson

from dispatcher.core.types import RejectReason
from dispatcher.gateway.api.intake import read_request_body, request_id_or_new, send_error
from dispatcher.gateway.calls import Receive
from dispatcher.gateway.errors import ApiError, Send, internal_error, rejection
from dispatcher.gateway.fleet.engine import Engine
from dispatcher.gateway.parsing.body import parse_json, read_model
from dispatcher.gateway.parsing.hints import HeaderBag
from dispatcher.gateway.relay import ClientWatch, relay_whole, request_headers, response_headers
from dispatcher.gateway.relay.headers import RawHeaders
from dispatcher.gateway.runtime import Gateway
from dispatcher.gateway.upstream import EngineResponse, UpstreamConnectError, UpstreamError

log = logging.getLogger("headway.api")

ROUTED = (
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/score",
    "/v1/messages/count_tokens",
    "/tokenize",
    "/detokenize",
)


class Passage:
    """Carries one request to an engine and its answer back; for what needs no seat."""

    def __init__(
        self, gateway: Gateway, scope: MutableMapping[str, Any], receive: Receive, send: Send
    ):
        self.gateway = gateway
        self.scope = scope
        self.receive = receive
        self.send = send
        self.bag = HeaderBag(scope["headers"])
        self.request_id = request_id_or_new(self.bag)

    async def body(self) -> bytes:
        """Who is it, and what does it say? Raises `ApiError`, `ConnectionResetError`."""
        self.gateway.refuse_if_closing()
        self.gateway.tenants.identify(self.bag)
        limit_bytes = int(self.gateway.settings.server.max_body_mb * 1e6)
        return await read_request_body(self.receive, self.bag, limit_bytes)

    def candidates(self, model: str | None) -> list[Engine]:
        """Engines that are up and serve the model, least loaded first. Raises a 503."""
        driver = self.gateway.driver
        fit = [
            engine
            for engine in self.gateway.fleet.engines
            if engine.takes_new
            and (model is None or (engine.served is not None and model in engine.served.models))
        ]
        if not fit:
            raise rejection(RejectReason.NO_ENGINE, 1.0)
        return sorted(fit, key=lambda e: driver.attempts_at(e.settings.id) + e.routed_in_flight)

    async def ask(self, engine: Engine, body: bytes) -> EngineResponse:
        """Send it on. Raises `UpstreamError`."""
        query = self.scope.get("query_string", b"")
        target = self.scope["path"].encode("latin-1", "replace") + (b"?" + query if query else b"")
        headers = request_headers(
            self.scope["headers"],
            engine_key=engine.settings.api_key,
            request_id=self.request_id,
        )
        try:
            return await engine.pool.request(self.scope["method"].encode(), target, headers, body)
        except UpstreamConnectError as error:
            self.gateway.fleet.unreachable(engine, str(error))
            raise

    async def answer(self, engine: Engine, response: EngineResponse, watch: ClientWatch) -> None:
        """Send the engine's answer back."""
        if response.status in (401, 403):
            response.abort()
            raise ApiError(502, f"Engine {engine.settings.id} does not take the gateway's key.")
        extra: RawHeaders = [
            (b"x-request-id", self.request_id.encode("latin-1")),
            (b"x-headway-instance", engine.settings.id.encode()),
        ]
        headers = response_headers(response.headers, extra=extra, keep_length=True)
        await relay_whole(
            response, self.send, None, headers=headers, watch=watch, clock=self.gateway.clock
        )

    async def first_that_answers(self, engines: list[Engine], body: bytes) -> str:
        """Try engines in turn until one answers; the answer's status, for metrics."""
        failure = "no engine"
        async with ClientWatch(self.receive) as watch:
            for engine in engines:
                engine.routed_in_flight += 1
                try:
                    async with watch.guard():
                        response = await self.ask(engine, body)
                        last = engine is engines[-1]
                        if response.status >= 500 and not last:
                            response.abort()
                            continue
                    await self.answer(engine, response, watch)
                except UpstreamError as error:
                    failure = str(error)
                    continue
                finally:
                    engine.routed_in_flight -= 1
                    if engine.removing:
                        self.gateway.fleet.reap(self.gateway.driver.instance_known)
                return "ok" if response.status < 400 else "client_error"
        raise ApiError(502, f"The engine failed: {failure}", code="engine_failed")


class RoutedEndpoint:
    """An ASGI application for one path."""

    def __init__(self, gateway: Gateway, path: str) -> None:
        self._gateway = gateway
        self._path = path

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one request."""
        passage = Passage(self._gateway, scope, receive, send)
        model, outcome = "unknown", "client_error"
        try:
            raw = await passage.body()
            parsed = parse_json(raw)
            named = read_model(parsed)
            served = None if named is None else self._gateway.resolve_model(named)
            if served is not None:
                model = served
                if served != named:
                    raw = orjson.dumps({**parsed, "model": served})
            outcome = await passage.first_that_answers(passage.candidates(served), raw)
        except ApiError as error:
            outcome = "engine_error" if error.status >= 500 else "client_error"
            await send_error(send, error, passage.request_id)
        except OSError:
            outcome = "cancelled"
        except Exception as error:  # noqa: BLE001 - answered, logged, counted
            outcome = await answer_defect(passage, error)
        finally:
            self._gateway.metrics.request(self._path, model, outcome)


class StoredResponseEndpoint:
    """`GET /v1/responses/{id}` and `POST /v1/responses/{id}/cancel`: to the engine that holds it.

    Where that is not known (a restart), the engines are asked in turn.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one request."""
        passage = Passage(self._gateway, scope, receive, send)
        outcome = "client_error"
        try:
            body = await passage.body()
            response_id = scope["path_params"]["response_id"]
            async with ClientWatch(receive) as watch:
                engine, response = await self._find(passage, response_id, body)
                await passage.answer(engine, response, watch)
            outcome = "ok" if response.status < 400 else "client_error"
        except ApiError as error:
            await send_error(send, error, passage.request_id)
        except OSError:
            outcome = "cancelled"
        except Exception as error:  # noqa: BLE001 - answered, logged, counted
            outcome = await answer_defect(passage, error)
        finally:
            self._gateway.metrics.request("/v1/responses/{id}", "unknown", outcome)

    async def _find(
        self, passage: Passage, response_id: str, body: bytes
    ) -> tuple[Engine, EngineResponse]:
        """The answer of the engine that knows the response. Raises `ApiError`."""
        holder = self._gateway.holder_of(response_id)
        engines = [e for e in self._gateway.fleet.engines if e.up]
        if holder is not None:
            engines = [e for e in engines if e.settings.id == holder]
        if not engines:
            raise rejection(RejectReason.NO_ENGINE, 1.0)
        failure = ""
        for engine in engines:
            try:
                response = await passage.ask(engine, body)
            except UpstreamError as error:
                failure = str(error)
                continue
            if response.status != 404:
                return engine, response
            response.abort()
        if failure:
            raise ApiError(502, f"The engine failed: {failure}", code="engine_failed")
        raise ApiError(
            404,
            f"Response with id '{response_id[:100]}' not found.",
            param="response_id",
            code="response_not_found",
        )


async def answer_defect(passage: Passage, error: Exception) -> str:
    """Log a defect of ours and answer it in OpenAI's shape."""
    log.error("request %s failed", passage.request_id, exc_info=error)
    await send_error(passage.send, internal_error(passage.request_id), passage.request_id)
    return "internal_error"
