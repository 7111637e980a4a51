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

HEAD_CHARS, TAIL_CHARS = 512, 2048
"""Read of a longer text, from its beginning and its end."""

_ENDS = 400
"""Characters at either end that may say how much is wanted."""
_BUCKETS = 16

_ASKED = re.compile(
    r"(\d{1,5})[ -]?(?:word|sentence|paragraph|page|line|item|example|question|idea|point|step"
    r"|slide|bullet|character|token|reason|tip|way)"
)
_COUNTED = ("?", "```", "{", "\\", "$", "=", "(", ",", ".", "%", "\n ", '"')
_COUNTED_WORDS = ("for ", "if ", "return", "each", "total", "find ")
_WANTED = (
    ("list ", "ideas", "examples"),
    ("explain", "describe", "why "),
    ("write", "create", "story"),
    ("only", "brief", "short"),
    ("function", "code", "implement"),
)
"""To enumerate, to explain, to compose, to be brief, to program."""

TEXT_FEATURES = tuple(
    f"text_{number:02d}"
    for number in range(7 + len(_COUNTED) + len(_COUNTED_WORDS) + len(_WANTED) + _BUCKETS)
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
    lines = text.count("\n") + 1
    digits = sum(map(text.count, "0123456789"))
    ends = low if size <= 2 * _ENDS else f"{low[:_ENDS]} {low[-_ENDS:]}"
    asked = _ASKED.findall(ends)
    values = [
        log1p(total),
        log1p(len(text.split())),
        log1p(lines),
        log1p(size / lines),
        digits / size,
        log1p(int(asked[-1])) if asked else 0.0,
        float(text.rstrip().endswith("?")),
    ]
    values += [log1p(text.count(sign)) for sign in _COUNTED]
    values += [log1p(low.count(word)) for word in _COUNTED_WORDS]
    values += [log1p(sum(map(low.count, words))) for words in _WANTED]
    values += _hashed(ends.split())
    return dict(zip(TEXT_FEATURES, values, strict=True))


def _hashed(words: list[str]) -> list[float]:
    """How many different words are in each bucket, half of them counted down."""
    buckets = [0.0] * _BUCKETS
    for word in set(words):
        code = crc32(word.encode("utf-8", "replace"))
        buckets[code % _BUCKETS] += 1.0 if code & 0x10000 else -1.0
    return buckets
