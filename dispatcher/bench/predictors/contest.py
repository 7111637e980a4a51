"""Predictors side by side on one split: what each says of every answer that is tested."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatcher.bench.predictors.corpus import Answer, corpus
from dispatcher.bench.predictors.splits import Split
from dispatcher.core.types import CallId, CallSpec, WorkflowId
from predictors.length_features import Row, without_text
from predictors.quantile_forest import ForestSettings, train
from predictors.rolling_quantiles import RollingQuantiles, RollingQuantilesSettings

LEVELS = (0.1, 0.5, 0.9, 0.95)
"""Quantiles that are asked for: the first and third make the interval whose width is told."""

FOREST = "forest"
NO_TEXT = "forest without text"
BY_MODEL = "rolling by model"
BY_BOTH = "rolling by model and application"
ALL_BY_BOTH = "all lengths by model and application"
GLOBAL = "global"

PREDICTORS = (FOREST, NO_TEXT, BY_BOTH, ALL_BY_BOTH, BY_MODEL, GLOBAL)

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Contest:
    """One split to run: plain values, so that it can go to a worker process."""

    file: Path | None
    split: Split
    seed: int
    settings: ForestSettings
    predictors: tuple[str, ...] = PREDICTORS


@dataclass(frozen=True, slots=True)
class Said:
    """What predictors said of the answers tested, in the split's order."""

    split: Split
    quantiles: dict[str, Floats]
    """By predictor; (answers tested, LEVELS), tokens."""
    train_s: float
    """Growing and calibrating one forest, mean."""


def said(contest: Contest) -> Said:
    """Train all, ask all. Every predictor learns from the same answers.

    Those that need no calibration learn from the calibration part too.
    """
    answers = corpus(contest.file).answers
    split = contest.split
    quantiles: dict[str, Floats] = {}
    taken: list[float] = []
    for name in contest.predictors:
        if name in (FOREST, NO_TEXT):
            row_of = _plain_row if name == FOREST else _row_without_text
            quantiles[name], train_s = _by_forest(answers, split, contest, row_of)
            taken.append(train_s)
        else:
            quantiles[name] = _by_rolling(answers, split, contest.seed, name)
    return Said(split, quantiles, sum(taken) / len(taken) if taken else 0.0)


def _by_forest(
    answers: Sequence[Answer], split: Split, contest: Contest, row_of: Callable[[Answer], Row]
) -> tuple[Floats, float]:
    learned = [*split.train, *split.calibration]
    began_s = time.monotonic()
    forest = train(
        [row_of(answers[at]) for at in learned],
        [answers[at].tokens for at in learned],
        contest.settings,
        seed=contest.seed,
        groups=[answers[at].group for at in learned],
        held_out=[False] * len(split.train) + [True] * len(split.calibration),
    )
    train_s = time.monotonic() - began_s
    estimates = forest.predict([row_of(answers[at]) for at in split.test])
    found = [[estimate.quantile_tokens(p) for p in LEVELS] for estimate in estimates]
    return np.array(found), train_s


def _by_rolling(answers: Sequence[Answer], split: Split, seed: int, name: str) -> Floats:
    """Rolling quantiles as they run live; a global one and those of all lengths keep everything."""
    everything = name in (GLOBAL, ALL_BY_BOTH)
    settings = RollingQuantilesSettings(window=len(answers) if everything else 128)
    rolling = RollingQuantiles(settings)
    specs: dict[tuple[str, str], CallSpec] = {}

    def asked(at: int) -> CallSpec:
        model, application = answers[at].spec.model, answers[at].spec.application
        key = (model if _BY[name].model else "", application if _BY[name].application else "")
        if key not in specs:
            specs[key] = CallSpec(CallId("c"), WorkflowId("w"), key[0], 0, application=key[1])
        return specs[key]

    learned = [*split.train, *split.calibration]
    # a window keeps the latest: in the order of the file they would be of one application
    random.Random(seed).shuffle(learned)  # noqa: S311 - an order, not a secret
    for at in learned:
        rolling.learn(asked(at), answers[at].tokens)
    estimates = [rolling.predict(asked(at)) for at in split.test]
    return np.array([[estimate.quantile_tokens(p) for p in LEVELS] for estimate in estimates])


class _By(NamedTuple):
    """What rolling quantiles tell apart."""

    model: bool
    application: bool


_BY = {
    BY_MODEL: _By(model=True, application=False),
    BY_BOTH: _By(model=True, application=True),
    ALL_BY_BOTH: _By(model=True, application=True),
    GLOBAL: _By(model=False, application=False),
}


def _plain_row(answer: Answer) -> Row:
    return answer.row


def _row_without_text(answer: Answer) -> Row:
    return without_text(answer.row)
