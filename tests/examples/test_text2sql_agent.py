from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import agent
import pytest
from scripted_endpoint import ScriptedEndpoint
from starlette.responses import JSONResponse, Response, StreamingResponse

ROOT = Path(__file__).parents[2]


@pytest.fixture
async def endpoint() -> AsyncIterator[ScriptedEndpoint]:
    async with ScriptedEndpoint().serve() as served:
        yield served


async def run_agent(
    endpoint: ScriptedEndpoint, tmp_path: Path, *options: str
) -> tuple[int, dict[str, Any]]:
    """The agent's exit status and its JSON report."""
    out = tmp_path / "out.json"
    fixed = ["--base-url", endpoint.base_url, "--run-id", "t", "--json", str(out)]
    status = await asyncio.to_thread(agent.main, [*fixed, *options])
    return status, json.loads(out.read_text(encoding="utf-8"))


async def test_a_run_corrects_answers_and_reports(
    endpoint: ScriptedEndpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, report = await run_agent(endpoint, tmp_path, "--questions", "42")
    summary = report["summary"]
    assert status == 0
    assert endpoint.unmatched == []
    assert (summary["workflows"], summary["failed"]) == (42, 0)
    assert summary["calls"] == len(endpoint.bodies)
    # 8 calls of which every workflow has one, 4 candidates less 1, 3 evaluations less 1, and
    # what had to be corrected.
    counts = [len(item["calls"]) for item in report["workflows"]]
    assert min(counts) >= 12
    assert [count - 12 for count in counts] == [item["corrections"] for item in report["workflows"]]
    assert 15 < summary["calls_per_workflow"]["mean"] < 22
    assert 6 < summary["calls_per_workflow"]["variance"] < 20
    # Sometimes right, sometimes not.
    assert 0.5 < summary["accuracy"] < 1.0
    assert summary["queue_s_per_call"]["mean"] == 0.25
    assert summary["slo_attainment"]["3"] == 1.0
    shown = capsys.readouterr().out
    assert "42/42 workflows, 0 failed" in shown
    for line in ("workflow latency, P95", "SLO attainment at 1 x SLO", "execution accuracy"):
        assert line in shown


async def test_headers_place_each_call_in_its_workflow(
    endpoint: ScriptedEndpoint, tmp_path: Path
) -> None:
    options = ("--questions", "6", "--slo-s", "20", "--slo-flat", "--concurrency", "2")
    _, report = await run_agent(endpoint, tmp_path, *options)
    by_workflow: dict[str, list[dict[str, str]]] = defaultdict(list)
    for headers in endpoint.headers:
        assert headers["x-headway-workflow"] == "text2sql"
        assert headers["x-headway-slo-ms"] == "20000"
        by_workflow[headers["x-headway-workflow-id"]].append(headers)
    assert sorted(by_workflow) == [f"t-{index:04d}" for index in range(6)]
    for item in report["workflows"]:
        calls = by_workflow[item["id"]]
        stages = list(dict.fromkeys(headers["x-headway-stage"] for headers in calls))
        rounds = [stage for stage in stages if stage.startswith("correction")]
        assert rounds == [f"correction-{number}" for number in range(1, len(rounds) + 1)]
        assert stages == [
            *("keywords", "tables", "columns", "candidates"),
            *rounds,
            *("unit-tests", "evaluation", "selection"),
        ]
        for stage in stages:
            beside = [headers for headers in calls if headers["x-headway-stage"] == stage]
            assert {headers["x-headway-stage-width"] for headers in beside} == {str(len(beside))}
            after_sql = stage in {*rounds, "unit-tests"}
            assert {headers.get("x-headway-tool") for headers in beside} == {
                "sqlite" if after_sql else None
            }
        assert [headers.get("x-headway-final") for headers in calls[:-1]] == [None] * (
            len(calls) - 1
        )
        assert calls[-1]["x-headway-final"] == "1"
    assert any("correction-1" in headers.values() for headers in endpoint.headers)


async def test_a_correction_shows_the_database_error(
    endpoint: ScriptedEndpoint, tmp_path: Path
) -> None:
    await run_agent(endpoint, tmp_path, "--questions", "6")
    prompts = [
        body["messages"][1]["content"]
        for body, headers in zip(endpoint.bodies, endpoint.headers, strict=True)
        if headers["x-headway-stage"].startswith("correction")
    ]
    assert prompts
    for prompt in prompts:
        assert "\nError: " in prompt
        assert "```sql\n" in prompt
    assert any("no such column" in prompt or "no such table" in prompt for prompt in prompts)


async def test_corrections_end_at_the_limit(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    _, report = await run_agent(endpoint, tmp_path, "--questions", "8", "--corrections", "1")
    stages = {call["stage"] for item in report["workflows"] for call in item["calls"]}
    assert "correction-1" in stages
    assert "correction-2" not in stages


async def test_slo_follows_difficulty(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    _, report = await run_agent(endpoint, tmp_path, "--questions", "42", "--slo-s", "100")
    found = {(item["difficulty"], item["slo_s"]) for item in report["workflows"]}
    assert found == {("simple", 75.0), ("moderate", 100.0), ("challenging", 125.0)}


async def test_streaming_gives_the_same_answers(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    _, whole = await run_agent(endpoint, tmp_path, "--questions", "5")
    assert not any("stream" in body for body in endpoint.bodies)
    endpoint.bodies.clear()
    status, streamed = await run_agent(endpoint, tmp_path, "--questions", "5", "--stream")
    assert status == 0
    assert all(body["stream"] for body in endpoint.bodies)

    def answers(report: dict[str, Any]) -> list[tuple[str, str, int]]:
        rows = [(item["id"], item["sql"], len(item["calls"])) for item in report["workflows"]]
        return sorted(rows)

    assert answers(streamed) == answers(whole)
    call = streamed["workflows"][0]["calls"][0]
    assert (call["prompt_tokens"], call["completion_tokens"]) == (10, 5)
    assert call["instance"] == "scripted-0"


async def test_a_refused_call_fails_its_workflow_only(
    endpoint: ScriptedEndpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(headers: dict[str, str]) -> Response | None:
        ours = headers["x-headway-workflow-id"] == "t-0001"
        if ours and headers["x-headway-stage"] == "candidates":
            return JSONResponse({"error": {"message": "engine gone"}}, 502)
        return None

    endpoint.instead = refuse
    options = ("--questions", "4", "--max-retries", "0")
    status, report = await run_agent(endpoint, tmp_path, *options)
    assert status == agent.EXIT_FAILED_WORKFLOWS
    failed = [item for item in report["workflows"] if item["error"] is not None]
    assert [item["id"] for item in failed] == ["t-0001"]
    assert "candidates: InternalServerError" in failed[0]["error"]
    assert (failed[0]["slo_met"], failed[0]["correct"], failed[0]["sql"]) == (False, False, "")
    assert report["summary"]["slo_attainment"]["3"] == 0.75
    assert "1 of 4 workflows failed" in capsys.readouterr().out


async def broken_stream() -> AsyncIterator[bytes]:
    yield b'data: {"id": "1", "choices": [{"index": 0, "delta": {"content": "ha"}}]}\n\n'


async def error_event() -> AsyncIterator[bytes]:
    yield b'data: {"error": {"message": "engine died", "code": 502}}\n\n'


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        ((), lambda: Response("not json", 200, media_type="application/json")),
        ((), lambda: Response("<html>", 200, media_type="text/html")),
        ((), lambda: JSONResponse({"choices": []})),
        (("--stream",), lambda: StreamingResponse(broken_stream(), 200, None, "text/event-stream")),
        (("--stream",), lambda: StreamingResponse(error_event(), 200, None, "text/event-stream")),
    ],
    ids=["no-json", "html", "no-choice", "cut-stream", "error-event"],
)
async def test_an_answer_that_is_none_fails_the_workflow(
    endpoint: ScriptedEndpoint, tmp_path: Path, options: tuple[str, ...], answer: Any
) -> None:
    endpoint.instead = lambda _: answer()
    options = (*options, "--questions", "2", "--max-retries", "0")
    status, report = await run_agent(endpoint, tmp_path, *options)
    assert status == agent.EXIT_FAILED_WORKFLOWS
    assert report["summary"]["failed"] == 2
    assert report["summary"]["latency_s"]["p95"] is None


async def test_the_client_retries_before_a_workflow_fails(
    endpoint: ScriptedEndpoint, tmp_path: Path
) -> None:
    refused: list[str] = []

    def busy_once(headers: dict[str, str]) -> Response | None:
        if refused:
            return None
        refused.append(headers["x-headway-stage"])
        body = {"error": {"message": "busy"}}
        return JSONResponse(body, 429, {"retry-after-ms": "1"})

    endpoint.instead = busy_once
    status, report = await run_agent(endpoint, tmp_path, "--questions", "1")
    assert (status, report["summary"]["failed"], refused) == (0, 0, ["keywords"])


async def test_concurrency_bounds_workflows_in_flight(
    endpoint: ScriptedEndpoint, tmp_path: Path
) -> None:
    await run_agent(endpoint, tmp_path, "--questions", "5", "--concurrency", "1")
    order = [headers["x-headway-workflow-id"] for headers in endpoint.headers]
    changes = [after for before, after in pairwise(order) if after != before]
    assert changes == ["t-0001", "t-0002", "t-0003", "t-0004"]


async def test_the_api_key_is_not_in_the_report(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    options = ("--questions", "1", "--api-key", "sk-secret")
    _, report = await run_agent(endpoint, tmp_path, *options)
    assert endpoint.headers[0]["authorization"] == "Bearer sk-secret"
    assert "sk-secret" not in json.dumps(report)
    assert report["config"]["model"] == "scripted"


async def test_the_script_runs_from_the_repository_root(endpoint: ScriptedEndpoint) -> None:
    command = [sys.executable, "examples/text2sql/agent.py", "--base-url", endpoint.base_url]
    ran = await asyncio.to_thread(
        subprocess.run, [*command, "--questions", "2"], cwd=ROOT, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert "workflow latency, P95" in ran.stdout


def test_an_endpoint_that_is_not_there_is_said_plainly(capsys: pytest.CaptureFixture[str]) -> None:
    # Port 9 of the loopback: nothing listens there.
    options = ["--base-url", "http://127.0.0.1:9/v1", "--max-retries", "0"]
    assert agent.main(options) == agent.EXIT_NO_MODEL
    assert "cannot ask http://127.0.0.1:9/v1" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options", [["--questions", "0"], ["--slo-s", "-1"], ["--corrections", "x"]]
)
def test_bad_options_are_refused(options: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        agent.parse_arguments(options)
    assert refused.value.code == 2
