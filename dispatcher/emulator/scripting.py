"""What an emulated engine says: scripted replies, drawn lengths, neutral words.

Everything follows from the request body and the seed, so that equal calls get equal answers at
whichever engine they end up.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar, cast

import orjson
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from dispatcher.emulator import tokens
from dispatcher.emulator.tool_calls import CLOSING_MARK, Asked, Offer, opening_mark

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


class ReplyTool(BaseModel):
    """A tool that an answer asks for, where the request offers it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    arguments: dict[str, Any] = {}


class ReplyEntry(BaseModel):
    """Texts for the prompts that a pattern finds, or a tool; of both, the text goes first.

    Where its tool is not on offer, an entry's texts are all that it has, and one without any is
    passed over.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    pattern: str
    texts: tuple[str, ...] = ()
    tool: ReplyTool | None = None
    min_tokens: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _says_something(self) -> ReplyEntry:
        if not self.texts and self.tool is None:
            raise ValueError("expected at least 1 item in texts, or a tool")
        return self

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
class SpokenTool:
    """A tool call within an answer.

    Attributes:
        call_id: Its id.
        asked: What is asked for.
        start: Token at which its arguments begin; those before are the content.
    """

    call_id: str
    asked: Asked
    start: int


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """An answer before it is spoken; the three lists run token by token.

    Attributes:
        escaped: Each token's text as the inside of a JSON string; of what marks a tool call, none.
        ids: Token ids.
        finish_reason: "stop" or "length", as the engine sees it.
        tool: The tool that it asks for; it was not cut off before.
    """

    escaped: Sequence[bytes]
    ids: Sequence[int]
    finish_reason: str
    tool: SpokenTool | None = None

    @property
    def told_reason(self) -> str:
        """How a chat says that it ended."""
        calls = self.tool is not None and not self.tool.asked.named
        return "tool_calls" if calls and self.finish_reason == "stop" else self.finish_reason

    def __len__(self) -> int:
        return len(self.ids)

    def escaped_parts(self, start: int, end: int) -> tuple[bytes, bytes]:
        """Return what tokens [start, end) say: as content, and of a tool's arguments."""
        edge = len(self) if self.tool is None else self.tool.start
        if end <= edge:
            return self.escaped_text(start, end), b""
        return self.escaped_text(start, max(start, edge)), self.escaped_text(max(start, edge), end)

    def escaped_text(self, start: int, end: int) -> bytes:
        """Return tokens [start, end) as the inside of one JSON string."""
        if end - start == 1:
            return self.escaped[start]
        return b"".join(self.escaped[start:end])

    def text(self) -> str:
        """Return the whole text, without a tool's arguments."""
        return self._text(0, len(self) if self.tool is None else self.tool.start)

    def arguments(self) -> str:
        """Return what has been said of the arguments of the tool that it asks for."""
        return "" if self.tool is None else self._text(self.tool.start, len(self))

    def _text(self, start: int, end: int) -> str:
        text: str = orjson.loads(b'"' + self.escaped_text(start, end) + b'"')
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
        self,
        digest: int,
        prompt_text: str,
        *,
        limit: int,
        min_tokens: int,
        ignore_eos: bool,
        offer: Offer | None = None,
    ) -> OutputPlan:
        """Plan one answer.

        Args:
            digest: What the answer follows from, see `body_digest`.
            prompt_text: All message texts, joined by newlines.
            limit: Most tokens that may be generated, at least 1.
            min_tokens: Fewest tokens before the answer may end, at most `limit`.
            ignore_eos: Whether it runs to the limit.
            offer: Tools that it may, or has to, ask for.
        """
        scripted, asked = self._scripted(digest, prompt_text, offer)
        if asked is not None:
            wanted = limit if ignore_eos else min_tokens
            return _calling(scripted or "", asked, digest, limit, wanted)
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

    def _scripted(
        self, digest: int, prompt_text: str, offer: Offer | None
    ) -> tuple[str | None, Asked | None]:
        """What the answer says; `None`: words are drawn. And the tool that it asks for."""
        forced = None if offer is None else offer.forced(digest)
        for pattern, entry in self._entries:
            match = pattern.search(prompt_text)
            if match is None:
                continue
            tool, asked = entry.tool, forced
            if tool is not None and offer is not None and offer.takes(tool.name):
                asked = offer.ask(tool.name, _filled(tool.arguments, match))
            elif not entry.texts:
                continue
            text = entry.texts[digest % len(entry.texts)] if entry.texts else ""
            return _padded(_filled(text, match), entry.min_tokens or 0, digest), asked
        if self._default and forced is None:
            return self._default[digest % len(self._default)], None
        return None, forced

    def _drawn(self, digest: int, limit: int, min_tokens: int, ignore_eos: bool) -> OutputPlan:
        if ignore_eos:
            escaped, ids = _neutral(digest, limit)
            return _ended(escaped, ids, limit, ignore_eos)
        rng = random.Random(digest)  # noqa: S311 - seeded on purpose
        drawn = round(self._median_tokens * rng.lognormvariate(0.0, self._sigma))
        # One token of the drawn length is the end mark.
        escaped, ids = _neutral(digest, min(max(drawn - 1, min_tokens, 1), limit))
        return _ended(escaped, ids, limit, ignore_eos)


_T = TypeVar("_T")


def _filled(value: _T, match: re.Match[str]) -> _T:
    """Put what a pattern's named groups found into a text, or into all texts of JSON."""
    filled: Any = value
    if isinstance(value, str):
        for name, found in match.groupdict().items():
            filled = filled.replace("{" + name + "}", found or "")
    elif isinstance(value, dict):
        filled = {key: _filled(item, match) for key, item in value.items()}
    elif isinstance(value, list):
        filled = [_filled(item, match) for item in value]
    return cast(_T, filled)


def _calling(text: str, asked: Asked, digest: int, limit: int, wanted: int) -> OutputPlan:
    """An answer that ends with a tool call, after so many neutral words that it is long enough."""
    mark = tokens.pieces(opening_mark(asked.name))
    arguments = tokens.pieces(asked.arguments)
    closing = tokens.pieces(CLOSING_MARK)
    content = tokens.pieces(text)
    escaped = [escape_json(part) for part in content]
    ids = tokens.ids_of(content)
    missing = wanted - len(content) - len(mark) - len(arguments) - len(closing)
    if missing > 0:
        filler_escaped, filler_ids = _neutral(digest, missing)
        escaped, ids = [*filler_escaped, *escaped], [*filler_ids, *ids]
    start = len(ids) + len(mark)
    escaped += [b""] * len(mark) + [escape_json(part) for part in arguments] + [b""] * len(closing)
    ids += tokens.ids_of([*mark, *arguments, *closing])
    ended = _ended(escaped[:limit], ids[:limit], limit, ignore_eos=False)
    if len(ended) <= start:
        return ended
    return replace(ended, tool=SpokenTool(f"chatcmpl-tool-{digest:016x}", asked, start))


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
