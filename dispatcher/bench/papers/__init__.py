"""The experiments of papers, by the name that `headway bench paper` takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dispatcher.bench.claims import Experiment


def _found_in(module: str) -> Callable[[], Experiment]:
    """Names are for everybody's help; what experiments draw in is for who runs them."""

    def load() -> Experiment:
        experiment: Experiment = import_module(f"{__name__}.{module}").EXPERIMENT
        return experiment

    return load


PAPERS: Mapping[str, Callable[[], Experiment]] = {
    "hexgen-flow": _found_in("hexgen_flow"),
    "tempo": _found_in("tempo"),
    "augserve": _found_in("augserve"),
    "heteroserve": _found_in("heteroserve"),
    "llmsched": _found_in("llmsched"),
}
