"""Policies are switched while real engines are full and calls wait: none fails, none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx
from drive import PATHS, body_for, eventually, samples, total
from engines import Engine
from gateway_process import Gateway

#: Early and late binding in turn, and back to where it began.
SWITCHES = ["vllm", "hexgen-flow", "wb-fcfs", "rr-pq", "least-backlog", "vllm", "hexgen-flow"]
CONCURRENT = 24
TOKENS = 24
CALLS_LIMIT = 5000


async def test_switching_under_load_loses_no_call(
    http: httpx.AsyncClient,
    engine_pair: tuple[Engine, Engine],
    start_gateway: Callable[..., Gateway],
) -> None:
    fast, slow = engine_pair
    gateway = start_gateway(engines={"fast": fast, "slow": slow}, seats=2)
    switched = asyncio.Event()
    answers: list[httpx.Response] = []

    async def client(number: int) -> None:
        headers = {"x-headway-workflow": f"app-{number % 3}", "x-headway-slo-ms": "60000"}
        while not switched.is_set() and len(answers) < CALLS_LIMIT:
            body = body_for("completions", f"question {len(answers)}", TOKENS)
            answers.append(
                await http.post(gateway.url + PATHS["completions"], json=body, headers=headers)
            )

    async with asyncio.TaskGroup() as group:
        for number in range(CONCURRENT):
            group.create_task(client(number))
        try:
            for name in SWITCHES:
                await eventually(lambda: many_wait(http, gateway), "many calls wait")
                done = await http.put(f"{gateway.url}/admin/policy", json={"name": name})
                assert done.status_code == 200, done.text
                assert (await http.get(f"{gateway.url}/admin/policy")).json()["name"] == name
                served = len(answers)
                await eventually(lambda n=served: len(answers) >= n + 8, f"{name} serves calls")
        finally:
            switched.set()

    assert [answer.text for answer in answers if answer.status_code != 200] == []
    assert all(a.json()["usage"]["completion_tokens"] == TOKENS for a in answers)
    assert {answer.headers["x-headway-instance"] for answer in answers} == {"fast", "slow"}
    assert await total(http, gateway.url, "headway_requests_total") == len(answers)
    running = [
        labels["name"]
        for labels, value in await samples(http, gateway.url, "headway_policy_info")
        if value == 1
    ]
    assert running == [SWITCHES[-1]]
    await eventually(lambda: gateway.is_empty(http), "the gateway is empty")


async def many_wait(http: httpx.AsyncClient, gateway: Gateway) -> bool:
    """Whether more calls wait in the gateway than its engines take at once."""
    return await gateway.gauge(http, "queue_depth") > 4
