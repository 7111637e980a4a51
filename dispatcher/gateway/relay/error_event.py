"""How a stream that has begun says that it will not end well: the engine to us, we to a client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from dispatcher.gateway.relay.dialects import CHAT, COMPLETIONS, MESSAGES, Dialect, event_payload
from dispatcher.gateway.relay.outcome import Finish

#: Client errors by HTTP status that are not about the request: a key, or a lack of room.
_NOT_THE_REQUEST = frozenset({401, 403, 408, 425, 429})
#: What engines call a refusal where they give no number.
_REFUSALS = frozenset({"invalid_request_error", "not_found_error", "request_too_large"})


def read_error(event: bytes) -> tuple[Finish, str]:
    """Return whose fault an error event says it is, and what it says.

    An engine finds some faults of a request only once its stream has begun (vLLM: a token id that
    is out of the vocabulary). Another engine would find the same, so these are the client's to see.

    Args:
        event: in OpenAI's, Anthropic's or an older vLLM's shape; anything else is an engine error.

    Returns:
        `Finish.REFUSED` or `Finish.ENGINE_ERROR`, and the message.
    """
    payload = event_payload(event) or {}
    response = payload.get("response")
    if isinstance(response, dict) and isinstance(response.get("error"), dict):
        error: object = response["error"]
    else:
        error = payload.get("error", payload)
    if not isinstance(error, dict):
        said = error if isinstance(error, str) else "the engine reported an error"
        return Finish.ENGINE_ERROR, said
    message = error.get("message")
    finish = Finish.REFUSED if _blames_request(error) else Finish.ENGINE_ERROR
    return finish, message if isinstance(message, str) else "the engine reported an error"


def _blames_request(error: Mapping[str, Any]) -> bool:
    code = str(error.get("code"))
    if not code.isdecimal():
        return error.get("type") in _REFUSALS
    return len(code) == 3 and code[0] == "4" and int(code) not in _NOT_THE_REQUEST


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
