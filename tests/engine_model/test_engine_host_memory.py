"""KV that goes to host memory and comes back: evicted content, and victims of preemption."""

from __future__ import annotations

import pytest
from engine_cases import SWAP_S_PER_TOKEN, TIMING, make_engine, make_request, names, serve, step

from dispatcher.core.gpu_profiles import A100_80G, LLAMA_8B, LLAMA_13B
from dispatcher.engine_model import EngineConfig, EngineModel, Residency

SESSION = (1, 2, 3)
FIRST = tuple(range(10, 21))
SECOND = tuple(range(30, 41))


def engine_with_evicted(**overrides: object) -> EngineModel:
    """Sixteen blocks: the second filler evicts the session's, and seven of the first one's."""
    engine = make_engine(**{"offload_blocks": 16} | overrides)
    serve(engine, make_request("session", prompt=12, hashes=SESSION))
    serve(engine, make_request("first", prompt=47, hashes=FIRST))
    serve(engine, make_request("second", prompt=47, hashes=SECOND))
    return engine


def test_evicted_content_comes_back_for_the_time_of_copying_it():
    engine = engine_with_evicted()
    assert engine.residency(SESSION) == Residency(0, 0, None, offloaded=3)
    again = make_request("again", prompt=13, output=2, hashes=SESSION)
    engine.add(again)
    result = step(engine)
    assert (result.swapped_in_tokens, result.prefill_tokens, again.cached_tokens) == (12, 1, 12)
    expected_s = TIMING.iteration_s(1, 1, 13, 13, 1) + 12 * SWAP_S_PER_TOKEN
    assert result.duration_s == pytest.approx(expected_s)
    assert (engine.offload_hits_tokens, engine.prefix_hits_tokens) == (12, 0)
    assert engine.swapped_in_tokens == 12
    # 12 + 47 + 47 tokens before it, none of which was found anywhere
    assert engine.offload_queries_tokens == 106 + 13
    assert step(engine).duration_s == TIMING.iteration_s(1, 1, 14, 14)


def test_host_memory_goes_on_where_the_prefix_cache_ends():
    engine = engine_with_evicted()
    assert engine.residency(FIRST) == Residency(4, 0, 1, offloaded=7)
    again = serve(engine, make_request("again", prompt=47, hashes=FIRST))
    assert again.cached_tokens == 44
    assert (engine.prefix_hits_tokens, engine.offload_hits_tokens) == (16, 28)


def test_the_newest_token_is_computed_even_where_all_is_kept():
    engine = engine_with_evicted()
    again = serve(engine, make_request("again", prompt=12, hashes=SESSION))
    assert again.cached_tokens == 8


def test_host_memory_forgets_what_fell_into_it_first():
    engine = engine_with_evicted(offload_blocks=2)
    assert engine.residency(SESSION).offloaded == 0
    # the session's three fell first, then the first filler's from its end: 20 ... 16, 15, 14
    assert engine.residency(FIRST) == Residency(4, 0, 1, offloaded=2)


def test_what_is_used_in_host_memory_stays_longest():
    engine = engine_with_evicted(offload_blocks=10)
    serve(engine, make_request("again", prompt=13, hashes=SESSION))
    # the four blocks evicted for it push out the seven others' oldest, not what it has used
    engine.discard(SESSION)
    assert engine.residency(SESSION).offloaded == 3


def test_without_a_tier_evicted_content_is_gone():
    engine = engine_with_evicted(offload_blocks=0)
    again = make_request("again", prompt=13, hashes=SESSION)
    engine.add(again)
    assert (step(engine).prefill_tokens, again.cached_tokens) == (13, 0)
    assert engine.offload_queries_tokens == 0
    with pytest.raises(ValueError, match="without offload_blocks"):
        engine.offload(SESSION)


def test_a_session_can_be_moved_to_host_memory():
    engine = make_engine(offload_blocks=16)
    serve(engine, make_request("session", prompt=12, hashes=SESSION))
    assert engine.offload((*SESSION, 99)) == 3
    engine.validate()
    assert engine.residency(SESSION) == Residency(0, 0, None, offloaded=3)
    engine.reset_prefix_cache()
    assert engine.residency(SESSION).offloaded == 0


