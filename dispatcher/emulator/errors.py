"""Errors in the shapes that vLLM 0.32 gives them.

EngineApiError
├── from `invalid(...)`        400 BadRequestError, found after parsing
├── from `validation(...)`     400 "Bad Request", found by parsing: pydantic's own words
├── from `model_not_found(...)` 404 NotFoundError
└── from `response_error(...)` 400/404 invalid_request_error, of stored responses
"""

from __future__ import annotations

import json
from typing import Any

import orjson
from pydantic import ValidationError


class EngineApiError(Exception):
    """An answer other than 200, ready to be sent.

    Attributes:
        status: HTTP status.
        kind: The `type` field.
        param: The `param` field.
        parsed: Whether the body had been parsed when it was found: only then does the Anthropic
            route give it Anthropic's shape.
    """

    def __init__(
        self, status: int, message: str, kind: str, param: str | None = None, *, parsed: bool = True
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.parsed = parsed

    def openai_body(self) -> bytes:
        """Return the body that OpenAI's routes answer with."""
        return orjson.dumps(
            {
                "error": {
                    "message": self.message,
                    "type": self.kind,
                    "param": self.param,
                    "code": self.status,
                }
            }
        )

    def anthropic_body(self) -> bytes:
        """Return the body that Anthropic's route answers with."""
        if not self.parsed:
            return self.openai_body()
        return orjson.dumps(
            {"type": "error", "error": {"type": self.kind, "message": self.message}}
        )


def invalid(message: str, param: str | None = None, value: object = None) -> EngineApiError:
    """A body that parses but asks for what cannot be."""
    if param is not None:
        suffix = f"parameter={param}" if value is None else f"parameter={param}, value={value}"
        message = f"{message} ({suffix})"
    return EngineApiError(400, message, "BadRequestError", param)


def model_not_found(name: str, served: tuple[str, ...]) -> EngineApiError:
    """A model that this engine does not serve."""
    message = f"The model `{name}` does not exist. Valid aliases: {', '.join(served)}."
    return EngineApiError(404, message, "NotFoundError", "model")


def response_error(status: int, message: str, param: str = "response_id") -> EngineApiError:
    """What goes wrong with stored responses."""
    return EngineApiError(status, message, "invalid_request_error", param)


def bad_json(body: bytes) -> EngineApiError:
    """A body that is not JSON; says where reading stopped."""
    try:
        json.loads(body)
    except json.JSONDecodeError as error:
        position, reason = error.pos, error.msg
    except (UnicodeDecodeError, RecursionError) as error:
        position, reason = 0, str(error)
    else:  # JSON to the standard library (NaN, huge numbers) but not to a strict reader
        position, reason = 0, "Expecting value"
    detail = {
        "type": "json_invalid",
        "loc": f"body.{position}",
        "msg": "JSON decode error",
        "input": "<dict of 0 items>",
        "ctx": {"error": reason},
    }
    return _bad_request([detail])


def missing_body() -> EngineApiError:
    """A request without a body."""
    detail = {"type": "missing", "loc": "body", "msg": "Field required", "input": "None"}
    return _bad_request([detail])


def missing_field(name: str, body: dict[str, Any]) -> EngineApiError:
    """A body that lacks a field."""
    detail = {
        "type": "missing",
        "loc": f"body.{name}",
        "msg": "Field required",
        "input": _shown(body),
    }
    return _bad_request([detail])


def validation(error: ValidationError) -> EngineApiError:
    """A body of wrong types."""
    details: list[dict[str, Any]] = []
    for item in error.errors(include_url=False):
        detail: dict[str, Any] = {
            "type": item["type"],
            "loc": ".".join(["body", *map(str, item["loc"])]),
            "msg": item["msg"],
            "input": _shown(item["input"]),
        }
        if "ctx" in item:
            detail["ctx"] = item["ctx"]
        details.append(detail)
    return _bad_request(details)


def _bad_request(details: list[dict[str, Any]]) -> EngineApiError:
    plural = "" if len(details) == 1 else "s"
    lines = "".join(f"\n  {detail}" for detail in details)
    message = f"{len(details)} validation error{plural}:{lines}"
    return EngineApiError(400, message, "Bad Request", str(details[0]["loc"]), parsed=False)


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return f"<dict of {len(value)} items>"
    if isinstance(value, list):
        return f"<list of {len(value)} items>"
    text = str(value)
    return text if len(text) <= 256 else text[:256] + "..."
