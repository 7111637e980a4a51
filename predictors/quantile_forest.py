"""Output length from a quantile regression forest, calibrated by application.

A forest's trees are grown on the logarithm of the length; the lengths that share a leaf with a
call, over all trees, are a sample of what its length may be, and its quantiles are the prediction
(Meinshausen 2006; Tempo, section 4.1, which asks for an upper bound and refines it as tokens
come). Deviations: Tempo feeds a text vectorizer, here it is a few hashed numbers that leave no
text behind (`text_features`); and where Tempo trusts the forest, here its quantiles are
corrected on calls held out by group, so that a quantile p covers a share p in each application
(conformal prediction over the predicted distribution, `coverage`).

Everything here is pure and slow to import: scikit-learn comes with it. It is for a worker
process, not for an event loop.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestRegressor

from dispatcher.core.types import LengthEstimate
from predictors._length_cells import LEVELS, UNKNOWN, Floats, LengthCells, Whole, encode_apart
from predictors._stacked_trees import StackedTrees
from predictors.coverage import Quantiles, at_levels, conformal_level, mean_of, place_of
from predictors.length_features import CODES, MAX_TOKENS, MIN_TOKENS, WIDTH

PROBABILITIES = (0.01, *(round(0.05 * step, 2) for step in range(1, 20)), 0.99)
"""Quantiles of an estimate."""

SOURCE = "forest"

FEW_GROUPS = 50
"""Of an application with fewer, half calibrate: what few groups have in common says little of
the next one, and an interval must be wide enough for that."""

_APPLICATION = CODES.index("application")
_MOST_CALIBRATED = 20_000
_LEAST_ROWS = 20
_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
_LEAST_EVIDENCE = 20
"""Groups of an application held out that say how far to believe its trees."""
_MOST_TOKENS = 2**31 - 1
_LOW, _HIGH = LEVELS.index(0.05), LEVELS.index(0.95)
"""Where a law reaches a call's limits at these levels, the limits decide."""
_NEARLY = 0.99
"""Lengths that were cut at one limit are not exactly as long once they have been averaged."""


@dataclass(frozen=True, slots=True)
class ForestSettings:
    """How a forest is grown and calibrated."""

    trees: int = 60
    leaf: int = 10
    """Least lengths in a leaf; at least 1."""
    leaf_points: int = 32
    """Quantiles of a leaf's lengths that are kept; bounds memory and time."""
    features_share: float = 0.5
    """Of the features, looked at for each split; in (0, 1]."""
    most_rows: int = 16_000
    """Rows that trees are grown on; of larger applications fewer are drawn."""
    held_out: float = 0.25
    """Share of an application's groups that calibrates; in (0, 1)."""
    trust_cell: float = 20.0
    """A model's or application's lengths are believed half at so many."""
    trust_forest: float = 200.0
    """The trees are believed half at so many lengths of an application, the lengths themselves,
    whatever their calls are like, the other half; unless enough is held out to tell."""
    trust_application: float = 10.0
    """Calibration of an application by itself is believed half at so many held out."""
    unknown_share: float = 0.1
    """Rows that are shown once more as if their application or model had never been seen."""
    jobs: int = 1
    """Threads that grow trees."""


