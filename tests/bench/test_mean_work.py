"""How much a workload's requests are in the mean, and an engine full of them."""

from __future__ import annotations

import pytest

from dispatcher.bench.mean_work import decode_s, mean_work
from dispatcher.core.gpu_profiles import A100_80G, LLAMA_8B
from dispatcher.engine_model import EngineConfig
from dispatcher.traces import TraceCall, TraceWorkflow


def test_work_is_of_workflows_and_contexts_are_of_tokens_that_are_generated() -> None:
    sample = [
        TraceWorkflow("w0", "a", 0.0, (TraceCall("c", "s", 100, 10), TraceCall("d", "s", 200, 30))),
        TraceWorkflow("w1", "a", 1.0, (TraceCall("c", "s", 300, 20),)),
    ]
    found = mean_work(sample)
    assert (found.prompt_tokens, found.output_tokens) == (300.0, 30.0)
    # halfway through its answer each call has 105, 215 and 310
    expected = (10 * 105 + 30 * 215 + 20 * 310) / 60
    assert found.context_tokens == pytest.approx(expected)


def test_an_iteration_has_every_context_in_it() -> None:
    config = EngineConfig.sized(A100_80G, LLAMA_8B)
    assert decode_s(config, 8, 500.0) == config.timing.iteration_s(8, 8, 4000.0, 4000.0)
    assert decode_s(config, 7.6, 500.0) == config.timing.iteration_s(8, 8, 3800.0, 3800.0)
