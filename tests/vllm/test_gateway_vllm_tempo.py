"""Chats, batch work and text-to-SQL workflows under `tempo` on real engines; nobody starves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
from drive import PATHS, body_for, eventually, samples, total
from engines import Engine
from gateway_process import Gateway

SEATS = 4
CHATS, BATCH, FLEX, WORKFLOWS, CANDIDATES = 8, 4, 2, 4, 3
#: nothing takes so long, or is so quick: who keeps an SLO is known beforehand
EASY_MS, HARD_MS = "1e6", "0.001"


def slo_ms(number: int) -> str:
    """Every other one has an SLO that nobody can keep."""
    return EASY_MS if number % 2 else HARD_MS


class Mix:
    """Sends the calls."""

    def __init__(self, http: httpx.AsyncClient, gateway: Gateway) -> None:
        self.http = http
        self.gateway = gateway

    async def send(
        self, endpoint: str, tokens: int, headers: dict[str, str] | None = None, **more: Any
    ) -> httpx.Response:
        """One whole answer, streamed or not."""
        body = {**body_for(endpoint, "say something about tables", tokens), **more}
        answer = await self.http.post(
            self.gateway.url + PATHS[endpoint], json=body, headers=headers
        )
        assert answer.status_code == 200, answer.text
        return answer

    async def chat(self, number: int) -> None:
        """A stream that somebody reads along, of one dialect or another."""
        endpoint = list(PATHS)[number // 2 % len(PATHS)]
        pace = slo_ms(number)
        headers = {"x-headway-slo-ttft-ms": pace, "x-headway-slo-tpot-ms": pace}
        await self.send(endpoint, 24, headers, stream=True)

    async def batch(self, number: int) -> None:
        """One whole answer by a deadline."""
        await self.send("completions", 48, {"x-headway-slo-ms": slo_ms(number)})

    async def flex(self, number: int) -> None:
        """What may wait."""
        await self.send("chat", 32, service_tier="flex")

    async def text_to_sql(self, number: int) -> None:
        """Link the schema, write candidates side by side, choose one."""
        job = {
            "x-headway-workflow-id": f"sql-{number}",
            "x-headway-workflow": "text2sql",
            "x-headway-slo-ms": slo_ms(number),
        }
        await self.send("chat", 12, {**job, "x-headway-stage": "link"})
        async with asyncio.TaskGroup() as group:
            for _ in range(CANDIDATES):
                group.create_task(self.send("chat", 16, {**job, "x-headway-stage": "write"}))
        await self.send("chat", 8, {**job, "x-headway-stage": "choose", "x-headway-final": "1"})


async def by_class(http: httpx.AsyncClient, gateway: Gateway, name: str) -> dict[str, float]:
    """Samples of one family that are above 0, by class (and outcome, where it has that label)."""
    return {
        " ".join(labels[key] for key in ("class", "outcome") if key in labels): value
        for labels, value in await samples(http, gateway.url, name)
        if value
    }


@asynccontextmanager
async def tempo(
    engine_pair: tuple[Engine, Engine],
    start_gateway: Callable[..., Gateway],
    http: httpx.AsyncClient,
) -> AsyncIterator[Gateway]:
    """A gateway with this policy before both engines; left empty."""
    fast, slow = engine_pair
    engines = {"fast": fast, "slow": slow}
    gateway = start_gateway(engines=engines, seats=SEATS, policy="tempo")
    yield gateway
    await eventually(lambda: gateway.is_empty(http), "the gateway is empty")


async def test_each_class_attains_what_can_be_attained(
    http: httpx.AsyncClient,
    engine_pair: tuple[Engine, Engine],
    start_gateway: Callable[..., Gateway],
) -> None:
    async with tempo(engine_pair, start_gateway, http) as gateway:
        mix = Mix(http, gateway)
        async with asyncio.TaskGroup() as group:
            for send, count in (
                (mix.chat, CHATS),
                (mix.batch, BATCH),
                (mix.flex, FLEX),
                (mix.text_to_sql, WORKFLOWS),
            ):
                for number in range(count):
                    group.create_task(send(number))
        await eventually(lambda: gateway.is_empty(http), "the gateway is empty")
        slo = await by_class(http, gateway, "headway_slo_total")
        lags = await by_class(http, gateway, "headway_token_lag_seconds_count")
        on_time = await total(http, gateway.url, "headway_token_lag_seconds_bucket", le="0.0")
        goodput = await by_class(http, gateway, "headway_goodput_tokens_total")
        calls = await by_class(http, gateway, "headway_class_request_duration_seconds_count")
        job = (await http.get(f"{gateway.url}/v1/workflows/sql-1")).json()
    judged = {"latency": CHATS, "throughput": BATCH, "collective": WORKFLOWS}
    assert slo == {f"{c} {o}": n / 2 for c, n in judged.items() for o in ("met", "missed")}
    assert lags == {"latency": CHATS}
    assert on_time == CHATS / 2
    assert goodput["throughput"] == 48 * BATCH / 2
    assert goodput["collective"] == (12 + 16 * CANDIDATES + 8) * WORKFLOWS / 2
    assert goodput["best-effort"] == 32 * FLEX
    assert calls == {
        "latency": CHATS,
        "throughput": BATCH,
        "collective": (2 + CANDIDATES) * WORKFLOWS,
        "best-effort": FLEX,
    }
    told = [call for stage in job["stages"] for call in stage["calls"]]
    assert {(call["class"], call["slo_met"]) for call in told} == {("collective", True)}


async def test_a_best_effort_call_ends_though_the_overload_never_does(
    http: httpx.AsyncClient,
    engine_pair: tuple[Engine, Engine],
    start_gateway: Callable[..., Gateway],
) -> None:
    clients = 3 * 2 * SEATS
    async with tempo(engine_pair, start_gateway, http) as gateway:
        mix = Mix(http, gateway)
        over = asyncio.Event()
        ended = 0
        depths: list[float] = []

        async def chat_on() -> None:
            nonlocal ended
            while not over.is_set():
                await mix.send("chat", 16, stream=True, messages=[long_message(ended)])
                ended += 1

        async def watch() -> None:
            while not over.is_set():
                depth = await gateway.gauge(http, "queue_depth")
                if not over.is_set():
                    depths.append(depth)

        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(chat_on())
            await eventually(lambda: ended > 2 * clients, "the overload stands")
            group.create_task(watch())
            answer = await mix.send("chat", 64, service_tier="flex")
            over.set()
        assert answer.json()["usage"]["completion_tokens"] == 64
        # besides it others waited that could have gone in its place
        assert depths
        assert min(depths) >= 2


def long_message(number: int) -> dict[str, str]:
    """Much to read for a short answer: as dense as calls can be."""
    return {"role": "user", "content": f"{number} " + "word " * 200}
