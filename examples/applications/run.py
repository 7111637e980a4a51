"""Three applications before a gateway that learns how long their jobs take, and what it then says.

`assistant` is declared in headway.yaml, `reviewer` by its client, `pipeline` not at all: it is
learned from what its calls are called. Jobs are small or large throughout, so the first stage that
ends tells of the others. A planner's client posts its plan; tools run here and are reported.

    headway serve --config examples/applications/headway.yaml
    python examples/applications/run.py

What is left of a job of each is printed as its stages end. Exit status 1: no model within the time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

SMALL, LARGE = 30, 300
"""Tokens of a call of a small job, and of a large one."""
TOOLS_S = {"search": 0.2, "read": 0.6}
"""How long tools take at the client, seconds."""
GLANCE_S = 0.03
"""After which a call that is watched is looked at while it runs."""
SIDE_BY_SIDE = 12
MODEL_LIMIT_S = 120.0
REVIEWER = [
    {"name": "draft"},
    {"name": "check", "kind": "regular"},
    {"name": "rewrite"},
]


class NoModelError(Exception):
    """An application had no model within the time; the text names it."""


@dataclass
class Job:
    """One workflow of an application, and what was left of it at each step."""

    http: httpx.AsyncClient
    model: str
    application: str
    name: str
    tokens: int
    watch: bool = False
    steps: list[dict[str, Any]] = field(default_factory=list)

    async def declare(self, stages: list[dict[str, Any]] | None = None) -> None:
        """Announce it; an application's first declaration with kinds makes its model."""
        body: dict[str, Any] = {"workflow": self.application, "id": self.name}
        if stages is not None:
            body["stages"] = stages
        answer = await self._post("", body)
        await self._note("declared", quote=answer["quote"])

    async def call(self, stage: str, *, final: bool = False) -> None:
        """One call of a stage."""
        headers = {
            "x-headway-workflow-id": self.name,
            "x-headway-workflow": self.application,
            "x-headway-stage": stage,
            **({"x-headway-final": "1"} if final else {}),
        }
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": f"{stage} of {self.name}"}],
            "max_tokens": self.tokens,
            "ignore_eos": True,
        }
        running = asyncio.create_task(
            self.http.post("/v1/chat/completions", json=body, headers=headers)
        )
        if self.watch:
            await asyncio.wait({running}, timeout=GLANCE_S)
            if not running.done():
                await self._note(f"{stage} runs")
        (await running).raise_for_status()
        if not final:
            await self._note(f"{stage} has ended")

    async def plan(self, tools: list[str]) -> None:
        """What the planner has decided."""
        await self._post(f"/{self.name}/plan", {"stages": [{"name": tool} for tool in tools]})
        await self._note(f"planned: {', '.join(tools)}")

    async def run_here(self, stage: str, seconds: float) -> None:
        """Something that runs at the client, and is reported."""
        await asyncio.sleep(seconds)
        await self._post(f"/{self.name}/stages", {"stage": stage, "duration_ms": seconds * 1000})
        await self._note(f"{stage} has ended")

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = await self.http.post(f"/v1/workflows{path}", json=body)
        answer.raise_for_status()
        return dict(answer.json())

    async def _note(self, step: str, **more: object) -> None:
        if self.watch:
            answer = await self.http.get(f"/v1/workflows/{self.name}")
            answer.raise_for_status()
            found = answer.json()
            self.steps.append(
                {"step": step, "remaining": found["remaining"], "model": found["model"], **more}
            )


async def assistant(job: Job) -> None:
    """plan, then what the planner decides, then answer; declared in the configuration."""
    await job.declare()
    await job.call("plan")
    tools = ["search"] if job.tokens == SMALL else ["search", "read", "read#2"]
    await job.plan(tools)
    for tool in tools:
        await job.run_here(tool, TOOLS_S[tool.partition("#")[0]])
    await job.call("answer", final=True)


async def reviewer(job: Job) -> None:
    """draft, check, rewrite; declared by its client."""
    await job.declare(REVIEWER)
    await job.call("draft")
    await job.run_here("check", 0.1 if job.tokens == SMALL else 0.5)
    await job.call("rewrite", final=True)


