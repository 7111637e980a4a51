"""The scheduled endpoints: raw ASGI, since nothing may stand between an engine and its client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import MutableMapping
from typing import Any

from dispatcher.core.types import CallSpec, Slo
from dispatcher.gateway.api.intake import (
    read_request_body,
    request_id_or_new,
    send_error,
)
from dispatcher.gateway.api.stored import find_holder
from dispatcher.gateway.calls import ID_KEPT, LiveCall, Receive, new_id
from dispatcher.gateway.errors import ApiError, Send, internal_error
from dispatcher.gateway.parsing.body import BodyFacts, parse_json, read_body
from dispatcher.gateway.parsing.hints import HeaderBag, Hints, read_hints
from dispatcher.gateway.parsing.spec import TenantTerms, make_spec
from dispatcher.gateway.relay import DIALECTS, ClientWatch
from dispatcher.gateway.runtime import Gateway

log = logging.getLogger("headway.api")

KEEP_ALIVE_S = 10.0
"""Between two comments on a stream that waits with its headers sent."""


class _Request:
    """One HTTP request on its way in."""

    __slots__ = ("bag", "receive", "request_id", "scope", "send")

    def __init__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.bag = HeaderBag(scope["headers"])
        self.request_id = request_id_or_new(self.bag)


class ScheduledEndpoint:
    """One of the endpoints whose calls the scheduler orders; an ASGI application."""

    def __init__(self, gateway: Gateway, path: str) -> None:
        self._gateway = gateway
        self._path = path
        usual = gateway.settings.slo.latency
        self._usual_stream = Slo(ttft_s=usual.ttft_s, tpot_s=usual.tpot_s)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one request."""
        with self._gateway.guests.visit():
            await self._serve(_Request(scope, receive, send))

    async def _serve(self, request: _Request) -> None:
        receive, send = request.receive, request.send
        model = "unknown"
        gateway = self._gateway
        try:
            gateway.refuse_if_closing()
            tenant = gateway.tenants.identify(request.bag)
            limit_bytes = int(gateway.settings.server.max_body_mb * 1e6)
            # afterwards the driver has it, which ends what it has
            async with gateway.guests.until_cut_off():
                raw = await read_request_body(receive, request.bag, limit_bytes)
                parsed = parse_json(raw)
                default = gateway.only_model() if parsed.get("model") is None else None
                with_text = gateway.predictors.forest is not None
                facts = read_body(self._path, parsed, default, with_text=with_text)
                hints = read_hints(request.bag, facts.parsed)
                model = gateway.resolve_model(facts.model)
                terms = gateway.tenants.terms_for(tenant, request.bag)
                held = facts.previous_response_id
                holder = None if held is None else await find_holder(gateway, held, terms.scope)
            spec = self._spec(request, hints, facts, terms, served=model, holder=holder)
            tenant.enter(gateway.clock())
        except ApiError as error:
            gateway.metrics.request(self._path, model, error.outcome)
            await send_error(send, error, request.request_id)
            return
        except ConnectionResetError:
            gateway.metrics.request(self._path, model, "cancelled")
            return
        except Exception:
            log.exception("request %s could not be read", request.request_id)
            gateway.metrics.request(self._path, model, "internal_error")
            await send_error(send, internal_error(request.request_id), request.request_id)
            return
        try:
            async with ClientWatch(receive) as watch:
                call = self._call(
                    request,
                    spec,
                    facts,
                    raw,
                    watch,
                    scope=terms.scope,
                    single=hints.of_no_workflow,
                )
                await self._run(call, early=hints.early_headers and facts.stream)
        finally:
            tenant.leave()

    def _spec(
        self,
        request: _Request,
        hints: Hints,
        facts: BodyFacts,
        terms: TenantTerms,
        *,
        served: str,
        holder: str | None,
    ) -> CallSpec:
        gateway = self._gateway
        call_id = request.request_id
        if gateway.driver.is_live(call_id):
            call_id = new_id(call_id[:ID_KEPT])
        return make_spec(
            hints,
            facts,
            terms,
            call_id=call_id,
            made_up_workflow_id=f"single-{call_id}",
            served_model=served,
            pinned_to=holder,
            estimate_tokens=gateway.predictors.prompt_tokens.estimate,
            usual_slo_s=gateway.usual_slo_s,
            usual_stream=self._usual_stream,
        )

    def _call(
        self,
        request: _Request,
        spec: CallSpec,
        facts: BodyFacts,
        raw: bytes,
        watch: ClientWatch,
        *,
        scope: str,
        single: bool,
    ) -> LiveCall:
        query = request.scope.get("query_string", b"")
        return LiveCall(
            spec=spec,
            scope=scope,
            path=self._path,
            target=self._path.encode() + (b"?" + query if query else b""),
            dialect=DIALECTS[self._path],
            facts=facts,
            raw=raw,
            headers=request.scope["headers"],
            request_id=request.request_id,
            send=request.send,
            watch=watch,
            arrived_s=self._gateway.clock(),
            single=single,
        )

    async def _run(self, call: LiveCall, *, early: bool) -> None:
        driver = self._gateway.driver

        def gone() -> None:
            # a server tells the end of a response as a disconnect too
            if not call.answered:
                driver.cancel(call)

        call.watch.add(gone)
        try:
            if early:
                await call.start_early()
            driver.submit(call)
            if early:
                await _wait_loudly(call)
            else:
                await call.done
        except OSError:
            # the client went while we were sending it something
            pass
        except Exception:
            log.exception("request %s", call.request_id)
            call.error = call.error or internal_error(call.request_id)
        finally:
            # whatever happened above: the scheduler does not keep a call without a client
            driver.cancel(call)
        if not call.watch.gone:
            await _finish(call, self._gateway.clock())


async def _wait_loudly(call: LiveCall) -> None:
    """Wait for the end, with a comment now and then while no engine answers."""
    while not call.done.done():
        await asyncio.wait({call.done}, timeout=KEEP_ALIVE_S)
        if not call.done.done():
            await call.keep_alive()


async def _finish(call: LiveCall, now_s: float) -> None:
    """Tell the client how it ended, where the relay has not."""
    if call.complete:
        return
    error = call.error
    if error is None and not call.started:
        # ended by the scheduler without a word: it was cancelled with its workflow or replaced
        error = ApiError(410, "The call was cancelled.", code="cancelled")
    try:
        if call.started:
            message = "The call was cut off." if error is None else error.message
            await call.end_with_error(message, 502 if error is None else error.status)
        elif error is not None:
            own = [h for h in call.own_headers(None, now_s) if h[0] != b"x-request-id"]
            await send_error(call.send, error, call.request_id, own)
    except OSError:
        log.debug("request %s: the client went before its error", call.request_id)
