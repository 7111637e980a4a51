"""Lengths of real answers: the corpus that ships, or one in the same form.

One prompt a line, JSON; `.gz` and `.xz` are unpacked. Of each line:

    application     what the prompt belongs to: a task, an agent (also read: `task`)
    prompt          its text; or `features`, numbers named as `predictors.text_features` does
    prompt_tokens   of the whole prompt
    answers         {model: [tokens, ...]}; or `model` and `output_tokens` of one answer
    group           what may not stand on both sides of a split; default: the prompt's text
    stage, tool, max_tokens, temperature, messages, tools, last_role ("user", "tool", ...):
                    as far as known
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson

from dispatcher.core.errors import ConfigurationError
from dispatcher.core.types import CallId, CallSpec, WorkflowId
from predictors.length_features import CODES, LAST_ROLES, Row, code, length_features
from predictors.text_features import TEXT_FEATURES, text_features

SHIPPED = "lengths.jsonl.xz"
_MODEL = CODES.index("model")
_MOST_BYTES = 1 << 30
_MOST_LINES = 2_000_000


class CorpusError(ConfigurationError):
    """A corpus that cannot be read: which line, what was expected."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of one model."""

    group: str
    spec: CallSpec
    row: Row
    tokens: int
    """Output tokens, at least 1."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """Answers, in the order of the file."""

    name: str
    digest: str
    """Of the content: sha256, 16 digits."""
    answers: tuple[Answer, ...]


@lru_cache(maxsize=1)
def corpus(file: Path | None) -> Corpus:
    """That in the file; `None`: the one that ships.

    Raises:
        CorpusError: It is not in the form above, or has no answers.
        OSError: It cannot be read.
    """
    if file is None:
        packed = files(__package__).joinpath(SHIPPED).read_bytes()
        name, suffix = SHIPPED, ".xz"
    else:
        packed, name, suffix = file.read_bytes(), file.name, file.suffix
    try:
        content = _UNPACKED_BY.get(suffix, bytes)(packed)
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise CorpusError(f"{name}: cannot be unpacked: {error}") from error
    if len(content) > _MOST_BYTES:
        raise CorpusError(f"{name}: {len(content)} bytes; at most {_MOST_BYTES}")
    answers = tuple(_answers(name, content))
    if not answers:
        raise CorpusError(f"{name}: no answers in it")
    return Corpus(name, hashlib.sha256(content).hexdigest()[:16], answers)


_UNPACKED_BY: Mapping[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.decompress,
    ".xz": lzma.decompress,
}


def _answers(name: str, content: bytes) -> Iterator[Answer]:
    lines = [line for line in content.split(b"\n") if line.strip()]
    if len(lines) > _MOST_LINES:
        raise CorpusError(f"{name}: {len(lines)} lines; at most {_MOST_LINES}")
    for number, line in enumerate(lines, 1):
        try:
            said = orjson.loads(line)
            if not isinstance(said, dict):
                raise ValueError("expected an object")
            yield from _answers_of(said)
        except (KeyError, TypeError, ValueError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise CorpusError(f"{name}, line {number}: {what}") from error


def _answers_of(said: Mapping[str, Any]) -> Iterator[Answer]:
    application = _text(said.get("application") or said.get("task"), "application")
    prompt = said.get("prompt")
    features = _features(said, prompt)
    group = said.get("group")
    if group is None:
        # the same prompt is the same group, wherever it comes from
        told = prompt if prompt is not None else orjson.dumps(features).decode()
        group = hashlib.sha256(_text(told, "prompt").encode("utf-8", "replace")).hexdigest()[:16]
    spec = CallSpec(
        CallId("corpus"),
        WorkflowId("corpus"),
        "",
        _count(said["prompt_tokens"], "prompt_tokens", 0),
        application=application,
        stage=said.get("stage"),
        tool=said.get("tool"),
        max_tokens=said.get("max_tokens"),
        features=features,
    )
    row = length_features(spec)
    answers = said.get("answers")
    if answers is None:
        answers = {_text(said["model"], "model"): [said["output_tokens"]]}
    for model, lengths in answers.items():
        named = replace(spec, model=model)
        of_model = (*row[:_MODEL], code(model), *row[_MODEL + 1 :])
        for tokens in lengths:
            yield Answer(str(group), named, of_model, _count(tokens, "output_tokens", 1))


def _features(said: Mapping[str, Any], prompt: object) -> dict[str, float]:
    given = said.get("features")
    if given is not None:
        found = {name: float(given[name]) for name in TEXT_FEATURES if name in given}
    else:
        found = text_features(_text(prompt, "prompt"))
    for name in ("messages", "tools", "temperature"):
        if said.get(name) is not None:
            found[name] = float(said[name])
    found["last_role"] = LAST_ROLES.get(str(said.get("last_role", "user")), 0.0)
    return found


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{what}: expected a text, not {value!r:.40}")
    return value


def _count(value: object, what: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{what}: expected a whole number from {least} on, not {value!r:.40}")
    return value
