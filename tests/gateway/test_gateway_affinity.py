"""A session goes back to the engine that has its prefix, where the policy is told to weigh that."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
from gateway_harness import Running, emulated, gateway

#: an odd number: in turn, they never come back to the engine they came from by chance
AGENTS, TURNS = 5, 5
#: enough for what three of them write, not for all of it
KV_BLOCKS, BLOCK_TOKENS = 700, 16
STEP_WORDS = 700
#: what a step less than the prompt is, over all later calls
MOST = sum(range(1, TURNS)) / sum(range(2, TURNS + 1))


@dataclass
class Agent:
    """One conversation, and for each call of it where it ran, its prompt, and what was cached."""

    name: str
    messages: list[dict[str, Any]] = field(default_factory=list)
    served: list[tuple[str, int, int]] = field(default_factory=list)

    async def step(self, running: Running) -> None:
        text = f"{self.name}-{len(self.served)} " + "result " * STEP_WORDS
        self.messages.append({"role": "user", "content": text})
        answer = await running.chat(
            messages=self.messages,
            max_tokens=4,
            headers={"x-headway-workflow-id": self.name, "x-headway-workflow": "agent"},
        )
        assert answer.status_code == 200, answer.text
        usage = answer.json()["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        instance = answer.headers["x-headway-instance"]
        self.served.append((instance, usage["prompt_tokens"], cached))
        said = answer.json()["choices"][0]["message"]["content"]
        self.messages.append({"role": "assistant", "content": said})


async def play(running: Running, affinity: float, name: str) -> tuple[float, float]:
    """Shares of second and later calls: prompt tokens found cached, calls served at home."""
    switched = await running.http.put(
        "/admin/policy", json={"name": "vllm", "params": {"affinity": affinity}}
    )
    assert switched.status_code == 200
    agents = [Agent(f"{name}-{number}") for number in range(AGENTS)]
    for _ in range(TURNS):
        for agent in agents:
            await agent.step(running)
    later = [
        (where == before, prompt, cached)
        for agent in agents
        for (before, _, _), (where, prompt, cached) in itertools.pairwise(agent.served)
    ]
    assert len(later) == AGENTS * (TURNS - 1)
    found = sum(cached for *_, cached in later) / sum(prompt for _, prompt, _ in later)
    return found, sum(home for home, *_ in later) / len(later)


@pytest.mark.timeout(120)
async def test_later_calls_of_a_session_find_their_prefix() -> None:
    async with (
        emulated(2, kv_blocks=KV_BLOCKS, block_size=BLOCK_TOKENS, time_scale=100) as urls,
        gateway(urls) as running,
    ):
        # how much of a session is found again is learned where chance brings one home
        await play(running, 0.0, "warm")
        off, away = await play(running, 0.0, "off")
        on, at_home = await play(running, 1000.0, "on")
        assert (away, at_home) == (0.0, 1.0)
        assert on == pytest.approx(MOST, abs=0.02)
        assert on > off + 0.2
