"""Carrying one request that takes no seat to an engine, and its answer back."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any

from dispatcher.core.types import RejectReason, Usage
from dispatcher.gateway.api.intake import read_request_body, request_id_or_new, send_error
from dispatcher.gateway.api.pieces import relay_pieces
from dispatcher.gateway.calls import Receive
from dispatcher.gateway.errors import ApiError, Send, internal_error, rejection, retry_after
from dispatcher.gateway.fleet.engine import Engine
from dispatcher.gateway.parsing.hints import HeaderBag
from dispatcher.gateway.relay import (
    CHAT,
    ClientGoneError,
    ClientWatch,
    Finish,
    is_event_stream,
    relay_whole,
    request_headers,
    response_headers,
)
from dispatcher.gateway.relay.headers import RawHeaders
from dispatcher.gateway.runtime import Gateway
from dispatcher.gateway.tenants import Tenant
from dispatcher.gateway.upstream import (
    EngineResponse,
    UpstreamConnectError,
    UpstreamError,
    UpstreamTimeoutError,
)
from dispatcher.gateway.verdict import (
    Failure,
    down,
    is_unknown_route,
    judge,
    read_refusal,
    send_whole,
    unreached,
)

log = logging.getLogger("headway.api")

#: Usage of embeddings, scores and ranks is told as that of chats.
_USAGE_DIALECT = CHAT


class Passage:
    """One such request: tried at one engine after the other until one answers."""

    def __init__(
        self, gateway: Gateway, scope: MutableMapping[str, Any], receive: Receive, send: Send
    ) -> None:
        self.gateway = gateway
        self.scope = scope
        self.receive = receive
        self.bag = HeaderBag(scope["headers"])
        self.request_id = request_id_or_new(self.bag)
        #: whether the client has been sent the head of an answer
        self.started = False
        self._send = send

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """ASGI's, noting that it has begun."""
        self.started = True
        await self._send(message)

    async def serve(self, answer: Callable[[], Awaitable[str]]) -> str:
        """Have a request answered, whatever comes; a shutdown waits for it while its grace lasts.

        Args:
            answer: Answers it and returns how it ended, for metrics.

        Returns:
            How it ended.
        """
        guests = self.gateway.guests
        with guests.visit():
            try:
                self.gateway.refuse_if_closing()
                async with guests.until_cut_off():
                    return await answer()
            except ApiError as error:
                return await self._refused(error)
            except (OSError, ClientGoneError):
                return "cancelled"
            except Exception as error:
                log.error("request %s failed", self.request_id, exc_info=error)
                return await self._refused(internal_error(self.request_id), "internal_error")

    async def _refused(self, error: ApiError, outcome: str | None = None) -> str:
        """Tell it, where nothing has been told; the server in front cuts what was begun."""
        if not self.started:
            with contextlib.suppress(OSError):
                await send_error(self.send, error, self.request_id)
        return outcome or error.outcome

    def identify(self) -> Tenant:
        """Who is it? Raises `ApiError`."""
        return self.gateway.tenants.identify(self.bag)

    async def body(self) -> bytes:
        """What does it say? Raises `ApiError`, `ConnectionResetError`."""
        limit_bytes = int(self.gateway.settings.server.max_body_mb * 1e6)
        return await read_request_body(self.receive, self.bag, limit_bytes)

    @contextlib.contextmanager
    def quota(self, tenant: Tenant) -> Iterator[None]:
        """One of the tenant's calls in flight. Raises `ApiError` where it has too many."""
        tenant.enter(self.gateway.clock())
        try:
            yield
        finally:
            tenant.leave()

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

    async def through(
        self, engines: list[Engine], body: bytes, tenant: Tenant, *, pass_404: bool = True
    ) -> str | None:
        """Try engines in turn until one answers.

        Args:
            engines: At least one. `queue.max_attempts` of them may fail, where any of them could
                serve it.
            body: What each of them is sent.
            tenant: Charged for tokens that an engine counts.
            pass_404: Whether one engine's 404 speaks for all; that of an engine which does not have
                the endpoint, since its model is not for it, never does.

        Returns:
            How it ended, for metrics; `None` where every engine said 404, which nobody was told.

        Raises:
            ApiError: All failed; the client has been told nothing.
            ClientGoneError: Nobody is there to be answered.
        """
        failure: Failure | None = None
        left = self.gateway.settings.queue.max_attempts if pass_404 else len(engines)
        async with ClientWatch(self.receive) as watch:
            for engine in engines:
                if not self.gateway.fleet.has_up(engine):
                    # it went while another one was asked, and will not tell so again
                    failure = failure or down(engine.settings.id, engine.last_error)
                    continue
                with self._in_flight(engine):
                    ended = await self._try(engine, body, watch, tenant, pass_404=pass_404)
                if isinstance(ended, str):
                    return ended
                if ended is not None:
                    failure, left = ended, left - 1
                    self.gateway.attempt_failed(ended.reason)
                    log.warning(
                        "request %s: %s failed: %s",
                        self.request_id,
                        engine.settings.id,
                        ended.why,
                    )
                    if not left:
                        break
        if failure is None:
            return None
        error = failure.error()
        if error.status in (429, 503) and not error.headers:
            error.headers = retry_after(1.0, "engine_overloaded")
        raise error

    @contextlib.contextmanager
    def _in_flight(self, engine: Engine) -> Iterator[None]:
        engine.routed_in_flight += 1
        try:
            yield
        finally:
            engine.routed_in_flight -= 1
            if engine.removing:
                self.gateway.fleet.reap(self.gateway.driver.instance_known)

    async def _try(
        self, engine: Engine, body: bytes, watch: ClientWatch, tenant: Tenant, *, pass_404: bool
    ) -> str | Failure | None:
        try:
            # an engine that hangs never answers: it ends with the engine's being down
            async with watch.guard(), asyncio.timeout(None) as limit:
                with engine.telling(functools.partial(limit.reschedule, 0.0)):
                    if not self.gateway.fleet.has_up(engine):
                        return down(engine.settings.id, engine.last_error)
                    response = await self._ask(engine, body)
                    engine.heard_s = self.gateway.clock()
                    success = 200 <= response.status < 300
                    refusal = b"" if success else await read_refusal(response)
        except TimeoutError:
            return down(engine.settings.id, engine.last_error)
        except UpstreamError as error:
            if isinstance(error, UpstreamConnectError | UpstreamTimeoutError):
                self.gateway.fleet.unreachable(engine, str(error))
            return unreached(engine.settings.id, error)
        if success:
            return await self._relay(engine, response, watch, tenant)
        if response.status == 404 and (not pass_404 or is_unknown_route(refusal)):
            return None
        return await self._refuse(engine, response, refusal)

    async def _refuse(
        self, engine: Engine, response: EngineResponse, refusal: bytes
    ) -> str | Failure:
        failure = judge(engine.settings.id, response, refusal)
        if failure is not None:
            return failure
        headers = response_headers(response.headers, extra=self._own_headers(engine))
        headers.append((b"content-length", b"%d" % len(refusal)))
        await send_whole(self.send, response.status, headers, refusal)
        return "client_error"

    async def _ask(self, engine: Engine, body: bytes) -> EngineResponse:
        query = self.scope.get("query_string", b"")
        target = self.scope["path"].encode("latin-1", "replace") + (b"?" + query if query else b"")
        headers = request_headers(
            self.scope["headers"],
            engine_key=engine.settings.api_key,
            request_id=self.request_id,
        )
        return await engine.pool.request(self.scope["method"].encode(), target, headers, body)

    async def _relay(
        self, engine: Engine, response: EngineResponse, watch: ClientWatch, tenant: Tenant
    ) -> str | Failure:
        headers = response_headers(
            response.headers, extra=self._own_headers(engine), keep_length=True
        )
        with engine.telling(response.abort):
            if is_event_stream(response.headers):
                outcome = await relay_pieces(response, self.send, headers=headers, watch=watch)
            else:
                outcome = await relay_whole(
                    response,
                    self.send,
                    _USAGE_DIALECT,
                    headers=headers,
                    watch=watch,
                    clock=self.gateway.clock,
                )
        if outcome.finish is Finish.CLIENT_GONE:
            raise ClientGoneError(outcome.error)
        if outcome.retryable:
            return Failure(502, outcome.error, "cut_short")
        if outcome.finish is not Finish.COMPLETE:
            # the server in front cuts an answer that is left unfinished
            log.warning("request %s: cut short: %s", self.request_id, outcome.error)
            return "engine_error"
        if outcome.usage is not None:
            self._charge(tenant, outcome.usage)
        return "ok"

    def _charge(self, tenant: Tenant, usage: Usage) -> None:
        self.gateway.metrics.used(usage)
        tenant.charge(usage.prompt_tokens + usage.output_tokens, self.gateway.clock())

    def _own_headers(self, engine: Engine) -> RawHeaders:
        return [
            (b"x-request-id", self.request_id.encode("latin-1")),
            (b"x-headway-instance", engine.settings.id.encode()),
        ]
