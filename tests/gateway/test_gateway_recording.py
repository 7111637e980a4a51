"""Live traffic as a trace file."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path
from typing import Any

import pytest
from gateway_harness import MODEL, Gate, Running, answer, emulated, gateway, ok, scripted
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dispatcher.core.types import CallClass
from dispatcher.gateway.recording import BEFORE, WAITING_MAX, Recording
from dispatcher.traces import TraceCall, TraceWorkflow, call_lines, read_trace

SECRET = "what the client said"


async def query(running: Running, name: str) -> None:
    """One call, then two side by side, then a last one."""

    async def call(stage: str, **headers: str) -> None:
        own = {"x-headway-workflow-id": name, "x-headway-workflow": "text2sql"}
        answer = await running.chat(
            SECRET, max_tokens=4, headers={**own, "x-headway-stage": stage, **headers}
        )
        assert answer.status_code == 200

    await call("link")
    await asyncio.gather(call("write"), call("write"))
    await call("check", **{"x-headway-final": "1", "x-headway-tool": "sql"})


async def test_workflows_are_recorded_and_can_be_read_and_hold_no_text(tmp_path: Path) -> None:
    path = tmp_path / "live.jsonl"
    async with emulated(2) as urls:
        async with gateway(urls, recording={"path": str(path)}) as running:
            for number in range(3):
                await query(running, f"session-{number}")
            recording = running.gateway.recording
            assert recording is not None
            await running.until(lambda: recording.calls == 12)
            told = (await running.http.get("/admin/recording")).json()
            assert (told["status"], told["workflows"], told["dropped"]) == ("recording", 3, 0)
            assert told["bytes"] == path.stat().st_size
            first, *_ = read_trace(path)
        trace = read_trace(path)
    assert len(trace) == 3
    assert [w.arrival_s for w in trace] == sorted(w.arrival_s for w in trace)
    assert first in trace
    for workflow in trace:
        assert (workflow.application, workflow.model) == ("text2sql", MODEL)
        assert workflow.slo_s == 60.0
        assert [c.stage for c in workflow.calls] == ["link", "write", "write", "check"]
        assert [c.parents for c in workflow.calls][:3] == [(), ("c1",), ("c1",)]
        assert sorted(workflow.calls[3].parents) == ["c2", "c3"]
        assert workflow.calls[3].tool == "sql"
        for call in workflow.calls:
            assert call.output_tokens == 4
            assert call.prompt_tokens > 1
            assert call.call_class is CallClass.COLLECTIVE
            assert call.gap_s < 5.0
    text = path.read_text()
    assert SECRET not in text
    assert "session-" not in text


async def test_what_has_not_ended_is_recorded_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "live.jsonl"
    async with scripted(ok) as (engine,):
        async with gateway([engine.url], recording={"path": str(path)}) as running:
            for _ in range(2):
                await running.chat(headers={"x-headway-workflow-id": "goes on"})
            await running.until_empty()
            assert not path.read_text()
        (workflow,) = read_trace(path)
    assert [call.parents for call in workflow.calls] == [(), ("c1",)]


async def asks_for_a_tool(request: Request, body: dict[str, Any]) -> Response:
    call = {"id": "c", "type": "function", "function": {"name": "run_sql", "arguments": "{}"}}
    choice = {"index": 0, "message": {"tool_calls": [call]}, "finish_reason": "tool_calls"}
    return JSONResponse({**answer(), "choices": [choice]} if body.get("tools") else answer())


async def test_gaps_are_of_the_tool_that_the_answer_before_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "live.jsonl"
    async with scripted(asks_for_a_tool) as (engine,):
        async with gateway([engine.url], recording={"path": str(path)}) as running:
            headers = {"x-headway-workflow-id": "w"}
            asked = {**headers, "x-request-id": "asks"}
            await running.chat(tools=[{"type": "function"}], headers=asked)
            await running.chat(headers=headers)
            await running.until_empty()
            assert (await running.http.get("/admin/calls/asks")).json()["tool"] == "run_sql"
        (workflow,) = read_trace(path)
    assert [call.tool for call in workflow.calls] == [None, "run_sql"]


async def test_nothing_is_recorded_unless_it_is_asked_for(tmp_path: Path) -> None:
    async with scripted(ok) as (engine,), gateway([engine.url]) as running:
        await running.chat()
        told = (await running.http.get("/admin/recording")).json()
        assert told == {"path": None, "status": "off"}
        assert running.gateway.recording is None


async def test_cancelled_calls_count_with_what_they_put_out_and_rejected_ones_do_not(
    tmp_path: Path,
) -> None:
    path = tmp_path / "live.jsonl"
    gate = Gate()
    async with scripted(gate) as (engine,):
        async with gateway(
            [engine.url], seats=1, recording={"path": str(path)}, queue={"max_wait_s": 0.05}
        ) as running:
            headers = {"x-headway-workflow-id": "w"}
            held = asyncio.create_task(running.chat(headers=headers))
            await running.until(lambda: gate.waiting == 1)
            assert (await running.chat(headers=headers)).status_code == 429
            gate.open.set()
            assert (await held).status_code == 200
        (workflow,) = read_trace(path)
    assert len(workflow.calls) == 1


async def test_a_file_that_cannot_be_written_is_said_and_calls_are_served(tmp_path: Path) -> None:
    path = tmp_path / "no such directory" / "live.jsonl"
    async with (
        scripted(ok) as (engine,),
        gateway([engine.url], recording={"path": str(path)}) as running,
    ):
        assert (await running.chat()).status_code == 200
        told = (await running.http.get("/admin/recording")).json()
        assert told["status"] == "failed"
        assert "No such file" in told["why"]


# --- the writer ---------------------------------------------------------------------------------


def workflow(number: int, calls: int = 2) -> TraceWorkflow:
    made = tuple(TraceCall(f"c{n}", "s", 10, 5) for n in range(calls))
    return TraceWorkflow(f"w{number}", "app", float(number), made)


def size(one: TraceWorkflow) -> int:
    return sum(len(line) + 1 for line in call_lines(one))


async def test_recording_ends_at_its_bound_between_two_workflows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "t.jsonl"
    recording = Recording(path, max_bytes=3 * size(workflow(1)) + 1)
    await recording.start()
    for number in range(1, 6):
        recording.add(workflow(number))
    await recording.stop()
    assert [w.workflow_id for w in read_trace(path)] == ["w1", "w2", "w3"]
    told = recording.state()
    assert (told["status"], told["workflows"], told["waiting"]) == ("full", 3, 0)
    assert "recording.max_mb" in str(told["why"])
    assert "has ended" in caplog.text
    recording.add(workflow(9))
    assert recording.state()["waiting"] == 0


async def test_a_file_that_is_there_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    for number in (1, 2):
        recording = Recording(path, max_bytes=10_000)
        await recording.start()
        recording.add(workflow(number))
        await recording.stop()
    (now,) = read_trace(path)
    (before,) = read_trace(Path(f"{path}{BEFORE}"))
    assert (before.workflow_id, now.workflow_id) == ("w1", "w2")


async def test_a_disk_that_fails_ends_the_recording_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = Recording(tmp_path / "t.jsonl", max_bytes=10_000)
    await recording.start()

    def full_disk(batch: Any) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recording, "_write", full_disk)
    recording.add(workflow(1))
    await recording.stop()
    told = recording.state()
    assert told["status"] == "failed"
    assert "No space left" in str(told["why"])


async def test_what_comes_faster_than_it_is_written_is_dropped_and_counted(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "t.jsonl", max_bytes=1 << 30)
    one = workflow(1, calls=1)
    for _ in range(WAITING_MAX + 7):
        recording.add(one)
    assert recording.state()["dropped"] == 7
    await recording.start()
    await recording.stop()
    assert recording.workflows == WAITING_MAX


async def test_what_was_recorded_before_the_disk_was_full_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "live.jsonl"
    recording = Recording(path, max_bytes=10**9)
    await recording.start()
    calls = tuple(TraceCall(f"c{number}", "s", 10, 5) for number in range(40))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        for number in range(20):
            recording.add(TraceWorkflow(f"w{number}", "app", float(number), calls))
        await recording.stop()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert recording.status == "failed"
    assert 0 < recording.workflows < 20
    assert len(read_trace(path)) == recording.workflows
    assert path.stat().st_size == recording.bytes
