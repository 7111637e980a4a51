"""An engine core that hangs: vLLM's server says it is well, but nothing is computed any more."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
from drive import (
    LONG,
    PATHS,
    becomes,
    body_for,
    data_of,
    eventually,
    open_stream,
    running_in,
    total,
)
from engines import MODEL, Engine
from gateway_process import Gateway

TOKENS = 300
#: Two seconds of silence are a stall here: eighty times what the slow engine takes for a token.
FLEET = {
    "poll_interval_s": 0.2,
    "poll_timeout_s": 1.0,
    "failures_until_down": 2,
    "stall_timeout_s": 2.0,
}


async def sent_to_fast(http: httpx.AsyncClient, gateway_url: str) -> float:
    """Calls that the gateway has at the fast engine."""
    return await total(http, gateway_url, "headway_in_flight", instance="fast")


@asynccontextmanager
async def hung(engine: Engine) -> AsyncIterator[None]:
    """Stop the engine core, not its server; let it go on at the end."""
    core = engine.core_pid()
    os.kill(core, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(core, signal.SIGCONT)


async def test_an_engine_that_hangs_is_taken_out_until_it_computes_again(
    http: httpx.AsyncClient,
    engine_pair: tuple[Engine, Engine],
    start_gateway: Callable[..., Gateway],
) -> None:
    fast, slow = engine_pair
    gateway = start_gateway(
        engines={"fast": fast, "slow": slow}, seats=4, policy="vllm", settings={"fleet": FLEET}
    )

    async def fast_is(wanted: float) -> bool:
        return await gateway.gauge(http, "engine_up", "fast") == wanted

    begun = body_for("chat", "a very long answer", LONG, model=f"{MODEL}-fast")
    whole = body_for("completions", "nothing of this is sent before its end", TOKENS)
    # Hung before the other calls are sent: none can be over at the fast engine by then.
    async with open_stream(http, gateway.url, "chat", begun) as (_, lines), hung(fast):
        calls = [
            asyncio.create_task(http.post(gateway.url + PATHS["completions"], json=whole))
            for _ in range(4)
        ]
        await becomes(sent_to_fast, http, gateway.url, 3)
        assert (await http.get(f"{fast.url}/health")).status_code == 200
        rest = data_of("\n".join([line async for line in lines]))
        assert rest[-1] == "[DONE]"
        assert "nothing for" in rest[-2]["error"]["message"]
        await eventually(lambda: fast_is(0), "the hung engine is seen to be down")
        answers = await asyncio.gather(*calls)
        assert [a.status_code for a in answers] == [200] * 4
        assert {a.headers["x-headway-instance"] for a in answers} == {"slow"}
        assert [a.json()["usage"]["completion_tokens"] for a in answers] == [TOKENS] * 4
    await eventually(lambda: fast_is(1), "the engine is taken back")
    again = await http.post(
        gateway.url + PATHS["chat"], json=body_for("chat", "back?", 2, model=f"{MODEL}-fast")
    )
    assert again.status_code == 200, again.text
    await eventually(lambda: gateway.is_empty(http), "the gateway is empty")
    await becomes(running_in, http, fast.url, 0)
