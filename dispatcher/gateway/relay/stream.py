"""One stream from an engine to a client, whole: what the token path promises."""

from __future__ import annotations

from collections.abc import Callable

from dispatcher.gateway.relay.asgi import Send
from dispatcher.gateway.relay.dialects import Dialect
from dispatcher.gateway.relay.headers import RawHeaders
from dispatcher.gateway.relay.observer import Silent, StreamObserver
from dispatcher.gateway.relay.outcome import RelayOutcome
from dispatcher.gateway.relay.pump import StreamPump
from dispatcher.gateway.relay.timeline import Timeline
from dispatcher.gateway.relay.watch import ClientWatch
from dispatcher.gateway.upstream import EngineResponse


async def relay_stream(
    response: EngineResponse,
    send: Send,
    dialect: Dialect,
    *,
    headers: RawHeaders,
    watch: ClientWatch,
    clock: Callable[[], float],
    strip_usage: bool = False,
    observer: StreamObserver | None = None,
    started: bool = False,
    stall_timeout_s: float | None = None,
    timeline: Timeline | None = None,
) -> RelayOutcome:
    """Relay an event stream until it ends, fails, or the client hangs up.

    Bytes pass unchanged, event for event, but for the usage event where `strip_usage` says so, and
    for an event that the engine left unfinished. `http.response.start` goes out with the first
    event: until then a failure leaves the client untouched (`RelayOutcome.retryable`), an error
    event at the stream's very start included, unless it blames the request. Events that only say
    that the request has come in (`response.created`) are held until another follows: vLLM sends
    them at once, while the request still waits inside it. The response to the client is ended where
    the engine ended its own, well or by an error event; else that is the caller's, who may say why
    (`error_event`) or go on elsewhere.

    Args:
        response: an event stream whose body nobody has read from.
        send: ASGI's; stepped outside the task while it does not suspend, so it must not ask for
            the current task, nor keep the message, which is used again. Best the server's own:
            each wrapper costs on every token.
        dialect: of the endpoint.
        headers: for the client, complete.
        watch: entered; a hang-up closes the engine's socket at once.
        clock: seconds, monotonic; read once per event.
        strip_usage: take the usage event out, since the client did not ask for it.
        observer: hears of the first token and of progress.
        started: `http.response.start` has been sent already.
        stall_timeout_s: longest silence between events after the first; None for no limit.
        timeline: hears of every token.

    Raises:
        Exception: whatever `send` raises but for `OSError`, which means a client that has gone.
    """
    pump = StreamPump(
        response,
        send,
        dialect,
        headers=headers,
        clock=clock,
        strip_usage=strip_usage,
        observer=observer or Silent(),
        started=started,
        stall_timeout_s=stall_timeout_s,
        timeline=timeline,
    )
    watch.add(pump.client_gone)
    try:
        return await pump.run()
    finally:
        watch.discard(pump.client_gone)
