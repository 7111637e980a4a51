"""How good quantiles were: pinball loss, coverage, width; over all answers and by application."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dispatcher.bench.predictors.contest import LEVELS, Floats, Said
from dispatcher.bench.predictors.corpus import Answer

JUDGED = (0.5, 0.9, 0.95)
"""Quantiles whose coverage and pinball loss count."""

_AT = [LEVELS.index(p) for p in JUDGED]
_WIDE = (LEVELS.index(0.1), LEVELS.index(0.9))

Figures = dict[str, Any]


class Results:
    """What came and what was said of it, by predictor, over all splits together."""

    def __init__(self, answers: Sequence[Answer], found: Sequence[Said]) -> None:
        tested = [at for said in found for at in said.split.test]
        self.tokens = np.array([answers[at].tokens for at in tested], dtype=np.float64)
        self._applications = np.array([answers[at].spec.application for at in tested])
        groups = sorted({answers[at].group for at in tested})
        number = {group: place for place, group in enumerate(groups)}
        self._groups = np.array([number[answers[at].group] for at in tested])
        self.predictors = tuple(found[0].quantiles)
        self._said = {
            name: np.concatenate([said.quantiles[name] for said in found])
            for name in self.predictors
        }
        self._losses = {name: self._pinball(name) for name in self.predictors}

    @property
    def applications(self) -> list[str]:
        """Names, sorted."""
        return sorted(set(self._applications.tolist()))

    def figures(self, application: str | None = None) -> Figures:
        """Counts, and each predictor's figures; `None`: over all answers."""
        chosen = self._chosen(application)
        return {
            "answers": int(chosen.sum()),
            "groups": len(np.unique(self._groups[chosen])),
            "mean_tokens": float(self.tokens[chosen].mean()),
            "predictors": {name: self._figures(name, chosen) for name in self.predictors},
        }

    def difference(self, one: str, other: str, application: str | None = None) -> Figures:
        """Pinball loss of `one` less that of `other`, relative to the latter.

        `error` is the standard error of that, groups being what is drawn: within two of them
        the two are level.
        """
        chosen = self._chosen(application)
        apart = (self._losses[one] - self._losses[other]).mean(axis=1)[chosen]
        mean = float(apart.mean())
        # a mean over answers of sums over groups: the delta method for a ratio
        sums = np.bincount(self._groups[chosen], apart - mean, self._groups.max() + 1)
        error = float(np.sqrt((sums**2).sum())) / len(apart)
        base = float(self._losses[other][chosen].mean())
        return {"relative": mean / base, "error": error / base}

    def _chosen(self, application: str | None) -> Any:
        if application is None:
            return np.ones(len(self.tokens), dtype=np.bool_)
        return self._applications == application

    def _pinball(self, name: str) -> Floats:
        """(answers, JUDGED), tokens."""
        above = self.tokens[:, None] - self._said[name][:, _AT]
        share = np.array(JUDGED)
        losses: Floats = np.maximum(share * above, (share - 1.0) * above)
        return losses

    def _figures(self, name: str, chosen: Any) -> Figures:
        said, losses = self._said[name][chosen], self._losses[name][chosen]
        covered = self.tokens[chosen][:, None] <= said[:, _AT]
        low, high = _WIDE
        return {
            "pinball": float(losses.mean()),
            "pinball_by_quantile": _by_quantile(losses.mean(axis=0)),
            "coverage": _by_quantile(covered.mean(axis=0)),
            "width_tokens": float((said[:, high] - said[:, low]).mean()),
            "upper_tokens": float(said[:, LEVELS.index(0.95)].mean()),
        }


def _by_quantile(values: Floats) -> dict[str, float]:
    return {f"{p:g}": float(value) for p, value in zip(JUDGED, values, strict=True)}
