"""How a stream that has begun tells the client that it will not end well."""

from __future__ import annotations

from typing import Any

import orjson

from dispatcher.gateway.relay.dialects import CHAT, COMPLETIONS, MESSAGES, Dialect


def error_event(dialect: Dialect, message: str, *, code: int = 502) -> bytes:
    """Return the bytes that end a stream in the dialect's own error shape.

    Args:
        dialect: of the endpoint.
        message: for the client's user.
        code: the HTTP status that the failure would have had before the first byte.
    """
    if dialect is MESSAGES:
        payload: dict[str, Any] = {
            "type": "error",
            "error": {"type": "api_error", "message": message},
        }
        return b"event: error\ndata: %b\n\n" % orjson.dumps(payload)
    if dialect in (CHAT, COMPLETIONS):
        payload = {
            "error": {"message": message, "type": "upstream_error", "param": None, "code": code}
        }
        return b"data: %b\n\ndata: [DONE]\n\n" % orjson.dumps(payload)
    payload = {"type": "error", "code": str(code), "message": message, "param": None}
    return b"event: error\ndata: %b\n\n" % orjson.dumps(payload)