def three_of_eight_blocks(**overrides: object) -> EngineModel:
    """Three prompts fill six of eight blocks: the third request to grow finds none."""
    engine = make_engine(num_blocks=8, max_model_len=16, **overrides)
    for name in "abc":
        engine.add(make_request(name, prompt=8, output=6))
    step(engine)
    return engine


@pytest.mark.parametrize("caching", [True, False])
def test_a_swapped_victim_comes_back_with_all_that_it_had_computed(caching: bool):
    engine = three_of_eight_blocks(preemption="swap", enable_prefix_caching=caching)
    out = step(engine)
    assert (names(out.preempted), names(out.emitted)) == (["c"], ["a", "b"])
    assert (out.swapped_out_tokens, out.swapped_in_tokens) == (8, 0)
    expected_s = TIMING.iteration_s(2, 2, 18, 18) + 8 * SWAP_S_PER_TOKEN
    assert out.duration_s == pytest.approx(expected_s)
    while engine.waiting_count:
        back = step(engine)
    assert names(back.admitted) == names(back.emitted) == ["c"]
    assert (back.swapped_in_tokens, back.prefill_tokens, back.decode_tokens) == (8, 0, 1)
    assert back.duration_s == pytest.approx(TIMING.iteration_s(1, 1, 9, 9) + 8 * SWAP_S_PER_TOKEN)
    while engine.has_work:
        step(engine)
    assert (engine.swapped_out_tokens, engine.swapped_in_tokens) == (8, 8)
    assert engine.recomputed_tokens == 0


def test_a_victim_that_recomputes_says_how_much():
    engine = three_of_eight_blocks()
    assert step(engine).swapped_out_tokens == 0
    while engine.waiting_count:
        back = step(engine)
    assert back.prefill_tokens == 9, "its prompt and the token it had got"
    while engine.has_work:
        step(engine)
    assert engine.recomputed_tokens == 8, "the token it had got was not computed before"


def test_blocks_still_there_are_not_copied_back():
    engine = make_engine(num_blocks=8, max_model_len=16, preemption="swap")
    for name, hashes in (("a", ()), ("b", ()), ("c", (1, 2))):
        engine.add(make_request(name, prompt=8, output=6, hashes=hashes))
    step(engine)
    assert names(step(engine).preempted) == ["c"]
    kept = engine.residency((1, 2)).resident
    assert kept == 2
    while engine.waiting_count:
        left = engine.residency((1, 2)).resident
        back = step(engine)
    assert back.swapped_in_tokens == 8 - 4 * left


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"preemption": "drop"}, "recompute or swap"),
        ({"offload_blocks": -1}, "at least 0"),
        ({"swap_s_per_token": -1.0}, "at least 0"),
        ({"swap_s_per_token": float("nan")}, "at least 0"),
        ({"swap_s_per_token": 0.0, "offload_blocks": 1}, "above 0"),
        ({"swap_s_per_token": 0.0, "preemption": "swap"}, "above 0"),
        ({"enable_prefix_caching": False, "offload_blocks": 1}, "need enable_prefix_caching"),
        ({"enable_prefix_caching": False, "enable_preserve": True}, "need enable_prefix_caching"),
    ],
)
def test_what_does_not_fit_together_is_refused(overrides: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        make_engine(**overrides)


def test_copying_takes_as_long_as_the_link_needs():
    # 131,072 bytes a token over 32 GB/s
    assert EngineConfig.sized(A100_80G, LLAMA_8B).swap_s_per_token == pytest.approx(4.096e-6)
    # 819,200 bytes a token at 2 s per GB; two GPUs copy half of it each
    slow = EngineConfig.sized(A100_80G, LLAMA_13B, swap_s_per_gb=2.0)
    assert slow.swap_s_per_token == pytest.approx(1.6384e-3)
    halved = EngineConfig.sized(A100_80G, LLAMA_13B, tp=2, swap_s_per_gb=2.0)
    assert halved.swap_s_per_token == pytest.approx(0.8192e-3)
