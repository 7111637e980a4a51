"""What a player is told in the middle of a run changes nothing but what it should."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.core.gpu_profiles import A100_80G, LLAMA_8B
from dispatcher.core.types import AttemptId
from dispatcher.engine_model import AlikeRun, EngineConfig, EngineModel, Roofline
from dispatcher.simulator.engines import Attempt, EnginePlayer
from dispatcher.simulator.kernel import Kernel


def config_of(**extras: object) -> EngineConfig:
    return EngineConfig(  # type: ignore[arg-type]
        Roofline(A100_80G, LLAMA_8B),
        num_blocks=24,
        max_model_len=60,
        max_num_seqs=4,
        max_num_batched_tokens=16,
        block_size=4,
        swap_s_per_token=1e-4,
        enable_preserve=True,
        **extras,
    )


class Played:
    """One engine, and when its requests ended."""

    def __init__(self, config: EngineConfig, *, glides: bool = True) -> None:
        self.kernel = Kernel()
        self.ended: dict[int, float] = {}
        self.player = EnginePlayer(
            config, self.kernel, on_first_token=lambda _: None, on_end=self._over
        )
        if not glides:
            self.player.model = _Stepped(config)

    def _over(self, attempt: Attempt) -> None:
        self.ended[attempt.attempt_id] = self.kernel.now_s

    def add(self, number: int, prompt: int, output: int, hashes: tuple[int, ...] = ()) -> None:
        self.player.add(
            Attempt(
                AttemptId(number),
                prompt_tokens=prompt,
                output_tokens=output,
                arrival_s=self.kernel.now_s,
                priority=0,
                block_hashes=hashes,
                streaming=False,
                session=str(number % 5),
            )
        )


class _Stepped(EngineModel):
    """Never plays several iterations at once."""

    def alike_run(self) -> AlikeRun | None:
        return None


def hashes_of(family: int) -> tuple[int, ...]:
    rng = random.Random(family)
    return tuple(rng.getrandbits(32) for _ in range(5))


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 100_000),
    preemption=st.sampled_from(["recompute", "swap"]),
    offload_blocks=st.sampled_from([0, 30]),
)
def test_whatever_it_is_told_on_the_way_it_ends_as_if_stepped(
    seed: int, preemption: str, offload_blocks: int
) -> None:
    both = []
    for glides in (True, False):
        rng = random.Random(seed)
        config = config_of(preemption=preemption, offload_blocks=offload_blocks)
        played = Played(config, glides=glides)
        player, kernel = played.player, played.kernel
        for number in range(12):
            prompt, output = rng.randint(1, 30), rng.randint(1, 29)
            hashes = hashes_of(number % 3)[: prompt // 4]
            kernel.at(rng.uniform(0, 0.6), played.add, number, prompt, output, hashes)
        for _ in range(rng.randint(0, 12)):
            at_s, session = rng.uniform(0, 1.0), rng.randint(0, 4)
            match rng.randint(0, 4):
                case 0 | 1:
                    until_s = at_s + rng.uniform(0, 0.4)
                    kernel.at(at_s, player.preserve, str(session), hashes_of(session), until_s)
                case 2:
                    kernel.at(at_s, player.release, str(session))
                case 3:
                    kernel.at(at_s, player.set_token_limit, rng.randint(1, 16))
                case 4:
                    evicted = player.offload if offload_blocks else player.discard
                    kernel.at(at_s, evicted, hashes_of(session))
        kernel.run()
        player.model.validate()
        assert len(played.ended) == 12
        assert player.model.kv_usage == 0.0, "whatever was preserved has expired"
        both.append(played)
    glided, stepped = both
    assert glided.ended == pytest.approx(stepped.ended, rel=1e-9)
    assert glided.player.busy_s == pytest.approx(stepped.player.busy_s, rel=1e-9)


@pytest.mark.parametrize("before_s", [None, 0.005, 0.2])
def test_blocks_that_a_run_counts_on_cannot_be_preserved_any_more(before_s: float | None) -> None:
    hashes = tuple(range(1, 11))

    def play(preserved_at_s: float | None) -> tuple[float, list[int]]:
        played, kept = Played(config_of()), []
        player, kernel = played.player, played.kernel
        played.add(0, 40, 1, hashes)
        kernel.run()
        # fifteen blocks in the end, one of which is evicted for it in its last three iterations
        played.add(1, 4, 56)
        if preserved_at_s is not None:
            kernel.at(preserved_at_s, lambda: kept.append(player.preserve("0", hashes, math.inf)))
        kernel.run()
        player.model.validate()
        return played.ended[1], kept

    end_s, _ = play(None)
    if before_s is None:
        assert play(end_s + 1.0) == (end_s, [9])
    else:
        # in the last iteration, and long before it
        ended_s, kept = play(end_s - before_s)
        assert ended_s == pytest.approx(end_s, rel=1e-12)
        assert kept == [9 if before_s < 0.01 else 10]


def test_a_preserve_lets_go_at_its_moment_even_where_nothing_runs() -> None:
    played = Played(config_of())
    hashes = hashes_of(0)
    played.add(0, 20, 1, hashes)
    played.kernel.run()
    until_s = played.kernel.now_s + 3.0
    assert played.player.preserve("0", hashes, until_s) == 5
    assert played.player.model.preserved_blocks == 5
    played.kernel.run()
    assert played.kernel.now_s == until_s
    assert played.player.model.kv_usage == 0.0


def test_a_waiting_request_gets_its_seat_when_a_preserve_expires_in_the_middle_of_a_run() -> None:
    played = Played(config_of())
    player, kernel = played.player, played.kernel
    hashes = tuple(range(1, 13))
    played.add(0, 48, 1, hashes)
    kernel.run()
    until_s = kernel.now_s + 0.2
    assert player.preserve("paused", hashes, until_s) == 12
    played.add(1, 4, 50)  # goes on for about half a second
    kernel.at(kernel.now_s + 0.05, played.add, 2, 44, 1)
    kernel.run(until=lambda: 2 in played.ended)
    assert until_s < kernel.now_s < until_s + 0.1
    assert 1 not in played.ended
    kernel.run()


def test_a_limit_that_all_running_requests_fit_into_does_not_cut_their_run() -> None:
    played = Played(config_of())
    player, kernel = played.player, played.kernel
    played.add(0, 4, 50)
    kernel.run(until=lambda: player.model.running_count == 1)
    kernel.run(until=lambda: kernel.now_s > 0.0)
    before = kernel._sequence
    player.set_token_limit(8)
    assert kernel._sequence == before, "nothing else is to happen than before"
    player.set_token_limit(1)
    kernel.run()
    assert player.model.token_limit == 1
    assert set(played.ended) == {0}
