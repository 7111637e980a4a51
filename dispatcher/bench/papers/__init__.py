"""The experiments of papers, by the name that `headway bench paper` takes."""

from __future__ import annotations

from collections.abc import Mapping

from dispatcher.bench.claims import Experiment

PAPERS: Mapping[str, Experiment] = {}
"""Each module here adds its `Experiment` to this table."""
