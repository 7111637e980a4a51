"""Pictures of LLMSched's experiments: completion times, ablations, sensitivity, rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dispatcher.bench.papers.llmsched import experiments as of
from dispatcher.bench.papers.llmsched.cases import Case, Contender
from dispatcher.bench.papers.llmsched.results import JCT
from dispatcher.bench.plots import Picture, draw_pictures, finish

_COLOURS: Mapping[str, str] = {
    of.LLMSCHED.label: "#d93025",
    of.FCFS.label: "#9aa0a6",
    of.FAIR.label: "#5b8ff9",
    of.SJF.label: "#f6a21e",
    of.ARGUS.label: "#a178c8",
    of.CARBYNE.label: "#3ba272",
}
_Plays = Mapping[tuple[str, str], Mapping[str, Any]]
"""Rows of the document by key of the case and contender."""


def draw(document: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw what `headway bench paper llmsched` has found; the files it made.

    Raises:
        PlotsMissingError: There is no matplotlib.
        OSError: The folder or a file cannot be written.
    """
    plays = {(play["case"], play["contender"]): play for play in document["plays"]}
    pictures: Sequence[Picture] = (
        ("llmsched-main", partial(_main, plays=plays), (9.0, 3.2)),
        ("llmsched-variants", partial(_variants, plays=plays), (7.2, 3.2)),
        ("llmsched-sensitivity", partial(_sensitivity, plays=plays), (9.0, 3.2)),
    )
    return draw_pictures(pictures, folder)


def _jct(plays: _Plays, case: Case, contender: Contender) -> float:
    return float(plays[case.key, contender.label][JCT])


def _bars(
    axes: Any, plays: _Plays, contenders: Sequence[Contender], colours: Sequence[str | None]
) -> None:
    """Completion times over llmsched's, side by side for each mix."""
    width = 0.8 / len(contenders)
    for number, (one, colour) in enumerate(zip(contenders, colours, strict=True)):
        axes.bar(
            [place - 0.4 + width * (number + 0.5) for place in range(len(of.MAIN_CASES))],
            [_jct(plays, case, one) / _jct(plays, case, of.LLMSCHED) for case in of.MAIN_CASES],
            width * 0.92,
            label=one.label,
            color=colour,
        )
    axes.set_xticks(range(len(of.MAIN_CASES)), [case.mix for case in of.MAIN_CASES])
    axes.set(ylabel="mean completion time, llmsched = 1")


def _main(figure: Any, plays: _Plays) -> None:
    axes = figure.subplots()
    contenders = (of.LLMSCHED, *of.BASELINES)
    _bars(axes, plays, contenders, [_COLOURS[one.label] for one in contenders])
    finish(axes)


def _variants(figure: Any, plays: _Plays) -> None:
    axes = figure.subplots()
    _bars(axes, plays, (of.LLMSCHED, *of.VARIANTS), [_COLOURS[of.LLMSCHED.label], *[None] * 5])
    finish(axes)


def _sensitivity(figure: Any, plays: _Plays) -> None:
    left, middle, right = figure.subplots(1, 3)
    ratios = [ratio for ratio in of.RATIOS if all((e, ratio) in of.GRID for e in of.EPSILONS[1:])]
    for ratio in ratios:
        times = [
            _jct(plays, of.GRID_CASE, of.GRID[epsilon, ratio if epsilon else of.RATIOS[0]])
            for epsilon in of.EPSILONS
        ]
        left.plot(of.EPSILONS, times, marker="o", label=f"r = {ratio:g}")
    left.set(xlabel="epsilon", ylabel="mean completion time, s")
    finish(left)
    for main in of.MAIN_CASES:
        cases = sorted(
            (one for one in (*of.RATE_CASES, main) if one.mix == main.mix),
            key=lambda one: one.rate_per_s,
        )
        times = [_jct(plays, case, of.LLMSCHED) for case in cases]
        middle.plot([case.rate_per_s for case in cases], times, marker="o", label=main.mix)
    middle.set(xlabel="jobs per second", ylabel="mean completion time, s")
    finish(middle)
    counts = sorted({*of.COUNT_CASES, of.MIXED}, key=lambda case: case.jobs)
    for one in (of.LLMSCHED, *of.BASELINES):
        times = [_jct(plays, case, one) for case in counts]
        style = {"color": _COLOURS[one.label]}
        right.plot([case.jobs for case in counts], times, marker="o", label=one.label, **style)
    right.set(xlabel="jobs, mixed", ylabel="mean completion time, s")
    finish(right)
