"""Answers that are not streams: passed on as they come, usage read on the way."""

from __future__ import annotations

import json
from collections.abc import Callable

import orjson

from dispatcher.core.types import Usage
from dispatcher.gateway.relay.asgi import Send
from dispatcher.gateway.relay.dialects import Dialect
from dispatcher.gateway.relay.headers import RawHeaders
from dispatcher.gateway.relay.outcome import Finish, RelayOutcome
from dispatcher.gateway.relay.watch import ClientWatch
from dispatcher.gateway.upstream import EngineResponse, UpstreamError

#: An answer up to this size reaches the client whole or not at all, so a failure can be retried.
HOLD_BYTES = 256 * 1024
#: The largest answer that is parsed for usage; of a larger one, the last bytes are searched.
PARSE_BYTES = 1024 * 1024
TAIL_BYTES = 64 * 1024


class _UsageReader:
    """Keeps what is needed to find usage in a body, in bounded space."""

    def __init__(self, dialect: Dialect | None) -> None:
        self._dialect = dialect
        self._parts: list[bytes] = []
        self._size = 0
        self._whole = True

    def feed(self, data: bytes) -> None:
        if self._dialect is None:
            return
        self._parts.append(data)
        self._size += len(data)
        if self._size > PARSE_BYTES:
            self._whole = False
            tail = b"".join(self._parts)[-TAIL_BYTES:]
            self._parts, self._size = [tail], len(tail)

    def usage(self) -> Usage | None:
        """Return what the body says, None where it says nothing that can be read."""
        if self._dialect is None:
            return None
        body = b"".join(self._parts)
        try:
            payload = orjson.loads(body) if self._whole else _tail_usage(body)
        except ValueError:
            return None
        return self._dialect.usage(payload) if isinstance(payload, dict) else None


def _tail_usage(tail: bytes) -> dict[str, object] | None:
    start = tail.rfind(b'"usage"')
    brace = tail.find(b"{", start)
    if start < 0 or brace < 0:
        return None
    value, _ = json.JSONDecoder().raw_decode(tail[brace:].decode("utf-8", "replace"))
    return {"usage": value}


async def relay_whole(
    response: EngineResponse,
    send: Send,
    dialect: Dialect | None,
    *,
    headers: RawHeaders,
    watch: ClientWatch,
    clock: Callable[[], float],
    started: bool = False,
) -> RelayOutcome:
    """Relay a response's body as it is, at the pace of the client.

    Args:
        response: whose body nobody has read from; any status.
        send: ASGI's.
        dialect: of the endpoint, for usage; None reads none.
        headers: for the client; with `content-length` only if it is the engine's. An answer of up
            to `HOLD_BYTES` gets one here.
        watch: entered; a hang-up closes the engine's socket at once.
        clock: seconds, monotonic.
        started: `http.response.start` has been sent already.

    Returns:
        The account; `finish` is complete, cut short (the response to the client is left
        unfinished, or untouched where nothing was sent) or client gone.
    """
    outcome = RelayOutcome(status=response.status)
    reader = _UsageReader(dialect if response.status == 200 else None)

    async def start(body: bytes, whole: bool) -> None:
        sent = headers
        if whole and response.status not in (204, 304):
            sent = [header for header in headers if header[0] != b"content-length"]
            sent.append((b"content-length", b"%d" % len(body)))
        if not started:
            await send({"type": "http.response.start", "status": response.status, "headers": sent})

    async def forward(body: bytes, last: bool) -> None:
        outcome.first_byte_sent = True
        await send({"type": "http.response.body", "body": body, "more_body": not last})

    watch.add(response.abort)
    try:
        held = b""
        while len(held) <= HOLD_BYTES and (data := await response.read()):
            reader.feed(data)
            held += data
        whole = len(held) <= HOLD_BYTES
        await start(held, whole)
        await forward(held, whole)
        while not whole:
            data = await response.read()
            reader.feed(data)
            whole = not data
            await forward(data, whole)
        outcome.response_complete = True
        outcome.usage = reader.usage()
        outcome.last_token_s = clock()
    except UpstreamError as exc:
        outcome.finish = Finish.CUT_SHORT
        outcome.error = str(exc)
    except OSError as exc:
        outcome.finish = Finish.CLIENT_GONE
        outcome.error = str(exc)
    finally:
        watch.discard(response.abort)
        response.abort()
    if watch.gone and not outcome.response_complete:
        outcome.finish = Finish.CLIENT_GONE
    if outcome.usage is not None:
        outcome.output_tokens = outcome.usage.output_tokens
    return outcome
