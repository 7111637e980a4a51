"""Many alike iterations played at once are what as many steps would have been."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.core.gpu_profiles import A100_80G, LLAMA_8B, CostProfile
from dispatcher.engine_model import (
    EngineConfig,
    EngineModel,
    EngineRequest,
    Linear,
    Measured,
    Roofline,
)

TIMINGS = {
    "roofline": Roofline(A100_80G, LLAMA_8B),
    "linear": Linear(CostProfile(1e-4, 0.02, 0.01, 1e-3, 1e-6)),
    "measured": Measured(0.01, 1e-3, 1e-6, 1e-4, 0.02, 1e-7),
}


def engine_of(num_blocks: int, seats: int, timing: str, **extras: object) -> EngineModel:
    return EngineModel(
        EngineConfig(  # type: ignore[arg-type]
            TIMINGS[timing],
            num_blocks=num_blocks,
            max_model_len=52,
            max_num_seqs=seats,
            max_num_batched_tokens=16,
            block_size=4,
            scheduling_policy="priority",
            swap_s_per_token=1e-4,
            **extras,
        )
    )


def requests_of(seed: int, count: int, *, outputs_shared: bool = False) -> list[EngineRequest]:
    rng = random.Random(seed)
    requests = []
    for number in range(count):
        prompt, output = rng.randint(1, 30), rng.randint(1, 30)
        family = random.Random(rng.randint(0, 2))
        most = (prompt + output if outputs_shared else prompt) // 4
        hashes = [family.getrandbits(32) for _ in range(rng.randint(0, most))]
        requests.append(
            EngineRequest(
                str(number),
                prompt_tokens=prompt,
                output_tokens=output,
                priority=rng.randint(0, 2),
                arrival_s=float(number),
                block_hashes=hashes,
                session=str(rng.randint(0, 5)),
            )
        )
    return requests


def played(
    engine: EngineModel,
    requests: list[EngineRequest],
    *,
    glides: bool,
    every: int,
    kept_s: float = 0.0,
):
    """When each request finished, with a new one after so many iterations; and how often asked.

    What a request has shared is preserved for its session, for so long.
    """
    waiting, now_s, iterations = list(requests), 0.0, 0
    ended: dict[str, float] = {}
    steps = 0
    while waiting or engine.has_work:
        if waiting and (iterations % every == 0 or not engine.has_work):
            engine.add(waiting.pop(0))
        engine.expire(now_s)
        run = engine.alike_run() if glides else None
        count = run.count if run else 1
        if waiting:
            count = min(count, every - iterations % every)
        while run and count > 1 and now_s + run.duration_s(count - 1) >= engine.next_expiry_s:
            count -= 1
        result = engine.glide(run, count) if run else engine.step(now_s)
        steps += 1
        engine.validate()
        now_s += result.duration_s
        iterations += count if run else 1
        ended |= {request.request_id: now_s for request in result.finished}
        for request in result.finished if kept_s else ():
            assert request.session is not None
            engine.preserve(request.session, request.block_hashes, now_s + kept_s)
    return ended, steps


def counters(engine: EngineModel) -> tuple[int, ...]:
    return (
        engine.preemptions,
        engine.prefix_hits_tokens,
        engine.offload_hits_tokens,
        engine.swapped_in_tokens,
        engine.swapped_out_tokens,
        engine.recomputed_tokens,
        engine.preserves_dropped,
    )


@settings(max_examples=400, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(1, 12),
    num_blocks=st.integers(13, 40),
    seats=st.integers(1, 6),
    every=st.integers(1, 15),
    timing=st.sampled_from(sorted(TIMINGS)),
    limit=st.integers(1, 16),
    preemption=st.sampled_from(["recompute", "swap"]),
    offload_blocks=st.sampled_from([0, 4, 40]),
    kept_s=st.sampled_from([0.0, 0.0371, 0.371, 100.0]),
)
def test_gliding_is_stepping(
    seed: int,
    count: int,
    num_blocks: int,
    seats: int,
    every: int,
    timing: str,
    limit: int,
    preemption: str,
    offload_blocks: int,
    kept_s: float,
) -> None:
    stepped, glided = (
        engine_of(
            num_blocks,
            seats,
            timing,
            preemption=preemption,
            offload_blocks=offload_blocks,
            enable_preserve=True,
        )
        for _ in range(2)
    )
    stepped.set_token_limit(limit)
    glided.set_token_limit(limit)
    requests = requests_of(seed, count)
    one_by_one, steps = played(stepped, requests, glides=False, every=every, kept_s=kept_s)
    requests = requests_of(seed, count)
    at_once, glides = played(glided, requests, glides=True, every=every, kept_s=kept_s)
    assert at_once == pytest.approx(one_by_one, rel=1e-9)
    assert list(at_once) == list(one_by_one)
    assert glides <= steps
    assert counters(glided) == counters(stepped)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10_000), num_blocks=st.integers(13, 40), seats=st.integers(1, 6))
def test_where_outputs_are_shared_too_everything_still_ends(
    seed: int, num_blocks: int, seats: int
) -> None:
    engine = engine_of(num_blocks, seats, "roofline")
    ended, _ = played(engine, requests_of(seed, 12, outputs_shared=True), glides=True, every=3)
    assert len(ended) == 12
    assert engine.kv_usage == 0.0


def test_a_lone_request_takes_one_step_and_one_glide() -> None:
    engine = engine_of(13, 2, "roofline")
    _, steps = played(engine, [EngineRequest("a", prompt_tokens=8, output_tokens=40, arrival_s=0)],
                      glides=True, every=1)  # fmt: skip
    assert steps == 2


def test_nothing_is_alike_while_a_prompt_is_computed_or_somebody_can_join() -> None:
    engine = engine_of(40, 2, "roofline")
    assert engine.alike_run() is None
    engine.add(EngineRequest("long", prompt_tokens=30, output_tokens=5, arrival_s=0))
    engine.step(0.0)
    assert engine.alike_run() is None  # 16 tokens an iteration: the prompt needs two
    engine.step(0.0)
    run = engine.alike_run()
    assert run is not None and run.count == 4
    engine.add(EngineRequest("next", prompt_tokens=4, output_tokens=5, arrival_s=1))
    assert engine.alike_run() is None
