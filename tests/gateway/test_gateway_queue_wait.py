"""How long a call waited, and how fast its tokens came: what is told and what is counted."""

from __future__ import annotations

import asyncio

import pytest
from gateway_harness import Gate, chunk, gateway, scripted, stream
from starlette.requests import Request
from starlette.responses import Response

from dispatcher.gateway.attempts import AttemptResult
from dispatcher.gateway.calls import LiveCall


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


async def test_the_time_per_token_is_that_of_one_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 12, "total_tokens": 19}

    async def writes(request: Request, body: dict[str, object]) -> Response:
        return stream([chunk("a"), chunk("b"), chunk(None, usage=usage), b"data: [DONE]\n\n"])

    async with scripted(writes) as (engine,), gateway([engine.url]) as running:
        taken: list[float] = []
        ended: list[LiveCall] = []
        driver, metrics = running.gateway.driver, running.gateway.metrics
        call_ended = running.gateway.call_ended

        def noting(call: LiveCall, result: AttemptResult | None) -> None:
            ended.append(call)
            call_ended(call, result)

        monkeypatch.setattr(driver._recorder, "call_ended", noting)
        monkeypatch.setattr(metrics.per_token, "observe", taken.append)
        assert (await running.chat(stream=True, n=3)).status_code == 200
        (call,) = ended
        record = call.record
        assert record is not None
        assert record.first_token_s is not None
        # 12 tokens in 3 sequences: 3 steps after the first
        assert taken == [pytest.approx((record.ended_s - record.first_token_s) / 3)]
