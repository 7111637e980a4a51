"""Emulated engines over real sockets, for tests."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from dispatcher.emulator import EmulatorSettings, running_fleet

CHAT = "/v1/chat/completions"
FAST = 500.0


@asynccontextmanager
async def engine(**settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Run one engine; yields a client of it."""
    chosen = {"model": "tiny", "time_scale": FAST, **settings}
    async with (
        running_fleet([EmulatorSettings(port=0, **chosen)]) as ports,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{ports[0]}", timeout=30) as client,
    ):
        yield client


def chat_body(text: str = "Tell me about schedulers.", **fields: Any) -> dict[str, Any]:
    """Return a chat body of four tokens' answer."""
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 4,
        "ignore_eos": True,
        **fields,
    }


def events(text: str) -> list[dict[str, Any]]:
    """Return the JSON of every data line but `[DONE]`."""
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


async def metric(client: httpx.AsyncClient, name: str) -> float:
    """Return the value of a metric without further labels."""
    for line in (await client.get("/metrics")).text.splitlines():
        if line.startswith((name + "{", name + " ")):
            return float(line.rpartition(" ")[2])
    raise AssertionError(f"no metric {name}")
