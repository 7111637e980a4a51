"""What scheduling adds to a request body, spliced in so that the rest stays as it was sent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from dispatcher.gateway.relay.dialects import Dialect

_BOM = b"\xef\xbb\xbf"


def wants_usage(body: Mapping[str, Any]) -> bool:
    """Whether the client itself asked for usage in its stream."""
    options = body.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def _without_stats(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Drop what asks for usage in every event: engines heed it only where usage is wanted."""
    return {k: v for k, v in (options or {}).items() if k != "continuous_usage_stats"}


def edit_body(
    raw: bytes,
    parsed: Mapping[str, Any],
    dialect: Dialect,
    *,
    priority: int | None = None,
    model: str | None = None,
) -> bytes:
    """Make the engine's body from the client's.

    Args:
        raw: the bytes the client sent: a JSON object, possibly behind a byte order mark or white
            space.
        parsed: what `raw` says (the last of duplicate keys wins, as engines read it). Not changed.
        dialect: of the endpoint.
        priority: the engine's `priority` field; None sends none. The client's own is never
            passed on.
        model: what an alias stands for; None keeps the client's.

    Returns:
        `raw` itself where nothing changes; `raw` with members put behind its first brace where
        members are only added; `raw` with the model's name cut out where that is unambiguous;
        else `parsed` with the changes, serialised anew (numbers beyond 64 bits come out as
        floats then).
    """
    raw = raw.removeprefix(_BOM)
    added: dict[str, Any] = {}
    changed: dict[str, Any] = {}
    if priority is not None:
        added["priority"] = priority
    if dialect.usage_on_request and parsed.get("stream") is True and not wants_usage(parsed):
        if "stream_options" in parsed:
            options = parsed["stream_options"]
            if options is None or isinstance(options, dict):
                changed["stream_options"] = {**_without_stats(options), "include_usage": True}
        else:
            added["stream_options"] = {"include_usage": True}
    if model is not None and model != parsed.get("model"):
        spliced = _replace_model(raw, parsed.get("model"), model)
        if spliced is None:
            changed["model"] = model
        else:
            raw = spliced
    # A duplicate behind ours would win, so a client's own field means writing the body anew.
    if changed or "priority" in parsed:
        kept = {key: value for key, value in parsed.items() if key != "priority"}
        if model is not None:
            kept["model"] = model
        return orjson.dumps({**kept, **added, **changed})
    if not added:
        return raw
    brace = raw.index(b"{") + 1
    members = orjson.dumps(added)[1:-1]
    empty = not parsed
    return b"".join((raw[:brace], members, b"" if empty else b",", raw[brace:]))


def _replace_model(raw: bytes, old: object, new: str) -> bytes | None:
    """Replace the model's name in place; None where the bytes do not show which one it is."""
    if not isinstance(old, str):
        return None
    # A key's literal holds its quotes bare; inside a string they would be escaped.
    if raw.count(b'"model"') != 1 or b"\\u" in raw[: raw.index(b'"model"')]:
        return None
    match = re.search(rb'"model"\s*:\s*(' + re.escape(orjson.dumps(old)) + rb")", raw)
    if match is None:
        return None
    return raw[: match.start(1)] + orjson.dumps(new) + raw[match.end(1) :]
