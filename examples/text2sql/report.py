"""What a run comes to: numbers, a table, JSON, and a progress bar while it goes."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from workflow import Outcome

SLO_SCALES = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)
PLAIN_LINES = 10


def quantile(values: Sequence[float], share: float) -> float:
    """The value that `share` of `values` do not exceed, between neighbours linearly; NaN if none.

    >>> quantile([1.0, 2.0, 3.0, 4.0], 0.5)
    2.5
    """
    if not values:
        return math.nan
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = math.ceil(place)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean; NaN if there is nothing."""
    return sum(values) / len(values) if values else math.nan


def summarise(outcomes: Sequence[Outcome], wall_s: float) -> dict[str, Any]:
    """The numbers of a run.

    Latencies are of workflows that did not fail; a failed one misses its SLO at every scale.
    """
    done = [item for item in outcomes if not item.failed]
    latencies_s = [item.latency_s for item in done]
    calls = [float(len(item.calls)) for item in done]
    every_call = [call for item in outcomes for call in item.calls]
    queue_ms = [call.queue_ms for call in every_call if call.queue_ms is not None]
    call_mean = mean(calls)
    return {
        "workflows": len(outcomes),
        "failed": len(outcomes) - len(done),
        "wall_s": wall_s,
        "calls": len(every_call),
        "calls_per_workflow": {
            "mean": call_mean,
            "variance": mean([(count - call_mean) ** 2 for count in calls]),
            "min": min(calls, default=math.nan),
            "max": max(calls, default=math.nan),
        },
        "latency_s": {
            "p50": quantile(latencies_s, 0.50),
            "p95": quantile(latencies_s, 0.95),
            "p99": quantile(latencies_s, 0.99),
            "mean": mean(latencies_s),
        },
        "queue_s_per_call": {
            "mean": mean(queue_ms) / 1000,
            "p95": quantile(queue_ms, 0.95) / 1000,
        },
        "slo_attainment": {
            f"{scale:g}": mean(
                [
                    float(not item.failed and item.latency_s <= scale * item.slo_s)
                    for item in outcomes
                ]
            )
            for scale in SLO_SCALES
        },
        "slo_scale_at_95": quantile([item.latency_s / item.slo_s for item in done], 0.95),
        "accuracy": mean([float(item.correct) for item in outcomes]),
    }


def as_json(outcomes: Sequence[Outcome], summary: dict[str, Any], config: dict[str, Any]) -> Any:
    """Everything about a run as plain JSON values; what is not a number (NaN) is null."""
    workflows = [
        {
            "id": item.workflow_id,
            "question_id": item.question.id,
            "difficulty": item.question.difficulty,
            "question": item.question.question,
            "latency_s": item.latency_s,
            "slo_s": item.slo_s,
            "slo_met": not item.failed and item.latency_s <= item.slo_s,
            "corrections": item.corrections,
            "correct": item.correct,
            "sql": item.sql,
            "error": item.error,
            "calls": [dataclasses.asdict(call) for call in item.calls],
        }
        for item in outcomes
    ]
    return _without_nan({"config": config, "summary": summary, "workflows": workflows})


def table(summary: dict[str, Any], title: str) -> Table:
    """The summary as a table of two columns."""
    shown = Table(title=title, show_header=False)
    shown.add_column("what")
    shown.add_column("value", justify="right")
    latency, per = summary["latency_s"], summary["calls_per_workflow"]
    shown.add_row("workflows", str(summary["workflows"]))
    shown.add_row("failed", str(summary["failed"]))
    spread = f"mean {per['mean']:.1f}, variance {per['variance']:.1f}"
    shown.add_row("calls", str(summary["calls"]))
    shown.add_row("calls per workflow", f"{spread}, {per['min']:.0f} to {per['max']:.0f}")
    for name, label in (("p50", "P50"), ("p95", "P95"), ("p99", "P99"), ("mean", "mean")):
        shown.add_row(f"workflow latency, {label}", f"{latency[name]:.2f} s")
    queue = summary["queue_s_per_call"]
    if not math.isnan(queue["mean"]):
        shown.add_row("queue wait per call, mean", f"{queue['mean']:.2f} s")
        shown.add_row("queue wait per call, P95", f"{queue['p95']:.2f} s")
    for scale, share in summary["slo_attainment"].items():
        shown.add_row(f"SLO attainment at {scale} x SLO", f"{share:.1%}")
    shown.add_row("SLO scale that 95% attain", f"{summary['slo_scale_at_95']:.2f}")
    shown.add_row("execution accuracy", f"{summary['accuracy']:.1%}")
    shown.add_row("wall time", f"{summary['wall_s']:.1f} s")
    return shown


def failures(outcomes: Sequence[Outcome], at_most: int = 5) -> list[str]:
    """The errors of failed workflows, the most frequent first."""
    counted = Counter(item.error for item in outcomes if item.error is not None)
    return [f"{count} x {error}" for error, count in counted.most_common(at_most)]


class ProgressShown:
    """A progress bar on a terminal; elsewhere about ten plain lines."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._total = total
        self._done = 0
        self._failed = 0
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=console,
            )
            self._task = self._bar.add_task("workflows", total=total)

    def __enter__(self) -> ProgressShown:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self, outcome: Outcome) -> None:
        """One workflow has ended."""
        self._done += 1
        self._failed += outcome.failed
        if self._bar is not None:
            suffix = f", {self._failed} failed" if self._failed else ""
            self._bar.update(self._task, advance=1, description=f"workflows{suffix}")
        elif self._done % math.ceil(self._total / PLAIN_LINES) == 0 or self._done == self._total:
            self._console.print(f"{self._done}/{self._total} workflows, {self._failed} failed")


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value
