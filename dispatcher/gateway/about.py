"""What this is."""

from __future__ import annotations

from importlib.metadata import version

VERSION = version("headway")


def counted(number: int, thing: str) -> str:
    """A number of things, for people.

    Example:
        >>> counted(1, "engine"), counted(2, "engine")
        ('1 engine', '2 engines')
    """
    return f"{number} {thing}" + "s" * (number != 1)
