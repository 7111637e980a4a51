"""Reading one value at a time; what cannot be read is a 400 that names it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dispatcher.gateway.errors import bad_request

ID_MAX = 256
"""Longest id or name, characters."""
MS_MAX = 1e10
"""Longest time, milliseconds (four months)."""

_TRUE = frozenset({"1", "true", "yes"})
_FALSE = frozenset({"0", "false", "no"})
_DIGITS_MAX = 10


def header_text(name: str, value: bytes) -> str:
    """Printable ASCII, 1 to `ID_MAX` characters, blanks around it stripped."""
    try:
        text = value.decode("ascii").strip()
    except UnicodeDecodeError:
        text = ""
    if not text or len(text) > ID_MAX or not text.isprintable():
        raise bad_request(
            f"Header {name}: expected 1 to {ID_MAX} printable ASCII characters.",
            param=name,
            code="invalid_header",
        )
    return text


def header_milliseconds(name: str, value: bytes) -> float:
    """A number of milliseconds above 0; returned in seconds."""
    try:
        # Python's own numbers may have underscores
        milliseconds = math.nan if b"_" in value else float(value)
    except ValueError:
        milliseconds = math.nan
    if not 0 < milliseconds <= MS_MAX:
        raise bad_request(
            f"Header {name}: expected milliseconds above 0, not {_shown(value)}.",
            param=name,
            code="invalid_header",
        )
    return milliseconds / 1000.0


def header_count(name: str, value: bytes, most: int) -> int:
    """A whole number from 1 to `most`."""
    text = value.strip()
    if not text.isdigit() or len(text) > _DIGITS_MAX or not 1 <= int(text) <= most:
        raise bad_request(
            f"Header {name}: expected a whole number from 1 to {most}, not {_shown(value)}.",
            param=name,
            code="invalid_header",
        )
    return int(text)


def header_flag(name: str, value: bytes) -> bool:
    """`1`, `true` or `0`, `false`."""
    text = value.decode("latin-1").strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise bad_request(
        f"Header {name}: expected 1 or 0, not {_shown(value)}.", param=name, code="invalid_header"
    )


def _shown(value: bytes) -> str:
    return repr(value[:40].decode("latin-1"))


def body_text(body: Mapping[str, Any], key: str, param: str) -> str | None:
    """A short string; absent or null is `None`."""
    value = body.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not value or len(value) > ID_MAX or not value.isprintable():
        raise bad_request(
            f"{param}: expected a string of 1 to {ID_MAX} printable characters.", param=param
        )
    return value


def body_flag(body: Mapping[str, Any], key: str) -> bool:
    """A boolean; absent or null is false."""
    value = body.get(key)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise bad_request(f"{key}: expected true or false.", param=key)
    return value


def body_count(
    body: Mapping[str, Any], key: str, least: int = 1, most: int = 1 << 31
) -> int | None:
    """A whole number; absent or null is `None`."""
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise bad_request(f"{key}: expected a whole number from {least} to {most}.", param=key)
    return value


def body_list(body: Mapping[str, Any], key: str) -> list[Any] | None:
    """A list; absent or null is `None`."""
    value = body.get(key)
    if value is not None and not isinstance(value, list):
        raise bad_request(f"{key}: expected a list.", param=key)
    return value
