"""What is said of a value that does not fit, in the words of this project."""

from __future__ import annotations

import re
from collections.abc import Iterable

_WORDS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"^(Value|Assertion) error, ", ""),
        (r"^Field required$", "missing"),
        (r"^Input should be (greater|less|a multiple)\b", r"expected a number \1"),
        (r"^Input should be an? valid ", "expected a "),
        (r"^Input should be ", "expected "),
        (r"^String should match pattern ", "expected a text that matches "),
        (r"^String should ", "expected a text to "),
        (r"^(Tuple|List|Set) should ", "expected a list to "),
        (r"^Dictionary should ", "expected keys and values to "),
        (r"\bexpected a (integer|array|object)\b", r"expected an \1"),
        (r"\bexpected a (string)\b", "expected a text"),
        (r"\bexpected a (list|tuple|set)\b(?! to)", "expected a list"),
        (r", unable to (parse|interpret) .*$", ""),
        (r"\b([Ee])xpected a (dictionary|mapping)\b.*$", r"\1xpected keys and values"),
    )
)


def plain(message: str) -> str:
    """A message of the library that validates, without its own words for things.

    Example:
        >>> plain("Input should be greater than 0")
        'expected a number greater than 0'
        >>> plain("Input should be a valid integer, unable to parse string as an integer")
        'expected an integer'
        >>> plain("Input should be 'settled', 'paper' or 'repo'")
        "expected 'settled', 'paper' or 'repo'"
        >>> plain("Value error, engines e0 and e1 are one")
        'engines e0 and e1 are one'
    """
    for pattern, words in _WORDS:
        message = pattern.sub(words, message)
    return message


def either(messages: Iterable[str]) -> str:
    """Several things that would each do, as one.

    Example:
        >>> either(["expected a number", "expected 'auto'", "expected a number"])
        "expected a number, or 'auto'"
    """
    first, *more = dict.fromkeys(messages)
    return ", or ".join([first, *(each.removeprefix("expected ") for each in more)])
