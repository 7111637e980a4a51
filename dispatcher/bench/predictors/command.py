"""`headway bench predictors`: judge, show, write."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import orjson

from dispatcher.bench import shown
from dispatcher.bench.predictors.contest import (
    BY_MODEL,
    FOREST,
    GLOBAL,
    PREDICTORS,
    Contest,
    said,
)
from dispatcher.bench.predictors.corpus import Corpus, corpus
from dispatcher.bench.predictors.document import JUDGED_ANSWERS, document
from dispatcher.bench.predictors.figures import Figures
from dispatcher.bench.predictors.splits import Split, by_application, by_group
from dispatcher.bench.predictors.tables import tables
from dispatcher.bench.predictors.timing import Times, times
from dispatcher.bench.run import in_workers
from dispatcher.core.errors import ConfigurationError
from predictors.quantile_forest import ForestSettings, train

MOST_UNSEEN = 4000
"""Answers of an application left out that are tested."""
_TIMED_ANSWERS = 20_000
"""Most answers that the forest which is timed has learned from."""


def run(*, file: Path | None, seed: int, jobs: int | None, json: Path | None) -> None:
    """Judge the forest beside simpler predictors on a corpus of lengths.

    Raises:
        HeadwayError: The corpus cannot be read or is too small.
        OSError: A file cannot be read or written.
    """
    if json is not None and not json.parent.is_dir():
        raise ConfigurationError(f"--json: {json.parent}: no such directory")
    out = shown.console()
    with shown.steps(out, "forests' splits") as (on_steps, on_step):
        found = judge(file, seed, jobs=jobs, on_steps=on_steps, on_step=on_step)
    for table in tables(found):
        out.print(table)
    out.print(f"{found['seconds']:.1f} s", highlight=False)
    if json is not None:
        json.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2) + b"\n")
        out.print(f"wrote {json}", highlight=False, markup=False, soft_wrap=True)


def judge(
    file: Path | None,
    seed: int,
    settings: ForestSettings | None = None,
    *,
    jobs: int | None = None,
    on_steps: Callable[[int], None] = lambda _steps: None,
    on_step: Callable[[], None] = lambda: None,
) -> Figures:
    """Everything that is measured, as plain JSON values.

    Args:
        file: Corpus; `None`: the one that ships.
        seed: Of splits, forests, and what is timed.
        settings: Of forests.
        jobs: Worker processes; `None`: one a core.
        on_steps: Told how many splits there are.
        on_step: Called after each.
    """
    began_s = time.monotonic()
    settings = settings or ForestSettings()
    found_in = corpus(file)
    folds = [
        Contest(file, split, seed, settings, PREDICTORS)
        for split in by_group(found_in.answers, seed)
    ]
    unseen = [
        Contest(file, _bounded(split, seed), seed, settings, (FOREST, BY_MODEL, GLOBAL))
        for split in by_application(found_in.answers, seed, JUDGED_ANSWERS)
    ]
    on_steps(len(folds) + len(unseen))
    results = in_workers(said, [*folds, *unseen], jobs=jobs, on_result=on_step)
    # only now: nothing of this program runs beside what is timed
    timed = _timed(found_in, folds[0].split, seed, settings)
    return document(
        found_in=found_in,
        contests=folds,
        by_prompt=results[: len(folds)],
        by_application=results[len(folds) :],
        timed=timed,
        seconds=time.monotonic() - began_s,
    )


def _bounded(split: Split, seed: int) -> Split:
    if len(split.test) <= MOST_UNSEEN:
        return split
    rng = random.Random(seed)  # noqa: S311 - a sample, not a secret
    return replace(split, test=tuple(sorted(rng.sample(split.test, MOST_UNSEEN))))


def _timed(found_in: Corpus, split: Split, seed: int, settings: ForestSettings) -> Times:
    rng = random.Random(seed)  # noqa: S311 - as above
    learned = [*split.train, *split.calibration]
    if len(learned) > _TIMED_ANSWERS:
        learned = rng.sample(learned, _TIMED_ANSWERS)
    answers = [found_in.answers[at] for at in learned]
    forest = train(
        [answer.row for answer in answers],
        [answer.tokens for answer in answers],
        settings,
        seed=seed,
        groups=[answer.group for answer in answers],
    )
    return times(forest, [found_in.answers[at] for at in split.test], seed)
