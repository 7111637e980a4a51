"""`headway calibrate`: the session with a progress bar, and what it says and writes at the end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import rich.progress
import uvloop
from rich.console import Console
from rich.table import Table

from dispatcher.calibration.client import CalibrationError
from dispatcher.calibration.session import CalibrationOptions, Progress, calibrate
from dispatcher.config.profiles import EngineProfile, MeasuredTimes, written_profiles

_POOR_FIT = 0.25


def run(options: CalibrationOptions, out_file: Path, console: Console) -> None:
    """Measure, print a summary, write the file; blocks.

    Raises:
        CalibrationError: Nothing was written, for the reason that it names.
        KeyboardInterrupt: Ctrl-C; all calls have been ended and nothing was written.
    """
    # said before minutes are spent, not after
    if not out_file.parent.is_dir():
        raise CalibrationError(f"{out_file.parent}: no such directory")
    if out_file.is_dir():
        raise CalibrationError(f"{out_file}: is a directory")
    with (
        _bar(console) as bar,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        task = bar.add_task("starting", total=1.0)

        def report(progress: Progress) -> None:
            bar.update(task, completed=progress.share, description=progress.doing)

        def warn(text: str) -> None:
            bar.console.print(text, style="yellow", markup=False, soft_wrap=True)

        profiles = runner.run(calibrate(options, report, warn))
        bar.update(task, completed=1.0, description="done")
    for profile in profiles:
        console.print(_table(profile))
        for problem in _doubts(profile):
            console.print(problem, style="yellow", markup=False, soft_wrap=True)
    try:
        out_file.write_text(written_profiles(profiles), encoding="utf-8")
    except OSError as error:
        raise CalibrationError(f"{out_file}: cannot be written: {error}") from error
    console.print(
        f"Written to {out_file}; an engine of the configuration starts from it with"
        f" `profile: {out_file}`",
        markup=False,
        soft_wrap=True,
    )


def _bar(console: Console) -> rich.progress.Progress:
    return rich.progress.Progress(
        rich.progress.TextColumn("{task.description}", markup=False),
        rich.progress.BarColumn(),
        rich.progress.TaskProgressColumn(),
        rich.progress.TimeElapsedColumn(),
        console=console,
    )


def _table(profile: EngineProfile) -> Table:
    seats = profile.seats or f"more than {profile.most_running}"
    table = Table(
        "",
        "time to first token, idle",
        "time per output token, n running, K tokens resident",
        title=f"{profile.model} at {profile.url}, seats: {seats}",
        title_justify="left",
    )
    if profile.alone is not None:
        table.add_row("with the others", *_formulas(profile))
        table.add_row("alone", *_formulas(profile.alone))
    else:
        table.add_row("", *_formulas(profile))
    return table


def _formulas(times: MeasuredTimes) -> tuple[str, str]:
    prefill, decode = times.prefill, times.decode
    parts = []
    for fit in (prefill.fit, decode.fit):
        parts.append("" if fit is None else f"\n±{fit.relative_rms:.1%} RMS, {fit.samples} samples")
    return (
        f"{1e3 * prefill.fixed_s:.3g} ms + {1e6 * prefill.per_token_s:.3g} µs a token{parts[0]}",
        f"{1e3 * decode.base_s:.3g} ms + {1e6 * decode.per_running_s:.3g} µs n"
        f" + {1e9 * decode.per_kv_token_s:.3g} ns K{parts[1]}",
    )


def _doubts(profile: EngineProfile) -> list[str]:
    """What a reader should know before relying on it."""
    doubts = []
    for name, fit in (("prefill", profile.prefill.fit), ("decode", profile.decode.fit)):
        if fit is not None and fit.relative_p95 > _POOR_FIT:
            doubts.append(
                f"{profile.url}: {name} is off by up to {fit.relative_p95:.0%} (P95): was the"
                " engine busy with other work?"
            )
    return doubts
