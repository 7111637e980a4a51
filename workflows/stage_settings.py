"""How application models are made, and how many of them there may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from dispatcher.core.workflow_types import StagePlan

if TYPE_CHECKING:
    from workflows.fitting import FitJob

Fitter = Callable[["FitJob"], Mapping[str, Any]]
"""Gives what `fitting.fit` gives; may raise `ValueError`, `RuntimeError`."""


class StageModel(StrEnum):
    """How stages' durations depend on each other."""

    BAYES = "bayes"
    """As a Bayesian network over them says."""
    INDEPENDENT = "independent"
    """They do not: what ends tells nothing of what follows."""
    NONE = "none"
    """There are no application models."""


@dataclass(frozen=True, slots=True)
class StageModelSettings:
    """How application models are made, and bounds. Every bound is at least 1."""

    model: StageModel = StageModel.BAYES
    declared: Mapping[str, tuple[StagePlan, ...]] = field(default_factory=dict)
    """Applications whose stages are known beforehand."""
    min_workflows: int = 20
    """No model from fewer."""
    refit_after: int = 100
    """Workflows after which a model is fitted anew; earlier while it has seen few."""
    rows: int = 400
    """Latest workflows kept of an application."""
    applications: int = 100
    """The one that learned least recently goes first."""
    row_bytes: int = 16_000_000
    """Of all rows together; applications go as above until it holds, but never the last."""
    fitter: Fitter | None = None
    """Fits at once, in between; `None`: whoever asks for `job` does."""
