"""What is said of settings that are wrong: where, which key, what was expected. Never a secret."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from dispatcher.config.settings import Settings
from dispatcher.config.sources import ENVIRONMENT, Sources, dotted
from dispatcher.wording import plain

_SECRET = frozenset({"api_key", "admin_token"})
_ONE = (str, int, float, type(None))
_EXPECTED: Mapping[str, str] = {
    "model_type": "expected keys and values",
    "dict_type": "expected keys and values",
    "mapping_type": "expected keys and values",
    "tuple_type": "expected a list",
}
_MAY_HIDE_KEYS = re.compile("[@?#]")
_KINDS: Mapping[type, str] = {dict: "mapping", list: "list", str: "text"}


def explain(error: ValidationError, sources: Sources) -> str:
    """One line for each mistake: its source, dotted key, what was expected, what was there."""
    out = []
    for mistake in error.errors(include_url=False):
        at = [str(part) for part in (*mistake["loc"], *mistake.get("ctx", {}).get("at", ()))]
        origin = sources.origin(at)
        message = _EXPECTED.get(mistake["type"]) or plain(mistake["msg"])
        if mistake["type"] in _EXPECTED and origin.startswith(ENVIRONMENT):
            message += " as JSON"
        if mistake["type"] == "extra_forbidden":
            message = f"unknown key; expected one of {', '.join(known_keys(Settings, at))}"
        elif mistake["type"] not in ("missing", "twin"):
            shown = _shown(at, mistake["type"], mistake["input"])
            message += f", not {shown}" if shown and shown not in message else ""
        out.append(f"{origin}: {dotted(at)}: {message}")
    return "\n".join(out)


def _shown(at: Sequence[str], kind: str, value: object) -> str:
    """What was there, where that can hold no secret: one value in the place of one value."""
    if _SECRET.intersection(at) or ("url" in at and _MAY_HIDE_KEYS.search(str(value))):
        return ""
    if isinstance(value, _ONE) and not (isinstance(value, str) and kind in _EXPECTED):
        return repr(value)
    # a text where keys were expected may be `api_key:...` without its blank
    return f"a {_KINDS.get(type(value), 'value')}" if kind.endswith("_type") else ""


def known_keys(section: type[BaseModel], at: Sequence[str]) -> list[str]:
    """Keys that are known where an unknown one was found, `at` counted from a section."""
    for part in at[:-1]:
        # positions in lists, and names in mappings of sections, are no keys
        if part in section.model_fields:
            section = _section(section.model_fields[part].annotation) or section
    return list(section.model_fields)


def _section(annotation: Any) -> type[BaseModel] | None:
    """The model in `Model`, `Model | None`, `tuple[Model, ...]` or `Mapping[str, Model]`."""
    inner = [part for part in (annotation, *get_args(annotation)) if isinstance(part, type)]
    return next((part for part in inner if issubclass(part, BaseModel)), None)
