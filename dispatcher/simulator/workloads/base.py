"""What a workload is, and how it becomes a trace."""

from __future__ import annotations

from random import Random
from typing import Protocol

from dispatcher.simulator.workloads.arrivals import Arrivals, moments
from dispatcher.traces import TraceWorkflow


class Workload(Protocol):
    """A model of real work: draws workflows, one at a time.

    A workflow depends on its number and on `random` alone, never on the arrival moment or on
    what was drawn before, so the n-th workflow of a seed is the same at any arrival rate. It
    carries no SLO (whoever plays it asks for one), and its id is unique for its number.
    """

    @property
    def name(self) -> str:
        """Short, unique, for tables and command lines; also the workflows' application."""
        ...

    @property
    def summary(self) -> str:
        """One line: what work this is, and after which data."""
        ...

    def workflow(self, number: int, arrival_s: float, random: Random) -> TraceWorkflow:
        """Return the workflow of that number (from 0), arriving then."""
        ...


def make_trace(
    workload: Workload,
    arrivals: Arrivals,
    *,
    rate_per_s: float,
    seed: int,
    count: int | None = None,
    duration_s: float | None = None,
) -> list[TraceWorkflow]:
    """Draw a trace: as many workflows as asked for, or all that arrive in that time.

    Args:
        workload: What arrives.
        arrivals: When.
        rate_per_s: Workflows per second, in the long run.
        seed: Same seed, same trace; the n-th workflow is the same at any rate and arrivals.
        count: Workflows; this or `duration_s`, not both.
        duration_s: Arrivals after it are left out.

    Raises:
        ValueError: Not exactly one of `count` and `duration_s` is given, or one is not above 0.
    """
    of_arrivals = Random(f"{seed}-arrivals")  # noqa: S311 - a model, no secret
    when = moments(arrivals, rate_per_s, of_arrivals, count=count, duration_s=duration_s)
    return [
        workload.workflow(number, arrival_s, Random(f"{seed}-{number}"))  # noqa: S311 - as above
        for number, arrival_s in enumerate(when)
    ]