class TrainedForest:
    """A forest with its calibration: pure, picklable, swapped whole."""

    def __init__(
        self,
        trees: StackedTrees,
        cells: LengthCells,
        settings: ForestSettings,
        counts: dict[str, int],
        taught: frozenset[Hashable],
    ) -> None:
        self._trees = trees
        self._cells = cells
        self._settings = settings
        #: rows learned from, held out, and groups of each
        self.counts = counts
        #: groups that its trees have learned from
        self.taught: frozenset[Hashable] = taught
        #: levels in place of PROBABILITIES, by application code
        self._levels: dict[float, tuple[float, ...]] = {}
        #: those over all applications held out; nothing is known of one that was not
        self._overall = PROBABILITIES
        #: how far the trees are believed, by application code
        self._shares: dict[float, float] = {}

    def predict(self, rows: Sequence[Sequence[float]]) -> list[LengthEstimate]:
        """Estimates of calls, as rows of `length_features`; within their own limits.

        Args:
            rows: Any number of rows; a batch costs little more than one alone.

        Returns:
            One estimate a row, `PROBABILITIES` each, at least 1 token; source `forest`.

        Raises:
            ValueError: A row has another width.
        """
        if not len(rows):
            return []
        estimates = []
        for row, law in zip(rows, self._laws(_matrix(rows)), strict=True):
            levels = self._levels.get(row[_APPLICATION], PROBABILITIES)
            quantiles = at_levels(law, tuple(zip(PROBABILITIES, levels, strict=True)))
            estimate = LengthEstimate(mean_of(quantiles), quantiles, SOURCE)
            estimates.append(_limited(estimate, row[MIN_TOKENS], row[MAX_TOKENS]))
        return estimates

    def stats(self) -> dict[str, object]:
        """Rows, groups, trees, and levels in place of some quantiles; JSON-ready."""
        return {
            **self.counts,
            "trees": self._settings.trees,
            "applications_calibrated": len(self._levels),
            "levels": {
                f"{p:g}": level
                for p, level in zip(PROBABILITIES, self._overall, strict=True)
                if p in (0.5, 0.9, 0.95)
            },
        }

    def _laws(self, matrix: Floats) -> list[Quantiles]:
        """Before calibration: what the trees say, drawn towards all lengths of the same kind."""
        said, known, prior = self._two_laws(matrix)
        applications = matrix[:, _APPLICATION].tolist()
        shares = [self._shares.get(a, p) for a, p in zip(applications, prior, strict=True)]
        found = np.exp(_between(said, known, np.array(shares)))
        return [tuple(zip(LEVELS, values, strict=True)) for values in found.tolist()]

    def _two_laws(self, matrix: Floats) -> tuple[Floats, Floats, list[float]]:
        """Log lengths by the trees, by cells, and how far the former count without evidence."""
        known = self._cells.encode(_codes(matrix))
        said = self._trees.quantiles(_inputs(known.numbers, matrix), np.array(LEVELS))
        prior = known.counts / (known.counts + self._settings.trust_forest)
        return said, known.laws, prior.tolist()

    def _calibrate(self, matrix: Floats, lengths: Floats, groups: Whole) -> None:
        """Find the levels that cover what they should, for all calls and for each application."""
        self._weigh(matrix, np.log(lengths), groups)
        laws = self._laws(matrix)
        places = np.array([place_of(*pair) for pair in zip(laws, lengths.tolist(), strict=True)])
        free = _ended_by_themselves(matrix, laws)
        judges = _judges(np.ones(len(places), dtype=np.bool_), free)
        self._overall = _levels_of(places[judges], groups[judges])
        for application in np.unique(matrix[:, _APPLICATION]):
            its = _judges(matrix[:, _APPLICATION] == application, free)
            share = its.sum() / (its.sum() + self._settings.trust_application)
            own = _levels_of(places[its], groups[its])
            self._levels[float(application)] = tuple(
                float(share * level + (1.0 - share) * other)
                for level, other in zip(own, self._overall, strict=True)
            )

    def _weigh(self, matrix: Floats, logs: Floats, groups: Whole) -> None:
        """Believe the trees as far as they are of use: the least loss over all quantiles."""
        said, known, _ = self._two_laws(matrix)
        applications = matrix[:, _APPLICATION]
        for application in np.unique(applications):
            its = applications == application
            if len(np.unique(groups[its])) >= _LEAST_EVIDENCE:
                losses = [
                    _loss(_between(said[its], known[its], np.full(its.sum(), share)), logs[its])
                    for share in _SHARES
                ]
                self._shares[float(application)] = _SHARES[int(np.argmin(losses))]


