"""What application models keep of many finished workflows, and whether they come back.

Plays finished workflows of several applications, eight stages each, through the tracker, fits their
models as a gateway does, writes the snapshot that a restart reads, and reads it back.

    python benchmarks/application_memory.py [--workflows 10000] [--applications 50] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dispatcher.bench.provenance import provenance
from dispatcher.core.types import CallId, CallSpec, InstanceId, Outcome, WorkflowId
from dispatcher.core.workflow_types import CallResult, Remaining
from dispatcher.stage_models import stage_fitter
from workflows.settings import TrackerSettings
from workflows.stage_profiles import StageModelSettings, StageProfiles
from workflows.tracker import Tracker

STAGES = tuple(f"stage-{number}" for number in range(8))
TPOT_S = 0.02
LEARNER = "predictors.bayesian_network:learn_network"
E1 = InstanceId("e1")


def work_s(prompt_tokens: float, output_tokens: float) -> float:
    """A call's time, seconds."""
    return prompt_tokens * 1e-4 + output_tokens * TPOT_S


def play(tracker: Tracker, name: str, application: str, size_s: float, now_s: float) -> float:
    """One workflow, stage after stage, each `size_s` long; gives the moment of its end."""
    for number, stage in enumerate(STAGES):
        call, final = CallId(f"{name}-{number}"), number == len(STAGES) - 1
        spec = CallSpec(
            call, WorkflowId(name), "m", 100, application=application, stage=stage, final=final
        )
        tracker.call_arrived(spec, now_s)
        tracker.call_dispatched(call, E1, 0.0, now_s)
        now_s += size_s
        result = CallResult(Outcome.OK, E1, 100, int(size_s / TPOT_S), tpot_s=TPOT_S)
        tracker.call_ended(call, result, now_s)
    return now_s


def left(tracker: Tracker, application: str, now_s: float) -> Remaining | None:
    """Of a workflow whose first stage runs."""
    spec = CallSpec(
        CallId("new"), WorkflowId("new"), "m", 100, application=application, stage=STAGES[0]
    )
    tracker.call_arrived(spec, now_s)
    tracker.call_dispatched(CallId("new"), E1, 0.0, now_s)
    return tracker.remaining(WorkflowId("new"), work_s, now_s + 1.0)


def measure(workflows: int, applications: int, *, independent: bool) -> dict[str, Any]:
    """Play, keep, restart."""
    chance = random.Random(0)
    fitter = stage_fitter(None if independent else LEARNER)
    settings = TrackerSettings(stage_models=StageModelSettings(fitter=fitter))
    tracker, now_s = Tracker(settings), 0.0
    for number in range(workflows):
        size_s = chance.choice((1.0, 4.0, 16.0)) * chance.uniform(0.9, 1.1)
        now_s = play(tracker, f"w{number}", f"app-{number % applications}", size_s, now_s)
    stats: Mapping[str, Any] = tracker.profiles.stats()
    text = json.dumps(tracker.snapshot(now_s))
    tracemalloc.start()
    models = StageProfiles(settings.stage_models)
    models.load(json.loads(text)["stage_models"])
    memory_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    restored = Tracker(settings)
    restored.restore(json.loads(text), now_s)
    back: Mapping[str, Any] = restored.profiles.stats()
    name = next(iter(stats["applications"]))
    before, after = left(tracker, name, now_s), left(restored, name, now_s)
    modelled = [each for each in stats["applications"].values() if each["samples"]]
    return {
        "workflows": workflows,
        "applications": len(stats["applications"]),
        "modelled": len(modelled),
        "methods": sorted({each["method"] for each in modelled}),
        "row_bytes": stats["row_bytes"],
        "memory_bytes": memory_bytes,
        "snapshot_bytes": len(json.dumps(models.dump())),
        "restored_alike": back["applications"] == stats["applications"] and before == after,
        "answer_known": after is not None and after.known,
    }


def main() -> int:
    """Run it; 0 where all came back."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--workflows", type=int, default=10_000)
    parser.add_argument("--applications", type=int, default=50)
    parser.add_argument("--independent", action="store_true", help="no networks: no pyAgrum")
    parser.add_argument("--json", type=Path, default=None, help="file to write")
    asked = parser.parse_args()
    found = measure(asked.workflows, asked.applications, independent=asked.independent)
    for key, value in found.items():
        sys.stdout.write(f"{key:<22} {value}\n")
    if asked.json is not None:
        asked.json.write_text(json.dumps({**provenance(), **found}, indent=1), encoding="utf-8")
    return 0 if found["restored_alike"] and found["answer_known"] else 1


if __name__ == "__main__":
    sys.exit(main())
