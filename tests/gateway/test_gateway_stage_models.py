"""Application models in a gateway that serves: fitted by a worker, shown, kept, failing."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from gateway_harness import Running, emulated, gateway
from pydantic import ValidationError

from dispatcher.config.settings import Settings
from dispatcher.core.workflow_types import StageKind
from dispatcher.gateway import stage_models
from dispatcher.gateway.tracking import tracker_settings
from workflows.stage_profiles import StageModel

ASSISTANT = [
    {"name": "plan"},
    {"name": "tools", "kind": "dynamic", "candidates": ["search", "read"]},
    {"name": "answer", "after": ["tools"]},
]


def fits_from(workflows: int) -> dict[str, object]:
    """Settings with a fit as soon as there are so many workflows."""
    return {"stage_min_workflows": workflows, "lengths": "rolling-quantiles"}


@asynccontextmanager
async def modelled(time_scale: float = 20, **sections: Any) -> AsyncIterator[Running]:
    """A gateway before two emulated engines that looks often for models to fit."""
    async with (
        emulated(2, time_scale=time_scale) as urls,
        gateway(
            urls, **{"predictors": fits_from(6), "policy": {"name": "llmsched"}, **sections}
        ) as running,
    ):
        running.gateway.stage_models._check_s = 0.02
        yield running


async def call(running: Running, workflow: str, stage: str, tokens: int, **more: Any) -> None:
    headers = {
        "x-headway-workflow-id": workflow,
        "x-headway-workflow": more.get("application", "pipeline"),
        "x-headway-stage": stage,
    }
    if more.get("final"):
        headers["x-headway-final"] = "1"
    body = {"max_tokens": tokens, "ignore_eos": True}
    found = await running.chat("go", headers=headers, **body)
    assert found.status_code == 200, found.text


async def job(running: Running, workflow: str, size: int, **more: Any) -> None:
    """Two stages, each as long as the job is large."""
    await call(running, workflow, "draft", size, **more)
    await call(running, workflow, "answer", size, final=True, **more)


async def jobs(running: Running, count: int, prefix: str = "old", **more: Any) -> None:
    """Small and large ones."""
    sizes = (20 if number % 2 else 400 for number in range(count))
    await asyncio.gather(
        *(job(running, f"{prefix}-{n}", size, **more) for n, size in enumerate(sizes))
    )


async def warm(running: Running) -> None:
    """The cost model knows the engines: durations are learned against it."""
    calls = (call(running, f"warm-{n}", "any", 100, application="warm") for n in range(40))
    await asyncio.gather(*calls)


async def until_modelled(running: Running, application: str = "pipeline", samples: int = 6) -> Any:
    def known() -> Any:
        models: Any = running.gateway.tracker.profiles.stats()["applications"]
        found = models.get(application)
        return found if found and found["samples"] >= samples else None

    await running.until(known)
    return known()


async def explained(running: Running, workflow: str) -> dict[str, Any]:
    found = await running.http.get(f"/v1/workflows/{workflow}")
    assert found.status_code == 200
    return dict(found.json())


# --- over HTTP ---


async def test_what_is_left_narrows_as_stages_end() -> None:
    # slow enough that small jobs and large ones differ on a machine that is busy with others, too
    async with modelled(time_scale=10, predictors=fits_from(40)) as running:
        before = await running.http.post("/v1/workflows", json={"workflow": "pipeline", "id": "w"})
        assert before.status_code == 201
        unknown = (await explained(running, "w"))["remaining"]
        assert (unknown["known"], unknown["low_s"], unknown["high_s"]) == (False, None, None)
        assert unknown["mean_s"] >= 0.0
        await warm(running)
        await jobs(running, 40)
        model = await until_modelled(running, samples=40)
        assert (model["source"], model["method"]) == ("learned", "bayes")
        first = (await explained(running, "w"))["remaining"]
        assert first["known"] is True
        assert 0.0 < first["low_s"] < first["mean_s"] < first["high_s"]
        await call(running, "w", "draft", 20)
        await call(running, "large", "draft", 400)
        second = await explained(running, "w")
        left, of_large = second["remaining"], (await explained(running, "large"))["remaining"]
        # as long as a usual job has left, less than a large one: what ended tells
        assert left["mean_s"] < first["mean_s"]
        assert left["mean_s"] < of_large["mean_s"]
        assert left["high_s"] - left["low_s"] < first["high_s"] - first["low_s"]
        stages = {each["stage"]: each["status"] for each in second["model"]["stages"]}
        assert stages["draft"] == "ended"
        assert stages["answer"] == "to come"
        await call(running, "w", "answer", 20, final=True)
        ended = await explained(running, "w")
        assert (ended["remaining"], ended["model"]) == (None, None)


async def test_a_planner_of_a_configured_application() -> None:
    workflows = {"assistant": {"slo_s": 60, "stages": ASSISTANT}}
    async with modelled(workflows=workflows, predictors=fits_from(20)) as running:

        async def planned(workflow: str, tools: list[str]) -> dict[str, Any]:
            await call(running, workflow, "plan", 20, application="assistant")
            stages = [{"name": tool} for tool in tools]
            answer = await running.http.post(
                f"/v1/workflows/{workflow}/plan", json={"stages": stages}
            )
            assert answer.status_code == 200, answer.text
            return dict(answer.json())

        for number in range(20):
            tools = {"search": 3_000.0} if number % 2 else {"search": 3_000.0, "read": 9_000.0}
            await planned(f"old-{number}", list(tools))
            for tool, duration_ms in tools.items():
                report = await running.http.post(
                    f"/v1/workflows/old-{number}/stages",
                    json={"stage": tool, "duration_ms": duration_ms},
                )
                assert report.status_code == 200, report.text
            await call(running, f"old-{number}", "answer", 20, application="assistant", final=True)
        model = await until_modelled(running, "assistant", 20)
        assert model["source"] == "declared"
        assert [s["kind"] for s in model["stages"]] == ["llm", "dynamic", "llm"]
        await call(running, "new", "plan", 20, application="assistant")
        before = (await explained(running, "new"))["remaining"]
        assert before["high_s"] - before["low_s"] > 8.0
        after = (await planned("new", ["search"]))["remaining"]
        assert after["high_s"] - after["low_s"] < 1.0
        assert after["mean_s"] == pytest.approx(3.0, abs=1.0)
        found = (await explained(running, "new"))["model"]["stages"][1]
        assert (found["status"], found["planned"]) == ("planned", ["search"])


async def test_an_application_declared_by_its_client() -> None:
    async with modelled() as running:
        body = {"workflow": "assistant", "id": "w", "stages": ASSISTANT}
        assert (await running.http.post("/v1/workflows", json=body)).status_code == 201
        models = (await running.http.get("/admin/predictors")).json()["workflows"]["stage_models"]
        assert models["applications"]["assistant"]["source"] == "declared"
        assert running.gateway.tracker.profiles.kind("assistant", "tools") is StageKind.DYNAMIC


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("w/plan", {"stages": [{"name": "a"}, {"name": "a"}]}, 400),
        ("w/plan", {"stages": [{"name": "a", "kind": "magic"}]}, 400),
        ("w/plan", {}, 400),
        ("w/plan", {"stages": [{"name": "x" * 9_000}]}, 400),
        ("nobody/plan", {"stages": []}, 404),
        ("w/stages", {"stage": "a", "duration_ms": -1}, 400),
        ("w/stages", {"stage": "a"}, 400),
        ("nobody/stages", {"stage": "a", "duration_ms": 1}, 404),
    ],
)
async def test_what_is_no_plan_or_report_is_refused(path: str, body: Any, status: int) -> None:
    async with emulated(1) as urls, gateway(urls) as running:
        await running.http.post("/v1/workflows", json={"workflow": "app", "id": "w"})
        found = await running.http.post(f"/v1/workflows/{path}", json=body)
        assert found.status_code == status, found.text
        assert found.json()["error"]["message"]


async def test_a_plan_and_a_report_name_stages_that_there_are() -> None:
    workflows = {"assistant": {"stages": ASSISTANT}}
    async with emulated(1) as urls, gateway(urls, workflows=workflows) as running:
        body = {"workflow": "assistant", "id": "w"}
        assert (await running.http.post("/v1/workflows", json=body)).status_code == 201
        for path, sent, param, code, says in (
            (
                "plan",
                {"stages": [{"name": "dance"}]},
                "stages",
                "invalid_stages",
                "stages: stage 'dance' is no candidate of 'tools'; expected: search, read",
            ),
            (
                "stages",
                {"stage": "serch", "duration_ms": 1},
                "stage",
                "unknown_stage",
                "stage: stage 'serch' is none of 'assistant'; "
                "expected: plan, tools, answer, search, read",
            ),
        ):
            found = await running.http.post(f"/v1/workflows/w/{path}", json=sent)
            assert found.status_code == 400
            assert found.json()["error"] == {
                "message": says,
                "type": "invalid_request_error",
                "param": param,
                "code": code,
            }
        assert (await explained(running, "w"))["stages"] == []
        right = {"stage": "search", "duration_ms": 1}
        assert (await running.http.post("/v1/workflows/w/stages", json=right)).status_code == 200


async def test_what_is_over_is_told_apart_from_what_never_was() -> None:
    async with emulated(1) as urls, gateway(urls) as running:
        await call(running, "done", "only", 5, final=True)
        await call(running, "stopped", "first", 5)
        stopped = await running.http.delete("/v1/workflows/stopped")
        assert stopped.json() == {"id": "stopped", "cancelled_calls": 0}
        for workflow, code, says in (
            ("done", "workflow_ended", "The workflow 'done' is over: finished."),
            ("stopped", "workflow_ended", "The workflow 'stopped' is over: cancelled."),
            ("nobody", "workflow_not_found", "it never was, or it ended and has been forgotten"),
        ):
            sent = {"stages": [{"name": "a"}]}
            found = await running.http.post(f"/v1/workflows/{workflow}/plan", json=sent)
            assert found.status_code == 404
            assert found.json()["error"]["code"] == code
            assert says in found.json()["error"]["message"]
        # a later call of that id is a workflow of its own
        await call(running, "stopped", "again", 5)
        assert (await explained(running, "stopped"))["state"] == "live"


async def test_what_runs_is_over_without_any_event() -> None:
    async with emulated(1, time_scale=1) as urls, gateway(urls) as running:
        body = {"max_tokens": 400, "ignore_eos": True}
        headers = {"x-headway-workflow-id": "w", "x-headway-stage": "only"}
        running_call = asyncio.create_task(running.chat("go", headers=headers, **body))
        await running.until(lambda: running.gateway.coordinator.attempts)
        first = await explained(running, "w")
        await asyncio.sleep(0.05)
        second = await explained(running, "w")
        assert second["remaining"]["mean_s"] < first["remaining"]["mean_s"]
        assert second["elapsed_s"] > first["elapsed_s"]
        running_call.cancel()
        await asyncio.gather(running_call, return_exceptions=True)


async def test_declared_candidates_of_a_stage_that_is_not_dynamic_are_refused() -> None:
    async with emulated(1) as urls, gateway(urls) as running:
        stages = [{"name": "a", "candidates": ["b"]}, {"name": "c", "kind": "regular"}]
        body = {"workflow": "app", "id": "w", "stages": stages}
        found = await running.http.post("/v1/workflows", json=body)
        assert found.status_code == 400
        assert "only a dynamic stage" in found.json()["error"]["message"]
        assert (await running.http.get("/v1/workflows/w")).status_code == 404


# --- the worker ---


async def test_the_process_ends_when_nothing_is_due() -> None:
    async with modelled() as running:
        await jobs(running, 8)
        fitted = await until_modelled(running)
        assert abs(fitted["fitted_unix_s"] - time.time()) < 600.0
        models = running.gateway.stage_models
        await running.until(lambda: models._worker.pid is None)
        told = (await running.http.get("/admin/predictors")).json()["stage_fits"]
        assert told == {"fits": models.fits, "failures": 0, "worker": {"pid": None}}


async def test_a_worker_that_dies_leaves_budgets_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stage_models, "RETRY_S", (0.5, 1.0))
    fit_stages = stage_models.fit_stages
    monkeypatch.setattr(stage_models, "fit_stages", die)
    async with modelled() as running:
        models = running.gateway.stage_models
        await jobs(running, 8)
        await running.until(lambda: models.failures >= 2)
        assert "could not be modelled" in caplog.text
        await call(running, "new", "draft", 20)
        assert (await explained(running, "new"))["remaining"]["known"] is False
        told = (await running.http.get("/admin/predictors")).json()["workflows"]["stage_models"]
        assert "exit code" in told["applications"]["pipeline"]["error"]
        monkeypatch.setattr(stage_models, "fit_stages", fit_stages)
        await until_modelled(running)
        assert (await explained(running, "new"))["remaining"]["known"] is True


def die(_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def test_what_a_worker_answers_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_models, "fit_stages", nonsense)
    async with modelled() as running:
        await jobs(running, 8)
        await running.until(lambda: running.gateway.stage_models.failures)
        await call(running, "new", "draft", 20)
        assert (await explained(running, "new"))["remaining"]["known"] is False


def nonsense(_: object) -> dict[str, object]:
    return {"method": "bayes", "samples": 8}


async def test_a_missing_library_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with modelled(predictors=fits_from(16)) as running:
        running.gateway.stage_models._learner = "test_gateway_stage_models:missing"
        await jobs(running, 16)
        model = await until_modelled(running, samples=16)
        assert model["method"] == "independent"
        assert model["why"] == "not installed here"
        await jobs(running, 10, prefix="more")
        await until_modelled(running, samples=24)
    assert caplog.text.count("independent of each other") == 1


def missing(*_: object) -> None:
    raise RuntimeError("not installed here")


# --- kept ---


async def test_models_come_back_after_a_restart(tmp_path: Path) -> None:
    store = {"path": str(tmp_path / "state.sqlite")}
    async with modelled(store=store, predictors=fits_from(20)) as running:
        await jobs(running, 20)
        await until_modelled(running, samples=20)
        await running.until_empty()
    async with modelled(store=store, predictors=fits_from(20)) as running:
        model = await until_modelled(running, samples=20)
        assert model["workflows"] == 20
        await call(running, "new", "draft", 20)
        assert (await explained(running, "new"))["remaining"]["known"] is True


# --- settings ---


def test_stages_are_configured() -> None:
    found = Settings.model_validate(
        {
            "workflows": {"assistant": {"stages": ASSISTANT}, "other": {"slo_s": 5}},
            "predictors": {"stage_models": "independent", "stage_min_workflows": 30},
        }
    )
    models = tracker_settings(found).stage_models
    assert models.model is StageModel.INDEPENDENT
    assert models.min_workflows == 30
    assert list(models.declared) == ["assistant"]
    tools = models.declared["assistant"][1]
    assert (tools.kind, tools.candidates) == (StageKind.DYNAMIC, ("search", "read"))


@pytest.mark.parametrize(
    "sections",
    [
        {"workflows": {"a": {"stages": [{"name": "x"}, {"name": "x"}]}}},
        {"workflows": {"a": {"stages": [{"name": "x", "candidates": ["y"]}]}}},
        {"workflows": {"a": {"stages": [{"name": "x", "kind": "magic"}]}}},
        {"workflows": {"a": {"stages": [{"name": "x", "after": ["y"]}]}}},
        {"workflows": {"a": {"stages": [{"name": "x", "width": 0}]}}},
        {"workflows": {"default": {"stages": [{"name": "x"}]}}},
        {"predictors": {"stage_models": "oracle"}},
        {"predictors": {"stage_min_workflows": 1}},
    ],
)
def test_what_is_no_application_is_refused(sections: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Settings.model_validate(sections)


def test_models_that_are_off_learn_nothing() -> None:
    found = tracker_settings(Settings.model_validate({"predictors": {"stage_models": "none"}}))
    assert found.stage_models.model is StageModel.NONE
