"""What a terminal shows: a table of a run, and how far one is."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from dispatcher.bench.claims import Summary
from dispatcher.bench.report import Figures

_PLAIN_LINES = 10
_LOG_WIDTH = 130
"""Of a table that goes to a file or a pipe."""


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    figure: str
    how: str
    with_spread: bool = False


_COLUMNS = (
    _Column("P50, s", "latency_p50_s", "{:.1f}"),
    _Column("P95, s", "latency_p95_s", "{:.1f}", with_spread=True),
    _Column("scale at 95 %", "slo_scale_at_95", "{:.2f}", with_spread=True),
    _Column("SLO met", "slo_met", "{:.1%}"),
    _Column("done/s", "throughput_per_s", "{:.3f}", with_spread=True),
    _Column("in time/s", "goodput_per_s", "{:.3f}"),
    _Column("utilisation", "utilisation", "{:.1%}"),
    _Column("prefix hits", "prefix_hit_rate", "{:.1%}"),
)


def summary_table(summaries: Sequence[Figures], title: str) -> Table:
    """One row per policy, rate and number of seats: means over seeds, ± the standard deviation."""
    several_seats = len({row["seats"] for row in summaries}) > 1
    failed = any(row["failed"]["max"] for row in summaries)
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("policy", overflow="fold")
    table.add_column("rate/s", justify="right")
    if several_seats:
        table.add_column("seats", justify="right")
    shown = [c for c in _COLUMNS if any(row[c.figure] is not None for row in summaries)]
    for column in shown:
        table.add_column(column.title, justify="right")
    if failed:
        table.add_column("failed", justify="right")
    for row in summaries:
        cells = [row["policy"], "-" if row["rate"] is None else f"{row['rate']:.3g}"]
        cells += [str(row["seats"])] if several_seats else []
        cells += [_cell(row[column.figure], column, row["seeds"]) for column in shown]
        cells += [f"{row['failed']['mean']:.1f}"] if failed else []
        table.add_row(*cells)
    return table


def _cell(found: Figures | None, column: _Column, seeds: int) -> str:
    if found is None:
        return "-"
    mean = column.how.format(found["mean"])
    if seeds == 1 or not column.with_spread:
        return mean
    return f"{mean} ± {column.how.format(found['sd'])}"


def console() -> Console:
    """Where commands print; to a file or a pipe, lines are as long as tables need."""
    narrow = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console() if narrow else Console(width=_LOG_WIDTH)


@contextmanager
def progress(console: Console, total: int, what: str) -> Iterator[Callable[[], None]]:
    """A progress bar on a terminal, about ten plain lines elsewhere; gives what counts a step."""
    if not console.is_terminal:
        yield _lines(console, total, what)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


def _lines(console: Console, total: int, what: str) -> Callable[[], None]:
    done = 0
    every = max(1, -(-total // _PLAIN_LINES))

    def step() -> None:
        nonlocal done
        done += 1
        if done % every == 0 or done == total:
            console.print(f"{done}/{total} {what}", highlight=False)

    return step


def summary_of(summary: Summary) -> Table:
    """A further table of an experiment."""
    table = Table(*summary.columns, title=summary.title, title_justify="left")
    for row in summary.rows:
        table.add_row(*row)
    return table


def claims_table(document: Mapping[str, Any]) -> Table:
    """Claims of a paper beside their measurements."""
    table = Table("claim", "setting", "claimed", "measured", "met", "note", show_lines=True)
    for claim in document["claims"]:
        measured = _number(claim["measured"]) + f" {claim['unit']}"
        if claim["spread"] is not None:
            measured += f" (± {_number(claim['spread'])})"
        table.add_row(
            claim["what"],
            claim["setting"],
            f"{_number(claim['claimed'])} {claim['unit']}",
            measured,
            "yes" if claim["met"] else "no",
            claim["note"],
        )
    return table


def _number(value: float | Sequence[float] | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, int | float):
        return f"{value:.3g}"
    return " to ".join(f"{end:.3g}" for end in value)


@contextmanager
def steps(
    console: Console, what: str
) -> Iterator[tuple[Callable[[int], None], Callable[[], None]]]:
    """As `progress`, where the total is told later: what takes the total, and what counts."""
    with ExitStack() as stack:
        counting: list[Callable[[], None]] = []

        def on_steps(total: int) -> None:
            counting[:] = [stack.enter_context(progress(console, total, what))]

        def on_step() -> None:
            if counting:
                counting[0]()

        yield on_steps, on_step
