"""What a tune costs: its own time, and what the scheduler's decisions notice of it.

A window of text-to-SQL queries (about 2,000 calls) is tuned on over eleven alphas in the tuner's
worker process, while calls arrive at a coordinator in this process on an event loop, as in the
gateway. Printed are the times of these decisions with no tune and while one runs.

    python benchmarks/tuning.py [--queries 100] [--arrivals 200] [--tunes 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import time
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path

from dispatcher import catalog
from dispatcher.bench.provenance import provenance
from dispatcher.config import TuningSettings
from dispatcher.core import events as ev
from dispatcher.core.commands import Dispatch
from dispatcher.core.coordinator import Coordinator
from dispatcher.core.gpu_profiles import gpu_profile, model_profile, roofline_cost
from dispatcher.core.ports import CostModel
from dispatcher.core.types import (
    CallId,
    CallSpec,
    InstanceId,
    InstanceSpec,
    Outcome,
    Usage,
    WorkflowId,
)
from dispatcher.gateway.tuner import LiveTuner, Subject
from dispatcher.registry import PolicyServices
from dispatcher.simulator.replay import replay
from dispatcher.simulator.workloads import WORKLOADS, Poisson, make_trace
from dispatcher.traces import TraceWorkflow
from dispatcher.traces.assembly import Assembled
from workflows.tracker import Tracker

MODEL = "llama-3.1-8b"
GPUS = ("A100-80G", "A100-80G", "L40", "A6000")
SEATS = 8
WORKLOAD, SEED = "chess-1", 0


def coordinator(costs: CostModel, services: PolicyServices) -> Coordinator:
    """The default policy over the embedded fleet's engines."""
    made = Coordinator(
        policy=catalog.build_policy("hexgen-flow", {"alpha": "auto"}, services),
        tracker=Tracker(),
        lengths=catalog.length_predictors().build(catalog.DEFAULT_LENGTH_PREDICTOR, {}, services),
        costs=costs,
    )
    for number, gpu in enumerate(GPUS):
        profile = roofline_cost(gpu_profile(gpu), model_profile("8b"), 1)
        spec = InstanceSpec(
            InstanceId(f"{gpu}-{number}"),
            frozenset({MODEL}),
            gpu=gpu,
            seats=SEATS,
            profile=profile,
        )
        made.handle(0.0, ev.InstanceUp(spec))
    return made


class Arrivals:
    """Calls at a steady rate; those that go out end with the next one's arrival."""

    def __init__(self, made: Coordinator, rate_per_s: float) -> None:
        self._coordinator = made
        self._rate_per_s = rate_per_s
        self._began_s = time.perf_counter()
        self._number = 0
        self._out: list[Dispatch] = []

    async def run_until(self, over: Awaitable[object]) -> tuple[list[float], object]:
        """Times of the decisions until something else is over, and what that gave."""
        task = asyncio.ensure_future(over)
        times_s = []
        due_s = time.perf_counter()
        while not task.done():
            due_s = max(due_s + 1.0 / self._rate_per_s, time.perf_counter() - 1.0)
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            times_s.append(self._one())
        return times_s, await task

    def _one(self) -> float:
        self._number += 1
        ended, self._out = self._out, []
        for dispatch in ended:
            done = ev.AttemptEnded(dispatch.attempt_id, Outcome.OK, Usage(500, 50), 50)
            self._handle(done)
        name = f"c{self._number}"
        spec = CallSpec(CallId(name), WorkflowId(name), MODEL, 500, stage="s", final=True)
        began_s = time.perf_counter()
        self._handle(ev.CallArrived(spec))
        return time.perf_counter() - began_s

    def _handle(self, event: ev.Event) -> None:
        now_s = time.perf_counter() - self._began_s
        commands = self._coordinator.handle(now_s, event)
        self._out.extend(command for command in commands if isinstance(command, Dispatch))


def shown(times_s: list[float]) -> dict[str, float]:
    """In milliseconds."""
    ordered = sorted(times_s)
    at = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {
        "decisions": len(ordered),
        **{k: 1e3 * ordered[min(len(ordered) - 1, int(q * len(ordered)))] for k, q in at.items()},
    }


def window(queries: int, rate_per_s: float) -> list[TraceWorkflow]:
    """What the tuner has seen."""
    made = make_trace(
        WORKLOADS[WORKLOAD], Poisson(), rate_per_s=rate_per_s, seed=SEED, count=queries
    )
    return [replace(one, model=MODEL, slo_s=60.0) for one in made]


async def measure(arguments: argparse.Namespace) -> dict[str, object]:
    """Alternate between no tune and one, so that both meet the same neighbours."""
    services = PolicyServices(random=random.Random(0))
    costs = catalog.cost_models().build(catalog.DEFAULT_COST_MODEL, {}, services)
    made = coordinator(costs, services)
    subject = Subject(made, costs, lambda event: made.handle(made.now_s, event))
    tuner = LiveTuner(TuningSettings(timeout_s=600), subject, replay, time.monotonic)
    trace = window(arguments.queries, arguments.rate)
    for workflow in trace:
        tuner.workflow_ended(Assembled(workflow, 10.0))
    arrivals = Arrivals(made, arguments.arrivals)
    quiet: list[float] = []
    tuning: list[float] = []
    seconds = []
    await tuner.run_now()  # starts the process
    for _ in range(arguments.tunes):
        times_s, _ = await arrivals.run_until(asyncio.sleep(5.0))
        quiet.extend(times_s)
        times_s, entry = await arrivals.run_until(tuner.run_now())
        tuning.extend(times_s)
        if not isinstance(entry, dict) or entry["outcome"] == "failed":
            raise SystemExit(f"the tune failed: {entry}")
        seconds.append(entry["seconds"])
    await tuner.stop()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        **provenance(),
        "configuration": {
            **{key: value for key, value in vars(arguments).items() if key != "json"},
            "workload": WORKLOAD,
            "seed": SEED,
            "gpus": GPUS,
            "seats": SEATS,
        },
        "calls": sum(len(workflow.calls) for workflow in trace),
        "alphas": len(entry["curve"]),
        "tune_wall_s": seconds,
        "tune_cpu_s": (used.ru_utime + used.ru_stime) / (arguments.tunes + 1),
        "decision_ms_without": shown(quiet),
        "decision_ms_while_tuning": shown(tuning),
        "load": os.getloadavg()[0],
    }


def main() -> None:
    """Run it, print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queries", type=int, default=100, help="in the window")
    parser.add_argument("--rate", type=float, default=1.0, help="queries per second")
    parser.add_argument("--arrivals", type=float, default=200.0, help="calls per second meanwhile")
    parser.add_argument("--tunes", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = asyncio.run(measure(arguments))
    text = json.dumps(found, indent=2)
    print(text)
    if arguments.json is not None:
        arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
