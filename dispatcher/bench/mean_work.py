"""How much the requests of a workload are, in the mean, and what an engine full of them takes.

Cases derive their loads from it: what an engine can do is known before anything is played.
"""

from __future__ import annotations

from dataclasses import dataclass

from dispatcher.engine_model import EngineConfig
from dispatcher.traces import Trace

SAMPLE_SEED = 7_000_003
"""Another than any that is played."""


@dataclass(frozen=True, slots=True)
class MeanWork:
    """Of one workflow, all its calls together, in the mean; tokens."""

    prompt_tokens: float
    output_tokens: float
    context_tokens: float
    """Of a call, over all moments in which some call decodes."""


def mean_work(sample: Trace) -> MeanWork:
    """Means of a sample, of at least one workflow."""
    calls = [call for workflow in sample for call in workflow.calls]
    prompt = sum(call.prompt_tokens for call in calls)
    output = sum(call.output_tokens for call in calls)
    context = sum(c.output_tokens * (c.prompt_tokens + c.output_tokens / 2.0) for c in calls)
    return MeanWork(prompt / len(sample), output / len(sample), context / output)


def decode_s(config: EngineConfig, running: float, context_tokens: float) -> float:
    """Time of an iteration in which so many requests decode a token each, seconds.

    Args:
        config: Of the engine.
        running: Requests; in the mean, and so not always a whole number.
        context_tokens: Of each.
    """
    resident = running * context_tokens
    return config.timing.iteration_s(round(running), round(running), resident, resident)
