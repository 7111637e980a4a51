"""Workflows of one call each."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from dispatcher.core.types import CallClass
from dispatcher.simulator.workloads.draws import Quantiles
from dispatcher.traces import TraceCall, TraceWorkflow


@dataclass(frozen=True, slots=True)
class SingleCalls:
    """Calls of given lengths, prompt and output independent; no prefix is shared."""

    name: str
    summary: str
    prompt_tokens: Quantiles
    output_tokens: Quantiles
    call_class: CallClass
    streaming: bool = True

    def workflow(self, number: int, arrival_s: float, random: Random) -> TraceWorkflow:
        """See `Workload`."""
        call = TraceCall(
            call_id="c0",
            stage="answer",
            prompt_tokens=self.prompt_tokens.tokens(random),
            output_tokens=self.output_tokens.tokens(random),
            streaming=self.streaming,
            call_class=self.call_class,
        )
        return TraceWorkflow(f"{self.name}-{number}", self.name, arrival_s, (call,))
