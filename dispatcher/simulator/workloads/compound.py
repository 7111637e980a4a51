"""Compound applications: jobs of several stages, each of one or more LLM calls side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from dispatcher.core.workflow_types import StagePlan
from dispatcher.simulator.workloads.draws import lognormal
from dispatcher.traces import TraceCall, TraceWorkflow


class Job:
    """A job while its calls are drawn."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.calls: list[TraceCall] = []

    def stage(
        self,
        name: str,
        width: int,
        prompt_tokens: float,
        output_tokens: float,
        *,
        sigma: float,
        after: tuple[str, ...],
        gap_s: float = 0.0,
        tool: str | None = None,
    ) -> tuple[str, ...]:
        """Add calls side by side.

        Args:
            name: Of their stage.
            width: How many.
            prompt_tokens: Of each.
            output_tokens: Median of each.
            sigma: Of the lognormal law of their outputs.
            after: Calls that must have ended before; none: the job's first.
            gap_s: What the client does between these and those.
            tool: What it does then, by name.

        Returns:
            Their ids.
        """
        names = []
        for _ in range(width):
            call = TraceCall(
                f"c{len(self.calls)}",
                name,
                max(1, round(prompt_tokens)),
                max(1, round(lognormal(self.random, output_tokens, sigma))),
                after,
                gap_s,
                tool,
            )
            self.calls.append(call)
            names.append(call.call_id)
        return tuple(names)


@dataclass(frozen=True, slots=True)
class Application:
    """A `Workload`: its stages as they are declared, and how its jobs are drawn."""

    name: str
    summary: str
    stages: tuple[StagePlan, ...]
    draw: Callable[[Job], None]
    """Adds all calls of a job."""

    def workflow(self, number: int, arrival_s: float, random: Random) -> TraceWorkflow:
        """See `Workload`."""
        job = Job(random)
        self.draw(job)
        return TraceWorkflow(f"{self.name}-{number}", self.name, arrival_s, tuple(job.calls))
