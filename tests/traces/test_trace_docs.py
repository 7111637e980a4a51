"""docs/traces.md explains the format that is read."""

from __future__ import annotations

import json
from pathlib import Path

from dispatcher.traces import read_trace
from dispatcher.traces.jsonl import _Line

PAGE = (Path(__file__).parents[2] / "docs" / "traces.md").read_text()


def test_every_field_is_explained_and_no_other() -> None:
    fields = [field.alias or name for name, field in _Line.model_fields.items()]
    rows = [line.split("`")[1] for line in PAGE.splitlines() if line.startswith("| `")]
    assert rows == fields


def test_the_example_is_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "example.jsonl"
    path.write_text(PAGE.split("```json\n")[1].split("```")[0])
    (workflow,) = read_trace(path)
    assert workflow.application == "text2sql"
    assert [call.parents for call in workflow.calls] == [(), ("c1",), ("c1",), ("c2", "c3")]
    for line in path.read_text().splitlines():
        assert json.loads(line)["workflow"] == workflow.workflow_id
