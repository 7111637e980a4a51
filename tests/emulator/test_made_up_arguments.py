"""Arguments that emulated engines make up for the tools they ask for."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.emulator.tool_calls import made_up


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": ["number", "null"]}, 3),
        ({"type": "integer", "minimum": 2**64 - 1}, 2**64 - 1),
        ({"type": "boolean"}, True),
        ({"anyOf": [{"const": "a"}, {"type": "null"}]}, "a"),
        ({"type": "array", "items": {}}, []),
        ({"properties": {"a": {"properties": {"b": {"type": "null"}}}}}, {"a": {"b": None}}),
        ({"type": {}}, {}),
        ("no schema", {}),
        (None, {}),
    ],
)
def test_values_that_fit_a_schema(schema: object, value: object):
    assert made_up(schema, 3) == value


def test_a_schema_that_is_nested_without_end_has_one():
    schema: dict[str, Any] = {}
    for _ in range(500):
        schema = {"anyOf": [schema]}
    assert made_up(schema, 0) == {}
