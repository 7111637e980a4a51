"""What an emulated engine says: scripted replies, drawn lengths, neutral words.

Everything follows from the request body and the seed, so that equal calls get equal answers at
whichever engine they end up.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from dispatcher.emulator import tokens

#: Fields that change how an answer travels or is ordered, not what it says.
_IRRELEVANT = frozenset(
    {
        "continuous_usage_stats",
        "metadata",
        "model",
        "priority",
        "prompt_cache_key",
        "request_id",
        "return_token_ids",
        "safety_identifier",
        "service_tier",
        "store",
        "background",
        "stream",
        "stream_options",
        "user",
        "vllm_xargs",
    }
)

_PROSE = (
    "the plan then reads each table and keeps what it needs for the next step we check one case "
    "at a time so the result stays small and clear first note the key words and match them to "
    "names in the data second look for rows that share a value and count them once more a short "
    "list helps here since most of it can be set aside early after that write the parts in order "
    "test every part alone fix what fails and run it all again when two paths lead to the same "
    "place pick the one with fewer moves this holds for large inputs too as long as the parts do "
    "not depend on one another if they do sort them by need and start with the last of them now "
    "and then an odd value turns up treat it as its own case and say why before you go on"
)
#: words that are one token each, with the blank before them
_VOCABULARY = [word for word in _PROSE.split() if len(tokens.pieces(" " + word)) == 1]
_STREAM_WORDS = 4096


def _neutral_stream() -> list[str]:
    rng = random.Random(20240501)  # noqa: S311 - seeded on purpose
    return [" " + rng.choice(_VOCABULARY) for _ in range(_STREAM_WORDS)]


def escape_json(text: str) -> bytes:
    """Return a text as the inside of a JSON string."""
    return orjson.dumps(text)[1:-1]


_WORDS = _neutral_stream()
_WORDS_ESCAPED = [escape_json(word) for word in _WORDS]
_WORDS_IDS = tokens.ids_of(_WORDS)


class ReplyEntry(BaseModel):
    """Texts for the prompts that a pattern finds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pattern: str
    texts: tuple[str, ...] = Field(min_length=1)
    min_tokens: int | None = Field(None, ge=1)

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from error
        return pattern


class ReplyScript(BaseModel):
    """A replies file: the first entry whose pattern is found wins."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    replies: tuple[ReplyEntry, ...] = ()
    default: tuple[str, ...] | None = None

    @classmethod
    def load(cls, path: Path) -> ReplyScript:
        """Read a replies file.

        Raises:
            ValueError: The file cannot be read or is not of the expected form; says where.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise ValueError(f"replies file {path}: {error.strerror}") from error
        except ValidationError as error:
            raise ValueError(f"replies file {path}: {error}") from error


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """An answer before it is spoken; the three lists run token by token.

    Attributes:
        escaped: Each token's text as the inside of a JSON string.
        ids: Token ids.
        finish_reason: "stop" or "length".
    """

    escaped: Sequence[bytes]
    ids: Sequence[int]
    finish_reason: str

    def __len__(self) -> int:
        return len(self.ids)

    def escaped_text(self, start: int, end: int) -> bytes:
        """Return tokens [start, end) as the inside of one JSON string."""
        if end - start == 1:
            return self.escaped[start]
        return b"".join(self.escaped[start:end])

    def text(self) -> str:
        """Return the whole text."""
        text: str = orjson.loads(b'"' + b"".join(self.escaped) + b'"')
        return text


