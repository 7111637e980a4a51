"""Pictures of AugServe's experiments: goodput (Fig. 7), latencies (Figs. 8, 9), tasks, ablation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from dispatcher.bench.paper_pictures import Plays, drawing, grouped_bars
from dispatcher.bench.papers.augserve import experiments as of
from dispatcher.bench.papers.augserve.cases import Case, Contender
from dispatcher.bench.papers.augserve.results import GOODPUT
from dispatcher.bench.plots import finish, line_of

_COLOURS = {"infercept": "#e086b3", "augserve": "#d93025"}
_CASE_COLOURS = ("#d93025", "#f6a21e")


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
    plays: Plays,
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


def _goodput(figure: Any, plays: Plays) -> None:
    panels = figure.subplots(1, len(_workloads()))
    for axes, (title, cases) in zip(panels, _workloads(), strict=True):
        _against_rate(axes, plays, cases, lambda row: row[GOODPUT])
        axes.set(xlabel="requests per second", ylabel="within SLOs per second", title=title)
        axes.set_ylim(bottom=0)
        finish(axes, legend=axes is panels[0])


def _latency(figure: Any, plays: Plays) -> None:
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


def _parts(figure: Any, plays: Plays) -> None:
    left, right = figure.subplots(1, 2, width_ratios=(3, 4))
    parts = (
        *(of.VLLM, of.VLLM_TODAY, of.INFERCEPT, of.INFERCEPT_ENGINE, of.BATCHING),
        *(of.NO_BATCHING, of.AUGSERVE, of.AUGSERVE_ENGINE, *of.READINGS),
    )
    grouped_bars(
        left,
        [
            (case.brief, [plays[case.key, one.label][GOODPUT] for one in parts], {"color": colour})
            for case, colour in zip(of.PART_CASES, _CASE_COLOURS, strict=True)
        ],
        horizontal=True,
    )
    left.set_yticks(range(len(parts)), [contender.label for contender in parts], fontsize=7)
    left.invert_yaxis()
    left.set(xlabel="within SLOs per second")
    finish(left)
    tasks = list(plays[of.ABLATION.key, of.AUGSERVE.label]["tasks"])
    rows = [(one, plays[of.ABLATION.key, one.label]["tasks"]) for one in of.PAPERS]
    grouped_bars(
        right,
        [
            (
                one.label,
                # so short a time may bring none of a task
                [found[task]["of_all"] if task in found else 0.0 for task in tasks],
                {"color": _style(one)["color"]},
            )
            for one, found in rows
        ],
    )
    right.set_xticks(range(len(tasks)), [task.replace("-", "\n") for task in tasks], fontsize=7)
    # room for the legend above
    right.set_ylim(0.0, 1.35)
    right.set(ylabel=f"share within SLOs, {of.ABLATION.brief}")
    finish(right)


draw = drawing(
    ("augserve-goodput", _goodput, (9.0, 3.4)),
    ("augserve-latency", _latency, (9.0, 5.6)),
    ("augserve-parts", _parts, (9.0, 3.8)),
)
