"""Pictures of AugServe's experiments: goodput (Fig. 7), latencies (Figs. 8, 9), tasks, ablation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dispatcher.bench.papers.augserve import experiments as of
from dispatcher.bench.papers.augserve.cases import Case, Contender
from dispatcher.bench.papers.augserve.results import GOODPUT
from dispatcher.bench.plots import Picture, draw_pictures, finish, line_of

_COLOURS = {"infercept": "#e086b3", "augserve": "#d93025"}
_CASE_COLOURS = ("#d93025", "#f6a21e")
_Plays = Mapping[tuple[str, str], Mapping[str, Any]]
"""Rows of the document by key of the case and contender."""


def draw(document: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw what `headway bench paper augserve` has found; the files it made.

    Raises:
        PlotsMissingError: There is no matplotlib.
        OSError: The folder or a file cannot be written.
    """
    plays = {(play["case"], play["contender"]): play for play in document["plays"]}
    pictures: Sequence[Picture] = (
        ("augserve-goodput", partial(_goodput, plays=plays), (9.0, 3.4)),
        ("augserve-latency", partial(_latency, plays=plays), (9.0, 5.6)),
        ("augserve-parts", partial(_parts, plays=plays), (9.0, 3.8)),
    )
    return draw_pictures(pictures, folder)


def _style(contender: Contender) -> dict[str, Any]:
    """Those of one policy in its colour."""
    style: dict[str, Any] = {"color": _COLOURS.get(contender.policy)}
    if contender.policy == of.VLLM.policy:
        style = dict(line_of(of.VLLM.label))
    if contender.label != contender.policy:
        style["linestyle"] = "--"
    return style


def _against_rate(
    axes: Any,
    plays: _Plays,
    cases: Sequence[Case],
    value: Callable[[Mapping[str, Any]], float],
) -> None:
    for contender in of.MAIN:
        axes.plot(
            [case.rate_per_s for case in cases],
            [value(plays[case.key, contender.label]) for case in cases],
            marker="o",
            label=contender.label,
            **_style(contender),
        )


def _workloads() -> Sequence[tuple[str, Sequence[Case]]]:
    return ("Merge", of.MERGE_CASES), ("ToolBench", of.TOOLBENCH_CASES)


def _goodput(figure: Any, plays: _Plays) -> None:
    panels = figure.subplots(1, len(_workloads()))
    for axes, (title, cases) in zip(panels, _workloads(), strict=True):
        _against_rate(axes, plays, cases, lambda row: row[GOODPUT])
        axes.set(xlabel="requests per second", ylabel="within SLOs per second", title=title)
        axes.set_ylim(bottom=0)
        finish(axes, legend=axes is panels[0])


def _latency(figure: Any, plays: _Plays) -> None:
    rows = figure.subplots(2, len(_workloads()))
    for panels, name, label in zip(
        rows,
        ("ttft_s", "normalised_s"),
        ("mean first token, s", "mean normalised latency, s/token"),
        strict=True,
    ):
        for axes, (title, cases) in zip(panels, _workloads(), strict=True):
            _against_rate(axes, plays, cases, partial(_mean, name=name))
            axes.set_yscale("log")
            axes.set(xlabel="requests per second", ylabel=label, title=title)
            finish(axes, legend=axes is rows[1][0])


def _mean(row: Mapping[str, Any], name: str) -> float:
    return float(row[name]["mean"])


def _parts(figure: Any, plays: _Plays) -> None:
    left, right = figure.subplots(1, 2, width_ratios=(3, 4))
    parts = (
        *(of.VLLM, of.VLLM_TODAY, of.INFERCEPT, of.INFERCEPT_ENGINE, of.BATCHING),
        *(of.NO_BATCHING, of.AUGSERVE, of.AUGSERVE_ENGINE, *of.READINGS),
    )
    width = 0.8 / len(of.PART_CASES)
    for number, case in enumerate(of.PART_CASES):
        left.barh(
            [place - 0.4 + width * (number + 0.5) for place in range(len(parts))],
            [plays[case.key, contender.label][GOODPUT] for contender in parts],
            width * 0.92,
            label=case.brief,
            color=_CASE_COLOURS[number % len(_CASE_COLOURS)],
        )
    left.set_yticks(range(len(parts)), [contender.label for contender in parts], fontsize=7)
    left.invert_yaxis()
    left.set(xlabel="within SLOs per second")
    finish(left)
    tasks = list(plays[of.ABLATION.key, of.AUGSERVE.label]["tasks"])
    width = 0.8 / len(of.PAPERS)
    for number, contender in enumerate(of.PAPERS):
        found = plays[of.ABLATION.key, contender.label]["tasks"]
        right.bar(
            [place - 0.4 + width * (number + 0.5) for place in range(len(tasks))],
            # so short a time may bring none of a task
            [found[task]["of_all"] if task in found else 0.0 for task in tasks],
            width * 0.92,
            label=contender.label,
            color=_style(contender)["color"],
        )
    right.set_xticks(range(len(tasks)), [task.replace("-", "\n") for task in tasks], fontsize=7)
    # room for the legend above
    right.set_ylim(0.0, 1.35)
    right.set(ylabel=f"share within SLOs, {of.ABLATION.brief}")
    finish(right)
