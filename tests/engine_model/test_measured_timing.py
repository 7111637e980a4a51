"""An engine of measured times: what prompts add to the iterations that they share."""

from __future__ import annotations

import pytest

from dispatcher.engine_model import EngineConfig, EngineModel, EngineRequest, Measured

TIMING = Measured(
    base_s=1.0,
    per_running_s=0.1,
    per_kv_token_s=0.001,
    per_prompt_token_s=0.01,
    per_prompt_s=0.5,
    per_score_pair_s=1e-5,
)


def engine_of() -> EngineModel:
    config = EngineConfig(
        TIMING, num_blocks=100, max_model_len=400, max_num_seqs=8, max_num_batched_tokens=100
    )
    return EngineModel(config)


def request(name: str, prompt: int, output: int, hashes: tuple[int, ...] = ()) -> EngineRequest:
    return EngineRequest(
        name, prompt_tokens=prompt, output_tokens=output, arrival_s=0.0, block_hashes=hashes
    )


def test_decoding_is_affine_in_the_context() -> None:
    assert TIMING.iteration_s(2, 2, 300, 300) == pytest.approx(1.0 + 0.2 + 0.3)
    assert TIMING.iteration_s(2, 2, 500, 500) == pytest.approx(1.0 + 0.2 + 0.5)


def test_a_prompt_adds_its_tokens_once_and_its_pairs() -> None:
    engine = engine_of()
    engine.add(request("a", 60, 2))
    alone = 1.0 + 0.1 + 0.06 + 0.5 + 0.6 + 1e-5 * (60 * 30 - 60)
    assert engine.step(0.0).duration_s == pytest.approx(alone)
    engine.add(request("b", 40, 1))
    # a decodes its second token, with 61 in the cache, while b's prompt is computed
    shared = 1.0 + 0.2 + 0.101 + 0.5 + 0.4 + 1e-5 * (40 * 20 - 40)
    assert engine.step(0.0).duration_s == pytest.approx(shared)


def test_every_piece_of_a_long_prompt_is_one() -> None:
    engine = engine_of()
    engine.add(request("a", 150, 1))
    first, second = engine.step(0.0), engine.step(0.0)
    assert first.duration_s == pytest.approx(1.1 + 0.1 + 0.5 + 1.0 + 1e-5 * (100 * 50 - 100))
    assert second.duration_s == pytest.approx(1.1 + 0.15 + 0.5 + 0.5 + 1e-5 * (50 * 125 - 150))
    assert [len(step.finished) for step in (first, second)] == [0, 1]


def test_what_is_cached_costs_its_context_alone() -> None:
    engine = engine_of()
    engine.add(request("a", 65, 1, (1, 2, 3, 4)))
    engine.step(0.0)
    engine.add(request("b", 65, 1, (1, 2, 3, 4)))
    # four blocks of 16 are found; the one token that is left is a prompt all the same
    assert engine.step(0.0).duration_s == pytest.approx(1.1 + 0.065 + 0.5 + 0.01)
