"""Pictures of HexGen-Flow's experiments: scales by setting, alpha (Fig. 10), seats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dispatcher.bench.paper_pictures import grouped_bars
from dispatcher.bench.papers.hexgen_flow.cases import (
    ALPHA_CASES,
    ALPHAS,
    HETERO_CASES,
    OURS,
    SCALE,
    SEATS,
    SEATS_CASES,
    THROUGHPUT,
)
from dispatcher.bench.papers.hexgen_flow.results import policy_named, with_alpha
from dispatcher.bench.plots import Picture, draw_pictures, finish, line_of

_COMPARED = ("vllm", "rr-pq", "vtc", "qlm", "wb-fcfs", OURS)
_Plays = Mapping[tuple[str, int, str], Mapping[str, Any]]


def draw(document: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw what `headway bench paper hexgen-flow` has found; the files it made.

    Raises:
        PlotsMissingError: There is no matplotlib.
        OSError: The folder or a file cannot be written.
    """
    plays = {(p["case"], p["seats"], p["policy"]): p for p in document["plays"] if not p["tenants"]}
    pictures: Sequence[Picture] = (
        ("hexgen-flow-scales", partial(_scales, plays=plays), (9.0, 3.6)),
        ("hexgen-flow-alpha", partial(_alpha, plays=plays), (7.2, 3.4)),
        ("hexgen-flow-seats", partial(_seats, plays=plays), (8.4, 3.4)),
    )
    return draw_pictures(pictures, folder)


def _scales(figure: Any, plays: _Plays) -> None:
    axes = figure.subplots()
    grouped_bars(
        axes,
        [
            (
                name,
                [plays[c.label, SEATS, policy_named(name).label][SCALE] for c in HETERO_CASES],
                {"color": line_of(name).get("color")},
            )
            for name in _COMPARED
        ],
    )
    labels = [
        f"{c.trace}\n{c.fleet.removeprefix('hetero-')} · {c.rate_per_s:g}/s" for c in HETERO_CASES
    ]
    axes.set_xticks(range(len(labels)), labels, fontsize=7)
    axes.set(ylabel="SLO scale at 95 %", xlabel="trace, mixed fleet 1 or 2, queries per second")
    finish(axes, legend=False)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)


def _alpha(figure: Any, plays: _Plays) -> None:
    axes = figure.subplots()
    for case in ALPHA_CASES:
        values = [plays[case.label, SEATS, with_alpha(OURS, a).label][SCALE] for a in ALPHAS]
        shown = [(a, v) for a, v in zip(ALPHAS, values, strict=True) if a <= 0.5]
        axes.plot(
            [a for a, _ in shown],
            [v for _, v in shown],
            marker="o",
            linewidth=2,
            label=f"{case.trace}, {case.fleet}",
        )
    axes.set(xlabel="alpha", ylabel="SLO scale at 95 %")
    axes.set_ylim(bottom=0)
    finish(axes)


def _seats(figure: Any, plays: _Plays) -> None:
    left, right = figure.subplots(1, 2)
    for axes, key, label in (
        (left, SCALE, "SLO scale at 95 %"),
        (right, THROUGHPUT, "queries done per second"),
    ):
        for name in ("vllm", "vtc", "qlm", "wb-fcfs", OURS):
            policy = policy_named(name).label
            values = [plays[case.label, case.seats, policy][key] for case in SEATS_CASES]
            seats = [case.seats for case in SEATS_CASES]
            axes.plot(seats, values, marker="o", label=name, **line_of(name))
        axes.set_xscale("log", base=2)
        axes.set_xticks([case.seats for case in SEATS_CASES], [str(c.seats) for c in SEATS_CASES])
        axes.set(xlabel="seats of each engine", ylabel=label)
        axes.set_ylim(bottom=0)
        finish(axes, legend=axes is left)
