"""Whatever happens, blocks are conserved and every request ends exactly once."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.core.gpu_profiles import A100_80G, LLAMA_8B
from dispatcher.engine_model import (
    EngineConfig,
    EngineModel,
    EngineRequest,
    RequestState,
    Roofline,
)

ACTIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"), st.integers(1, 30), st.integers(1, 20), st.integers(-2, 2),
            st.integers(0, 3),
        ),
        st.tuples(st.just("abort"), st.integers(0, 40)),
        st.tuples(st.just("step")),
        st.tuples(st.just("clear")),
    ),
    max_size=60,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    actions=ACTIONS,
    policy=st.sampled_from(["fcfs", "priority"]),
    num_blocks=st.integers(13, 24),
    seats=st.integers(1, 5),
    budget=st.integers(5, 40),
)
def test_blocks_are_conserved_and_every_request_ends_once(
    actions: list[tuple[object, ...]], policy: str, num_blocks: int, seats: int, budget: int
):
    engine = EngineModel(
        EngineConfig(
            Roofline(A100_80G, LLAMA_8B),
            num_blocks=num_blocks,
            max_model_len=52,
            max_num_seqs=seats,
            max_num_batched_tokens=budget,
            block_size=4,
            scheduling_policy=policy,  # type: ignore[arg-type]
        )
    )
    requests: list[EngineRequest] = []
    finished: list[EngineRequest] = []
    emitted: dict[str, int] = {}

    def step() -> None:
        result = engine.step(0.0)
        assert result.duration_s > 0 or not (result.emitted or result.admitted)
        finished.extend(result.finished)
        for request in result.emitted:
            emitted[request.request_id] = emitted.get(request.request_id, 0) + 1

    for action in actions:
        match action:
            case ("add", int(prompt), int(output), int(priority), int(family)):
                # Few families, so that contents are shared between requests.
                rng = random.Random(family)
                hashes = [rng.getrandbits(32) for _ in range((prompt + output) // 4)]
                request = EngineRequest(
                    str(len(requests)),
                    prompt_tokens=prompt,
                    output_tokens=output,
                    arrival_s=float(len(requests)),
                    priority=priority,
                    block_hashes=hashes,
                )
                requests.append(request)
                engine.add(request)
            case ("abort", int(number)):
                engine.abort(str(number))
            case ("step",):
                step()
            case ("clear",):
                engine.reset_prefix_cache()
        engine.validate()

    for _ in range(5_000):
        if not engine.has_work:
            break
        step()
        engine.validate()
    assert not engine.has_work
    assert engine.kv_usage == 0.0
    assert len(finished) == len({request.request_id for request in finished})
    for request in requests:
        if request.state is RequestState.FINISHED:
            assert emitted[request.request_id] == request.output_tokens
        else:
            assert request.state is RequestState.ABORTED
