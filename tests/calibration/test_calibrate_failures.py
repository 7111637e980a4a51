"""Engines that fail, never answer or cut off: the command says so, fails, and writes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from calibration_harness import emulated, event, headway, refused, scripted
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from dispatcher.calibration import client
from dispatcher.calibration.client import EngineClient
from dispatcher.calibration.probe import Plan, Probe

#: an engine is given up after a third of it without a byte
HASTE = ("--budget-s", "3")


async def served(_: Request) -> Response:
    raise AssertionError("no call is expected")


def streaming(*events: bytes, then_silence: bool = False) -> StreamingResponse:
    async def body() -> AsyncIterator[bytes]:
        for data in events:
            yield data
        if then_silence:
            await asyncio.Event().wait()

    return StreamingResponse(body(), media_type="text/event-stream")


async def test_nobody_listens(tmp_path: Path) -> None:
    async with scripted(served) as url:
        pass
    said = await refused(url, tmp_path / "p.yaml")
    assert url in said
    assert "does an engine run there?" in said


async def test_an_engine_that_never_says_what_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_SHORT_S", 0.3)

    async def silent(_: Request) -> Response:
        await asyncio.sleep(2)
        return PlainTextResponse("")

    async with scripted(served, models=silent) as url:
        assert "/v1/models: no answer" in await refused(url, tmp_path / "p.yaml")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (JSONResponse({"data": []}), "serves no model"),
        (PlainTextResponse("hello"), "not a list of models"),
        (PlainTextResponse("no", 401), "/v1/models: status 401"),
    ],
)
async def test_what_serves_no_model(tmp_path: Path, answer: Response, expected: str) -> None:
    async def models(_: Request) -> Response:
        return answer

    async with scripted(served, models=models) as url:
        assert expected in await refused(url, tmp_path / "p.yaml")


async def test_a_model_that_is_not_served(tmp_path: Path) -> None:
    async with scripted(served) as url:
        said = await refused(url, tmp_path / "p.yaml", "--model", "other")
    assert "serves no model 'other', only tiny" in said


async def test_a_context_too_short(tmp_path: Path) -> None:
    async def models(_: Request) -> Response:
        return JSONResponse({"data": [{"id": "tiny", "max_model_len": 64}]})

    async with scripted(served, models=models) as url:
        assert "a context of 64 tokens is too short" in await refused(url, tmp_path / "p.yaml")


ERROR = b'data: {"error": {"message": "the core died", "code": 500}}\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], "closed the connection before the answer's end"),
        ([event(1), event(2)], "closed the connection before the answer's end"),
        ([event(1), ERROR], "the answer ended with an error: the core died"),
        (
            [b'data: {"error": 5}\n\ndata: [DONE]\n\n'],
            "the answer ended with an error: (unreadable)",
        ),
        ([b"data: [DONE]\n\n"], "closed the connection before the answer's end"),
    ],
)
async def test_a_stream_that_ends_too_soon(
    tmp_path: Path, events: list[bytes], expected: str
) -> None:
    async def complete(_: Request) -> Response:
        return streaming(*events)

    async with scripted(complete) as url:
        assert f"{url}: {expected}" in await refused(url, tmp_path / "p.yaml")


@pytest.mark.parametrize("first", [[], [event(1)]])
async def test_a_stream_that_falls_silent(tmp_path: Path, first: list[bytes]) -> None:
    async def complete(_: Request) -> Response:
        return streaming(*first, then_silence=True)

    async with scripted(complete) as url:
        assert f"{url}: sent nothing for 1 s" in await refused(url, tmp_path / "p.yaml", *HASTE)


async def test_a_stream_that_is_cut(tmp_path: Path) -> None:
    async def complete(_: Request) -> Response:
        async def body() -> AsyncIterator[bytes]:
            yield event(1)
            raise ConnectionError("cut")

        return StreamingResponse(body())

    async with scripted(complete) as url:
        assert f"{url}: the call failed" in await refused(url, tmp_path / "p.yaml")


async def test_a_refusal(tmp_path: Path) -> None:
    async def complete(_: Request) -> Response:
        return JSONResponse({"error": {"message": "queue is full"}}, 503)

    async with scripted(complete) as url:
        said = await refused(url, tmp_path / "p.yaml")
    assert "refused a call" in said
    assert "status 503" in said
    assert "queue is full" in said


async def test_one_bad_engine_of_two_ends_it_all(tmp_path: Path) -> None:
    """The bad one fails once both are loaded; the good one's calls end, too."""
    calls = 0

    async def complete(request: Request) -> Response:
        nonlocal calls
        calls += 1
        if calls > 30:
            return JSONResponse({"error": {"message": "enough"}}, 500)
        tokens = (await request.json())["max_tokens"]

        async def body() -> AsyncIterator[bytes]:
            for token in range(1, tokens + 1):
                await asyncio.sleep(0.002)
                yield event(token)
            yield b"data: [DONE]\n\n"

        return StreamingResponse(body())

    async with emulated({"max_num_seqs": 2}) as [good], scripted(complete) as bad:
        options = ("--engine", bad, "--budget-s", "20", "--rounds", "1", "--seats", "2")
        said = await refused(good, tmp_path / "p.yaml", *options)
    assert f"{bad}: refused a call" in said


GAUGES = "vllm:num_requests_running 2\nvllm:num_requests_waiting {}\n"


@pytest.mark.parametrize(
    ("metrics", "seats"),
    [
        (None, 1),  # nothing else tells
        (GAUGES.format(0), None),  # both ran: their tokens were held back
        (GAUGES.format(1), None),  # as many as were asked ran
        (GAUGES.format(1).replace(" 2", " 1"), 1),
    ],
)
async def test_held_back_tokens_are_not_taken_for_a_want_of_seats(
    metrics: str | None, seats: int | None
) -> None:
    turn = asyncio.Lock()

    async def complete(request: Request) -> Response:
        tokens = (await request.json())["max_tokens"]

        async def body() -> AsyncIterator[bytes]:
            async with turn:  # one whole answer after the other
                yield b"".join(event(token) for token in range(1, tokens + 1))
                await asyncio.sleep(0.01)
            yield b"data: [DONE]\n\n"

        return StreamingResponse(body())

    async with scripted(complete, metrics=metrics) as url, EngineClient(url) as engine:
        probe = Probe(engine, await engine.describe(), Plan(most_running=2))
        await probe.warm_up()
        [side_by_side] = [act for name, act in probe.steps() if name == "2 running at 24 tokens"]
        await side_by_side()
    assert probe.seats == seats
    assert probe.samples.decode == []


async def test_too_little_time(tmp_path: Path) -> None:
    async with emulated({"time_scale": 0.2}) as [url]:
        said = await refused(url, tmp_path / "p.yaml", *HASTE)
    assert "give it more time (--budget-s)" in said


async def test_nowhere_to_write(tmp_path: Path) -> None:
    async with scripted(served) as url:
        said = await refused(url, tmp_path / "nowhere" / "p.yaml")
        assert "no such directory" in said
        result = await headway("--engine", url, "--out", str(tmp_path))
    assert result.exit_code == 2
    assert "is a directory" in result.output
