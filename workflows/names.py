"""What visits to stages are called, by clients, in plans and in models.

`search#2` is the second visit to `search`: a client that comes back to a stage may say so or just
name the stage again, and a plan lists the visits that it wants. Any other name, and `x#2` where
there is no stage `x`, is a stage of its own.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice

MAX_LISTED = 20
"""Names that an error message tells."""


def split_name(name: str) -> tuple[str, int]:
    """Stage and number of the visit, from 1.

    Example:
        >>> split_name("search"), split_name("search#2"), split_name("#2"), split_name("issue#")
        (('search', 1), ('search', 2), ('#2', 1), ('issue#', 1))
    """
    head, _, number = name.rpartition("#")
    if not head or not number.isascii() or not number.isdigit() or not 1 <= len(number) <= 4:
        return name, 1
    return head, max(1, int(number))


def base_name(name: str) -> str:
    """The stage that a visit, or a planned repetition (`search#2`), is of."""
    return split_name(name)[0]


def visit_name(stage: str, number: int) -> str:
    """Of a stage's visit of that number, from 1; `search#2` visited again is `search#3`."""
    if number == 1:
        return stage
    base, first = split_name(stage)
    return f"{base}#{first + number - 1}" if first > 1 else f"{stage}#{number}"


def listed(names: Collection[str]) -> str:
    """The first of them, for a message."""
    more = len(names) - MAX_LISTED
    return ", ".join(islice(names, MAX_LISTED)) + (f" and {more} more" if more > 0 else "")
