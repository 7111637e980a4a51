"""A call as a row of numbers: what is known on arrival that may tell how long its answer gets.

Names (of the model, the application, the stage, the tool that ran before) become numbers by a
hash that is the same in every process; which of the numbers are such codes is `CODES`. No text is
in a row: `predictors.text_features` made numbers of it before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log1p
from zlib import crc32

from dispatcher.core.types import CallClass, CallSpec
from predictors._numbers import within
from predictors.text_features import TEXT_FEATURES

_CODE_RANGE = 1 << 20
"""Codes are whole numbers in [1, this]; 0 is no name. Exact as 32-bit floats."""
_MOST = 1e9

CODES = ("model", "application", "stage", "tool")
"""First entries of a row: codes of names, equal or different, never more or less."""

_NUMBERS = (
    "log_prompt_tokens",
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "structured",
    "streaming",
    "final",
    "log_stage_width",
    "messages",
    "tools",
    "last_role",
    "prompts",
    "modalities",
    "call_class",
)
_CLASSES = {call_class: float(number) for number, call_class in enumerate(CallClass)}
LAST_ROLES: Mapping[str, float] = {"user": 1.0, "tool": 2.0, "assistant": 3.0, "system": 4.0}
"""The `last_role` feature: who wrote the last message; 0 for anybody else, or nobody."""

_PASSED_ON = (("messages", 0.0), ("tools", 0.0), ("last_role", 0.0))

FEATURES = (*CODES, *_NUMBERS, *TEXT_FEATURES)
"""What each number of a row is."""

WIDTH = len(FEATURES)

MAX_TOKENS = FEATURES.index("max_tokens")
MIN_TOKENS = FEATURES.index("min_tokens")
FIRST_TEXT = FEATURES.index(TEXT_FEATURES[0])
"""Where the numbers about the text begin: they are the last ones."""

Row = tuple[float, ...]
"""`WIDTH` finite numbers, as named by `FEATURES`."""


def length_features(spec: CallSpec) -> Row:
    """The row of a call: the same call gives the same row, in every process.

    Of `spec.features` it reads `temperature`, `top_p`, `min_tokens`, `structured`, `messages`,
    `tools`, `last_role` (`LAST_ROLES`) and `TEXT_FEATURES`; what is missing counts as 0,
    temperature and top_p as -1.

    Example:
        >>> from dispatcher.core.types import CallId, WorkflowId
        >>> spec = CallSpec(CallId("c"), WorkflowId("w"), "llama", 1000, max_tokens=256)
        >>> row = length_features(spec)
        >>> len(row) == WIDTH, row[MAX_TOKENS]
        (True, 256.0)
    """
    said = spec.features
    return (
        code(spec.model),
        code(spec.application),
        code(spec.stage),
        code(spec.tool),
        log1p(within(spec.prompt_tokens, 0.0, _MOST)),
        within(spec.max_tokens or 0, 0.0, _MOST),
        _said(said, "min_tokens", 0.0),
        _said(said, "temperature", -1.0),
        _said(said, "top_p", -1.0),
        _said(said, "structured", 0.0),
        float(spec.streaming),
        float(spec.final),
        log1p(within(spec.stage_width or 0, 0.0, _MOST)),
        *[_said(said, name, otherwise) for name, otherwise in _PASSED_ON],
        within(spec.prompts, 1.0, _MOST),
        float(len(spec.modalities)),
        _CLASSES[spec.call_class],
        *[_said(said, name, 0.0) for name in TEXT_FEATURES],
    )


def without_text(row: Sequence[float]) -> Row:
    """The same row as if nothing were known of the text."""
    return (*row[:FIRST_TEXT], *(0.0,) * (WIDTH - FIRST_TEXT))


def code(name: str | None) -> float:
    """A whole number for a name, the same in every process; 0 for none."""
    if not name:
        return 0.0
    return float(crc32(name.encode("utf-8", "replace")) % _CODE_RANGE + 1)


def _said(said: Mapping[str, float], name: str, otherwise: float) -> float:
    value = said.get(name)
    return otherwise if value is None else within(value, -_MOST, _MOST)
