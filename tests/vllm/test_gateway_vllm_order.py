"""The gateway's order holds inside the engine: a tighter deadline leaves vLLM's own heap first."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
from drive import PATHS, QueuedCall, order_of_service, waiting_in
from engines import Engine
from gateway_process import Gateway

#: Far enough apart that what a call is predicted to cost cannot turn their order round.
DEADLINES_S = [300, 60, 240, 120, 180]
ARRIVAL = [str(deadline_s) for deadline_s in DEADLINES_S]
RANKED = [str(deadline_s) for deadline_s in sorted(DEADLINES_S)]


def calls_by_deadline() -> list[QueuedCall]:
    """One workflow each; each also tries to jump the queue by vLLM's own header."""
    return [
        QueuedCall(
            str(deadline_s),
            headers={
                "x-headway-workflow-id": f"deadline-{deadline_s}",
                "x-headway-slo-ms": str(1000 * deadline_s),
                "x-vllm-priority": str(-deadline_s),
            },
        )
        for deadline_s in DEADLINES_S
    ]


@pytest.mark.parametrize("endpoint", PATHS)
async def test_deadlines_order_the_engines_own_heap(
    http: httpx.AsyncClient,
    slow_engine: Engine,
    start_gateway: Callable[..., Gateway],
    endpoint: str,
) -> None:
    """More seats than the engine has: the calls wait inside it, ranked by the engine priority."""
    gateway = start_gateway(engines={"slow": slow_engine}, seats=12, policy="hexgen-flow")
    served = await order_of_service(
        http,
        gateway.url,
        slow_engine,
        endpoint,
        calls_by_deadline(),
        queued=lambda: waiting_in(http, slow_engine.url),
    )
    assert served == RANKED


async def test_the_gateways_own_queue_has_the_same_order(
    http: httpx.AsyncClient, slow_engine: Engine, start_gateway: Callable[..., Gateway]
) -> None:
    """As many seats as the engine has: the same calls wait in the gateway."""
    gateway = start_gateway(engines={"slow": slow_engine}, seats=4, policy="hexgen-flow")
    served = await order_of_service(
        http,
        gateway.url,
        slow_engine,
        "chat",
        calls_by_deadline(),
        queued=lambda: gateway.gauge(http, "queue_depth"),
    )
    assert served == RANKED


@pytest.mark.parametrize("seats", [4, 12])
async def test_first_come_first_served_is_just_that(
    http: httpx.AsyncClient,
    slow_engine: Engine,
    start_gateway: Callable[..., Gateway],
    seats: int,
) -> None:
    gateway = start_gateway(engines={"slow": slow_engine}, seats=seats, policy="vllm")

    async def queued() -> float:
        if seats > slow_engine.max_num_seqs:
            return await waiting_in(http, slow_engine.url)
        return await gateway.gauge(http, "queue_depth")

    served = await order_of_service(
        http, gateway.url, slow_engine, "chat", calls_by_deadline(), queued=queued
    )
    assert served == ARRIVAL
