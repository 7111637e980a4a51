"""Which headers cross the gateway, in either direction (RFC 9110, section 7.6.1)."""

from __future__ import annotations

from collections.abc import Iterable

RawHeaders = list[tuple[bytes, bytes]]

#: Headers that speak of one connection only, with two that never were standard but are met.
HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)

#: vLLM's own, which wins over the body's `priority`: whoever sends it orders the engine's heap.
PRIORITY = b"x-vllm-priority"

#: Ours to write, or for the gateway's eyes only: a client's credentials never reach an engine.
_REQUEST_DROPPED = HOP_BY_HOP | {
    b"host",
    b"content-length",
    b"expect",
    b"authorization",
    b"x-api-key",
    b"api-key",
    b"cookie",
    b"accept-encoding",
    b"x-request-id",
    PRIORITY,
}

#: The server in front writes its own.
_RESPONSE_DROPPED = HOP_BY_HOP | {b"date", b"server"}


def _named_in_connection(headers: Iterable[tuple[bytes, bytes]]) -> set[bytes]:
    return {
        token.strip().lower()
        for name, value in headers
        if name == b"connection"
        for token in value.split(b",")
    }


def request_headers(
    client: RawHeaders,
    *,
    engine_key: str | None = None,
    request_id: str | None = None,
    priority: int | None = None,
) -> RawHeaders:
    """Headers for the engine, from those of the client.

    Args:
        client: as ASGI gives them, names in lower case.
        engine_key: the engine's own API key, sent as a bearer token.
        request_id: sent as `x-request-id`; without it the client's is passed on.
        priority: sent as `x-vllm-priority`, lower first; for APIs whose body has no field for it.
            The client's own is never passed on.

    Returns:
        The client's end-to-end headers without its credentials; `accept-encoding: identity`,
        since usage is read from what comes back; the key and the id.
    """
    dropped = _REQUEST_DROPPED | _named_in_connection(client)
    headers = [header for header in client if header[0] not in dropped]
    headers.append((b"accept-encoding", b"identity"))
    if engine_key is not None:
        headers.append((b"authorization", b"Bearer " + engine_key.encode("ascii")))
    if priority is not None:
        headers.append((PRIORITY, b"%d" % priority))
    if request_id is not None:
        headers.append((b"x-request-id", request_id.encode("latin-1")))
    else:
        headers += [header for header in client if header[0] == b"x-request-id"]
    return headers


def response_headers(
    engine: RawHeaders, *, extra: RawHeaders | None = None, keep_length: bool = False
) -> RawHeaders:
    """Headers for the client, from those of the engine.

    Args:
        engine: names in lower case.
        extra: the gateway's own; they replace the engine's of the same name.
        keep_length: pass `content-length` on; only where the body is not changed.
    """
    extra = extra or []
    dropped = set(_RESPONSE_DROPPED) | _named_in_connection(engine) | {name for name, _ in extra}
    if not keep_length:
        dropped.add(b"content-length")
    return [header for header in engine if header[0] not in dropped] + extra


def is_event_stream(headers: RawHeaders) -> bool:
    """Whether a response is server-sent events."""
    return any(
        name == b"content-type" and value.strip().lower().startswith(b"text/event-stream")
        for name, value in headers
    )
