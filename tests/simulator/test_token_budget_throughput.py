"""A budget of tokens takes preemptions from an engine, and next to no throughput."""

from __future__ import annotations

import random

import pytest

from dispatcher.simulator import simulate, simulated_engine
from dispatcher.traces import TraceCall, TraceWorkflow

BLOCK_TOKENS = 16
CALLS, WARM = 200, 64


def flood(seed: int, calls: int, prompt_tokens: int, output_tokens: int) -> list[TraceWorkflow]:
    """All at once; lengths of half to one and a half times the mean."""
    rng = random.Random(seed)

    def call() -> TraceCall:
        prompt = round(prompt_tokens * rng.uniform(0.5, 1.5))
        output = round(output_tokens * rng.uniform(0.5, 1.5))
        return TraceCall("call", "flood", prompt, output, (), streaming=True)

    return [TraceWorkflow(f"{seed}-{n}", "flood", 0.0, (call(),)) for n in range(calls)]


@pytest.mark.parametrize(
    ("kv_tokens", "seats", "prompt_tokens", "output_tokens"),
    [(8_192, 32, 700, 200), (32_768, 96, 700, 200), (65_536, 64, 2000, 300)],
)
def test_a_budget_spares_preemptions_and_costs_two_percent_at_most(
    kv_tokens: int, seats: int, prompt_tokens: int, output_tokens: int
) -> None:
    engine = simulated_engine(
        "e", "A100", seats=seats, num_blocks=kv_tokens // BLOCK_TOKENS, block_size=BLOCK_TOKENS
    )
    sizes = (prompt_tokens, output_tokens)
    learned = simulate(flood(7, WARM, *sizes), [engine], policy="vllm").learned
    without, with_budget = (
        simulate(
            flood(1, CALLS, *sizes),
            [engine],
            policy="vllm",
            params={"kv_share": share},
            learned=learned,
        ).played
        for share in (None, 0.95)
    )
    assert without.instances["e"].preemptions > 20
    assert with_budget.instances["e"].preemptions <= 0.1 * without.instances["e"].preemptions
    # the same tokens: throughput goes with the time taken
    assert with_budget.makespan_s < without.makespan_s / 0.98
