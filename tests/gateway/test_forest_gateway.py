"""The length forest in a gateway that serves: over HTTP, across restarts, before kill signals."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import forest_fakes
import httpx
import pytest
from forest_fakes import REAL, method, probation_of, retry_at_once
from gateway_harness import Running, answer, chat_body, gateway, scripted
from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from test_gateway_process import process, until_ready

#: no call waits for so many
FOREST = {"min_calls": 20, "train_interval_s": 0.0, "late_s": 60.0}


class Lengths:
    """Answers as long as the prompt's first number says; holds calls that say `hold`."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def __call__(self, request: Request, body: dict[str, Any]) -> Response:
        words = body["messages"][-1]["content"].split()
        if words[-1] == "hold":
            await self.go_on.wait()
        tokens = int(words[0])
        usage = {"prompt_tokens": 50, "completion_tokens": tokens, "total_tokens": 50 + tokens}
        return JSONResponse({**answer(), "usage": usage})


@asynccontextmanager
async def forested(train: str, **sections: Any) -> AsyncIterator[tuple[Running, Lengths]]:
    lengths = Lengths()
    with probation_of(0):
        async with _forested(train, lengths, sections) as running:
            yield running, lengths


@asynccontextmanager
async def _forested(
    train: str, lengths: Lengths, sections: dict[str, Any]
) -> AsyncIterator[Running]:
    async with (
        scripted(lengths) as (engine,),
        gateway(
            [engine.url],
            seats=64,
            trained=method(train),
            **{"predictors": FOREST, **sections},
        ) as running,
    ):
        yield running


async def told(running: Running) -> dict[str, Any]:
    found: dict[str, Any] = (await running.http.get("/admin/predictors")).json()["forest"]
    return found


async def until_state(running: Running, state: str) -> dict[str, Any]:
    forest = running.gateway.predictors.forest
    assert forest is not None
    await running.until(lambda: forest.stats()["state"] == state)
    return await told(running)


async def chats(running: Running, lengths: list[int], **more: Any) -> None:
    answers = await asyncio.gather(*(running.chat(f"{n} tokens", **more) for n in lengths))
    assert {found.status_code for found in answers} == {200}


