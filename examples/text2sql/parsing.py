"""Reading what the model wrote. A model may leave the asked form: then the widest sense counts."""

from __future__ import annotations

import re

MAX_KEYWORDS = 20

_FENCE = re.compile(r"```(?:sql|sqlite)?[ \t]*\n(.*?)```", re.S | re.I)
_BARE = re.compile(r"^[ \t]*(?:SELECT|WITH)\b.*", re.S | re.M | re.I)


def keywords(text: str) -> list[str]:
    """The items of a dashed list, at most 20; empty if there is none."""
    found = re.findall(r"^\s*[-*]\s+(.+?)\s*$", text, re.M)
    return list(dict.fromkeys(found))[:MAX_KEYWORDS]


def tables(text: str, known: list[str]) -> list[str]:
    """Known tables named in the last 'Tables:' line, else anywhere in the text, else all."""
    lines = re.findall(r"^\W*Tables:(.+)$", text, re.M | re.I)
    words = set(re.findall(r"[a-z_]+", (lines[-1] if lines else text).lower()))
    return [table for table in known if table in words] or list(known)


def columns(text: str, allowed: dict[str, list[str]]) -> dict[str, list[str]]:
    """Columns named in lines 'table: column, column'; a table without such a line keeps all."""
    chosen = dict(allowed)
    for table, names in re.findall(r"^\W*([a-z_]+)\W*:(.+)$", text, re.M | re.I):
        if table in allowed:
            words = set(re.findall(r"[a-z_]+", names.lower()))
            kept = [name for name in allowed[table] if name in words]
            chosen[table] = kept or allowed[table]
    return chosen


def sql(text: str) -> str:
    """The last fenced block, else the text from the first line that begins like a query, else ''.

    A trailing semicolon is dropped.
    """
    blocks = _FENCE.findall(text)
    if blocks:
        found = blocks[-1]
    else:
        bare = _BARE.search(text)
        found = bare[0] if bare else ""
    return found.strip().rstrip(";").strip()


def unit_tests(text: str, at_most: int) -> list[str]:
    """The tests on lines 'Test 1: ...' or '1. ...'; one general test if there is none."""
    found = re.findall(r"^\W*(?:Test\s*)?\d+\s*[:.)]\W*(\S.*?)\s*$", text, re.M | re.I)
    return found[:at_most] or ["The result answers exactly what the question asks."]


def verdicts(text: str, numbers: list[int]) -> set[int]:
    """Which candidates are said to pass."""
    found = re.findall(r"^\W*Candidate\s*(\d+)\W*(pass|fail)", text, re.M | re.I)
    last = {int(number): verdict.lower() for number, verdict in found}
    return {number for number in numbers if last.get(number) == "pass"}


def best(text: str, numbers: list[int]) -> int | None:
    """The number of the last 'Best: 2', None if none of `numbers` is named."""
    found = [int(number) for number in re.findall(r"Best\W*(?:candidate\W*)?(\d+)", text, re.I)]
    return found[-1] if found and found[-1] in numbers else None
