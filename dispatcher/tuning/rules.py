"""What the tuner goes by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

TestName = Literal["permutation", "welch_log", "batch_p95"]


@dataclass(frozen=True, slots=True)
class TuningRules:
    """Numbers of section 4.3, and of what it leaves open."""

    window_s: float = 100.0
    """Length of a window, seconds; also of the collection before the first tune."""
    min_workflows: int = 20
    """Fewer that ended well say nothing of a P95: the window goes on; at least 2."""
    max_window_s: float = 1000.0
    """Workflows that ended longer ago are forgotten, however few there are; seconds."""
    test: TestName = "permutation"
    """How a regression is told from chance."""
    p_value: float = 0.01
    """Below it, latency counts as worse; in (0, 1)."""
    draws: int = 1000
    """Of the permutation test; the least p-value is 1 / (draws + 1)."""
    min_gain: float = 0.03
    """Share of the simulated P95 that another alpha must save to be adopted."""
    max_calls: int = 5000
    """Most calls replayed: the latest workflows, up to so many calls."""
