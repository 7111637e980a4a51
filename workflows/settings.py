"""What the tracker is told: SLOs and silences per application, and bounds on what it keeps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from workflows.graph_history import GraphBounds
from workflows.stage_profiles import StageModelSettings


class Structure(StrEnum):
    """What says which stages are left, where no client has declared them."""

    TEMPLATES = "templates"
    """Means per stage over finished workflows (`templates`)."""
    GRAPHS = "graphs"
    """The finished workflow most like this one (`graph_match`), else templates."""
    NONE = "none"
    """Nothing: no stage is taken to be left. To see what the others are good for."""


@dataclass(frozen=True, slots=True)
class WorkflowDefaults:
    """What holds for an application whose clients do not say. Seconds, above 0."""

    slo_s: float = 60.0
    """End to end, from the first call."""
    idle_s: float = 300.0
    """So much silence ends a workflow."""

    def __post_init__(self) -> None:
        for name, value in (("slo_s", self.slo_s), ("idle_s", self.idle_s)):
            if not 0 < value < math.inf:
                raise ValueError(f"{name}: expected seconds above 0, not {value}")


@dataclass(frozen=True, slots=True)
class TrackerSettings:
    """Defaults per application, and bounds. Every bound is at least 1."""

    default: WorkflowDefaults = field(default_factory=WorkflowDefaults)
    applications: Mapping[str, WorkflowDefaults] = field(default_factory=dict)
    max_live: int = 100_000
    """Live workflows; beyond it those silent for longest end first, never one with live calls."""
    max_calls: int = 256
    """Calls remembered per workflow, and visits to stages."""
    max_stages: int = 200
    """Stages told apart per workflow; later ones share one name."""
    max_finished: int = 2_000
    """Ended workflows that can still be explained."""
    max_finished_calls: int = 20_000
    """Their calls, all together."""
    finished_s: float = 3_600.0
    """How long they can be."""
    max_expired_at_once: int = 256
    """Workflows that one `expire` ends; the rest are due at once."""
    prior_output_tokens: float = 256.0
    """Of a stage of which nothing is known."""
    max_tools: int = 1_000
    """Tools whose gaps are counted; the one seen least recently goes first."""
    structure: Structure = Structure.TEMPLATES
    graph_matches: int = 1
    """Most alike graphs over which a prediction is averaged; the paper's is 1."""
    graphs: GraphBounds = field(default_factory=GraphBounds)
    stage_models: StageModelSettings = field(default_factory=StageModelSettings)

    def for_application(self, application: str) -> WorkflowDefaults:
        """Its own defaults, or those of everybody."""
        return self.applications.get(application, self.default)
