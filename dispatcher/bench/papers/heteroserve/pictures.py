"""Pictures of HeteroServe's experiments: Table 1, TTFT, loads, mixes, scaling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dispatcher.bench.paper_pictures import Plays, drawing, grouped_bars
from dispatcher.bench.papers.heteroserve import experiments as of
from dispatcher.bench.papers.heteroserve.cases import SLO_TTFT_S, Case, Contender
from dispatcher.bench.papers.heteroserve.play import TTFT_SHARES
from dispatcher.bench.papers.heteroserve.results import ATTAINMENT, P95, TOKENS
from dispatcher.bench.plots import finish, legend_outside

_STYLES: Mapping[str, Mapping[str, Any]] = {
    of.HETEROSERVE.label: {"color": "#d93025", "linewidth": 2},
    of.PAPER.label: {"color": "#d93025", "linewidth": 2, "linestyle": "--"},
    of.LATENCY_AWARE.label: {"color": "#f6a21e", "linewidth": 2},
    of.ORACLE.label: {"color": "#a178c8", "linewidth": 2},
    of.CAPACITY.label: {"color": "#5b8ff9", "linewidth": 2},
    of.UNIFORM.label: {"color": "#9aa0a6", "linewidth": 2},
}
_SLO = {"color": "#bdc1c6", "linewidth": 1, "linestyle": ":", "zorder": 0}


def _row(plays: Plays, case: Case, contender: Contender) -> Mapping[str, Any]:
    return plays[case.key, contender.label]


def _bar_style(contender: Contender) -> dict[str, Any]:
    alpha = 0.5 if contender is of.PAPER else 1.0
    return {"color": _STYLES[contender.label]["color"], "alpha": alpha}


def _main(figure: Any, plays: Plays) -> None:
    panels = figure.subplots(1, 3)
    for axes, (name, label, scale) in zip(
        panels,
        (
            (TOKENS, "tokens per second", "linear"),
            (ATTAINMENT, "in time", "linear"),
            (P95, "P95 TTFT, s", "log"),
        ),
        strict=True,
    ):
        values = [_row(plays, of.MAIN, one)[name] for one in of.COMPARED]
        colours = [_STYLES[one.label]["color"] for one in of.COMPARED]
        bars = axes.barh(range(len(values)), values, color=colours)
        bars[of.COMPARED.index(of.PAPER)].set_alpha(0.5)
        labels = [one.label for one in of.COMPARED] if axes is panels[0] else []
        axes.set_yticks(range(len(values)), labels)
        axes.invert_yaxis()
        axes.set(xlabel=label, xscale=scale)
        finish(axes, legend=False)


def _ttft(figure: Any, plays: Plays) -> None:
    axes = figure.subplots()
    for contender in of.COMPARED:
        times = _row(plays, of.MAIN, contender)["ttft_s"]
        axes.plot(times, TTFT_SHARES, label=contender.label, **_STYLES[contender.label])
    axes.axvline(SLO_TTFT_S, **_SLO)
    axes.set(xlabel="time to first token, s", ylabel="share of requests", xscale="log")
    axes.set_ylim(0, 1)
    finish(axes)


def _loads(figure: Any, plays: Plays) -> None:
    panels = figure.subplots(1, 3)
    loads = [case.load for case in of.LOAD_CASES]
    for axes, (name, label) in zip(
        panels,
        ((ATTAINMENT, "in time"), (P95, "P95 TTFT, s"), (TOKENS, "tokens per second")),
        strict=True,
    ):
        for contender in of.FEW:
            values = [_row(plays, case, contender)[name] for case in of.LOAD_CASES]
            style = _STYLES[contender.label]
            axes.plot(loads, values, marker="o", label=contender.label, **style)
        axes.set(xlabel="load", ylabel=label, yscale="log" if name == P95 else "linear")
        if name != P95:
            axes.set_ylim(bottom=0)
        finish(axes, legend=axes is panels[0])


def _mixes(figure: Any, plays: Plays) -> None:
    panels = figure.subplots(1, 2)
    cases = (of.ABLATION, *of.MIX_CASES, *of.BIMODAL_CASES)
    names = [f"{case.mix}\nload {case.load:g}".replace(", ", "\n") for case in cases]
    for axes, (name, label) in zip(
        panels, ((ATTAINMENT, "in time"), (TOKENS, "tokens per second")), strict=True
    ):
        grouped_bars(
            axes,
            [
                (one.label, [_row(plays, case, one)[name] for case in cases], _bar_style(one))
                for one in of.FEW
            ],
        )
        axes.set_xticks(range(len(cases)), names, fontsize=6)
        axes.set(ylabel=label)
        finish(axes, legend=False)
    legend_outside(figure, panels[0])


def _scaling(figure: Any, plays: Plays) -> None:
    left, right = figure.subplots(1, 2)
    devices = [case.devices for case in of.SCALING_CASES]
    for contender in (of.HETEROSERVE, of.UNIFORM):
        tokens = [_row(plays, case, contender)[TOKENS] for case in of.SCALING_CASES]
        style = _STYLES[contender.label]
        left.plot(devices, tokens, marker="o", label=contender.label, **style)
        each = [one / count for one, count in zip(tokens, devices, strict=True)]
        right.plot(devices, each, marker="o", **style)
    left.set(xlabel="devices", ylabel="tokens per second")
    right.set(xlabel="devices", ylabel="tokens per second and device")
    for axes in (left, right):
        axes.set_xticks(devices)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        finish(axes, legend=axes is left)


draw = drawing(
    ("heteroserve-main", _main, (9.0, 3.0)),
    ("heteroserve-ttft", _ttft, (7.2, 3.4)),
    ("heteroserve-loads", _loads, (9.0, 3.2)),
    ("heteroserve-mixes", _mixes, (9.0, 3.2)),
    ("heteroserve-scaling", _scaling, (9.0, 3.2)),
)
