"""One attempt of one call at one engine: request, judge the answer, relay it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from dispatcher.core.commands import Dispatch
from dispatcher.core.events import AttemptEnded, Event, FirstToken, Progress
from dispatcher.core.types import AttemptId, Outcome, Usage
from dispatcher.gateway.calls import LiveCall
from dispatcher.gateway.errors import Send
from dispatcher.gateway.fleet.engine import Engine
from dispatcher.gateway.parsing.body import RESPONSES
from dispatcher.gateway.relay import (
    Finish,
    RelayOutcome,
    edit_body,
    is_event_stream,
    relay_whole,
    request_headers,
    response_headers,
    wants_usage,
)
from dispatcher.gateway.relay.headers import RawHeaders
from dispatcher.gateway.relay.pump import StreamPump
from dispatcher.gateway.relay.timeline import Timeline
from dispatcher.gateway.relay.tool_calls import ToolListener
from dispatcher.gateway.upstream import (
    EngineResponse,
    UpstreamConnectError,
    UpstreamError,
    UpstreamTimeoutError,
)
from dispatcher.gateway.verdict import (
    Failure,
    judge,
    message_of,
    read_refusal,
    send_whole,
    unreached,
)

#: Before an engine is sent a call again that it has failed; doubled each time.
RETRY_PAUSE_S = 0.25
RETRY_PAUSE_MAX_S = 2.0
_FINISH_REASONS = {
    Finish.CUT_SHORT: "cut_short",
    Finish.ENGINE_ERROR: "engine_error",
    Finish.STALLED: "stalled",
}


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """How an attempt ended, as the coordinator wants to hear it; plus a reason for metrics."""

    outcome: Outcome
    usage: Usage | None = None
    output_tokens: int = 0
    first_token_s: float | None = None
    retryable: bool = False
    detail: str = ""
    reason: str = ""
    """Why a retryable attempt failed: a small set, fit for a metric label."""
    token_lag_s: float | None = None
    """See `CallRecord.token_lag_s`."""
    tool: str | None = None
    """See `AttemptEnded.tool`."""

    def event(self, attempt_id: AttemptId) -> AttemptEnded:
        """The event that answers the `Dispatch`."""
        return AttemptEnded(
            attempt_id=attempt_id,
            outcome=self.outcome,
            usage=self.usage,
            output_tokens=self.output_tokens,
            first_token_s=self.first_token_s,
            retryable=self.retryable,
            detail=self.detail,
            token_lag_s=self.token_lag_s,
            tool=self.tool,
        )


class EngineDirectory(Protocol):
    """Where attempts find their engines, and tell what they met there."""

    def engine(self, instance_id: str) -> Engine | None:
        """The engine behind an instance."""

    def unreachable(self, engine: Engine, why: str) -> None:
        """No connection could be made to it."""

    def stalled(self, engine: Engine) -> None:
        """A stream of it fell silent."""


class _Listener:
    """Turns what the relay notices into events."""

    __slots__ = ("_attempt_id", "_engine", "_post")

    def __init__(
        self, post: Callable[[Event], None], attempt_id: AttemptId, engine: Engine
    ) -> None:
        self._post = post
        self._attempt_id = attempt_id
        self._engine = engine

    def first_token(self, now_s: float) -> None:
        self._engine.heard_s = now_s
        self._post(FirstToken(self._attempt_id))

    def progress(self, now_s: float, output_tokens: int) -> None:
        self._engine.heard_s = now_s
        self._post(Progress(self._attempt_id, output_tokens))


class AttemptRunner:
    """Runs attempts; holds nothing of any of them."""

    def __init__(
        self,
        engines: EngineDirectory,
        *,
        clock: Callable[[], float],
        stall_timeout_s: float,
        remember_response: Callable[[str, str, str], None],
    ) -> None:
        """`remember_response(response id, instance id, scope)` hears of stored responses."""
        self._engines = engines
        self._clock = clock
        self._stall_timeout_s = stall_timeout_s
        self._remember_response = remember_response

    async def run(
        self, call: LiveCall, dispatch: Dispatch, post: Callable[[Event], None]
    ) -> AttemptResult:
        """Try once. Never raises for what an engine or a client does.

        An engine that has failed this call gets it again after a pause only: one that dies refuses
        all the attempts that a call has before it is seen to be down.
        """
        failed = call.failed_at.get(dispatch.instance_id, 0)
        if failed:
            await asyncio.sleep(min(RETRY_PAUSE_MAX_S, RETRY_PAUSE_S * 2 ** (failed - 1)))
        result = await self._try(call, dispatch, post)
        if result.retryable:
            call.failed_at[dispatch.instance_id] = failed + 1
        return result

    async def _try(
        self, call: LiveCall, dispatch: Dispatch, post: Callable[[Event], None]
    ) -> AttemptResult:
        engine = self._engines.engine(dispatch.instance_id)
        if engine is None:
            return _failed(call, Failure(503, "the engine has left the fleet", "down"))
        while True:
            priority = dispatch.engine_priority if engine.sends_priority else None
            try:
                response = await self._request(call, engine, priority)
                engine.heard_s = self._clock()
                if 200 <= response.status < 300:
                    return await self._relay(call, engine, response, dispatch, post)
                refusal = await read_refusal(response)
            except UpstreamError as error:
                if isinstance(error, UpstreamConnectError | UpstreamTimeoutError):
                    self._engines.unreachable(engine, str(error))
                return _failed(call, unreached(engine.settings.id, error))
            if priority is not None and engine.refuses_priority(response.status, refusal):
                continue
            failure = judge(engine.settings.id, response, refusal)
            if failure is not None:
                return _failed(call, failure)
            return await self._refuse(call, engine, response, refusal)

    async def _request(
        self, call: LiveCall, engine: Engine, priority: int | None
    ) -> EngineResponse:
        served = call.spec.model
        # The body's field where there is one, since every engine with priorities heeds it; the
        # header, which only newer ones read, where Anthropic's API leaves no other way.
        in_body = call.dialect.priority_in_body
        body = edit_body(
            call.raw,
            call.facts.parsed,
            call.dialect,
            priority=priority if in_body else None,
            model=None if call.facts.parsed.get("model") == served else served,
        )
        headers = request_headers(
            call.headers,
            engine_key=engine.settings.api_key,
            request_id=call.request_id,
            priority=None if in_body else priority,
        )
        return await engine.pool.request(b"POST", call.target, headers, body)

    async def _relay(
        self,
        call: LiveCall,
        engine: Engine,
        response: EngineResponse,
        dispatch: Dispatch,
        post: Callable[[Event], None],
    ) -> AttemptResult:
        own = call.own_headers(engine.settings.id, self._clock())
        stream = is_event_stream(response.headers)
        headers = response_headers(response.headers, extra=own, keep_length=not stream)
        send = self._noting_response_id(call, engine) if call.path == RESPONSES else call.send
        if not stream:
            return await self._relay_whole(call, response, send, headers)
        # who was offered no tools asks for none; then nothing needs to be looked at
        heard = ToolListener(call.dialect) if call.facts.parsed.get("tools") else None
        pump = StreamPump(
            response,
            send,
            heard or call.dialect,
            headers=headers,
            clock=self._clock,
            strip_usage=not wants_usage(call.facts.parsed),
            observer=_Listener(post, dispatch.attempt_id, engine),
            started=call.started,
            stall_timeout_s=self._stall_timeout_s,
            timeline=_timeline(call, dispatch),
        )
        call.pump = pump
        call.watch.add(pump.client_gone)
        try:
            outcome = await pump.run()
        finally:
            call.watch.discard(pump.client_gone)
            call.relayed(pump.outcome)
        if outcome.finish is Finish.STALLED:
            self._engines.stalled(engine)
        tool = None if heard is None else heard.tool(outcome.last_tokens)
        return await self._account(call, outcome, tool)

    async def _relay_whole(
        self, call: LiveCall, response: EngineResponse, send: Send, headers: RawHeaders
    ) -> AttemptResult:
        async def noting_start(message: MutableMapping[str, Any]) -> None:
            call.started = call.sent = True
            await send(message)

        heard = ToolListener(call.dialect)
        outcome = await relay_whole(
            response,
            noting_start,
            heard,
            headers=headers,
            watch=call.watch,
            clock=self._clock,
            started=call.started,
        )
        call.complete = outcome.response_complete
        return await self._account(call, outcome, heard.tool())

    async def _account(
        self, call: LiveCall, outcome: RelayOutcome, tool: str | None
    ) -> AttemptResult:
        result = AttemptResult(
            outcome=Outcome.OK,
            usage=outcome.usage,
            output_tokens=outcome.output_tokens,
            first_token_s=outcome.first_token_s,
            token_lag_s=_token_lag_s(call, outcome),
        )
        if outcome.finish is Finish.COMPLETE:
            return replace(result, tool=tool)
        if outcome.finish is Finish.CLIENT_GONE:
            return replace(result, outcome=Outcome.CANCELLED, detail="the client hung up")
        if outcome.finish is Finish.REFUSED:
            return replace(result, outcome=Outcome.CLIENT_ERROR, detail=outcome.error)
        reason = _FINISH_REASONS[outcome.finish]
        if outcome.retryable:
            return _failed(call, Failure(502, outcome.error, reason))
        await call.end_with_error(f"The engine failed: {outcome.error}", 502)
        return replace(result, outcome=Outcome.ENGINE_ERROR, detail=outcome.error, reason=reason)

    async def _refuse(
        self, call: LiveCall, engine: Engine, response: EngineResponse, refusal: bytes
    ) -> AttemptResult:
        """The request is at fault: its client hears what the engine said."""
        said = message_of(refusal)
        if call.started:
            await call.end_with_error(said, response.status)
        else:
            own = call.own_headers(engine.settings.id, self._clock())
            headers = response_headers(response.headers, extra=own)
            headers.append((b"content-length", b"%d" % len(refusal)))
            call.started = call.sent = call.complete = True
            await send_whole(call.send, response.status, headers, refusal)
        return AttemptResult(Outcome.CLIENT_ERROR, detail=said)

    def _noting_response_id(self, call: LiveCall, engine: Engine) -> Send:
        """Learn which engine holds the response, from the first bytes that pass."""
        found = False

        async def send(message: MutableMapping[str, Any]) -> None:
            nonlocal found
            if not found and message.get("body"):
                found = True
                response_id = _response_id(message["body"])
                if response_id is not None:
                    self._remember_response(response_id, engine.settings.id, call.scope)
            await call.send(message)

        return send


def _failed(call: LiveCall, failure: Failure) -> AttemptResult:
    """Nothing has reached the client: another instance may try."""
    call.failure = failure.error()
    return AttemptResult(
        Outcome.ENGINE_ERROR, retryable=True, detail=failure.why, reason=failure.reason
    )


def _timeline(call: LiveCall, dispatch: Dispatch) -> Timeline | None:
    """What its tokens are held against, where a pace was promised.

    A resume goes on with it; after an attempt of which nobody has seen a token it begins anew.
    """
    slo = call.spec.slo
    if slo.tpot_s is not None and (call.timeline is None or not dispatch.generated_tokens):
        call.timeline = Timeline(call.arrived_s, slo, call.spec.seats)
    return call.timeline


def _token_lag_s(call: LiveCall, outcome: RelayOutcome) -> float | None:
    if call.timeline is not None:
        output_tokens = None if outcome.usage is None else outcome.usage.output_tokens
        return call.timeline.lag_s(output_tokens, outcome.last_token_s)
    ttft_s, first_s = call.spec.slo.ttft_s, outcome.first_token_s
    return None if ttft_s is None or first_s is None else first_s - call.arrived_s - ttft_s


def _response_id(data: bytes) -> str | None:
    """The id of a response object, or of the one in a stream's first event."""
    start = data.find(b'"id":')
    if start < 0:
        return None
    opened = data.find(b'"', start + 5)
    closed = data.find(b'"', opened + 1)
    if opened < 0 or not 0 < closed - opened <= 256:
        return None
    return data[opened + 1 : closed].decode("ascii", "replace")