def train(
    rows: Sequence[Sequence[float]],
    lengths: Sequence[float],
    settings: ForestSettings | None = None,
    *,
    seed: int,
    groups: Sequence[Hashable] | None = None,
    held_out: Sequence[bool] | None = None,
) -> TrainedForest:
    """Grow a forest on calls that ended well, and calibrate it on some of them held out.

    Args:
        rows: Rows of `length_features`, at least 20 and of two groups.
        lengths: Output tokens per sequence, at least 1 each.
        settings: How.
        seed: The same seed and input give the same forest.
        groups: What may not stand on both sides of a split: the workflow, or the prompt, of each
            row. Default: every row by itself.
        held_out: Which rows calibrate, where the caller splits; else a share of the groups does.

    Raises:
        ValueError: Too few rows or groups, rows of another width, or lengths below 1.
    """
    settings = settings or ForestSettings()
    matrix, tokens = _matrix(rows), np.asarray(lengths, dtype=np.float64)
    if len(matrix) != len(tokens) or len(matrix) < _LEAST_ROWS:
        raise ValueError(f"expected at least {_LEAST_ROWS} rows, and a length for each")
    if not (np.isfinite(tokens).all() and (tokens >= 1).all()):
        raise ValueError("expected lengths of at least 1 token")
    rng = random.Random(seed)  # noqa: S311 - splits, not secrets
    numbers = _group_numbers(groups, len(matrix), rng)
    if held_out is None:
        apart = _hold_out(matrix, numbers, settings.held_out)
    else:
        apart = np.asarray(held_out, dtype=np.bool_)
        if set(numbers[apart].tolist()) & set(numbers[~apart].tolist()):
            raise ValueError("a group stands on both sides of the split")
    if apart.all() or not apart.any():
        raise ValueError("expected rows to learn from and rows to calibrate with")

    trees, cells = _grow(matrix[~apart], np.log(tokens[~apart]), numbers[~apart], settings, rng)
    counts = {
        "rows": int((~apart).sum()),
        "groups": len(set(numbers[~apart].tolist())),
        "rows_held_out": int(apart.sum()),
        "groups_held_out": len(set(numbers[apart].tolist())),
    }
    names = range(len(matrix)) if groups is None else groups
    taught = frozenset(name for name, out in zip(names, apart.tolist(), strict=True) if not out)
    trained = TrainedForest(trees, cells, settings, counts, taught)
    some = np.flatnonzero(apart)[_spread(matrix[apart], _MOST_CALIBRATED, rng)]
    trained._calibrate(matrix[some], tokens[some], numbers[some])
    return trained


def _grow(
    matrix: Floats, logs: Floats, groups: Whole, settings: ForestSettings, rng: random.Random
) -> tuple[StackedTrees, LengthCells]:
    wanted = _spread(matrix, settings.most_rows, rng)
    codes = _codes(matrix)
    cells, encoded = encode_apart(codes, logs, groups, wanted, settings.trust_cell)
    # Names never seen do come: some rows are shown again with what is then known of them.
    again = np.array(rng.sample(range(len(wanted)), int(settings.unknown_share * len(wanted))))
    again = again.astype(np.int64)
    masked = codes[wanted[again]]
    masked[::2, 1:] = UNKNOWN
    masked[1::2, 0] = UNKNOWN
    inputs = np.concatenate(
        (
            _inputs(encoded, matrix[wanted]),
            _inputs(cells.encode(masked).numbers, matrix[wanted[again]]),
        )
    )
    targets = np.concatenate((logs[wanted], logs[wanted[again]]))
    forest = RandomForestRegressor(
        n_estimators=settings.trees,
        min_samples_leaf=settings.leaf,
        max_features=settings.features_share,
        n_jobs=settings.jobs,
        random_state=rng.getrandbits(31),
    )
    forest.fit(inputs, targets)
    return StackedTrees(forest, inputs, targets, settings.leaf_points), cells


def _levels_of(places: Floats, groups: Whole) -> tuple[float, ...]:
    """Levels that cover PROBABILITIES of the next group's places.

    With few groups the rank that is safe is beyond all places, and of no use as a bound: groups
    move a level at most half way to 1, unless single places already do.
    """
    independent = _independent(places, groups)
    ordered = np.sort(places).tolist()
    return tuple(
        min(
            conformal_level(ordered, p, independent),
            max(conformal_level(ordered, p), (1.0 + p) / 2.0),
        )
        for p in PROBABILITIES
    )


def _independent(places: Floats, groups: Whole) -> float:
    """How many independent places say as much, from how alike those of a group are.

    The effective sample size under the intraclass correlation (Kish 1965), found by analysis of
    variance: ten calls of one session say little more of the next session than one.
    """
    _, at, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    count, several = len(places), len(sizes)
    if several in (1, count):
        return float(several)
    means = np.bincount(at, places) / sizes
    within = float(((places - means[at]) ** 2).sum()) / (count - several)
    between = float((sizes * (means - places.mean()) ** 2).sum()) / (several - 1)
    usual = (count - float((sizes**2).sum()) / count) / (several - 1)
    spread = between + (usual - 1.0) * within
    alike = min(1.0, max(0.0, (between - within) / spread)) if spread > 0 else 1.0
    return max(1.0, count / (1.0 + (float((sizes**2).sum()) / count - 1.0) * alike))


