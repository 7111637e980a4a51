"""The command as its users run it: a process, its signals, its embedded fleet."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_harness import MODEL, Gate, chat_body, chunk, ok, scripted, stream
from starlette.requests import Request
from starlette.responses import Response
from typer.testing import CliRunner

from dispatcher.cli import app
from dispatcher.emulator.settings import EmulatorSettings
from dispatcher.gateway.about import VERSION


@asynccontextmanager
async def process(
    directory: Path, *arguments: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str, list[str]]]:
    """`headway serve` on a free port; yields the process, its URL and its lines so far."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "dispatcher.cli",
        "serve",
        "--port",
        "0",
        *arguments,
        cwd=directory,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "HEADWAY_FLEET__POLL_INTERVAL_S": "0.05"},
    )
    lines: list[str] = []
    assert child.stdout is not None
    try:
        while not (lines and "listens on" in lines[-1]):
            line = await child.stdout.readline()
            assert line, "".join(lines)
            lines.append(line.decode())
        yield child, lines[-1].split("listens on ")[1].split()[0], lines
    finally:
        if child.returncode is None:
            child.kill()
        # the rest, so that the pipe is at its end when the transport closes
        lines += (await child.stdout.read()).decode().splitlines(keepends=True)
        await child.wait()


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


async def until_ready(http: httpx.AsyncClient) -> None:
    while (await http.get("/ready")).status_code != 200:  # noqa: ASYNC110 - over HTTP
        await asyncio.sleep(0.02)


async def test_the_embedded_fleet_serves_and_ends_with_the_gateway(tmp_path: Path) -> None:
    async with process(tmp_path) as (child, url, lines):
        assert any("No real model is running" in line for line in lines)
        async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as http:
            await until_ready(http)
            model = (await http.get("/v1/models")).json()["data"][0]["id"]
            assert model == MODEL
            response = await http.post(
                "/v1/chat/completions",
                json={**chat_body(max_tokens=3, stream=True), "model": model},
            )
            assert response.content.endswith(b"data: [DONE]\n\n")
            engines = (await http.get("/admin/engines")).json()
            while not all(engine["up"] for engine in engines):
                await asyncio.sleep(0.02)
                engines = (await http.get("/admin/engines")).json()
            assert [engine["id"] for engine in engines] == ["a100-0", "a100-1", "l40-0", "a6000-0"]
            assert all(engine["seats"] == 8 for engine in engines)
        child.send_signal(signal.SIGTERM)
        assert await child.wait() == 0
        async with httpx.AsyncClient(trust_env=False) as http:
            for engine in engines:
                try:
                    await http.get(f"{engine['url']}/health")
                except httpx.ConnectError:
                    continue
                raise AssertionError("an embedded engine outlived the gateway")
    assert files(tmp_path) == ["headway-embedded.sqlite"]


async def test_sigterm_finishes_what_is_here(tmp_path: Path) -> None:
    gate = Gate()
    async with (
        scripted(gate) as (engine,),
        process(tmp_path, "--engine", engine.url, "--policy", "vllm") as (child, url, _),
        httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as http,
    ):
        await until_ready(http)
        call = asyncio.create_task(http.post("/v1/chat/completions", json=chat_body()))
        while not gate.waiting:  # noqa: ASYNC110 - it is in another loop turn
            await asyncio.sleep(0.005)
        child.send_signal(signal.SIGTERM)
        while (await http.get("/ready")).status_code != 503:  # noqa: ASYNC110 - over HTTP
            await asyncio.sleep(0.005)
        refused = await http.post("/v1/chat/completions", json=chat_body())
        assert refused.status_code == 503
        gate.open.set()
        assert (await call).status_code == 200
        assert await child.wait() == 0


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
async def test_a_second_signal_ends_the_grace_and_everybody_is_told(
    tmp_path: Path, sig: signal.Signals
) -> None:
    gate = Gate()

    async def one_event_or_none(request: Request, body: dict[str, Any]) -> Response:
        if body.get("stream"):
            return stream([chunk("a")], asyncio.Event().wait)
        return await gate(request, body)

    async with (
        scripted(one_event_or_none) as (engine,),
        process(tmp_path, "--engine", engine.url) as (child, url, lines),
        httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as http,
    ):
        await until_ready(http)
        whole = asyncio.create_task(http.post("/v1/chat/completions", json=chat_body()))
        while not gate.waiting:  # noqa: ASYNC110 - it is in another loop turn
            await asyncio.sleep(0.005)
        body = chat_body(stream=True)
        async with http.stream("POST", "/v1/chat/completions", json=body) as begun:
            events = begun.aiter_bytes()
            received = await anext(events)
            child.send_signal(sig)
            while (await http.get("/ready")).status_code != 503:  # noqa: ASYNC110 - over HTTP
                await asyncio.sleep(0.005)
            assert not whole.done()
            child.send_signal(sig)
            async for part in events:
                received += part
        assert b"shutting down" in received
        answer = await whole
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "shutting_down"
        assert await child.wait() == 0
    said = "".join(lines)
    assert "Traceback" not in said
    assert " ERROR " not in said
    assert "cut off by a second signal" in said
    assert lines[-1] == "Headway has ended.\n"
    assert files(tmp_path) == ["headway.sqlite"]


