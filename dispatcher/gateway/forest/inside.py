"""What runs in the worker process: it trains, keeps the best forest of late, and predicts.

The forest never leaves the process. A training ends with the new one in the place of the old, in
one step, unless the new one is worse; while it runs, the old one predicts. Only here are numpy and
scikit-learn imported.
"""

from __future__ import annotations

import contextlib
import os
import pkgutil
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from dispatcher.core.errors import HeadwayError
from dispatcher.core.types import LengthEstimate
from dispatcher.gateway.forest import trial
from dispatcher.gateway.forest.rows import Rows
from dispatcher.gateway.forest.trial import Judged, Trial
from dispatcher.trained import Forest, Train

if TYPE_CHECKING:
    import numpy as np

_TRAINING_NICE = 19
"""Training stands back behind predicting, which stands back behind the gateway."""

_KEPT = frozenset((0.01, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.99))
"""Quantiles that leave the process: correcting each costs the event loop some microseconds, and
between these the law is as good as straight."""


class TrainJob(NamedTuple):
    """What to train on."""

    train: str
    """Where its `Train` is found."""
    number: int
    """Of the forest, counting up."""
    rows: Rows
    seed: int
    against: int = 0
    """Number of the forest that what comes of it has to stand against; 0: none."""


class Trained(NamedTuple):
    """What came of it."""

    number: int
    rows: int
    seconds: float
    """Without what had to be imported first."""
    stats: dict[str, object]
    """Of the forest; JSON-ready."""
    trial: Trial | None = None
    """Against the one before; `None` where there was none, or too little to judge by."""

    @property
    def taken(self) -> bool:
        """Whether it is the one that predicts now; else the one before still is."""
        return self.trial is None or self.trial.passed


class Batch(NamedTuple):
    """Calls to predict."""

    width: int
    features: bytes


class Predicted(NamedTuple):
    """In the order in which they were asked for."""

    number: int
    """Of the forest that spoke."""
    estimates: list[LengthEstimate]


class NoForestError(HeadwayError):
    """No forest has been trained in this process."""


class _Kept(NamedTuple):
    number: int
    forest: Forest
    judged: Judged | None
    """`None`: it cannot be told what it has learned from."""


_kept: _Kept | None = None


def train(job: TrainJob) -> Trained:
    """Train on all rows, and keep what comes of it, if it is not worse than what is there."""
    global _kept  # noqa: PLW0603 - the one thing that this process is there to keep
    _stand_back()
    grow: Train = pkgutil.resolve_name(job.train)
    features, groups, lengths = _arrays(job.rows)
    began_s = time.perf_counter()
    # with one group, nothing would be left to judge by
    apart = groups if len(set(groups)) > 1 else None
    forest = grow(features, lengths, seed=job.seed, groups=apart)
    seconds = time.perf_counter() - began_s
    judged = None if apart is None else Judged(forest, forest.taught)
    present = None if _kept is None or _kept.number != job.against else _kept.judged
    found = None
    if judged is not None and present is not None:
        found = trial.held(present, judged, features, groups, lengths)
    result = Trained(job.number, len(lengths), seconds, forest.stats(), found)
    if result.taken:
        _kept = _Kept(job.number, forest, judged)
    return result


def predict(batch: Batch) -> Predicted:
    """Raises `NoForestError`."""
    import numpy as np  # noqa: PLC0415 - only here, in the worker process

    kept = _kept
    if kept is None:
        raise NoForestError("no forest has been trained in this process")
    features = np.frombuffer(batch.features, dtype=np.float32).reshape(-1, batch.width)
    said = kept.forest.predict(np.nan_to_num(features).tolist())
    return Predicted(kept.number, [_thinned(estimate) for estimate in said])


def _thinned(estimate: LengthEstimate) -> LengthEstimate:
    kept = tuple(point for point in estimate.quantiles if point[0] in _KEPT)
    return replace(estimate, quantiles=kept) if len(kept) > 1 else estimate


def _stand_back() -> None:
    """On Linux, this thread alone."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _TRAINING_NICE)


def _arrays(
    rows: Rows,
) -> tuple[np.ndarray[Any, Any], list[int], np.ndarray[Any, Any]]:
    """Features, a row each; groups; lengths."""
    import numpy as np  # noqa: PLC0415 - only here, in the worker process

    numbers = np.frombuffer(b"".join(rows.blocks), dtype=np.float32).reshape(-1, rows.width + 2)
    groups = numbers[:, rows.width].astype(np.int64).tolist()
    return np.nan_to_num(numbers[:, : rows.width]), groups, numbers[:, -1].astype(np.float64)