def _ended_by_themselves(matrix: Floats, laws: Sequence[Quantiles]) -> NDArray[np.bool_]:
    """Which rows were not likely to end at their own limits, as far as could be told before.

    An answer that was cut is no longer than any quantile that is cut there too: levels that are
    right with these counted in are too low for calls without limits.
    """
    high = np.array([law[_HIGH][1] for law in laws])
    most, least = matrix[:, MAX_TOKENS], matrix[:, MIN_TOKENS]
    low = np.array([law[_LOW][1] for law in laws])
    cut = (most >= 1) & (high >= _NEARLY * most)
    kept_going = (least > 1) & (low * _NEARLY <= least)
    return ~(cut | kept_going)


def _judges(its: NDArray[np.bool_], free: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Of some rows those that ended by themselves, where these are enough to calibrate with."""
    both = its & free
    return both if both.sum() >= _LEAST_ROWS else its


def _between(said: Floats, known: Floats, shares: Floats) -> Floats:
    """Quantiles averaged (Vincentization), which keeps the form of the two laws."""
    return known + shares[:, None] * (said - known)


def _loss(quantiles: Floats, logs: Floats) -> float:
    """Pinball loss of log lengths, mean over LEVELS."""
    above = logs[:, None] - quantiles
    levels = np.array(LEVELS)
    return float(np.maximum(levels * above, (levels - 1.0) * above).mean())


def _inputs(encoded: Floats, matrix: Floats) -> Floats:
    """What trees see: encoded names, then all numbers that are no names."""
    return np.concatenate((encoded, matrix[:, len(CODES) :]), axis=1)


def _codes(matrix: Floats) -> Whole:
    return matrix[:, : len(CODES)].astype(np.int64)


def _matrix(rows: Sequence[Sequence[float]]) -> Floats:
    matrix = np.asarray(rows, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[1] != WIDTH:
        raise ValueError(f"expected rows of {WIDTH} numbers")
    return matrix


def _group_numbers(groups: Sequence[Hashable] | None, count: int, rng: random.Random) -> Whole:
    """A number for each row's group, in an order drawn at random."""
    if groups is None:
        groups = range(count)
    if len(groups) != count:
        raise ValueError("expected a group for each row")
    names = list(dict.fromkeys(groups))
    rng.shuffle(names)
    at = {name: number for number, name in enumerate(names)}
    return np.array([at[group] for group in groups], dtype=np.int64)


def _hold_out(matrix: Floats, groups: Whole, share: float) -> NDArray[np.bool_]:
    """Which rows calibrate: of each application a share of its groups, of few groups half."""
    members: dict[float, list[int]] = {}
    # groups are numbered at random, so the first ones are as good as any
    numbers, first = np.unique(groups, return_index=True)
    for group, at in zip(numbers.tolist(), first.tolist(), strict=True):
        members.setdefault(float(matrix[at, _APPLICATION]), []).append(group)
    held: list[int] = []
    for of_one in members.values():
        held += of_one[: round((0.5 if len(of_one) < FEW_GROUPS else share) * len(of_one))]
    return np.isin(groups, held)


def _spread(matrix: Floats, most: int, rng: random.Random) -> Whole:
    """Indices of at most so many rows: all of small applications, equally many of large ones."""
    if len(matrix) <= most:
        return np.arange(len(matrix))
    applications: dict[float, list[int]] = {}
    for at, application in enumerate(matrix[:, _APPLICATION].tolist()):
        applications.setdefault(application, []).append(at)
    chosen: list[int] = []
    left = most
    for number, rows in enumerate(sorted(applications.values(), key=len)):
        fair = left // (len(applications) - number)
        taken = rows if len(rows) <= fair else rng.sample(rows, fair)
        chosen += taken
        left -= len(taken)
    return np.array(sorted(chosen), dtype=np.int64)


def _limited(estimate: LengthEstimate, least: float, most: float) -> LengthEstimate:
    """Moved into the call's own limits; 0 is no limit."""
    if least > 1:
        quantiles = tuple((p, max(tokens, least)) for p, tokens in estimate.quantiles)
        estimate = LengthEstimate(max(estimate.expected_tokens, least), quantiles, SOURCE)
    return estimate.capped(most if most >= 1 else float(_MOST_TOKENS))
