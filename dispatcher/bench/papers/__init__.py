"""The experiments of papers, by the name that `headway bench paper` takes."""

from __future__ import annotations

from collections.abc import Mapping

from dispatcher.bench.claims import Experiment
from dispatcher.bench.papers import hexgen_flow, tempo

PAPERS: Mapping[str, Experiment] = {
    experiment.paper: experiment for experiment in (hexgen_flow.EXPERIMENT, tempo.EXPERIMENT)
}