def body_digest(body: dict[str, Any], seed: int, index: int = 0) -> int:
    """Hash what an answer depends on: the body less transport fields, the seed, the choice."""
    relevant = {key: value for key, value in body.items() if key not in _IRRELEVANT}
    canonical = orjson.dumps(relevant, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    keyed = blake2b(canonical, digest_size=8, key=f"{seed}:{index}".encode())
    return int.from_bytes(keyed.digest(), "big")


class OutputPlanner:
    """Decides what is said and how long it is.

    Args:
        script: Scripted replies, or None.
        median_tokens: Median of drawn lengths.
        sigma: Standard deviation of the logarithm of drawn lengths.
    """

    def __init__(self, script: ReplyScript | None, median_tokens: float, sigma: float) -> None:
        self._entries = [
            (re.compile(entry.pattern, re.S), entry) for entry in (script.replies if script else ())
        ]
        self._default = script.default if script else None
        self._median_tokens = median_tokens
        self._sigma = sigma

    def plan(
        self, digest: int, prompt_text: str, *, limit: int, min_tokens: int, ignore_eos: bool
    ) -> OutputPlan:
        """Plan one answer.

        Args:
            digest: What the answer follows from, see `body_digest`.
            prompt_text: All message texts, joined by newlines.
            limit: Most tokens that may be generated, at least 1.
            min_tokens: Fewest tokens before the answer may end, at most `limit`.
            ignore_eos: Whether it runs to the limit.
        """
        scripted = self._scripted(digest, prompt_text)
        if scripted is None:
            return self._drawn(digest, limit, min_tokens, ignore_eos)
        parts = tokens.pieces(scripted)[:limit]
        escaped = [escape_json(part) for part in parts]
        ids = tokens.ids_of(parts)
        wanted = limit if ignore_eos else min_tokens
        missing = wanted - len(ids)
        if missing > 0:
            filler_escaped, filler_ids = _neutral(digest, missing)
            escaped += filler_escaped
            ids += filler_ids
        return _ended(escaped, ids, limit, ignore_eos)

    def _scripted(self, digest: int, prompt_text: str) -> str | None:
        for pattern, entry in self._entries:
            match = pattern.search(prompt_text)
            if match is None:
                continue
            text = entry.texts[digest % len(entry.texts)]
            for name, value in match.groupdict().items():
                text = text.replace("{" + name + "}", value or "")
            return _padded(text, entry.min_tokens or 0, digest)
        if self._default:
            return self._default[digest % len(self._default)]
        return None

    def _drawn(self, digest: int, limit: int, min_tokens: int, ignore_eos: bool) -> OutputPlan:
        if ignore_eos:
            escaped, ids = _neutral(digest, limit)
            return _ended(escaped, ids, limit, ignore_eos)
        rng = random.Random(digest)  # noqa: S311 - seeded on purpose
        drawn = round(self._median_tokens * rng.lognormvariate(0.0, self._sigma))
        # One token of the drawn length is the end mark.
        escaped, ids = _neutral(digest, min(max(drawn - 1, min_tokens, 1), limit))
        return _ended(escaped, ids, limit, ignore_eos)


def _padded(text: str, min_tokens: int, digest: int) -> str:
    """Put neutral words in front of a text, so that its length is realistic."""
    missing = min_tokens - len(tokens.pieces(text))
    if missing <= 0:
        return text
    start = digest % _STREAM_WORDS
    words = [_WORDS[(start + offset) % _STREAM_WORDS] for offset in range(missing)]
    return "".join(words).lstrip() + ".\n\n" + text


def _neutral(digest: int, count: int) -> tuple[list[bytes], list[int]]:
    start = digest % _STREAM_WORDS
    rounds = 1 + (start + count) // _STREAM_WORDS
    if rounds == 1:
        end = start + count
        return _WORDS_ESCAPED[start:end], _WORDS_IDS[start:end]
    return (
        (_WORDS_ESCAPED * rounds)[start : start + count],
        (_WORDS_IDS * rounds)[start : start + count],
    )


def _ended(escaped: list[bytes], ids: list[int], limit: int, ignore_eos: bool) -> OutputPlan:
    """Close an answer with the end mark, which counts as a token, unless the limit cuts it."""
    if ignore_eos or len(ids) >= limit:
        return OutputPlan(escaped, ids, "length")
    return OutputPlan([*escaped, b""], [*ids, tokens.END_OF_TURN_ID], "stop")
