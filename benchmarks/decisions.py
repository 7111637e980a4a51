"""What a decision costs: every policy of the catalog with 64 engines and 5,000 calls waiting.

Per policy: the time of each kind of event in the coordinator, which is all that stands between a
call's arrival and its place in a queue, and between a free seat and the next call. An arrival's
time has the routing in it, an attempt's end the selection of the next call; routing and selection
are timed by themselves, too. Process time, so that other processes do not count; Python's cycle
collector runs as seldom as it does in a gateway.

    python benchmarks/decisions.py [--engines 64] [--waiting 5000] [--events 2000] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dispatcher import catalog
from dispatcher.bench.provenance import provenance
from dispatcher.collector import GATEWAY_OBJECTS, leave_out_what_is_here, seldom_collecting
from dispatcher.core import events as ev
from dispatcher.core.commands import Dispatch
from dispatcher.core.coordinator import Coordinator, Limits
from dispatcher.core.gpu_profiles import GPUS, LLAMA_8B, kv_capacity_tokens
from dispatcher.core.types import (
    AttemptId,
    CallId,
    CallSpec,
    InstanceId,
    InstanceSpec,
    Outcome,
    Slo,
    Usage,
    WorkflowId,
)
from dispatcher.registry import PolicyServices
from workflows.tracker import Tracker

LIMIT_MS = 1.0
CALLS_PER_WORKFLOW = 10
STAGES = 5
KINDS = ("arrival", "routing", "selection", "attempt end", "token report", "tick")


class Bench:
    """A coordinator under load, and the times of what it does."""

    def __init__(self, policy: str, engines: int, waiting: int, seed: int) -> None:
        services = PolicyServices(random=random.Random(seed))
        self.times_s: dict[str, list[float]] = {kind: [] for kind in KINDS}
        self._random = random.Random(seed)
        self._now_s = 0.0
        self._calls = 0
        self._out: dict[AttemptId, None] = {}
        built = catalog.build_policy(policy, {}, services)
        self._timed_ports(built)
        self._coordinator = Coordinator(
            policy=built,
            tracker=Tracker(),
            lengths=catalog.length_predictors().build(
                catalog.DEFAULT_LENGTH_PREDICTOR, {}, services
            ),
            costs=catalog.cost_models().build(catalog.DEFAULT_COST_MODEL, {}, services),
            limits=Limits(max_calls=2 * waiting + engines * 8),
            observers=catalog.observers(services),
        )
        for number in range(engines):
            self._post(ev.InstanceUp(_engine(number)), None)
        for _ in range(waiting + engines * 8):
            self._now_s += 0.001
            self._arrive()
        for times in self.times_s.values():
            times.clear()

    def _timed_ports(self, policy: Any) -> None:
        """Time what the policy itself does, inside of what the coordinator does."""
        routing, ordering = policy.routing, policy.ordering
        _time_method(routing, "route", self.times_s["routing"])
        queue_of = ordering.queue

        def timed_queue(*args: Any) -> Any:
            queue = queue_of(*args)
            _time_method(queue, "select", self.times_s["selection"])
            return queue

        ordering.queue = timed_queue

    def turn_over(self, events: int) -> None:
        """Calls end, others come, time passes."""
        for _ in range(events):
            self._now_s += 0.01
            attempt = self._random.choice(list(self._out))
            del self._out[attempt]
            self._post(ev.FirstToken(attempt), None)
            self._post(ev.Progress(attempt, 50), "token report")
            usage = Usage(500, self._random.randint(10, 300))
            self._post(ev.AttemptEnded(attempt, Outcome.OK, usage), "attempt end")
            self._arrive()
            self._post(ev.Tick(), "tick")

    def _arrive(self) -> None:
        self._calls += 1
        number = self._calls
        workflow = number // CALLS_PER_WORKFLOW
        spec = CallSpec(
            CallId(f"call-{number}"),
            WorkflowId(f"workflow-{workflow}"),
            model="m",
            prompt_tokens=self._random.randint(100, 2000),
            application=f"application-{workflow % 3}",
            stage=f"stage-{number % STAGES}",
            slo=Slo(end_to_end_s=30.0 * (1 + workflow % 8)),
        )
        self._post(ev.CallArrived(spec), "arrival")

    def _post(self, event: ev.Event, kind: str | None) -> None:
        began_s = time.process_time_ns()
        commands = self._coordinator.handle(self._now_s, event)
        taken_s = (time.process_time_ns() - began_s) * 1e-9
        if kind is not None:
            self.times_s[kind].append(taken_s)
        for command in commands:
            if isinstance(command, Dispatch):
                self._out[command.attempt_id] = None


def _engine(number: int) -> InstanceSpec:
    """One of a mixed fleet, of which all is known that policies weigh."""
    gpu = GPUS[list(GPUS)[number % len(GPUS)]]
    return InstanceSpec(
        InstanceId(f"engine-{number}"),
        frozenset({"m"}),
        gpu=gpu.name,
        seats=8,
        kv_capacity_tokens=kv_capacity_tokens(gpu, LLAMA_8B),
        capability=gpu.capability,
        weight_bytes=LLAMA_8B.weight_bytes,
        kv_bytes_per_token=LLAMA_8B.kv_bytes_per_token,
    )


def _time_method(owner: Any, name: str, times_s: list[float]) -> None:
    method: Callable[..., Any] = getattr(owner, name)

    def timed(*args: Any) -> Any:
        began_s = time.process_time_ns()
        try:
            return method(*args)
        finally:
            times_s.append((time.process_time_ns() - began_s) * 1e-9)

    setattr(owner, name, timed)


def measured(policy: str, engines: int, waiting: int, events: int, seed: int) -> dict[str, Any]:
    """P50 and P99 of each kind, milliseconds; `null` where a policy never does it."""
    bench = Bench(policy, engines, waiting, seed)
    with seldom_collecting(GATEWAY_OBJECTS):
        leave_out_what_is_here()
        bench.turn_over(events)
    found: dict[str, Any] = {"policy": policy}
    for kind, times_s in bench.times_s.items():
        ordered = sorted(times_s)
        found[kind] = (
            {
                "p50_ms": round(1e3 * ordered[len(ordered) // 2], 4),
                "p99_ms": round(1e3 * ordered[int(0.99 * (len(ordered) - 1))], 4),
            }
            if ordered
            else None
        )
    return found


def main() -> None:
    """Measure all policies and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engines", type=int, default=64)
    parser.add_argument("--waiting", type=int, default=5000)
    parser.add_argument("--events", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--policies", default=",".join(catalog.policy_entries()))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"{options.engines} engines, {options.waiting} calls waiting; P50 / P99, ms")
    print(f"{'policy':<16}" + "".join(f"{kind:>17}" for kind in KINDS))
    rows = []
    for policy in options.policies.split(","):
        row = measured(policy, options.engines, options.waiting, options.events, options.seed)
        rows.append(row)
        cells = [
            "-" if row[kind] is None else f"{row[kind]['p50_ms']:.3f} / {row[kind]['p99_ms']:.3f}"
            for kind in KINDS
        ]
        print(f"{policy:<16}" + "".join(f"{cell:>17}" for cell in cells), flush=True)
    late = [
        (row["policy"], kind)
        for row in rows
        for kind in KINDS
        if row[kind] is not None and row[kind]["p99_ms"] >= LIMIT_MS
    ]
    print(f"P99 at {LIMIT_MS:g} ms or more: {late or 'none'}")
    if options.json is not None:
        settings = {key: value for key, value in vars(options).items() if key != "json"}
        document = {**provenance(), "configuration": settings, "results": rows}
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    if late:
        sys.exit(1)


if __name__ == "__main__":
    main()
