"""`headway tune`: a recorded trace in, an alpha out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dispatcher.cli import app
from dispatcher.simulator.workloads import WORKLOADS, Poisson, make_trace
from dispatcher.traces import read_trace, write_trace


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    write_trace(path, make_trace(WORKLOADS["chess-1"], Poisson(), rate_per_s=1.0, seed=0, count=8))
    return path


def test_a_trace_is_tuned_on(trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "tune.json"
    done = CliRunner().invoke(app, ["tune", "--trace", str(trace), "--json", str(file)])
    assert done.exit_code == 0, done.output
    found = json.loads(file.read_text())
    assert {"version", "commit"} <= found.keys()
    asked = {"trace": str(trace), "policy": "hexgen-flow", "max_calls": 2000, "seed": 0}
    assert found["configuration"] == asked
    assert [round(10 * score["alpha"]) for score in found["curve"]] == list(range(11))
    assert all(score["p95_s"] > 0 for score in found["curve"])
    assert found["why"] in " ".join(done.output.split())
    again = tmp_path / "again.json"
    CliRunner().invoke(app, ["tune", "--trace", str(trace), "--json", str(again)])
    assert again.read_text() == file.read_text()


def test_a_recorded_trace_names_the_model_that_was_asked(trace: Path, tmp_path: Path) -> None:
    named = tmp_path / "named.jsonl"
    write_trace(named, [replace(one, model="llama-3.1-8b") for one in read_trace(trace)])
    found = []
    for path in (trace, named):
        file = tmp_path / "tune.json"
        done = CliRunner().invoke(app, ["tune", "--trace", str(path), "--json", str(file)])
        assert done.exit_code == 0, done.output
        found.append(json.loads(file.read_text())["curve"])
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--trace", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--policy", "vllm"], "alpha"),
        (["--fleet", "abacus"], "abacus"),
        (["--alpha", "2"], "expected 0 to 1"),
    ],
)
def test_what_is_wrong_is_named(trace: Path, options: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["tune", "--trace", str(trace), *options])
    assert done.exit_code == 2
    assert said in done.output
