"""The same work in other lengths, to fit engines with small contexts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import inf

from dispatcher.traces import PrefixPart, TraceCall, TraceWorkflow


def scaled(
    trace: Iterable[TraceWorkflow],
    *,
    prompt: float = 1.0,
    output: float = 1.0,
    max_context_tokens: int | None = None,
) -> list[TraceWorkflow]:
    """Return the trace with its lengths multiplied; times and structure stay.

    Args:
        trace: Workflows.
        prompt: Factor of prompt lengths, shared prefixes included; above 0.
        output: Factor of output lengths; above 0.
        max_context_tokens: What prompt and output of a call may have together; at least 2. Where a
            workflow has a longer call, all its lengths shrink by one more factor until that one
            fits, so that what its calls share they still share.

    Lengths are rounded down and stay at least 1; prefix parts that come to nothing go.

    Raises:
        ValueError: A number is out of range.
    """
    for name, factor in (("prompt", prompt), ("output", output)):
        if not 0.0 < factor < inf:
            raise ValueError(f"{name} must be above 0 and finite, not {factor}")
    if max_context_tokens is not None and max_context_tokens < 2:
        raise ValueError(f"max_context_tokens must be at least 2, not {max_context_tokens}")
    return [_workflow(workflow, prompt, output, max_context_tokens) for workflow in trace]


def _workflow(
    workflow: TraceWorkflow, prompt: float, output: float, most: int | None
) -> TraceWorkflow:
    if most is not None:
        longest = max(c.prompt_tokens * prompt + c.output_tokens * output for c in workflow.calls)
        if longest > most:
            prompt, output = prompt * most / longest, output * most / longest
    if prompt == output == 1.0:
        return workflow
    calls = tuple(_call(call, prompt, output) for call in workflow.calls)
    if most is not None:
        calls = tuple(_fitting(call, most) for call in calls)
    return replace(workflow, calls=calls)


def _call(call: TraceCall, prompt: float, output: float) -> TraceCall:
    prompt_tokens = max(1, int(call.prompt_tokens * prompt))
    output_tokens = max(1, int(call.output_tokens * output))
    parts: list[PrefixPart] = []
    before = 0
    for content, end in call.prefix:
        beyond = max(0, end - call.prompt_tokens)
        scaled_end = (
            prompt_tokens + min(output_tokens, int(beyond * output))
            if beyond
            else min(prompt_tokens, int(end * prompt))
        )
        if scaled_end > before:
            parts.append(PrefixPart(content, scaled_end))
            before = scaled_end
    return replace(
        call, prompt_tokens=prompt_tokens, output_tokens=output_tokens, prefix=tuple(parts)
    )


def _fitting(call: TraceCall, most: int) -> TraceCall:
    """Lengths kept at 1, and the last digit of factors, may make one token too many."""
    over = call.prompt_tokens + call.output_tokens - most
    if over <= 0:
        return call
    from_output = min(over, call.output_tokens - 1)
    prompt_tokens = call.prompt_tokens - (over - from_output)
    parts = [PrefixPart(content, min(end, most)) for content, end in call.prefix]
    ends = [0, *(part.end_tokens for part in parts)]
    return replace(
        call,
        prompt_tokens=prompt_tokens,
        output_tokens=call.output_tokens - from_output,
        prefix=tuple(part for part, before in zip(parts, ends, strict=False) if part[1] > before),
    )
