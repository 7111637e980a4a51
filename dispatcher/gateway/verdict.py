"""Whose fault is it: the client's, ours or the engine's? And what the client is told of it."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from dispatcher.gateway.errors import ApiError, Send, retry_after
from dispatcher.gateway.relay.headers import RawHeaders
from dispatcher.gateway.upstream import (
    EngineResponse,
    UpstreamConnectError,
    UpstreamError,
    UpstreamTimeoutError,
)

#: An engine's error answer is read up to here.
ERROR_BYTES_MAX = 256 * 1024
#: Statuses of an engine that another engine may not share.
_OVERLOADED = frozenset({408, 425, 429, 503})
_OUR_KEY_IS_WRONG = frozenset({401, 403})


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt that failed before its client saw anything: another engine may try."""

    status: int
    """What the client is told where none succeeds."""
    why: str
    reason: str
    """A small set, fit for a metric label."""
    retry_after_s: float | None = None
    told: str = ""
    """What the client hears instead of `why`, which may name an engine's address."""

    def error(self) -> ApiError:
        """The answer where nobody else succeeds."""
        headers = None
        if self.retry_after_s is not None:
            headers = retry_after(self.retry_after_s, "engine_overloaded")
        code = self.reason if self.reason.startswith("engine_") else f"engine_{self.reason}"
        said = f"The engine failed: {self.told or self.why}"
        return ApiError(self.status, said, code=code, headers=headers)


def unreached(engine_id: str, error: UpstreamError) -> Failure:
    """The connection failed, or ended before the answer did."""
    if isinstance(error, UpstreamTimeoutError):
        return Failure(504, str(error), "timeout", told=f"{engine_id} took too long to be reached")
    if isinstance(error, UpstreamConnectError):
        return Failure(502, str(error), "connect", told=f"{engine_id} cannot be reached")
    told = f"{engine_id} closed the connection without an answer"
    return Failure(502, str(error), "closed", told=told)


def down(engine_id: str, why: str) -> Failure:
    """The engine went down; `why` is for the log."""
    return Failure(502, why or "it has left the fleet", "down", told=f"{engine_id} is down")


async def read_refusal(response: EngineResponse) -> bytes:
    """The body of an answer that is no success; empty where it is far too long.

    Raises:
        UpstreamClosedError: It was cut off.
    """
    try:
        return await response.read_all(ERROR_BYTES_MAX) or b""
    except BaseException:
        # nobody else is going to read it
        response.abort()
        raise


def judge(engine_id: str, response: EngineResponse, refusal: bytes) -> Failure | None:
    """An engine said no; `None` where the request itself is at fault."""
    status = response.status
    if status in _OUR_KEY_IS_WRONG:
        return Failure(502, f"engine {engine_id} does not take the gateway's key", "auth")
    said = message_of(refusal)
    if status in _OVERLOADED:
        wait = response.header(b"retry-after")
        wait_s = float(wait) if wait is not None and wait.isdigit() and len(wait) < 8 else None
        return Failure(status if status in (429, 503) else 503, said, "overloaded", wait_s)
    if status >= 500 or status < 400:
        shown = status if status in (501, 504) else 502
        return Failure(shown, f"status {status}: {said}", "status")
    return None


def is_unknown_route(refusal: bytes) -> bool:
    """Whether a 404 is of an engine without that endpoint: so FastAPI words it, vLLM never."""
    return refusal == b'{"detail":"Not Found"}'


async def send_whole(send: Send, status: int, headers: RawHeaders, body: bytes) -> None:
    """Send one whole answer, such as an engine's refusal."""
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def message_of(refusal: bytes) -> str:
    """What an engine's error body says, briefly."""
    try:
        parsed = orjson.loads(refusal)
    except orjson.JSONDecodeError:
        return refusal[:200].decode("utf-8", "replace") or "no reason given"
    error = parsed.get("error", parsed) if isinstance(parsed, dict) else parsed
    if isinstance(error, dict):
        error = error.get("message", error)
    return str(error)[:500]
