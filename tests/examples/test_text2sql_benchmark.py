"""The table of the policy benchmark, from made-up runs."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    for name in ("text2sql", "processes"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("text2sql")


def test_a_sample_sums_over_instances(benchmark: ModuleType) -> None:
    page = (
        "# TYPE headway_queue_depth gauge\n"
        'headway_queue_depth{instance="a"} 3\nheadway_queue_depth{instance="central"} 2\n'
        '# TYPE headway_in_flight gauge\nheadway_in_flight{instance="a"} 8\n'
        '# TYPE headway_seats gauge\nheadway_seats{instance="a"} 8\n'
        "# TYPE headway_alpha gauge\nheadway_alpha 0.5\n"
    )
    assert benchmark.sample(page) == (5, 8, 8)


def test_runs_of_one_policy_share_a_row_and_a_failed_one_says_so(benchmark: ModuleType) -> None:
    summary = {
        "latency_s": {"p50": 30.04, "p95": 40.0, "mean": 31.0},
        "slo_attainment": {"1": 0.958},
        "slo_scale_at_95": 0.983,
        "wall_s": 141.2,
    }
    busy, idle = (4.0, 8.0, 8.0), (0.0, 4.0, 8.0)
    runs = [
        benchmark.Run("vllm", [busy, idle], summary),
        benchmark.Run("hexgen-flow", [], None),
        benchmark.Run("vllm", [busy], summary),
    ]
    rows = benchmark.table(runs).splitlines()[2:]
    assert rows[0] == (
        "| `vllm` | 30.0, 30.0 | 40.0, 40.0 | 31.0, 31.0 | 95.8 %, 95.8 % | 0.98, 0.98"
        " | 75 %, 100 % | 50 % of samples, 100 % of samples | 141, 141 |"
    )
    assert rows[1].startswith("| `hexgen-flow` | failed | failed | failed |")
