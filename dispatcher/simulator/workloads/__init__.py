"""Models of real work: they make traces of any size and rate, of lengths and times alone.

Example:
    >>> trace = make_trace(WORKLOADS["chess-1"], Poisson(), rate_per_s=0.5, seed=0, count=2)
    >>> [(workflow.workflow_id, len(workflow.calls)) for workflow in trace]
    [('chess-1-0', 16), ('chess-1-1', 22)]
"""

from dispatcher.simulator.workloads.arrivals import (
    ARRIVALS,
    AZURE_CHAT,
    AZURE_CODE,
    Arrivals,
    Gamma,
    Modulated,
    Poisson,
    Recorded,
    ServeGen,
    moments,
)
from dispatcher.simulator.workloads.base import Workload, make_trace
from dispatcher.simulator.workloads.mixed import Mixed, Part, mixed
from dispatcher.simulator.workloads.scaling import scaled
from dispatcher.simulator.workloads.table import WORKLOADS

__all__ = [
    "ARRIVALS",
    "AZURE_CHAT",
    "AZURE_CODE",
    "WORKLOADS",
    "Arrivals",
    "Gamma",
    "Mixed",
    "Modulated",
    "Part",
    "Poisson",
    "Recorded",
    "ServeGen",
    "Workload",
    "make_trace",
    "mixed",
    "moments",
    "scaled",
]
