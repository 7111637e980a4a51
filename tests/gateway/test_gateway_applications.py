"""The example of application models, against a gateway over HTTP before emulated engines."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from gateway_harness import Running, emulated, gateway

FOLDER = Path(__file__).parents[2] / "examples" / "applications"


def example() -> ModuleType:
    """`run.py` as a module."""
    spec = importlib.util.spec_from_file_location("applications_example", FOLDER / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # dataclasses look their module up
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


RUN = example()


@asynccontextmanager
async def serving_the_example(store: Path) -> AsyncIterator[Running]:
    """A gateway with the example's configuration, before engines of this process."""
    own = yaml.safe_load((FOLDER / "headway.yaml").read_text())
    own.pop("embedded")
    own["store"] = {"path": str(store)}
    async with emulated(2, time_scale=4) as urls, gateway(urls, **own) as running:
        running.gateway.stage_models._check_s = 0.02
        yield running


def width(step: dict[str, Any]) -> float:
    return step["remaining"]["high_s"] - step["remaining"]["low_s"]


def mean(step: dict[str, Any]) -> float:
    return float(step["remaining"]["mean_s"])


def of_steps(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {step["step"]: step for step in found["steps"]}


async def test_two_declared_applications_and_a_learned_one_before_and_after_a_restart(
    tmp_path: Path,
) -> None:
    store = tmp_path / "applications.sqlite"
    async with serving_the_example(store) as running:
        shown = await RUN.show(running.url, workflows=40, least=30)
        before = running.gateway.tracker.profiles.stats()["applications"]
        await running.until_empty()
    assert {name: found["source"] for name, found in shown.items()} == {
        "assistant": "declared",
        "reviewer": "declared",
        "pipeline": "learned",
    }
    check(shown)
    # another process would find the same: nothing is taught again
    async with serving_the_example(store) as running:
        after = running.gateway.tracker.profiles.stats()["applications"]
        for name in RUN.APPLICATIONS:
            for key in ("workflows", "kept", "bytes", "samples", "method", "fitted_unix_s"):
                assert after[name][key] == before[name][key]
        check(await RUN.show(running.url, workflows=0, least=30))


def check(shown: dict[str, Any]) -> None:
    for found in shown.values():
        assert all(step["remaining"]["known"] for step in found["steps"])
        whole = [s for s in found["steps"] if not s["step"].endswith("runs")]
        # a small job: every end makes what is left less, and the first one says that it is small
        for earlier, later in itertools.pairwise(whole):
            assert mean(later) < mean(earlier)
        assert width(whole[1]) < 0.8 * width(whole[0])
        for earlier, later in itertools.pairwise(found["steps"]):
            if later["step"].endswith("runs"):
                assert mean(later) < mean(earlier)
        declared = whole[0]
        assert declared["quote"]["finish_low_s"] < declared["quote"]["earliest_finish_s"]
        assert declared["quote"]["earliest_finish_s"] < declared["quote"]["finish_high_s"]
    planned = of_steps(shown["assistant"])
    tools = {s["stage"]: s for s in planned["planned: search"]["model"]["stages"]}["tools"]
    assert (tools["status"], tools["planned"]) == ("planned", ["search"])
    over = {s["stage"]: s for s in planned["search has ended"]["model"]["stages"]}["tools"]
    assert over["status"] == "ended"


async def test_an_example_that_finds_no_model_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(RUN, "MODEL_LIMIT_S", 0.5)
    async with serving_the_example(tmp_path / "a.sqlite") as running:
        asked = ["--url", running.url, "--workflows", "1"]
        assert await asyncio.to_thread(RUN.main, asked) == 1
    assert "no model of assistant, reviewer, pipeline within 0.5 s" in capsys.readouterr().err
