"""What the pictures of papers have in common: rows by case and contender, bars side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dispatcher.bench.plots import draw_pictures

Plays = Mapping[tuple[str, str], Mapping[str, Any]]
"""Rows of a paper's document by key of the case and contender."""
PlaysPicture = tuple[str, Callable[[Any, Plays], None], tuple[float, float]]
"""Name of its file without the ending, what draws it on a figure, width and height in inches."""
_GROUP, _BAR = 0.8, 0.92
"""What the bars of a group take of the way to the next group, and a bar of its place."""


def drawing(*pictures: PlaysPicture) -> Callable[[Mapping[str, Any], Path], list[Path]]:
    """What draws these from the document of a paper: see `Experiment.draw`.

    It raises `PlotsMissingError` where there is no matplotlib, and `OSError` where the folder or a
    file cannot be written.
    """

    def draw(document: Mapping[str, Any], folder: Path) -> list[Path]:
        plays = {(play["case"], play["contender"]): play for play in document["plays"]}
        return draw_pictures(
            [(name, partial(_on_figure, one, plays), size) for name, one, size in pictures], folder
        )

    return draw


def _on_figure(draw: Callable[[Any, Plays], None], plays: Plays, figure: Any) -> None:
    draw(figure, plays)


def grouped_bars(
    axes: Any,
    series: Sequence[tuple[str, Sequence[float], Mapping[str, Any]]],
    *,
    horizontal: bool = False,
) -> None:
    """Bars side by side in groups, the middle of each group at a whole number from 0 on.

    Args:
        axes: Where to draw.
        series: Label, a value for each group, and how its bars look.
        horizontal: Bars lie; groups follow each other from below.
    """
    draw = axes.barh if horizontal else axes.bar
    width = _GROUP / len(series)
    for number, (label, values, style) in enumerate(series):
        places = [place - _GROUP / 2 + width * (number + 0.5) for place in range(len(values))]
        draw(places, values, width * _BAR, label=label, **style)
