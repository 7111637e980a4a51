"""What policies do for the text-to-SQL agent: the table of docs/benchmarks.md.

    python benchmarks/text2sql.py                            # A B C D D C B A, about 25 minutes
    python benchmarks/text2sql.py --questions 12 --concurrency 8 --policies vllm,hexgen-flow

Starts a gateway with its embedded fleet on a free loopback port, without a store, and runs
`examples/text2sql/agent.py` under each policy, there and back again, so that each has as early a
turn as any other. Each run's JSON (for `text2sql_plot.py`) stays in the folder that is named at
the end. Exit status 1 where a run failed, or some of its workflows did.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from processes import HEADWAY, fetch, free_port, running, wait_for
from prometheus_client.parser import text_string_to_metric_families

POLICIES = ("vllm", "wb-fcfs", "least-backlog", "hexgen-flow")
AGENT = Path(__file__).parents[1] / "examples" / "text2sql" / "agent.py"
SAMPLE_EVERY_S = 0.5
_GAUGES = ("headway_queue_depth", "headway_in_flight", "headway_seats")
_STOP_LIMIT_S = 10.0


@dataclass
class Run:
    """One run of the agent under one policy."""

    policy: str
    samples: list[tuple[float, ...]]
    """Calls waiting, calls in flight and seats, of the whole fleet, twice a second."""
    summary: dict[str, Any] | None
    """The agent's; `None` where it wrote none."""

    @property
    def waiting_share(self) -> float:
        """In what share of the samples calls were waiting."""
        return _mean([float(waiting > 0) for waiting, _, _ in self.samples])

    @property
    def seats_in_use(self) -> float:
        """Calls in flight by seats, over all samples."""
        seats = sum(seats for *_, seats in self.samples)
        return sum(held for _, held, _ in self.samples) / seats if seats else float("nan")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def sample(page: str) -> tuple[float, ...]:
    """Calls waiting, calls in flight and seats, summed over instances."""
    sums = dict.fromkeys(_GAUGES, 0.0)
    for family in text_string_to_metric_families(page):
        if family.name in sums:
            sums[family.name] = sum(one.value for one in family.samples)
    return tuple(sums.values())


def run(base: str, policy: str, number: int, options: argparse.Namespace) -> Run:
    """Switch, run the agent, sample the gateway meanwhile."""
    fetch(f"{base}/admin/policy", {"name": policy, "params": {}})
    out = options.out / f"{number}-{policy}.json"
    command = [sys.executable, str(AGENT), "--base-url", f"{base}/v1", "--json", str(out)]
    command += ["--questions", str(options.questions), "--concurrency", str(options.concurrency)]
    command += ["--seed", str(options.seed)]
    samples: list[tuple[float, ...]] = []
    started_s = time.monotonic()
    with out.with_suffix(".log").open("wb") as log:
        agent = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        while agent.poll() is None and time.monotonic() - started_s < options.limit_s:
            if time.monotonic() - started_s < options.sample_s:
                samples.append(sample(fetch(f"{base}/metrics").decode()))
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.wait(SAMPLE_EVERY_S)
    finally:
        _end(agent)
    summary = json.loads(out.read_text())["summary"] if out.exists() else None
    return Run(policy, samples, summary)


def _end(agent: subprocess.Popen[bytes]) -> None:
    if agent.poll() is None:
        agent.terminate()
        try:
            agent.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            agent.kill()
            agent.wait()


def table(runs: Sequence[Run]) -> str:
    """One row a policy, its runs side by side, as Markdown."""
    lines = [
        "| policy | P50, s | P95, s | mean, s | SLO attainment | scale at 95 % | seats in use"
        " | calls waiting | makespan, s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for policy in dict.fromkeys(one.policy for one in runs):
        own = [one for one in runs if one.policy == policy]
        cells = [
            [f"{one.summary['latency_s'][key]:.1f}" if one.summary else "failed" for one in own]
            for key in ("p50", "p95", "mean")
        ]
        told = [(one, one.summary) for one in own if one.summary]
        cells += [
            [f"{100 * summary['slo_attainment']['1']:.1f} %" for _, summary in told],
            [f"{summary['slo_scale_at_95']:.2f}" for _, summary in told],
            [f"{100 * one.seats_in_use:.0f} %" for one, _ in told],
            [f"{100 * one.waiting_share:.0f} % of samples" for one, _ in told],
            [f"{summary['wall_s']:.0f}" for _, summary in told],
        ]
        lines.append(f"| `{policy}` | " + " | ".join(", ".join(cell) for cell in cells) + " |")
    return "\n".join(lines)


def main() -> int:
    """Start what is needed, run, end it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--policies", default=",".join(POLICIES), help="in order, by commas")
    parser.add_argument("--questions", type=int, default=120)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sample-s", type=float, default=110.0, help="of each run")
    parser.add_argument("--limit-s", type=float, default=900.0, help="longest run")
    parser.add_argument("--out", type=Path, default=None, help="folder for results and logs")
    options = parser.parse_args()
    options.out = options.out or Path(tempfile.mkdtemp(prefix="headway-text2sql-"))
    options.out.mkdir(parents=True, exist_ok=True)
    policies = options.policies.split(",")
    order = [*policies, *reversed(policies)]
    port, log, runs = free_port(), options.out / "gateway.log", []
    command = [HEADWAY, "serve", "--port", str(port)]
    with running(command, log=log, environment={"HEADWAY_STORE__PATH": "null"}):
        base = f"http://127.0.0.1:{port}"
        wait_for(f"{base}/ready", log)
        for number, policy in enumerate(order, 1):
            print(f"run {number} of {len(order)}: {policy}", flush=True)
            runs.append(run(base, policy, number, options))
    print(table(runs))
    print(f"runs and logs: {options.out}")
    return 0 if all(one.summary and not one.summary["failed"] for one in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
