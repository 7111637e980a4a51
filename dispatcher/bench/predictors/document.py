"""What `headway bench predictors` writes: figures, what text adds, what was promised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from dispatcher.bench.predictors.contest import (
    BY_BOTH,
    BY_MODEL,
    FOREST,
    NO_TEXT,
    Contest,
    Said,
)
from dispatcher.bench.predictors.corpus import Corpus
from dispatcher.bench.predictors.figures import JUDGED, Figures, Results
from dispatcher.bench.predictors.timing import Times
from dispatcher.bench.provenance import provenance

JUDGED_ANSWERS, JUDGED_GROUPS = 100, 5
"""An application with fewer answers or groups is shown, but its coverage says nothing."""

OVERALL_POINTS, APPLICATION_POINTS = 3.0, 6.0
BELOW_BY_MODEL = 0.25
LIMITS_S = {
    "alone": 7e-3,
    "amortised_in_16": 1e-3,
    "refinement": 50e-6,
    "graph_match_pair": 5e-6,
}


def document(
    *,
    found_in: Corpus,
    contests: Sequence[Contest],
    by_prompt: Sequence[Said],
    by_application: Sequence[Said],
    timed: Times,
    seconds: float,
) -> Figures:
    """Everything, as plain JSON values."""
    results = Results(found_in.answers, by_prompt)
    unseen = Results(found_in.answers, by_application) if by_application else None
    found = {
        "what": "predictors",
        **provenance(),
        "seed": contests[0].seed,
        "seconds": seconds,
        "corpus": {
            "name": found_in.name,
            "sha256": found_in.digest,
            "answers": len(found_in.answers),
        },
        "configuration": {
            "forest": asdict(contests[0].settings),
            "rolling_window": 128,
            "folds": len(by_prompt),
        },
        "splits": [_split_figures(found_in, said) for said in (*by_prompt, *by_application)],
        "by_prompt": _all_figures(results),
        "by_application": _all_figures(unseen) if unseen else None,
        "text": text_ablation(results),
        "timing": timed,
    }
    found["floors"] = floors(found)
    return found


def text_ablation(results: Results) -> list[Figures]:
    """Pinball loss with text less that without, by application, and what it comes to."""
    rows = []
    for application in (None, *results.applications):
        apart = results.difference(FOREST, NO_TEXT, application)
        clear = abs(apart["relative"]) > 2 * apart["error"]
        verdict = ("helps" if apart["relative"] < 0 else "hurts") if clear else "level"
        rows.append({"application": application or "all", **apart, "text": verdict})
    return rows


def floors(found: Figures) -> list[Figures]:
    """What was promised, what was measured, whether it holds."""
    overall = found["by_prompt"]["all"]
    predictors = overall["predictors"]
    rows = [
        _at_most(
            "groups on two sides of a split", sum(split["overlaps"] for split in found["splits"]), 0
        )
    ]
    for level in JUDGED:
        off = _points_off(predictors[FOREST], level)
        rows.append(_at_most(f"coverage of {level:g}, points off", off, OVERALL_POINTS))
    for application, figures in found["by_prompt"]["applications"].items():
        if figures["judged"]:
            off = max(_points_off(figures["predictors"][FOREST], level) for level in JUDGED)
            what = f"coverage in {application}, most points off"
            rows.append(_at_most(what, off, APPLICATION_POINTS))
    loss = {name: figures["pinball"] for name, figures in predictors.items()}
    share = loss[FOREST] / loss[BY_MODEL]
    rows.append(_at_most(f"pinball loss over that of {BY_MODEL}", share, 1.0 - BELOW_BY_MODEL))
    share = loss[FOREST] / loss[BY_BOTH]
    rows.append(_at_most(f"pinball loss over that of {BY_BOTH}", share, 1.0))
    rows += [
        _at_most(f"seconds, {what.replace('_', ' ')}", found["timing"][what]["median_s"], limit_s)
        for what, limit_s in LIMITS_S.items()
    ]
    return rows


def _at_most(what: str, measured: float, limit: float) -> Figures:
    return {"what": what, "measured": measured, "at_most": limit, "met": measured <= limit}


def _points_off(figures: Figures, level: float) -> float:
    return abs(100.0 * (float(figures["coverage"][f"{level:g}"]) - level))


def _all_figures(results: Results) -> dict[str, Any]:
    applications = {name: results.figures(name) for name in results.applications}
    for name, figures in applications.items():
        enough = figures["answers"] >= JUDGED_ANSWERS and figures["groups"] >= JUDGED_GROUPS
        figures["judged"] = enough
        figures["against"] = {
            other: results.difference(FOREST, other, name)
            for other in results.predictors
            if other != FOREST
        }
    return {"all": results.figures(), "applications": applications}


def _split_figures(found_in: Corpus, said: Said) -> Figures:
    answers = found_in.answers
    counts = {
        part: {"answers": len(at), "groups": len({answers[one].group for one in at})}
        for part, at in zip(("train", "calibration", "test"), said.split.parts, strict=True)
    }
    overlaps = said.split.overlaps(answers)
    return {"name": said.split.name, **counts, "overlaps": overlaps, "train_s": said.train_s}
