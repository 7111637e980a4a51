"""A flood of long prompts at one engine: with a budget of tokens it preempts next to nothing."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import httpx
import pytest
from gateway_harness import Running, emulated, gateway

from dispatcher.gateway.fleet.scrape import parse_scrape

#: room for about a dozen calls, seats for many more
KV_BLOCKS, BLOCK_TOKENS, SEATS = 500, 16, 40
CALLS, PROMPT_WORDS, OUTPUT_TOKENS = 60, 500, 120


async def preemptions(running: Running, url: str) -> int:
    """The engine's own count, once it is idle."""
    async with httpx.AsyncClient(trust_env=False) as http:
        page = await http.get(f"{url}/metrics")
    return parse_scrape(page.content).gauges.preemptions_total


async def flood(running: Running, kv_share: float | None, name: str) -> list[dict[str, Any]]:
    """All calls at once; what `/admin/queues` said of the engine while they ran."""
    switched = await running.http.put(
        "/admin/policy", json={"name": "vllm", "params": {"kv_share": kv_share}}
    )
    assert switched.status_code == 200
    rng = random.Random(1)
    calls = [
        asyncio.create_task(
            running.chat(
                f"{name}-{number} " + "word " * round(PROMPT_WORDS * rng.uniform(0.5, 1.5)),
                max_tokens=round(OUTPUT_TOKENS * rng.uniform(0.5, 1.5)),
                ignore_eos=True,
                stream=True,
            )
        )
        for number in range(CALLS)
    ]
    seen = []
    while not all(call.done() for call in calls):
        queues = (await running.http.get("/admin/queues")).json()
        seen.append(queues["instances"]["e0"])
        await asyncio.wait(calls, timeout=0.05)
    for call in calls:
        assert (await call).status_code == 200
    await running.until_empty()
    return seen


@pytest.mark.timeout(180)
async def test_a_budget_of_tokens_spares_an_engine_its_preemptions() -> None:
    engine = {"kv_blocks": KV_BLOCKS, "block_size": BLOCK_TOKENS, "max_num_seqs": SEATS}
    async with (
        emulated(1, time_scale=10, **engine) as (url,),
        gateway([url], seats=SEATS) as running,
    ):
        # what lengths are like is learned once, for both sides
        await flood(running, None, "warm")
        began = await preemptions(running, url)
        seen = await flood(running, None, "without")
        without = await preemptions(running, url) - began
        assert {one["token_room"] for one in seen} == {None}
        seen = await flood(running, 0.9, "with")
        with_budget = await preemptions(running, url) - began - without
        assert without > 5
        assert with_budget * 5 <= without
        rooms = [one["token_room"] for one in seen if one["in_flight"]]
        assert rooms
        capacity = KV_BLOCKS * BLOCK_TOKENS
        assert all(0 < room["budget_tokens"] <= 0.9 * capacity for room in rooms)
        assert all(room["reserved_tokens"] == 0 for room in rooms)
        assert max(room["used_tokens"] for room in rooms) > 0.5 * capacity
        assert max(one["in_flight_tokens"] for one in seen) < 1.2 * capacity