async def held(running: Running, name: str, text: str, source: str) -> dict[str, Any]:
    """A call that its engine holds, once its estimate is of that source; how it is explained."""
    headers = {"x-request-id": name}
    task = asyncio.create_task(running.chat(f"{text} hold", headers=headers))
    try:
        while True:
            found = await running.http.get(f"/admin/calls/{name}")
            if found.status_code == 200 and found.json()["prediction_source"].startswith(source):
                explained: dict[str, Any] = found.json()
                return explained
            await asyncio.sleep(0.002)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def page(running: Running) -> dict[tuple[str, ...], float]:
    text = (await running.http.get("/metrics")).text
    return {
        (s.name, *s.labels.values()): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


async def test_a_call_that_is_here_gets_the_forests_estimate() -> None:
    async with forested("latest") as (running, _):
        await chats(running, [100] * 20)
        found = await until_state(running, "in_use")
        assert (found["speaks"], found["why"]) == ("forest", None)
        explained = await held(running, "one", "100", "fake of 20")
        assert explained["predicted_output_tokens"] == 100.0
        shown = await page(running)
        assert shown["headway_length_forest_state", "in_use"] == 1.0
        assert shown["headway_length_forest_state", "failed"] == 0.0
        assert shown["headway_length_forest_calls",] == 20.0
        assert shown["headway_length_forest_trainings_total", "done"] == 1.0
        assert shown["headway_length_estimates_total", "used"] == 1.0
        assert shown["headway_length_estimate_seconds_count",] == 1.0


async def test_coverage_is_of_the_estimates_that_calls_were_given() -> None:
    async with forested("latest") as (running, lengths):
        await chats(running, [100] * 20)
        await until_state(running, "in_use")
        coverage = running.gateway.metrics.coverage
        before = coverage.shares()
        task = asyncio.create_task(running.chat("140 hold", headers={"x-request-id": "long"}))
        forest = running.gateway.predictors.forest
        assert forest is not None
        await running.until(lambda: forest.stats()["estimates"]["used"] == 1)
        lengths.go_on.set()
        assert (await task).status_code == 200
        await running.until_empty()
        # the fallback, which knows 100 only, would have been wrong at every quantile
        after = coverage.shares()
        assert after[0.8] == pytest.approx(before[0.8] * 20 / 21)
        assert after[0.95] == pytest.approx((before[0.95] * 20 + 1) / 21)
        record = (await running.http.get("/admin/calls/long")).json()
        assert record["predicted_output_tokens"] == 100.0


async def test_killed_the_worker_is_told_of_calls_go_on_and_it_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with forested("latest") as (running, _):
        await chats(running, [100] * 20)
        pid = (await until_state(running, "in_use"))["worker"]["pid"]
        monkeypatch.setattr("dispatcher.gateway.forest.training.RETRY_S", (1_000.0, 1_000.0))
        os.kill(pid, signal.SIGKILL)
        found = await until_state(running, "failed")
        assert (found["speaks"], found["worker"]["pid"]) == ("fallback", None)
        assert found["why"] == "the worker process ended with exit code -9"
        assert found["for_s"] >= 0.0
        assert found["since_unix_s"] > 1e9
        await chats(running, [100] * 20)
        await held(running, "one", "100", "rolling")
        assert (await page(running))["headway_length_forest_state", "failed"] == 1.0


async def test_after_a_kill_it_comes_back_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    retry_at_once(monkeypatch)
    async with forested("latest") as (running, _):
        await chats(running, [100] * 20)
        pid = (await until_state(running, "in_use"))["worker"]["pid"]
        os.kill(pid, signal.SIGKILL)
        forest = running.gateway.predictors.forest
        assert forest is not None
        await running.until(lambda: forest.stats()["training"]["number"] == 2)
        found = await until_state(running, "in_use")
        assert found["worker"]["pid"] not in (None, pid)
        await held(running, "one", "100", "fake of 20")


async def test_training_that_fails_is_told_and_calls_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken").touch()
    monkeypatch.setenv(forest_fakes.BROKEN, str(tmp_path / "broken"))
    async with forested("breakable") as (running, _):
        await chats(running, [100] * 20)
        found = await until_state(running, "failed")
        assert found["speaks"] == "fallback"
        assert found["why"] == "training failed: RuntimeError: no forest today"
        assert found["training"]["due_in_s"] is not None
        await chats(running, [100] * 20)
        await held(running, "one", "100", "rolling")
        assert (await page(running))["headway_length_forest_trainings_total", "failed"] >= 1.0


async def test_without_a_forest_there_is_no_worker_and_nothing_is_asked() -> None:
    async with forested("latest", predictors={"lengths": "rolling-quantiles"}) as (running, _):
        await chats(running, [100] * 25)
        assert await told(running) == {"speaks": "fallback", "state": "off"}
        await held(running, "one", "100", "rolling")
        assert ("headway_length_forest_calls",) not in await page(running)


# --- restarts -----------------------------------------------------------------------------------

STAGES = {"plan": 60, "write": 400, "check": 20}


async def traffic(running: Running, count: int, seed: int) -> None:
    """Calls whose length follows from their stage, with some spread."""
    rng = random.Random(seed)
    for start in range(0, count, 20):
        calls = []
        for number in range(start, min(count, start + 20)):
            stage = rng.choice(list(STAGES))
            tokens = max(1, round(STAGES[stage] * rng.lognormvariate(0, 0.3)))
            headers = {"x-headway-workflow-id": f"w{seed}-{number}", "x-headway-stage": stage}
            calls.append(running.chat(f"{tokens} words", headers=headers))
        assert {found.status_code for found in await asyncio.gather(*calls)} == {200}


async def estimates(running: Running) -> dict[str, float]:
    """What is expected of a call of each stage, by the forest."""
    found = {}
    for stage in STAGES:
        headers = {
            "x-request-id": f"ask-{stage}",
            "x-headway-workflow-id": f"ask-{stage}",
            "x-headway-stage": stage,
        }
        task = asyncio.create_task(running.chat("1 hold", headers=headers))
        while True:
            explained = await running.http.get(f"/admin/calls/ask-{stage}")
            if explained.status_code == 200 and explained.json()["prediction_source"] == "forest":
                found[stage] = explained.json()["predicted_output_tokens"]
                break
            await asyncio.sleep(0.002)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return found


async def test_what_was_learned_comes_back_after_a_restart_and_predicts_the_same(
    tmp_path: Path,
) -> None:
    store = {"store": {"path": str(tmp_path / "store.sqlite")}}
    settings = {**FOREST, "min_calls": 200, "train_after_calls": 100_000}
    async with forested(REAL, predictors=settings, **store) as (running, _):
        await traffic(running, 200, seed=1)
        await until_state(running, "in_use")
        before = await estimates(running)
        first = await told(running)
        assert first["calls"] == 200
    assert before["check"] < before["plan"] < before["write"]
    assert b"hold" not in (tmp_path / "store.sqlite").read_bytes()
    async with forested(REAL, predictors=settings, **store) as (running, _):
        # before any call
        found = await until_state(running, "in_use")
        assert found["calls"] == 200
        assert found["training"]["forest"] == first["training"]["forest"]
        assert await estimates(running) == before


async def test_rows_of_other_features_are_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = {"store": {"path": str(tmp_path / "store.sqlite")}}
    async with forested("latest", **store) as (running, _):
        await chats(running, [100] * 20)
    less = replace(method("latest"), features=lambda spec: (1.0,), names=("one",))
    async with (
        scripted(Lengths()) as (engine,),
        gateway([engine.url], trained=less, predictors=FOREST, **store) as running,
    ):
        assert "the features of calls are other ones now" in caplog.text
        assert (await told(running))["calls"] == 0
        await chats(running, [100] * 20)
        assert (await told(running))["calls"] == 20


# --- processes ----------------------------------------------------------------------------------


def ended(pid: int) -> bool:
    """Whether a process is gone, or waits for nothing but to be counted."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_no_worker_outlives_its_gateway(
    how: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_PREDICTORS__MIN_CALLS", "20")
    async with (
        scripted(Lengths()) as (engine,),
        process(tmp_path, "--engine", engine.url) as (child, url, _),
        httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as http,
    ):
        await until_ready(http)
        for number in range(20):
            body = chat_body(f"{10 + number} tokens")
            assert (await http.post("/v1/chat/completions", json=body)).status_code == 200
        pid = None
        while pid is None:
            pid = (await http.get("/admin/predictors")).json()["forest"]["worker"]["pid"]
        child.send_signal(how)
        assert await child.wait() == (0 if how is signal.SIGTERM else -how)
        while not ended(pid):  # noqa: ASYNC110 - it is nobody's child any more
            await asyncio.sleep(0.01)
