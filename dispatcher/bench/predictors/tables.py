"""What the terminal shows of it."""

from __future__ import annotations

from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.table import Table

from dispatcher.bench.predictors.contest import BY_BOTH, BY_MODEL, FOREST
from dispatcher.bench.predictors.figures import JUDGED, Figures

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


def tables(found: Figures) -> Iterator[Table]:
    """All, in the order to read them in."""
    folds = found["configuration"]["folds"]
    whole = found["by_prompt"]["all"]
    title = f"prompts not seen before: {whole['answers']} answers to {whole['groups']} groups"
    yield _by_predictor(whole, f"{title}, each tested in one of {folds} folds")
    yield _by_application(found["by_prompt"], f"the same by application, {FOREST}")
    if found["by_application"]:
        yield _by_application(found["by_application"], "each application left out of the training")
    yield _text(found)
    yield _times(found)
    yield _floors(found)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", overflow="fold")
    return table


def _by_predictor(figures: Figures, title: str) -> Table:
    table = _table(title, "predictor", "pinball", *_covers(), "width", "upper")
    for name, of_one in figures["predictors"].items():
        table.add_row(
            name,
            f"{of_one['pinball']:.2f}",
            *_coverage(of_one),
            f"{of_one['width_tokens']:.0f}",
            f"{of_one['upper_tokens']:.0f}",
        )
    return table


def _by_application(figures: Figures, title: str) -> Table:
    columns = ("answers", "groups", "pinball", "by model, app.", "by model", *_covers(), "width")
    table = _table(title, "application", *columns)
    for name, of_one in figures["applications"].items():
        forest = of_one["predictors"][FOREST]
        losses = (of_one["predictors"].get(other) for other in (BY_BOTH, BY_MODEL))
        table.add_row(
            name if of_one["judged"] else f"{name} (too few to judge)",
            str(of_one["answers"]),
            str(of_one["groups"]),
            f"{forest['pinball']:.2f}",
            *(f"{loss['pinball']:.2f}" if loss else "-" for loss in losses),
            *_coverage(forest),
            f"{forest['width_tokens']:.0f}",
        )
    return table


def _text(found: Figures) -> Table:
    table = _table("pinball loss with text against without", "application", "change", "±", "text")
    for row in found["text"]:
        change, error = f"{row['relative']:+.1%}", f"{2 * row['error']:.1%}"
        table.add_row(row["application"], change, error, row["text"])
    return table


def _times(found: Figures) -> Table:
    table = _table("what it costs", "", "median", "95th percentile", "times")
    for name, of_one in found["timing"].items():
        told = name.replace("_", " ")
        costs = (_seconds(of_one[key]) for key in ("median_s", "p95_s"))
        table.add_row(told, *costs, str(of_one["times"]))
    return table


def _floors(found: Figures) -> Table:
    table = _table("what was promised", "", "measured", "at most", "met")
    for row in found["floors"]:
        numbers = (f"{row[key]:.3g}" for key in ("measured", "at_most"))
        table.add_row(row["what"], *numbers, "yes" if row["met"] else "no")
    return table


def _covers() -> Iterator[str]:
    return (f"covers {level:g}" for level in JUDGED)


def _coverage(of_one: Figures) -> Iterator[str]:
    return (f"{of_one['coverage'][f'{level:g}']:.1%}" for level in JUDGED)


def _seconds(value_s: float) -> str:
    for unit_s, name in _UNITS:
        if value_s >= unit_s:
            return f"{value_s / unit_s:.2f} {name}"
    return f"{value_s * 1e6:.2f} us"
