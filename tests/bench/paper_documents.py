"""What papers' experiments come to in short plays, and what all their documents have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dispatcher.bench.claims import Experiment, ExperimentOptions, paper_document


def document_of(experiment: Experiment, seeds: tuple[int, ...]) -> dict[str, Any]:
    """Run a paper's experiments in this process: as many steps are done as were announced."""
    steps: list[int] = []
    done: list[None] = []
    options = ExperimentOptions(
        seeds=seeds, jobs=1, on_steps=steps.append, on_step=lambda: done.append(None)
    )
    findings = experiment.run(options)
    assert [len(done)] == steps
    return paper_document(experiment.paper, findings, seeds=seeds, seconds=1.0)


def shorten(
    patch: pytest.MonkeyPatch,
    experiments: ModuleType,
    shorter: Callable[[Any], Any],
    *,
    each: Iterable[str],
    first_of: Mapping[str, int],
) -> None:
    """Let a paper's experiments have fewer cases, and shorter ones.

    Args:
        patch: Takes it back.
        experiments: Where cases are named.
        shorter: Makes a case so.
        each: Names of single cases.
        first_of: Names of several, and how many of them are left.
    """
    for name in each:
        patch.setattr(experiments, name, shorter(getattr(experiments, name)))
    for name, count in first_of.items():
        cases = getattr(experiments, name)[:count]
        patch.setattr(experiments, name, tuple(map(shorter, cases)))


def claims_by_id(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Claims as they are written."""
    return {claim["id"]: claim for claim in document["claims"]}


def check_drawn(
    experiment: Experiment, document: Mapping[str, Any], folder: Path, count: int
) -> None:
    """A document gives so many pictures, and nothing else is written."""
    pytest.importorskip("matplotlib")
    made = experiment.draw(document, folder)
    assert len(made) == len(list(folder.iterdir())) == count
    assert all("<svg" in path.read_text(encoding="utf-8") for path in made)
