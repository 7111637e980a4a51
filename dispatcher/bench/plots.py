"""Pictures of a run, as SVG: the same results give the same files. Needs matplotlib."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dispatcher.bench.report import Figures
from dispatcher.core.errors import HeadwayError

_GREY = "#dadce0"
_COLOURS = {
    "vllm": "#9aa0a6",
    "wb-fcfs": "#5b8ff9",
    "rr-pq": "#5ad8a6",
    "vtc": "#a178c8",
    "qlm": "#e086b3",
    "least-backlog": "#f6a21e",
    "hexgen-flow": "#d93025",
    "tempo": "#1e8e5a",
    "plas": "#b06f2b",
    "sjf": "#4c6fbf",
}
"""Of policies that appear in many pictures."""
Picture = tuple[str, Callable[[Any], None], tuple[float, float]]
"""Name of its file without the ending, what draws on its figure, width and height in inches."""
_SETTING = re.compile(r"[^\w.-]+")


class PlotsMissingError(HeadwayError):
    """There is no matplotlib."""


def pyplot() -> Any:
    """Matplotlib's pyplot, set up so that the same figure gives the same file.

    Raises:
        PlotsMissingError: There is none; says what to install.
    """
    try:
        import matplotlib as mpl  # noqa: PLC0415 - only who draws needs it
        from matplotlib import pyplot as plt  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise PlotsMissingError(
            "plots need matplotlib: pip install 'matplotlib>=3.8', or leave --out away"
        ) from error
    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "headway"
    mpl.rcParams["svg.fonttype"] = "none"
    return plt


def require() -> None:
    """Return where pictures can be drawn.

    Raises:
        PlotsMissingError: They cannot; says what to install.
    """
    pyplot()


def draw_pictures(pictures: Iterable[Picture], folder: Path) -> list[Path]:
    """Draw these into a folder, as SVG; the files, in that order.

    Raises:
        PlotsMissingError: There is no matplotlib.
        OSError: The folder or a file cannot be written.
    """
    plt = pyplot()
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for name, draw, size in pictures:
        figure = plt.figure(figsize=size, layout="constrained")
        draw(figure)
        path = folder / f"{name}.svg"
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)
        made.append(path)
    return made


def draw_run(document: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw what `headway bench run` or `live` has written; the files it made.

    Per rate and number of seats: SLO attainment against SLO scale (HexGen-Flow, Fig. 4) and
    the mix of stages at each instance (Table 2); in all: throughput, and what seats do where
    several numbers were asked for.

    Raises:
        PlotsMissingError: There is no matplotlib.
        OSError: The folder or a file cannot be written.
    """
    return draw_pictures(_pictures_of(document), folder)


def _pictures_of(document: Mapping[str, Any]) -> Iterator[Picture]:
    rows, results = document["summary"], document["results"]
    seats = sorted({row["seats"] for row in rows})
    for rate, at_seats in _unique((row["rate"], row["seats"]) for row in rows):
        suffix = f"-rate-{rate:.3g}" + (f"-seats-{at_seats}" if len(seats) > 1 else "")
        suffix = _SETTING.sub("-", suffix)
        here = [row for row in rows if (row["rate"], row["seats"]) == (rate, at_seats)]
        title = f"{document['scenario']} on {document['fleet']}, {rate:.3g} workflows/s"
        yield "slo-attainment" + suffix, _on_axes(attainment_curves, here, title), (7.2, 3.6)
        placed = [one for one in results if (one["rate"], one["seats"]) == (rate, at_seats)]
        if any(one["placement"] for one in placed):
            yield "placement" + suffix, partial(placement_bars, results=placed), (7.2, 3.2)
    yield "throughput", _on_axes(throughput_bars, rows), (7.2, 3.6)
    if len(seats) > 1:
        yield "seats", partial(seats_curves, rows=rows), (7.2, 3.6)


def _on_axes(draw: Callable[..., None], *about: Any) -> Callable[[Any], None]:
    """Draw something that takes one panel on a whole figure."""
    return lambda figure: draw(figure.subplots(), *about)


def attainment_curves(axes: Any, rows: Sequence[Figures], title: str = "") -> None:
    """SLO attainment against SLO scale, one line per policy."""
    reached = 1.0
    for row in rows:
        found = {float(scale): share for scale, share in row["slo_attainment"].items()}
        known = {scale: 100 * share for scale, share in found.items() if share is not None}
        axes.plot(list(known), list(known.values()), label=row["policy"], **line_of(row["policy"]))
        full = [scale for scale, share in known.items() if share >= 99.9]
        reached = max(reached, min(full, default=max(known, default=1.0)))
    axes.axhline(95, color=_GREY, linewidth=1, zorder=0)
    axes.set(xlabel="SLO scale", ylabel="workflows in time, %", title=title, ylim=(0, 101))
    axes.set_xlim(1, max(2.0, reached))
    finish(axes)