async def test_signals_in_quick_succession_end_it_in_order(tmp_path: Path) -> None:
    async with (
        scripted(ok) as (engine,),
        process(tmp_path, "--engine", engine.url) as (child, url, lines),
        httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as http,
    ):
        await until_ready(http)
        for sig in (signal.SIGINT, signal.SIGTERM) * 3:
            child.send_signal(sig)
        assert await child.wait() == 0
    assert "Traceback" not in "".join(lines)
    assert files(tmp_path) == ["headway.sqlite"]


def test_a_port_that_is_taken_is_one_line_that_says_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(app, ["serve", "--port", str(port)])
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"cannot listen on 127.0.0.1, port {port}: Address already in use; ")
    assert "--port" in line


async def test_sighup_reloads_what_can_change(tmp_path: Path) -> None:
    async with scripted(ok, ok) as (first, second):
        config = tmp_path / "headway.yaml"
        config.write_text(f"engines:\n- {{id: a, url: '{first.url}'}}\n")
        async with (
            process(tmp_path, "--config", str(config)) as (child, url, _),
            httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as http,
        ):
            await until_ready(http)
            config.write_text(
                f"engines:\n- {{id: a, url: '{first.url}'}}\n- {{id: b, url: '{second.url}'}}\n"
                "policy: {name: least-backlog}\nqueue: {max_calls: 1}\n"
            )
            child.send_signal(signal.SIGHUP)
            while sum(e["up"] for e in (await http.get("/admin/engines")).json()) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            assert (await http.get("/admin/policy")).json()["name"] == "least-backlog"
            config.write_text("engines: {}\n")
            child.send_signal(signal.SIGHUP)
            assert child.stdout is not None
            said = ""
            while "reload refused" not in said:
                said += (await child.stdout.readline()).decode()
            assert "not taken up without a restart" in said
            assert len((await http.get("/admin/engines")).json()) == 2


def test_the_small_commands(tmp_path: Path) -> None:
    runner = CliRunner()
    assert runner.invoke(app, ["version"]).output == f"{VERSION}\n"
    assert runner.invoke(app, ["--version"]).output == f"{VERSION}\n"
    shown = runner.invoke(app, ["emulate", "--help"], env={"COLUMNS": "200"}).output
    assert EmulatorSettings.model_validate({}).served_names == (MODEL,)
    assert MODEL in shown
    listed = runner.invoke(app, ["policies"], env={"COLUMNS": "200"}).output
    assert "hexgen-flow" in listed
    assert "least-backlog" in listed
    config = tmp_path / "c.yaml"
    config.write_text("policy: {name: hexgen-flow, params: {alpha: 0.3}}\n")
    assert runner.invoke(app, ["check-config", str(config)]).exit_code == 0
    for wrong in ("server: {prot: 1}\n", "policy: {name: nope}\n", "policy: {params: {x: 1}}\n"):
        config.write_text(wrong)
        assert runner.invoke(app, ["check-config", str(config)]).exit_code == 2
    assert runner.invoke(app, ["emulate", "--gpu", "B17"]).exit_code == 2
    for absent in ("bench", "tune", "calibrate"):
        assert runner.invoke(app, [absent]).exit_code == 2
