"""Whatever happens, blocks are conserved and every request ends exactly once."""

from __future__ import annotations

import math
import random

import pytest
from engine_cases import names
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

FAMILIES = st.integers(0, 3)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"), st.integers(1, 30), st.integers(1, 20), st.integers(-2, 2), FAMILIES
        ),
        st.tuples(st.just("abort"), st.integers(0, 40)),
        st.tuples(st.just("step")),
        st.tuples(st.just("clear")),
        st.tuples(st.just("limit"), st.integers(1, 40)),
        st.tuples(st.just("preserve"), FAMILIES, st.integers(1, 12), st.floats(0, 0.2)),
        st.tuples(st.just("release"), FAMILIES),
        st.tuples(st.just("offload"), FAMILIES),
        st.tuples(st.just("discard"), FAMILIES),
    ),
    max_size=60,
)
EXTRAS = st.fixed_dictionaries(
    {
        "offload_blocks": st.sampled_from([0, 3, 50]),
        "preemption": st.sampled_from(["recompute", "swap"]),
    }
)


def hashes_of(family: int, count: int) -> list[int]:
    """Few families, so that contents are shared between requests."""
    rng = random.Random(family)
    return [rng.getrandbits(32) for _ in range(count)]


class Played:
    """An engine, what has been asked of it and what it has said."""

    def __init__(self, config: EngineConfig) -> None:
        self.engine = EngineModel(config)
        self.now_s = 0.0
        self.requests: list[EngineRequest] = []
        self.finished: list[EngineRequest] = []
        self.emitted: dict[str, int] = {}
        self.computed_tokens = 0

    def step(self) -> None:
        result = self.engine.step(self.now_s)
        assert result.duration_s > 0 or not (result.emitted or result.admitted)
        assert result.prefill_tokens + result.decode_tokens <= self.engine.token_limit
        assert self.engine.next_expiry_s > self.now_s or not self.engine.has_work
        self.now_s += result.duration_s
        self.computed_tokens += result.prefill_tokens + result.decode_tokens
        self.finished.extend(result.finished)
        for name in names(result.emitted):
            self.emitted[name] = self.emitted.get(name, 0) + 1

    def act(self, action: tuple[object, ...]) -> None:
        engine = self.engine
        match action:
            case ("add", int(prompt), int(output), int(priority), int(family)):
                number = len(self.requests)
                request = EngineRequest(
                    str(number),
                    prompt_tokens=prompt,
                    output_tokens=output,
                    arrival_s=float(number),
                    priority=priority,
                    block_hashes=hashes_of(family, (prompt + output) // 4),
                    session=str(family) if number % 2 else None,
                )
                self.requests.append(request)
                engine.add(request)
            case ("abort", int(number)):
                engine.abort(str(number))
            case ("step",):
                self.step()
            case ("clear",):
                engine.reset_prefix_cache()
            case ("limit", int(tokens)):
                engine.set_token_limit(min(tokens, engine.config.max_num_batched_tokens))
            case ("preserve", int(family), int(count), float(seconds)):
                hashes = hashes_of(family, count)
                resident = engine.residency(hashes).resident
                kept = engine.preserve(str(family), hashes, self.now_s + seconds)
                assert kept == resident <= engine.residency(hashes).held
            case ("release", int(family)):
                engine.release(str(family))
            case ("offload", int(family)) if engine.config.offload_blocks:
                engine.offload(hashes_of(family, 12))
            case ("discard", int(family)):
                engine.discard(hashes_of(family, 12))
        engine.validate()

    def drain(self) -> None:
        self.engine.set_token_limit(self.engine.config.max_num_batched_tokens)
        for _ in range(5_000):
            if not self.engine.has_work:
                return
            self.step()
            self.engine.validate()
        raise AssertionError("the engine does not come to an end")


def small_engine(**overrides: object) -> EngineConfig:
    return EngineConfig(  # type: ignore[arg-type]
        Roofline(A100_80G, LLAMA_8B),
        **{
            "max_model_len": 52,
            "block_size": 4,
            "swap_s_per_token": 1e-4,
            "enable_preserve": True,
            **overrides,
        },
    )


@settings(max_examples=200, deadline=None)
@given(
    actions=ACTIONS,
    policy=st.sampled_from(["fcfs", "priority"]),
    num_blocks=st.integers(13, 24),
    seats=st.integers(1, 5),
    budget=st.integers(5, 40),
    extras=EXTRAS,
)
def test_blocks_are_conserved_and_every_request_ends_once(
    actions: list[tuple[object, ...]],
    policy: str,
    num_blocks: int,
    seats: int,
    budget: int,
    extras: dict[str, object],
):
    played = Played(
        small_engine(
            num_blocks=num_blocks,
            max_num_seqs=seats,
            max_num_batched_tokens=budget,
            scheduling_policy=policy,
            **extras,
        )
    )
    engine = played.engine
    for action in actions:
        played.act(action)
    played.drain()
    engine.expire(math.inf)
    engine.validate()
    assert engine.kv_usage == 0.0
    assert len(played.finished) == len(set(names(played.finished)))
    for request in played.requests:
        if request.state is RequestState.FINISHED:
            assert played.emitted[request.request_id] == request.output_tokens
        else:
            assert request.state is RequestState.ABORTED


@settings(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 20)), min_size=1, max_size=15),
    num_blocks=st.integers(13, 20),
    seats=st.integers(1, 6),
    policy=st.sampled_from(["fcfs", "priority"]),
    preemption=st.sampled_from(["recompute", "swap"]),
)
def test_every_token_is_computed_once_but_for_those_that_were_lost(
    sizes: list[tuple[int, int]], num_blocks: int, seats: int, policy: str, preemption: str
):
    played = Played(
        small_engine(
            num_blocks=num_blocks,
            max_num_seqs=seats,
            max_num_batched_tokens=20,
            scheduling_policy=policy,
            preemption=preemption,
            enable_prefix_caching=False,
            enable_preserve=False,
        )
    )
    for prompt, output in sizes:
        played.act(("add", prompt, output, len(played.requests) % 3, 0))
    played.drain()
    engine = played.engine
    once = sum(prompt + output - 1 for prompt, output in sizes)
    assert played.computed_tokens == once + engine.recomputed_tokens
    assert engine.swapped_in_tokens == engine.swapped_out_tokens
    if preemption == "swap":
        assert engine.recomputed_tokens == 0
        assert (engine.swapped_in_tokens > 0) == (engine.preemptions > 0)
    else:
        assert engine.swapped_in_tokens == 0
        assert (engine.recomputed_tokens > 0) == (engine.preemptions > 0)


@pytest.mark.parametrize("offload_blocks", [0, 24])
def test_a_tier_that_holds_all_spares_every_block_that_was_computed_before(offload_blocks: int):
    played = Played(
        small_engine(
            num_blocks=13,
            max_num_seqs=2,
            max_num_batched_tokens=64,
            offload_blocks=offload_blocks,
        )
    )
    for number in range(12):
        # three conversations of six blocks, in turn: more than 13 blocks hold
        played.act(("add", 24, 1, 0, number % 3))
        played.drain()
    spared = played.engine.prefix_hits_tokens + played.engine.offload_hits_tokens
    # nine come again, and their sixth block holds the newest token; two conversations and one block
    # are all that fits beside each other
    assert spared == 9 * (20 if offload_blocks else 4)
