"""What a prompt's text tells about the length of its answer, as a few bounded numbers.

The text is looked at once, when its call arrives; numbers stay, no text. They count what can be
counted in a text of any language (characters, lines, digits, brackets, signs of code and of
mathematics) and look for what English prompts ask for (a list, an explanation, so many words).
The rest is words, hashed into few buckets, so that a forest may learn which of them matter where
it is trained; which words are in a bucket cannot be told from its number.

Of a long text its beginning and its end are read: tasks stand there.
"""

from __future__ import annotations

import re
from math import log1p
from zlib import crc32

HEAD_CHARS, TAIL_CHARS = 1024, 3072
"""Read of a longer text, from its beginning and its end."""

_MOST_WORDS = 400
"""Different words that are hashed, from the end of the text."""
_BUCKETS = 16

_ASKED = re.compile(
    r"(\d{1,5})[ -]?(?:word|sentence|paragraph|page|line|item|example|question|idea|point|step"
    r"|slide|bullet|character|token|reason|tip|way)"
)
_NUMBERS = re.compile(r"\d+")
_WORDS = re.compile(r"[^\W\d_]{2,}")
_WANTED = {
    "enumerate": ("list ", "ideas", "examples", "suggest", "table", "steps"),
    "explain": ("explain", "describe", "why ", "how ", "detail"),
    "compose": ("write", "create", "generate", "draft", "story", "essay"),
    "brief": ("only", "brief", "short", "concise", "yes or no", "one word", "just "),
    "code": ("function", "code", "script", "implement", "python", "sql", "class "),
}

_COUNTED = ("?", "```", "{", "\\", "$", "=", "(", ",", ".", "%", "\n ", '"')
_LOW_COUNTED = ("for ", "if ", "return", "while ", "each", "total", "find ", "answer")

TEXT_FEATURES = tuple(
    f"text_{number:02d}"
    for number in range(8 + len(_COUNTED) + len(_LOW_COUNTED) + len(_WANTED) + _BUCKETS)
)
"""Names of what `text_features` gives, always all of them."""


def text_features(text: str) -> dict[str, float]:
    """Describe a text by numbers; the same in every process.

    Args:
        text: Of the message that asks: the last of a conversation, or the whole prompt.

    Returns:
        A number for each of `TEXT_FEATURES`, finite and of small size whatever the text.

    Example:
        >>> said = text_features("List 3 ideas for a birthday, in 200 words.")
        >>> set(said) == set(TEXT_FEATURES), all(abs(value) < 50 for value in said.values())
        (True, True)
    """
    total = len(text)
    if total > HEAD_CHARS + TAIL_CHARS:
        text = f"{text[:HEAD_CHARS]}\n{text[-TAIL_CHARS:]}"
    low = text.lower()
    size = len(text) + 1
    words = _WORDS.findall(low)
    numbers = _NUMBERS.findall(text)
    asked = _ASKED.findall(low)
    lines = text.count("\n") + 1
    values = [
        log1p(total),
        log1p(len(words)),
        log1p(lines),
        log1p(size / lines),
        sum(map(len, numbers)) / size,
        log1p(len(numbers)),
        log1p(int(asked[-1])) if asked else 0.0,
        float(text.rstrip().endswith("?")),
    ]
    values += [log1p(text.count(sign)) for sign in _COUNTED]
    values += [log1p(low.count(sign)) for sign in _LOW_COUNTED]
    values += [log1p(sum(map(low.count, signs))) for signs in _WANTED.values()]
    values += _hashed(words)
    return dict(zip(TEXT_FEATURES, values, strict=True))


def _hashed(words: list[str]) -> list[float]:
    """How many different words are in each bucket, half of them counted down."""
    buckets = [0.0] * _BUCKETS
    for word in set(words[-_MOST_WORDS:]):
        code = crc32(word.encode("utf-8", "replace"))
        buckets[code % _BUCKETS] += 1.0 if code & 0x10000 else -1.0
    return buckets
