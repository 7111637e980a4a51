"""What a client is told of its wait: the queue's, not the engine's."""

from __future__ import annotations

import asyncio

from gateway_harness import Gate, gateway, scripted


async def test_the_queue_wait_that_is_told_ends_when_an_engine_gets_the_call() -> None:
    gate = Gate()
    async with scripted(gate) as (engine,), gateway([engine.url]) as running:
        driver, clock = running.gateway.driver, running.gateway.clock
        call = asyncio.create_task(running.chat(headers={"x-headway-workflow-id": "w"}))
        await running.until(lambda: gate.waiting == 1)
        (live,) = driver.calls_of("w")  # type: ignore[arg-type]
        assert live.dispatched_s is not None
        wait_ms = round(1000 * (live.dispatched_s - live.arrived_s))
        # the engine takes longer over its answer than the call has waited
        await running.until(lambda: clock() - live.arrived_s > wait_ms / 1000 + 0.05)
        gate.open.set()
        assert int((await call).headers["x-headway-queue-ms"]) == wait_ms


async def test_a_call_that_no_engine_got_has_waited_until_its_answer() -> None:
    one = {"max_wait_s": 0.1}
    async with (
        scripted(Gate()) as (engine,),
        gateway([engine.url], seats=1, queue=one) as running,
    ):
        first = asyncio.create_task(running.chat())
        await running.until(lambda: engine.bodies)
        second = await running.chat()
        assert second.status_code == 429
        assert int(second.headers["x-headway-queue-ms"]) >= 100
        first.cancel()
