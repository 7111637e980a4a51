"""What the relay must know of each API: which event is a token, which one tells usage or the end.

Nothing here parses JSON for an event that carries output: kinds are told by bytes that cannot
occur inside a JSON string (a quote inside a string is always escaped).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Protocol

import orjson

from dispatcher.core.types import Usage


class EventKind(IntEnum):
    """What an event means to the relay."""

    TOKEN = 0
    OTHER = 1
    USAGE = 2
    """Carries usage and no output; where `usage_on_request`, it carries nothing else."""
    DONE = 3
    """The stream's end mark; may carry usage."""
    ERROR = 4
    OPENING = 5
    """Says that the request has come in, while it may still wait inside the engine."""


class Dialect(Protocol):
    """One endpoint's event language."""

    @property
    def name(self) -> str:
        """The endpoint's name, fit for a metric label."""

    @property
    def usage_on_request(self) -> bool:
        """Whether a stream tells usage only when `stream_options` asks for it."""

    @property
    def priority_in_body(self) -> bool:
        """Whether the request's body has a `priority` field that engines heed."""

    @property
    def look_out(self) -> bytes | None:
        """What an event has inside that is to be classified, however it starts; None for nothing.

        Tokens pass at a glance, by `token_prefix`; with it inside they do not.
        """

    def classify(self, event: bytes) -> EventKind:
        """Tell what one event is; `event` has its field lines, with or without the blank one."""

    def token_prefix(self, event: bytes, other: bytes = b"") -> bytes | None:
        """Return the part of a token event's start by which the next ones are known; or None.

        Whatever starts so is a token event, or, where `usage_on_request` and the part does not
        reach into the first choice (`[{`), a usage event. `other` is a part that was returned
        for an earlier event of the stream and is not how this one starts.
        """

    def usage(self, payload: Mapping[str, Any]) -> Usage | None:
        """Read usage from an event's JSON, or from a whole non-streaming answer."""


_EVENT_NAME = re.compile(rb"(?:^|\n)event: ?([^\r\n]*)")
_ERROR_NAME = re.compile(rb"(?:^|\n)event: ?error\r?(?:\n|$)")
_ERROR_DATA = re.compile(rb'(?:^|\n)data: ?\{\s*"error"\s*:|"object"\s*:\s*"error"')
_DONE_DATA = re.compile(rb"(?:^|\n)data: ?\[DONE\]")
_EMPTY_LIST = re.compile(rb"\[\s*\]")
_NO_CHOICES = re.compile(rb'"choices"\s*:\s*\[\s*\]')
_DATA_LINE = re.compile(rb"(?:^|\n)data: ?([^\r\n]*)")
_TYPE = re.compile(rb'"type"\s*:\s*"([^"]*)"')
#: The first chunk of a chat only names the role.
_ROLE_ONLY = re.compile(
    rb'"delta"\s*:\s*\{\s*"role"\s*:\s*"[^"]*"\s*'
    rb'(?:,\s*"[a-z_]+"\s*:\s*(?:""|null|\[\s*\])\s*)*\}'
)
_FIRST_CHOICE = re.compile(rb'"choices"\s*:\s*\[\{')
_CHAT_PREFIX = re.compile(rb'data: ?\{\s*"(?:id"\s*:\s*"|choices"\s*:\s*\[\s*\{)')


def event_payload(event: bytes) -> dict[str, Any] | None:
    """Parse an event's data as a JSON object; None where it is not one."""
    try:
        value = orjson.loads(b"\n".join(_DATA_LINE.findall(event)))
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _count(source: Mapping[str, Any], key: str) -> int:
    value = source.get(key)
    return value if isinstance(value, int) and value > 0 else 0


