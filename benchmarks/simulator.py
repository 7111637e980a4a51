"""How fast the simulator is: simulated calls per second of process time, and peak memory.

Plays CHESS queries on engines of four kinds in turn (8B on 2 x A100, L40, A6000 and so on) at a
load that keeps most seats busy, several times: the same seed must give the same result, byte for
byte.

    python benchmarks/simulator.py
    python benchmarks/simulator.py --instances 1000 --calls 1000000 --repeat 1
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import resource
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dispatcher.bench.provenance import provenance
from dispatcher.simulator import SimulatedEngine, simulate, simulated_engine
from dispatcher.simulator.checks import check_played
from dispatcher.simulator.workloads import WORKLOADS, Poisson, make_trace
from dispatcher.traces import Played

GPUS = ("A100", "A100", "L40", "A6000")
QUERIES_PER_S_AND_INSTANCE = 0.2
CALLS_PER_QUERY = 19.4
SEATS = 8


def fleet_of(instances: int) -> list[SimulatedEngine]:
    """Engines of the four kinds in turn."""
    return [
        simulated_engine(f"engine-{number}", GPUS[number % len(GPUS)], seats=SEATS)
        for number in range(instances)
    ]


def digest(played: Played) -> str:
    """Of everything that was played."""
    return hashlib.sha256(json.dumps(asdict(played)).encode()).hexdigest()


def main() -> None:
    """Simulate, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--instances", type=int, default=4)
    parser.add_argument("--calls", type=int, default=20_000, help="about so many")
    parser.add_argument("--policy", default="hexgen-flow")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    fleet = fleet_of(options.instances)
    trace = make_trace(
        WORKLOADS["chess-1"],
        Poisson(),
        rate_per_s=QUERIES_PER_S_AND_INSTANCE * options.instances,
        seed=options.seed,
        count=max(1, round(options.calls / CALLS_PER_QUERY)),
    )
    calls = sum(len(workflow.calls) for workflow in trace)
    results: list[dict[str, Any]] = []
    digests = set()
    for _ in range(options.repeat):
        gc.collect()
        began_s = time.process_time()
        played = simulate(trace, fleet, policy=options.policy, seed=options.seed).played
        taken_s = time.process_time() - began_s
        offered_s = sum(i.seats for i in played.instances.values()) * played.makespan_s
        results.append(
            {
                "calls": calls,
                "seconds": round(taken_s, 2),
                "calls_per_s": round(calls / taken_s),
                "utilisation": round(
                    sum(i.seat_s for i in played.instances.values()) / offered_s, 3
                ),
                "simulated_s": round(played.makespan_s, 1),
                "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
                "impossible": check_played(trace, played, fleet),
            }
        )
        digests.add(digest(played) if calls <= 100_000 else "not computed")
        print(json.dumps(results[-1]), flush=True)
    print(f"{len(digests)} different result{'s' if len(digests) > 1 else ''}: {sorted(digests)}")
    if options.json is not None:
        settings = {key: value for key, value in vars(options).items() if key != "json"}
        document = {**provenance(), "configuration": settings, "results": results}
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
