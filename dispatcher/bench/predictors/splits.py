"""Who learns, who calibrates, who is tested: never the same group on two sides."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from dispatcher.bench.predictors.corpus import Answer
from dispatcher.core.errors import ConfigurationError
from predictors.quantile_forest import FEW_GROUPS

FOLDS = 5
_TRAIN, _CALIBRATION, _TEST = range(3)


@dataclass(frozen=True, slots=True)
class Split:
    """Indices of answers; groups are apart."""

    name: str
    train: tuple[int, ...]
    calibration: tuple[int, ...]
    test: tuple[int, ...]

    def overlaps(self, answers: Sequence[Answer]) -> int:
        """Groups that stand in more than one part; 0 where the split is sound."""
        parts = [{answers[at].group for at in part} for part in self.parts]
        return sum(map(len, parts)) - len(set(chain(*parts)))

    @property
    def parts(self) -> tuple[tuple[int, ...], ...]:
        """Train, calibration, test."""
        return self.train, self.calibration, self.test


def by_group(answers: Sequence[Answer], seed: int) -> list[Split]:
    """Five splits in rotation: three fifths train, one calibrates, one is tested.

    Each application's groups are dealt to the fifths at random, so that each answer is tested
    once; a split alone would test some applications on a few groups. Of applications with few
    groups two fifths calibrate and two train.

    Raises:
        ConfigurationError: Fewer groups than fifths.
    """
    at_of: dict[str, list[int]] = {}
    of_application: dict[str, dict[str, None]] = {}
    for at, answer in enumerate(answers):
        if answer.group not in at_of:
            at_of[answer.group] = []
            of_application.setdefault(answer.spec.application, {})[answer.group] = None
        at_of[answer.group].append(at)
    if len(at_of) < FOLDS:
        raise ConfigurationError(f"a corpus of {len(at_of)} groups; at least {FOLDS} are needed")
    rng = random.Random(seed)  # noqa: S311 - splits, not secrets
    parts: list[list[list[int]]] = [[[], [], []] for _ in range(FOLDS)]
    dealt = 0
    for application in sorted(of_application):
        groups = sorted(of_application[application])
        rng.shuffle(groups)
        calibrating = 2 if len(groups) < FEW_GROUPS else 1
        for group in groups:
            for fold in range(FOLDS):
                place = (dealt - fold) % FOLDS
                part = _TEST if place == 0 else _CALIBRATION if place <= calibrating else _TRAIN
                parts[fold][part] += at_of[group]
            dealt += 1
    return [
        Split(f"fold {fold + 1}", *(tuple(sorted(part)) for part in of_fold))
        for fold, of_fold in enumerate(parts)
    ]


def by_application(answers: Sequence[Answer], seed: int, least: int) -> list[Split]:
    """One split for each application with enough answers: tested alone, never seen before.

    Of the others' groups a quarter calibrates.
    """
    counts: dict[str, int] = {}
    for answer in answers:
        counts[answer.spec.application] = counts.get(answer.spec.application, 0) + 1
    if len(counts) < 2:
        return []
    splits = []
    for application in sorted(name for name, count in counts.items() if count >= least):
        test = tuple(
            at for at, answer in enumerate(answers) if answer.spec.application == application
        )
        tested = {answers[at].group for at in test}
        others = [at for at, answer in enumerate(answers) if answer.group not in tested]
        groups = sorted({answers[at].group for at in others})
        random.Random(seed).shuffle(groups)  # noqa: S311 - as above
        calibrating = set(groups[: len(groups) // 4])
        train = tuple(at for at in others if answers[at].group not in calibrating)
        calibration = tuple(at for at in others if answers[at].group in calibrating)
        if train and calibration:
            splits.append(Split(f"without {application}", train, calibration, test))
    return splits