def _part(source: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = source.get(key)
    return value if isinstance(value, dict) else {}


class _Choices:
    """`/v1/chat/completions` and `/v1/completions`."""

    usage_on_request = True
    priority_in_body = True
    look_out = None

    def __init__(self, name: str) -> None:
        self.name = name

    def classify(self, event: bytes) -> EventKind:
        # Substring tests first: a pattern costs ten times as much, on every token.
        if b"[DONE]" in event and _DONE_DATA.search(event):
            return EventKind.DONE
        if b"error" in event and (_ERROR_DATA.search(event) or _ERROR_NAME.search(event)):
            return EventKind.ERROR
        if not event.startswith(b"data:") and _DATA_LINE.search(event) is None:
            return EventKind.OTHER
        if _EMPTY_LIST.search(event) and _NO_CHOICES.search(event):
            return EventKind.USAGE if b'"usage"' in event else EventKind.OTHER
        if b'"role"' in event and _ROLE_ONLY.search(event):
            return EventKind.OTHER
        return EventKind.TOKEN

    def token_prefix(self, event: bytes, other: bytes = b"") -> bytes | None:
        match = _CHAT_PREFIX.match(event)
        if match is None:
            return None
        # Up to its choices a stream's events are alike, unless the engine dates each of them.
        choice = _FIRST_CHOICE.search(event)
        if choice is None or other:
            return match[0]
        return event[: choice.end()]

    def usage(self, payload: Mapping[str, Any]) -> Usage | None:
        usage = payload.get("usage")
        if not isinstance(usage, dict):
            return None
        return Usage(
            prompt_tokens=_count(usage, "prompt_tokens"),
            output_tokens=_count(usage, "completion_tokens"),
            cached_tokens=_count(_part(usage, "prompt_tokens_details"), "cached_tokens"),
        )


class _NamedEvents:
    """APIs whose events carry a name, on an `event:` line or as `type` in the data."""

    usage_on_request = False
    priority_in_body = True
    look_out = None

    def __init__(
        self,
        name: str,
        *,
        done: frozenset[bytes],
        errors: frozenset[bytes],
        usage: frozenset[bytes] = frozenset(),
        opening: frozenset[bytes] = frozenset(),
    ) -> None:
        self.name = name
        self._kinds = {
            **dict.fromkeys(done, EventKind.DONE),
            **dict.fromkeys(errors, EventKind.ERROR),
            **dict.fromkeys(usage, EventKind.USAGE),
            **dict.fromkeys(opening, EventKind.OPENING),
        }

    def classify(self, event: bytes) -> EventKind:
        match = _EVENT_NAME.search(event) or _TYPE.search(event)
        name = match[1].strip() if match else b""
        if name in self._kinds:
            return self._kinds[name]
        if name.endswith((b".delta", b"_delta")):
            return EventKind.TOKEN
        return EventKind.ERROR if _ERROR_DATA.search(event) else EventKind.OTHER

    def token_prefix(self, event: bytes, other: bytes = b"") -> bytes | None:
        return event[: event.index(b"\n") + 1] if event.startswith(b"event:") else None


class _Responses(_NamedEvents):
    """`/v1/responses`: usage comes with `response.completed`, and no `[DONE]` after it."""

    def usage(self, payload: Mapping[str, Any]) -> Usage | None:
        usage = _part(payload, "response").get("usage", payload.get("usage"))
        if not isinstance(usage, dict):
            return None
        return Usage(
            prompt_tokens=_count(usage, "input_tokens"),
            output_tokens=_count(usage, "output_tokens"),
            cached_tokens=_count(_part(usage, "input_tokens_details"), "cached_tokens"),
        )


class _Messages(_NamedEvents):
    """`/v1/messages`: input tokens with `message_start`, output tokens with `message_delta`.

    Input tokens do not include those read from or written to a cache, so these are added.
    """

    priority_in_body = False

    def usage(self, payload: Mapping[str, Any]) -> Usage | None:
        usage = _part(payload, "message").get("usage", payload.get("usage"))
        if not isinstance(usage, dict):
            return None
        cached = _count(usage, "cache_read_input_tokens")
        created = _count(usage, "cache_creation_input_tokens")
        return Usage(
            prompt_tokens=_count(usage, "input_tokens") + cached + created,
            output_tokens=_count(usage, "output_tokens"),
            cached_tokens=cached,
        )


CHAT: Dialect = _Choices("chat")
COMPLETIONS: Dialect = _Choices("completions")
RESPONSES: Dialect = _Responses(
    "responses",
    done=frozenset({b"response.completed", b"response.incomplete"}),
    errors=frozenset({b"response.failed", b"error"}),
    opening=frozenset({b"response.created", b"response.queued", b"response.in_progress"}),
)
MESSAGES: Dialect = _Messages(
    "messages",
    done=frozenset({b"message_stop"}),
    errors=frozenset({b"error"}),
    usage=frozenset({b"message_start", b"message_delta"}),
)

#: By path, for the scheduled endpoints.
DIALECTS: Mapping[str, Dialect] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETIONS,
    "/v1/responses": RESPONSES,
    "/v1/messages": MESSAGES,
}
