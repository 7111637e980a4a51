"""`headway tune`: which alpha a recorded trace would have been served best with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dispatcher.bench.fleets import Fleet
from dispatcher.bench.provenance import provenance
from dispatcher.bench.report import plain
from dispatcher.core.errors import ConfigurationError
from dispatcher.simulator.replay import replay
from dispatcher.traces import read_trace
from dispatcher.tuning import Choice, ReplayInstance, TuningRules, tune_trace


def tune_file(
    trace: Path, fleet: Fleet, *, policy: str, alpha: float, max_calls: int, seed: int
) -> Choice:
    """Replay the last calls of a recorded trace under each alpha.

    Args:
        trace: Recorded by a gateway, or written by hand; all of it is asked of the fleet's one
            model, whatever it names.
        fleet: What to play it on; its engines' times are taken from their GPUs' figures.
        policy: A policy that has an alpha.
        alpha: The one in use, in [0, 1].
        max_calls: Of the trace's end; at least one workflow is replayed.
        seed: Of the replay.

    Raises:
        HeadwayError: The file cannot be read, or the policy has no alpha.
    """
    if not 0.0 <= alpha <= 1.0:
        raise ConfigurationError(f"alpha: expected 0 to 1, not {alpha}")
    instances = [
        ReplayInstance(engine.spec, engine.spec.profile, fleet.seats)
        for engine in fleet.engines()
        if engine.spec.profile is not None
    ]
    return tune_trace(
        [replace(workflow, model=None) for workflow in read_trace(trace)],
        instances,
        replay,
        policy=policy,
        params={},
        alpha=alpha,
        rules=TuningRules(max_calls=max_calls),
        seed=seed,
    )


def document(choice: Choice, fleet: Fleet, asked: Mapping[str, Any]) -> dict[str, Any]:
    """A tune's outcome as plain JSON values, with what was asked for."""
    return {
        **provenance(),
        "configuration": dict(asked),
        "fleet": fleet.described(),
        "before": choice.before,
        "best": choice.best,
        "gain": choice.gain,
        "adopted": choice.adopted,
        "why": choice.why,
        "curve": [
            {
                "alpha": score.alpha,
                "p95_s": plain(score.p95_s),
                "slo_attainment": score.slo_attainment,
                "p95_slo_ratio": plain(score.p95_slo_ratio),
            }
            for score in choice.curve
        ],
    }


def show(
    choice: Choice, fleet: Fleet, out: Console, file: Path | None, asked: Mapping[str, Any]
) -> None:
    """Print the curve and the verdict; write both, and what was `asked` for, where wanted."""
    table = Table("alpha", "P95, s", "P95 over SLO", "SLO attainment")
    for score in choice.curve:
        attained = "-" if score.slo_attainment is None else f"{score.slo_attainment:.1%}"
        style = "bold" if score.alpha == choice.best else ""
        ratio = "-" if score.p95_slo_ratio is None else f"{score.p95_slo_ratio:.3f}"
        table.add_row(f"{score.alpha:g}", f"{score.p95_s:.2f}", ratio, attained, style=style)
    out.print(table)
    verdict = f"use alpha {choice.best:g}" if choice.adopted else f"stay at alpha {choice.before:g}"
    out.print(f"{verdict}: {choice.why}", highlight=False, soft_wrap=True)
    if file is not None:
        text = json.dumps(document(choice, fleet, asked), indent=2)
        file.write_text(text + "\n", encoding="utf-8")