def throughput_bars(axes: Any, rows: Sequence[Figures]) -> None:
    """Workflows per second, one bar per policy in each group of rate and seats."""
    groups = _unique((row["rate"], row["seats"]) for row in rows)
    policies = _unique(row["policy"] for row in rows)
    several_seats = len({seats for _, seats in groups}) > 1
    width = 0.8 / len(policies)
    for number, policy in enumerate(policies):
        of_policy = {
            (r["rate"], r["seats"]): r["throughput_per_s"] for r in rows if r["policy"] == policy
        }
        known = [
            (place, of_policy[group])
            for place, group in enumerate(groups)
            if of_policy.get(group) is not None
        ]
        axes.bar(
            [place - 0.4 + width * (number + 0.5) for place, _ in known],
            [found["mean"] for _, found in known],
            width * 0.92,
            yerr=[found["sd"] for _, found in known],
            label=policy,
            color=_COLOURS.get(policy),
            error_kw={"linewidth": 1},
        )
    axes.set_xticks(
        range(len(groups)),
        [f"{rate:.3g}/s" + (f", {seats} seats" if several_seats else "") for rate, seats in groups],
    )
    axes.set(xlabel="workflows that arrive", ylabel="workflows done per second")
    finish(axes)


def placement_bars(figure: Any, results: Sequence[Figures]) -> None:
    """Mix of stages at each instance, all seeds together, one panel per policy."""
    policies = _unique(one["policy"] for one in results)
    stages = _unique(stage for one in results for mix in one["placement"].values() for stage in mix)
    panels = figure.subplots(1, len(policies), sharey=True, squeeze=False)[0]
    for axes, policy in zip(panels, policies, strict=True):
        counts: dict[str, dict[str, int]] = {}
        for one in results:
            if one["policy"] == policy:
                for instance, mix in one["placement"].items():
                    into = counts.setdefault(instance, {})
                    for stage, count in mix.items():
                        into[stage] = into.get(stage, 0) + count
        names = list(counts)
        below = [0.0] * len(names)
        for stage in stages:
            shares = [100 * counts[n].get(stage, 0) / sum(counts[n].values()) for n in names]
            axes.bar(range(len(names)), shares, 0.8, bottom=below, label=stage)
            below = [low + share for low, share in zip(below, shares, strict=True)]
        axes.set_xticks(range(len(names)), names, rotation=60, fontsize=8)
        axes.set_title(policy, fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("calls of an instance, %")
    legend_outside(figure, panels[0])


def seats_curves(figure: Any, rows: Sequence[Figures]) -> None:
    """SLO scale at 95 % and throughput against seats."""
    left, right = figure.subplots(1, 2)
    for axes, key, label in (
        (left, "slo_scale_at_95", "SLO scale at 95 %"),
        (right, "throughput_per_s", "workflows done per second"),
    ):
        for policy, rate in _unique((row["policy"], row["rate"]) for row in rows):
            points = sorted(
                (row["seats"], row[key]["mean"])
                for row in rows
                if (row["policy"], row["rate"]) == (policy, rate) and row[key] is not None
            )
            several = len({row["rate"] for row in rows}) > 1
            name = f"{policy}, {rate:.3g}/s" if several else policy
            axes.plot(
                [seats for seats, _ in points],
                [value for _, value in points],
                marker="o",
                label=name,
                **line_of(policy if not several else ""),
            )
        axes.set_xscale("log", base=2)
        ticks = sorted({row["seats"] for row in rows})
        axes.set_xticks(ticks, [str(seats) for seats in ticks])
        axes.set(xlabel="seats of each engine", ylabel=label)
        axes.set_ylim(bottom=0)
        finish(axes, legend=axes is left)


def line_of(policy: str) -> dict[str, Any]:
    """How a policy is drawn everywhere."""
    colour = _COLOURS.get(policy)
    return {"linewidth": 2} | ({"color": colour} if colour else {})


def finish(axes: Any, *, legend: bool = True) -> None:
    """What all axes have in common."""
    axes.spines[["top", "right"]].set_visible(False)
    if legend:
        axes.legend(frameon=False, fontsize=8)


def legend_outside(figure: Any, axes: Any) -> None:
    """One legend for all panels, to their right, of what one of them shows."""
    figure.legend(
        *axes.get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=8
    )


def _unique(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))
