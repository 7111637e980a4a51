"""The tuner at a gateway that serves: windows, replays in a process, what goes wrong with them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import tuner_fakes
from gateway_harness import Running, emulated, gateway, ok, scripted
from tuner_fakes import alive

from dispatcher.gateway.tuner.subject import Subject
from dispatcher.gateway.worker import Worker
from dispatcher.simulator.replay import replay as simulated
from dispatcher.traces import TraceCall, TraceWorkflow
from dispatcher.traces.assembly import Assembled
from dispatcher.tuning import ALPHAS, Replay

#: windows close by themselves long after these tests
LONG = {"window_s": 1000, "max_window_s": 1000, "min_workflows": 3}
#: windows close at once
SHORT = {"window_s": 0.1, "min_workflows": 3}


@asynccontextmanager
async def tuned(
    replay: Replay | None, tuning: dict[str, Any], **sections: Any
) -> AsyncIterator[Running]:
    async with (
        scripted(ok, ok) as engines,
        gateway([e.url for e in engines], replay=replay, tuning=tuning, **sections) as running,
    ):
        yield running


async def workflows(running: Running, count: int, start: int = 0) -> None:
    """Workflows of two calls, one after the other."""
    for number in range(start, start + count):
        for stage in ("plan", "write"):
            headers = {"x-headway-workflow-id": f"w{number}", "x-headway-stage": stage}
            if stage == "write":
                headers["x-headway-final"] = "1"
            answer = await running.chat(headers=headers)
            assert answer.status_code == 200


async def state(running: Running) -> dict[str, Any]:
    answer = await running.http.get("/admin/tuner")
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


async def alpha_shown(running: Running) -> float:
    page = (await running.http.get("/metrics")).text
    (line,) = [line for line in page.splitlines() if line.startswith("headway_alpha ")]
    return float(line.split()[1])


async def test_a_tune_that_is_asked_for_replays_what_ended_and_adopts_the_best() -> None:
    async with tuned(tuner_fakes.best_at_04, LONG) as running:
        before = await state(running)
        assert (before["enabled"], before["alpha"], before["why_not"]) == (True, 0.0, None)
        await workflows(running, 5)
        assert (await state(running))["window"]["workflows"] == 5
        answer = await running.http.post("/admin/tuner/run")
        assert answer.status_code == 200
        entry = answer.json()
        assert (entry["outcome"], entry["why"]) == ("adopted", "asked for")
        assert (entry["alpha_before"], entry["alpha"]) == (0.0, 0.4)
        assert entry["window"]["workflows"] == 5
        assert entry["window"]["calls_replayed"] == 10
        assert len(entry["curve"]) == 11
        assert entry["curve"][4] == {
            "alpha": 0.4,
            "p95_s": 5.0,
            "slo_attainment": 0.9,
            "p95_slo_ratio": None,
        }
        assert entry["gain"] == pytest.approx(1 - 1 / 1.16)
        assert running.gateway.alpha() == 0.4
        assert await alpha_shown(running) == 0.4
        after = await state(running)
        assert [entry["why"] for entry in after["history"]] == ["start", "asked for"]
        assert after["reference"]["workflows"] == 5
        assert after["last_run_s"] > 0
        again = (await running.http.post("/admin/tuner/run")).json()
        assert (again["outcome"], again["alpha"], again["gain"]) == ("kept", 0.4, 0.0)


async def test_the_simulator_replays_what_emulated_engines_served() -> None:
    async with (
        emulated(2) as urls,
        gateway(urls, replay=simulated, tuning=LONG) as running,
    ):
        for number in range(4):
            await query(running, f"w{number}")
        entry = (await running.http.post("/admin/tuner/run")).json()
        assert entry["outcome"] in ("adopted", "kept"), entry
        assert [score["alpha"] for score in entry["curve"]] == list(ALPHAS)
        assert all(score["p95_s"] > 0 for score in entry["curve"])
        assert all(0 <= score["slo_attainment"] <= 1 for score in entry["curve"])
        assert entry["window"] == {**entry["window"], "workflows": 4, "calls_replayed": 12}


async def query(running: Running, name: str) -> None:
    """A call, and then two side by side, of which one ends the workflow."""

    async def call(stage: str, **headers: str) -> None:
        own = {"x-headway-workflow-id": name, "x-headway-stage": stage, **headers}
        assert (await running.chat(name * 50, max_tokens=20, headers=own)).status_code == 200

    await call("link")
    await asyncio.gather(call("write"), call("write", **{"x-headway-final": "1"}))


async def test_the_replay_gets_the_fleet_and_the_policy_as_plain_data_and_a_low_rank() -> None:
    async with tuned(tuner_fakes.describes, LONG) as running:
        await workflows(running, 3)
        entry = (await running.http.post("/admin/tuner/run")).json()
        assert entry["outcome"] == "failed"
        reason = entry["reason"]
        assert "hexgen-flow {" in reason
        assert "'alpha': 'auto'" in reason
        assert "[('e0', 4, True), ('e1', 4, True)]" in reason
        assert "[('plan', True), ('write', True)]" in reason
        assert int(reason.split()[-1]) > os.nice(0)


async def test_windows_close_by_themselves_and_the_first_one_is_tuned_on() -> None:
    async with tuned(tuner_fakes.best_at_04, SHORT) as running:
        number = 0
        while not running.gateway.tuner.state()["windows"]:
            await workflows(running, 1, start=number)
            number += 1
        await running.until(lambda: not running.gateway.tuner.state()["running"])
        first = (await state(running))["history"][1]
        assert (first["why"], first["outcome"]) == ("the first window", "adopted")
        assert first["alpha"] == running.gateway.alpha() == 0.4
        assert first["window"]["workflows"] >= 3


async def window_of(running: Running, latency_s: float) -> dict[str, Any]:
    """Let a window close in which every workflow took so long; what was said of it."""
    tuner = running.gateway.tuner
    now_s = running.gateway.clock()
    trace = TraceWorkflow("w", "app", now_s, (TraceCall("c", "s", 10, 5),))
    told = tuner.state()["windows"]
    assert isinstance(told, list)
    for _ in range(25):
        tuner.workflow_ended(Assembled(trace, latency_s))
    await running.until(lambda: len(tuner.state()["windows"]) > len(told))  # type: ignore[arg-type]
    await running.until(lambda: not tuner.state()["running"])
    found: dict[str, Any] = tuner.state()["windows"][len(told)]  # type: ignore[index]
    return found


async def test_a_window_that_is_worse_is_tuned_on_again_and_then_is_the_reference() -> None:
    async with tuned(tuner_fakes.flat, {**SHORT, "min_workflows": 20}) as running:
        verdicts = [
            (await window_of(running, latency_s))["verdict"] for latency_s in (1, 1, 9, 9, 1)
        ]
        assert verdicts == [
            "the first one",
            "no worse than the reference",
            "worse than the reference",
            "no worse than the reference",
            "no worse than the reference",
        ]
        _, first, again = (await state(running))["history"]
        assert first["why"] == "the first window"
        assert again["p_value"] < 0.01
        assert again["why"].startswith("P95 went from 1 s to 9 s (p = 0.00")
        assert (again["outcome"], again["alpha"]) == ("kept", 0.0)
        assert "no alpha does better" in again["reason"]


async def test_a_window_of_a_policy_that_is_switched_while_it_is_judged_tunes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with tuned(tuner_fakes.best_at_04, {**SHORT, "min_workflows": 20}) as running:
        await window_of(running, 1)
        judge = Worker.run

        async def switches(worker: Worker, function: Any, *rest: Any) -> Any:
            running.gateway.switch_policy("wb-fcfs", {})
            return await judge(worker, function, *rest)

        monkeypatch.setattr(Worker, "run", switches)
        window = await window_of(running, 9)
        assert window["verdict"] == "not judged: the policy was switched meanwhile"
        found = await state(running)
        assert [entry["why"] for entry in found["history"]] == [
            "start",
            "the first window",
            "policy switched",
        ]
        assert found["window"]["collecting"] is True
        assert running.gateway.alpha() == 0.0


async def test_a_defect_in_one_window_does_not_end_the_watch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with tuned(tuner_fakes.flat, {**SHORT, "min_workflows": 20}) as running:
        with monkeypatch.context() as broken:
            broken.setattr(Subject, "fleet", lambda _: 1 / 0)
            await window_of(running, 1)
            assert "ZeroDivisionError" in (await state(running))["windows"][-1]["verdict"]
        assert (await window_of(running, 1))["verdict"] == "the first one"
        assert (await window_of(running, 1))["verdict"] == "no worse than the reference"


@pytest.mark.parametrize(
    ("replay", "timeout_s", "reason"),
    [
        (tuner_fakes.raises, 100, "RuntimeError: no simulator today"),
        (tuner_fakes.not_a_curve, 100, "the replay gave a NoneType"),
        (tuner_fakes.dies, 100, "exit code -9"),
        (tuner_fakes.hangs, 1, "took longer than 1 s"),
        (lambda request: request, 100, "the job cannot travel"),
    ],
    ids=["raises", "not_a_curve", "dies", "hangs", "lambda"],
)
async def test_a_replay_that_fails_is_written_down_and_traffic_goes_on(
    replay: Replay, timeout_s: float, reason: str
) -> None:
    async with tuned(replay, {**LONG, "timeout_s": timeout_s}) as running:
        await workflows(running, 3)
        tuning = asyncio.create_task(running.http.post("/admin/tuner/run"))
        await workflows(running, 3, start=10)
        entry = (await tuning).json()
        assert entry["outcome"] == "failed"
        assert reason in entry["reason"]
        assert (entry["alpha"], entry["curve"]) == (0.0, [])
        assert (await state(running))["reference"] is None
        await workflows(running, 1, start=20)


async def test_only_one_tune_at_a_time_and_the_process_ends_with_the_gateway() -> None:
    async with tuned(tuner_fakes.hangs, LONG) as running:
        await workflows(running, 3)
        tuner = running.gateway.tuner
        first = asyncio.create_task(running.http.post("/admin/tuner/run"))
        await running.until(lambda: tuner.worker_pid is not None)
        pid = tuner.worker_pid
        assert pid is not None
        second = await running.http.post("/admin/tuner/run")
        assert second.status_code == 409
        assert second.json()["error"]["code"] == "tuner_running"
        assert (await state(running))["running"] is True
        await tuner.stop()
        assert "exit code" in (await first).json()["reason"]
        assert not alive(pid)


async def test_a_policy_that_is_switched_meanwhile_keeps_its_own_alpha(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    monkeypatch.setenv(tuner_fakes.GATE, str(gate))
    async with tuned(tuner_fakes.waits_at_the_gate, LONG) as running:
        await workflows(running, 3)
        tuning = asyncio.create_task(running.http.post("/admin/tuner/run"))
        await running.until(lambda: running.gateway.tuner.worker_pid is not None)
        switched = await running.http.put("/admin/policy", json={"name": "wb-fcfs"})
        assert switched.status_code == 200
        await asyncio.to_thread(gate.write_text, "open")
        entry = (await tuning).json()
        assert entry["outcome"] == "discarded"
        assert entry["curve"][4]["p95_s"] == 3.0
        assert running.gateway.alpha() == 0.0
        found = await state(running)
        assert found["window"]["collecting"] is True
        assert found["window"]["workflows"] == 0


@pytest.mark.parametrize(
    ("replay", "tuning", "policy", "code", "why"),
    [
        (None, LONG, {"name": "hexgen-flow"}, "no_replay", "no replay is wired"),
        (
            tuner_fakes.flat,
            {**LONG, "enabled": False},
            {"name": "hexgen-flow"},
            "tuner_disabled",
            "tuning.enabled is false",
        ),
        (tuner_fakes.flat, LONG, {"name": "vllm"}, "not_tunable", "policy vllm has no alpha"),
        (
            tuner_fakes.flat,
            LONG,
            {"name": "hexgen-flow", "params": {"alpha": 0.2}},
            "not_tunable",
            "alpha was set to 0.2 by value",
        ),
    ],
)
async def test_why_nothing_is_tuned_is_said_and_nothing_is_kept_for_it(
    replay: Replay | None, tuning: dict[str, Any], policy: dict[str, Any], code: str, why: str
) -> None:
    async with tuned(replay, tuning, policy=policy) as running:
        await workflows(running, 3)
        found = await state(running)
        assert found["enabled"] is False
        assert why in found["why_not"]
        answer = await running.http.post("/admin/tuner/run")
        assert answer.status_code == 409
        assert answer.json()["error"]["code"] == code
        assert why in answer.json()["error"]["message"]
        assert running.gateway.tuner.listening is False
        assert running.gateway.tuner.worker_pid is None


async def test_too_little_traffic_and_no_engine_are_said() -> None:
    async with tuned(tuner_fakes.flat, LONG) as running:
        await workflows(running, 2)
        answer = await running.http.post("/admin/tuner/run")
        assert answer.status_code == 409
        assert answer.json()["error"]["code"] == "too_little_traffic"
        assert "2 workflows have ended well within 1000 s; 3 are needed" in answer.text
        await workflows(running, 1, start=5)
        for name in ("e0", "e1"):
            await running.http.post(f"/admin/engines/{name}/drain")
        answer = await running.http.post("/admin/tuner/run")
        assert answer.json()["error"]["code"] == "no_engine"


async def test_the_admin_token_guards_the_tuner() -> None:
    async with tuned(tuner_fakes.flat, LONG, server={"admin_token": "t0ken"}) as running:
        for call in (running.http.get("/admin/tuner"), running.http.post("/admin/tuner/run")):
            assert (await call).status_code == 401


async def test_an_alpha_that_was_found_is_taken_up_after_a_restart(tmp_path: Path) -> None:
    store = {"path": str(tmp_path / "s.sqlite")}
    async with tuned(tuner_fakes.best_at_04, LONG, store=store) as running:
        await workflows(running, 3)
        await running.http.post("/admin/tuner/run")
    async with tuned(tuner_fakes.best_at_04, LONG, store=store) as running:
        assert running.gateway.alpha() == 0.4
        assert [e["why"] for e in (await state(running))["history"]] == [
            "start",
            "taken up from the store",
        ]
    own = {"name": "hexgen-flow", "params": {"alpha": 0.7}}
    async with tuned(tuner_fakes.best_at_04, LONG, store=store, policy=own) as running:
        assert running.gateway.alpha() == 0.7


# --- the worker ---------------------------------------------------------------------------------
