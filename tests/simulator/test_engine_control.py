"""Engines that look after paused sessions by themselves, in a whole simulation."""

from __future__ import annotations

import math

import pytest
from simulated_work import fleet_of

from dispatcher.simulator import Attempt, EnginePlayer, SimulatedEngine, simulate
from dispatcher.simulator.checks import check_played
from dispatcher.traces import PlayedInstance, PrefixPart, TraceCall, TraceWorkflow

TURNS = 4
TOOL_S = 20.0


def session(number: int) -> TraceWorkflow:
    """Four answers of one context that grows by 600 tokens each, a tool between them."""
    calls = [
        TraceCall(
            f"turn-{turn}",
            "turn",
            prompt_tokens=600 * (turn + 1),
            output_tokens=100,
            parents=(f"turn-{turn - 1}",) if turn else (),
            gap_s=TOOL_S if turn else 0.0,
            tool="search" if turn else None,
            prefix=(PrefixPart(f"session-{number}", 600 * (turn + 1) + 100),),
        )
        for turn in range(TURNS)
    ]
    return TraceWorkflow(f"session-{number}", "agent", 0.9 * number, tuple(calls))


TRACE = [session(number) for number in range(25)]


class Keeper:
    """Does one thing with every session that pauses, and counts."""

    def __init__(self, player: EnginePlayer, handling: str, tick_s: float = math.inf) -> None:
        self.tick_s = tick_s
        self.ticks: list[float] = []
        self.tools: list[str | None] = []
        self._player = player
        self._handling = handling

    def ended(self, attempt: Attempt, tool: str | None, now_s: float) -> None:
        self.tools.append(tool)
        assert attempt.session is not None
        hashes = attempt.block_hashes
        if tool is None or self._handling == "discard":
            self._player.discard(hashes)
        elif self._handling == "preserve":
            self._player.preserve(attempt.session, hashes, now_s + 2 * TOOL_S)
        elif self._handling == "swap":
            self._player.offload(hashes)

    def tick(self, now_s: float) -> None:
        self.ticks.append(now_s)
        self._player.set_token_limit(256 if len(self.ticks) % 2 else 2048)


def played_with(handling: str, **launch: object) -> tuple[PlayedInstance, list[Keeper]]:
    """On an engine whose KV cache, if nothing else is said, holds seven of the longest contexts."""
    keepers: list[Keeper] = []

    def control(player: EnginePlayer) -> Keeper:
        keepers.append(Keeper(player, handling, tick_s=math.inf if handling != "limit" else 0.5))
        return keepers[-1]

    launch = {"num_blocks": 300, "max_model_len": 4096, **launch}
    (engine,) = fleet_of("A100", seats=8, **launch)
    fleet = [SimulatedEngine(engine.spec, engine.config, control=control)]
    played = simulate(TRACE, fleet, policy="vllm").played
    assert check_played(TRACE, played, fleet) == []
    (instance,) = played.instances.values()
    return instance, keepers


def test_what_is_preserved_is_found_again_and_what_is_discarded_is_not() -> None:
    preserved, keepers = played_with("preserve", enable_preserve=True)
    discarded, _ = played_with("discard")
    assert discarded.prefix_hits_tokens == 0
    assert discarded.preserves_dropped == 0
    assert preserved.prefix_hits_tokens > 0
    (keeper,) = keepers
    assert sorted(str(tool) for tool in keeper.tools) == ["None"] * 25 + ["search"] * 75


def test_contexts_are_dropped_only_where_more_pause_than_there_is_room_for() -> None:
    tight, _ = played_with("preserve", enable_preserve=True, num_blocks=150)
    assert tight.preserves_dropped > 0
    roomy, _ = played_with("preserve", enable_preserve=True, num_blocks=2000)
    assert roomy.preserves_dropped == 0
    # 700, 1300 and 1900 tokens less what is no full block of 64 each
    assert roomy.prefix_hits_tokens == 25 * 64 * (10 + 20 + 29)


def test_swapped_contexts_come_back_from_host_memory() -> None:
    swapped, _ = played_with("swap", offload_blocks=2000)
    assert swapped.offload_hits_tokens + swapped.prefix_hits_tokens == 25 * 64 * (10 + 20 + 29)
    assert swapped.swapped_in_tokens >= swapped.offload_hits_tokens > 0


def test_time_comes_to_a_control_and_a_limit_takes_effect() -> None:
    limited, (keeper,) = played_with("limit")
    assert keeper.ticks[:3] == [0.5, 1.0, 1.5]
    # a prompt of 600 tokens and more takes several iterations of 256
    free, _ = played_with("nothing")
    assert limited.busy_s > 1.001 * free.busy_s


def test_an_engine_without_the_ability_says_so() -> None:
    with pytest.raises(ValueError, match="enable_preserve"):
        played_with("preserve")


def test_the_scheduler_is_told_of_host_memory() -> None:
    (with_tier,) = fleet_of("A100", offload_blocks=100)
    (without,) = fleet_of("A100")
    assert (with_tier.spec.offload_tokens, without.spec.offload_tokens) == (6400, None)
