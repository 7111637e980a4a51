"""`seats: auto` before an engine that runs four sequences: it finds that out by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx
from drive import PATHS, body_for, eventually, waiting_in
from engines import Engine
from gateway_process import Gateway

CONCURRENT = 20
TOKENS = 16
LOOKS = 60


async def test_seats_settle_where_the_engine_is_just_full(
    http: httpx.AsyncClient, slow_engine: Engine, start_gateway: Callable[..., Gateway]
) -> None:
    gateway = start_gateway(
        engines={"slow": slow_engine},
        seats="auto",
        settings={"fleet": {"poll_interval_s": 0.1}},
    )
    enough = asyncio.Event()
    answers: list[httpx.Response] = []

    async def client(number: int) -> None:
        while not enough.is_set():
            body = body_for("completions", f"question {number}", TOKENS)
            answers.append(await http.post(gateway.url + PATHS["completions"], json=body))

    async def settled() -> bool:
        seats = await gateway.gauge(http, "seats", "slow")
        return seats <= 1.5 * slow_engine.max_num_seqs

    async with asyncio.TaskGroup() as group:
        for number in range(CONCURRENT):
            group.create_task(client(number))
        try:
            await eventually(settled, "the seats settle")
            seats, inside, outside = [], [], []
            for _ in range(LOOKS):
                served = len(answers)
                await eventually(lambda n=served: len(answers) >= n + 2, "calls are served")
                seats.append(await gateway.gauge(http, "seats", "slow"))
                inside.append(await waiting_in(http, slow_engine.url))
                outside.append(await gateway.gauge(http, "queue_depth", "slow"))
        finally:
            enough.set()
    assert [answer.text for answer in answers if answer.status_code != 200] == []
    seen = f"seats {seats}, waiting inside {inside}"
    assert 4 <= sorted(seats)[LOOKS // 2] <= 6, seen
    assert sorted(inside)[LOOKS // 2] <= 1, seen
    assert sorted(outside)[LOOKS // 2] >= CONCURRENT // 2, outside
