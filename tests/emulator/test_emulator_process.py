"""A fleet as somebody's child process."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process

import httpx
import pytest
from emulated import CHAT, chat_body

FLEET = json.dumps([{"port": 0, "model": "a"}, {"port": 0, "model": "b", "gpu": "L40"}])


async def start(*args: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dispatcher.emulator", *args, stdin=PIPE, stdout=PIPE, stderr=PIPE
    )


async def ready_ports(process: Process) -> list[int]:
    assert process.stdout is not None
    line = json.loads(await process.stdout.readline())
    assert line["event"] == "ready"
    ports: list[int] = line["ports"]
    return ports


@pytest.mark.parametrize("from_stdin", [True, False])
async def test_it_says_when_it_is_ready_and_ends_with_its_parent(from_stdin: bool):
    process = await start() if from_stdin else await start(FLEET)
    assert process.stdin is not None
    if from_stdin:
        process.stdin.write(FLEET.encode() + b"\n")
    async with httpx.AsyncClient() as client:
        for port, model in zip(await ready_ports(process), "ab", strict=True):
            answer = await client.get(f"http://127.0.0.1:{port}/v1/models")
            assert answer.json()["data"][0]["id"] == model
    process.stdin.close()
    assert await process.wait() == 0


async def test_sigterm_lets_open_calls_finish():
    process = await start(json.dumps([{"port": 0, "model": "tiny"}]))
    [port] = await ready_ports(process)
    url = f"http://127.0.0.1:{port}{CHAT}"
    async with (
        httpx.AsyncClient() as client,
        client.stream("POST", url, json=chat_body(max_tokens=50, stream=True)) as response,
    ):
        lines = response.aiter_lines()
        await anext(lines)
        process.send_signal(signal.SIGTERM)
        rest = [line async for line in lines]
    assert "data: [DONE]" in rest
    assert await process.wait() == 0


@pytest.mark.parametrize(
    ("settings", "status", "message"),
    [
        ("[]", 2, "the list of engines is empty"),
        ('[{"gpu": "B300"}]', 2, "unknown GPU 'B300'"),
        ('[{"port": 0, "replies": "/nonexistent.json"}]', 1, "No such file"),
    ],
)
async def test_settings_that_cannot_be_used_end_it(settings: str, status: int, message: str):
    process = await start(settings)
    _, stderr = await process.communicate()
    assert process.returncode == status
    assert message in stderr.decode()
    assert "Traceback" not in stderr.decode()
