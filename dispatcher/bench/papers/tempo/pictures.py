"""Pictures of Tempo's experiments: gain over time (Fig. 9), goodput, classes, sensitivity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dispatcher.bench.paper_pictures import Plays, drawing, grouped_bars
from dispatcher.bench.papers.tempo import experiments as of
from dispatcher.bench.papers.tempo.cases import Case, Contender
from dispatcher.bench.papers.tempo.results import GAIN, GOODPUT
from dispatcher.bench.papers.tempo.scoring import WINDOW_S
from dispatcher.bench.plots import finish, legend_outside, line_of

_SMOOTHED = 3
"""Windows of gain over time that a point stands for."""
_LENGTHS = {"tempo": "chatbot", "tempo-long": "long answers"}


def _style(contender: Contender) -> dict[str, Any]:
    """Tempo's variants in its colour."""
    style = line_of(contender.label)
    if contender is of.PRECISE:
        return style | {"color": line_of("tempo").get("color"), "linestyle": ":"}
    if contender is of.SLACK:
        return style | {"color": line_of("tempo").get("color"), "linestyle": "--"}
    return style


def _row(plays: Plays, case: Case, contender: Contender) -> Mapping[str, Any]:
    return plays[case.key, contender.label]


def _hour(figure: Any, plays: Plays) -> None:
    panels = figure.subplots(1, len(of.HOUR_CASES))
    for axes, case in zip(panels, of.HOUR_CASES, strict=True):
        for contender in (*of.COMPARED, of.VTC, of.SLACK, of.PRECISE):
            if (case.key, contender.label) not in plays:
                continue
            gains = _row(plays, case, contender)["gain_over_time"]
            width = min(_SMOOTHED, len(gains))
            points = [
                ((first + width / 2.0) * WINDOW_S / 60.0, sum(gains[first : first + width]) / width)
                for first in range(0, len(gains) - width + 1, width)
            ]
            axes.plot(*zip(*points, strict=True), label=contender.label, **_style(contender))
        axes.set(xlabel="minutes", ylabel="service gain per second", title=_LENGTHS[case.lengths])
        axes.set_ylim(bottom=0)
        finish(axes, legend=axes is panels[0])


def _goodput(figure: Any, plays: Plays) -> None:
    left, right = figure.subplots(1, 2)
    loads = sorted(of.LOAD_CASES, key=lambda case: case.load)
    for contender in (*of.COMPARED, of.SLACK):
        values = [_row(plays, case, contender)[GOODPUT] for case in loads]
        left.plot(
            [case.load for case in loads],
            values,
            marker="o",
            label=contender.label,
            **_style(contender),
        )
    left.set(xlabel="load", ylabel="requests in time per second")
    left.set_ylim(bottom=0)
    finish(left)
    names = [f"{case.model}\n{case.seats}" for case in of.BATCH_CASES]
    _bars(right, plays, of.BATCH_CASES, GOODPUT, names, of.TEMPO, of.VLLM)
    right.set(xlabel="model, batch size", ylabel="requests in time per second")


def _bars(
    axes: Any,
    plays: Plays,
    cases: Sequence[Case],
    figure_name: str,
    names: Sequence[str],
    *contenders: Contender,
) -> None:
    compared = contenders or of.COMPARED
    grouped_bars(
        axes,
        [
            (
                contender.label,
                [_row(plays, case, contender)[figure_name] for case in cases],
                {"color": line_of(contender.label).get("color")},
            )
            for contender in compared
        ],
    )
    axes.set_xticks(range(len(cases)), names, fontsize=7)
    finish(axes, legend=False)


def _classes(figure: Any, plays: Plays) -> None:
    panels = figure.subplots(1, 3)
    shown = (
        ("latency", "ttft_s", "chat: first token, s"),
        ("throughput", "latency_s", "whole answers: end, s"),
        ("collective", "latency_s", "collective: end, s"),
    )
    contenders = (*of.COMPARED, of.VTC, of.SLACK)
    for axes, (name, what, label) in zip(panels, shown, strict=True):
        for place, contender in enumerate(contenders):
            found = _row(plays, of.HOUR_CASES[0], contender)["classes"][name][what]
            colour = _style(contender).get("color")
            axes.bar(place - 0.2, found["p50"], 0.38, color=colour)
            axes.bar(place + 0.2, found["p95"], 0.38, color=colour, alpha=0.5)
        axes.set_yscale("log")
        names = [c.label.replace(", ", "\n") for c in contenders]
        axes.set_xticks(range(len(contenders)), names, fontsize=7)
        axes.set(ylabel=label)
        finish(axes, legend=False)


def _readings(figure: Any, plays: Plays) -> None:
    left, right = figure.subplots(1, 2)
    contenders = (of.TEMPO, *of.VARIANTS)
    for axes, name, label in (
        (left, GOODPUT, "requests in time per second"),
        (right, GAIN, "service gain per second"),
    ):
        values = [_row(plays, of.MAIN, contender)[name] for contender in contenders]
        axes.barh(range(len(contenders)), values, color=line_of("tempo").get("color"))
        axes.set_yticks(
            range(len(contenders)), [c.label for c in contenders] if axes is left else []
        )
        axes.invert_yaxis()
        axes.set(xlabel=label)
        finish(axes, legend=False)


def _robustness(figure: Any, plays: Plays) -> None:
    scales, mixes, bursts = figure.subplots(1, 3)
    by_scale = sorted((of.MAIN, *of.SCALE_CASES), key=lambda case: case.slo_scale)
    _bars(scales, plays, by_scale, GOODPUT, [f"{case.slo_scale:g}" for case in by_scale])
    scales.set(xlabel="SLO scale", ylabel="requests in time per second")
    by_mix = (of.MAIN, *of.MIX_CASES)
    names = [case.mix.replace(":", "\n") for case in by_mix]
    _bars(mixes, plays, by_mix, GAIN, names, of.TEMPO, of.VLLM)
    mixes.set(xlabel="chat : whole : collective", ylabel="service gain per second")
    by_burst = (of.MAIN, *of.BURST_CASES)
    _bars(bursts, plays, by_burst, GAIN, [case.arrivals for case in by_burst])
    bursts.set(xlabel="arrivals", ylabel="service gain per second")
    legend_outside(figure, scales)


draw = drawing(
    ("tempo-hour", _hour, (9.0, 3.4)),
    ("tempo-goodput", _goodput, (9.0, 3.4)),
    ("tempo-classes", _classes, (9.0, 3.2)),
    ("tempo-readings", _readings, (9.0, 3.2)),
    ("tempo-robustness", _robustness, (9.0, 3.2)),
)