async def pipeline(job: Job) -> None:
    """split, sort, merge; learned."""
    if job.watch:
        await job.declare()  # its id alone, to look at it before its first call
    await job.call("split")
    await job.call("sort")
    await job.call("merge", final=True)


APPLICATIONS: dict[str, Callable[[Job], Awaitable[None]]] = {
    "assistant": assistant,
    "reviewer": reviewer,
    "pipeline": pipeline,
}


async def teach(http: httpx.AsyncClient, model: str, workflows: int) -> None:
    """So many workflows of each application, some side by side."""
    room = asyncio.Semaphore(SIDE_BY_SIDE)
    run = uuid.uuid4().hex[:8]

    async def one(application: str, number: int) -> None:
        tokens = LARGE if number % 2 else SMALL
        async with room:
            name = f"{application}-{run}-{number}"
            await APPLICATIONS[application](Job(http, model, application, name, tokens))

    async with asyncio.TaskGroup() as group:
        for number in range(workflows):
            for application in APPLICATIONS:
                group.create_task(one(application, number))


async def models(http: httpx.AsyncClient, least: int) -> dict[str, Any]:
    """Of each application, once all of them are fitted to so many workflows."""
    for _ in range(int(MODEL_LIMIT_S / 0.25)):
        answer = await http.get("/admin/predictors")
        answer.raise_for_status()
        found = answer.json()["workflows"]["stage_models"]["applications"]
        known = {name: found.get(name, {"samples": 0}) for name in APPLICATIONS}
        if all(each["samples"] >= least for each in known.values()):
            return known
        await asyncio.sleep(0.25)
    late = [name for name, each in known.items() if each["samples"] < least]
    raise NoModelError(f"no model of {', '.join(late)} within {MODEL_LIMIT_S:g} s")


async def show(url: str, workflows: int, least: int) -> dict[str, Any]:
    """Teach, wait for the models, and watch a small job of each application.

    Args:
        url: The gateway's.
        workflows: Of each application, before the ones that are watched; 0: it knows them.
        least: Workflows that a model is to be fitted to.
    """
    async with httpx.AsyncClient(base_url=url, timeout=120.0) as http:
        served = await http.get("/v1/models")
        served.raise_for_status()
        model = served.json()["data"][0]["id"]
        await teach(http, model, workflows)
        known = await models(http, least)
        shown: dict[str, Any] = {}
        for application, play in APPLICATIONS.items():
            name = f"{application}-{uuid.uuid4().hex[:8]}"
            job = Job(http, model, application, name, SMALL, watch=True)
            await play(job)
            about = {key: known[application][key] for key in ("source", "method", "samples")}
            shown[application] = {**about, "steps": job.steps}
        return shown


def told(shown: dict[str, Any]) -> str:
    """As a table."""
    lines = []
    for application, found in shown.items():
        how = f"{found['source']}, {found['method']}, {found['samples']} workflows"
        lines += [f"{application} ({how})", f"  {'':<22}{'mean':>7}{'5 %':>8}{'95 %':>7}  seconds"]
        for step in found["steps"]:
            left = step["remaining"]
            numbers = [left[key] for key in ("mean_s", "low_s", "high_s")]
            columns = "".join("      -" if n is None else f"{n:7.2f}" for n in numbers)
            lines.append(f"  {step['step']:<22}{columns}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run it; 0 where there were models."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--workflows", type=int, default=40, help="of each application; 0: none")
    parser.add_argument("--least", type=int, default=30, help="workflows a model is fitted to")
    parser.add_argument("--json", type=Path, default=None, help="file to write")
    asked = parser.parse_args(arguments)
    failed: list[str] = []
    shown: dict[str, Any] = {}
    try:
        shown = asyncio.run(show(asked.url, asked.workflows, asked.least))
    except* (httpx.HTTPError, NoModelError) as errors:
        failed = [str(error) or type(error).__name__ for error in errors.exceptions]
    if failed:
        sys.stderr.write("\n".join(dict.fromkeys(failed)) + "\n")
        return 1
    sys.stdout.write(told(shown) + "\n")
    if asked.json is not None:
        asked.json.write_text(json.dumps(shown, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
