"""What a client is told when a call fails: OpenAI's error shape, and the one place that maps it."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson

from dispatcher.core.errors import HeadwayError
from dispatcher.core.types import RejectReason

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    410: "cancelled_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    500: "internal_error",
    501: "not_supported_error",
    502: "engine_error",
    503: "unavailable_error",
    504: "engine_timeout_error",
}


class ApiError(HeadwayError):
    """An answer that is an error.

    Attributes:
        status: HTTP status.
        message: For people: what, where, what was expected.
        param: The header or body field at fault.
        code: For programs.
        headers: Further response headers.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: list[tuple[bytes, bytes]] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers or []

    @property
    def kind(self) -> str:
        """The `type` field."""
        return _TYPES.get(self.status, "api_error")

    @property
    def outcome(self) -> str:
        """How the metrics count a request that ends so."""
        if self.status in (429, 503):
            return "rejected"
        return "engine_error" if self.status >= 500 else "client_error"

    def body(self) -> bytes:
        """The JSON that goes out."""
        return error_body(self.message, self.kind, param=self.param, code=self.code)


def error_body(
    message: str, kind: str, *, param: str | None = None, code: str | int | None = None
) -> bytes:
    """OpenAI's error object, serialised."""
    error = {"message": message, "type": kind, "param": param, "code": code}
    return orjson.dumps({"error": error})


def bad_request(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    """A 400 that names what is wrong."""
    return ApiError(400, message, param=param, code=code)


def internal_error(request_id: str) -> ApiError:
    """A defect of ours; the log has the details under the request id."""
    return ApiError(
        500,
        f"The gateway made a mistake; its log has the details under request id {request_id}.",
        code="internal_error",
    )


def response_not_found(response_id: str) -> ApiError:
    """A stored response that is nowhere, or none of the caller's business."""
    return ApiError(
        404,
        f"Response with id '{response_id[:100]}' not found.",
        param="response_id",
        code="response_not_found",
    )


def retry_after(seconds: float, reason: str | None = None) -> list[tuple[bytes, bytes]]:
    """`Retry-After` (whole seconds, at least 1), and why the call was dropped."""
    headers = [(b"retry-after", b"%d" % max(1, math.ceil(seconds)))]
    if reason is not None:
        headers.append((b"x-headway-dropped-reason", reason.encode("ascii")))
    return headers


_REJECTIONS: dict[RejectReason, tuple[int, str]] = {
    RejectReason.QUEUE_FULL: (429, "Too many calls are waiting; try again later."),
    RejectReason.QUEUE_TIMEOUT: (429, "The call waited too long for an engine; try again later."),
    RejectReason.NO_ENGINE: (503, "No engine that serves this model is up; try again later."),
    RejectReason.ENGINE_FAILED: (502, "Every engine that was tried failed."),
    RejectReason.DEADLINE: (408, "The deadline of the workflow has gone."),
    RejectReason.SHUTDOWN: (503, "The gateway is shutting down; try again later."),
}


def rejection(reason: RejectReason, retry_after_s: float, detail: str = "") -> ApiError:
    """What a call is told that the scheduler turned away."""
    status, message = _REJECTIONS[reason]
    return ApiError(
        status,
        f"{message} ({detail})" if detail else message,
        code=reason.value,
        headers=retry_after(retry_after_s, reason.value),
    )


async def send_json(
    send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    """One whole JSON response over raw ASGI."""
    head = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        *(headers or []),
    ]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})
