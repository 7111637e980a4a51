"""Pictures of LLMSched's experiments: completion times, ablations, sensitivity, rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dispatcher.bench.paper_pictures import Plays, drawing, grouped_bars
from dispatcher.bench.papers.llmsched import experiments as of
from dispatcher.bench.papers.llmsched.cases import Case, Contender
from dispatcher.bench.papers.llmsched.results import JCT
from dispatcher.bench.plots import finish

_COLOURS: Mapping[str, str] = {
    of.LLMSCHED.label: "#d93025",
    of.FCFS.label: "#9aa0a6",
    of.FAIR.label: "#5b8ff9",
    of.SJF.label: "#f6a21e",
    of.ARGUS.label: "#a178c8",
    of.CARBYNE.label: "#3ba272",
}


def _jct(plays: Plays, case: Case, contender: Contender) -> float:
    return float(plays[case.key, contender.label][JCT])


def _bars(
    axes: Any, plays: Plays, contenders: Sequence[Contender], colours: Sequence[str | None]
) -> None:
    """Completion times over llmsched's, side by side for each mix."""
    ours = [_jct(plays, case, of.LLMSCHED) for case in of.MAIN_CASES]
    theirs = [[_jct(plays, case, one) for case in of.MAIN_CASES] for one in contenders]
    grouped_bars(
        axes,
        [
            (one.label, [a / b for a, b in zip(times, ours, strict=True)], {"color": colour})
            for one, times, colour in zip(contenders, theirs, colours, strict=True)
        ],
    )
    axes.set_xticks(range(len(of.MAIN_CASES)), [case.mix for case in of.MAIN_CASES])
    axes.set(ylabel="mean completion time, llmsched = 1")


def _main(figure: Any, plays: Plays) -> None:
    axes = figure.subplots()
    contenders = (of.LLMSCHED, *of.BASELINES)
    _bars(axes, plays, contenders, [_COLOURS[one.label] for one in contenders])
    finish(axes)


def _variants(figure: Any, plays: Plays) -> None:
    axes = figure.subplots()
    _bars(
        axes,
        plays,
        (of.LLMSCHED, *of.VARIANTS),
        [_COLOURS[of.LLMSCHED.label], *[None] * len(of.VARIANTS)],
    )
    finish(axes)


def _sensitivity(figure: Any, plays: Plays) -> None:
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


draw = drawing(
    ("llmsched-main", _main, (9.0, 3.2)),
    ("llmsched-variants", _variants, (7.2, 3.2)),
    ("llmsched-sensitivity", _sensitivity, (9.0, 3.2)),
)
