"""Whether another forest is as good as the one that is there, on calls that taught neither.

Calls held out of a training calibrate what comes of it, so that it is judged by them a little too
kindly: some twenty levels an application are set on hundreds of calls. The one that is there has
the same done to it, later, by calls as they end.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dispatcher.gateway.forest.comparison import LEAST_CALLS, pinball
from dispatcher.trained import Forest

if TYPE_CHECKING:
    import numpy as np

MOST_CALLS = 2_000
"""The latest are enough to tell, and a second's work."""


class Trial(NamedTuple):
    """What came of it."""

    calls: int
    pinball_tokens: float
    """Mean over the calls, of the forest that is on trial."""
    present_pinball_tokens: float
    """Of the one that is there."""

    @property
    def passed(self) -> bool:
        """It is no worse."""
        return self.pinball_tokens <= self.present_pinball_tokens

    def told(self) -> dict[str, object]:
        """JSON-ready."""
        return {**self._asdict(), "passed": self.passed}


class Judged(NamedTuple):
    """A forest, and whose calls it has learned from."""

    forest: Forest
    taught: Container[Hashable]


def held(
    present: Judged,
    successor: Judged,
    features: np.ndarray[Any, Any],
    groups: Sequence[int],
    lengths: np.ndarray[Any, Any],
) -> Trial | None:
    """Let both predict the latest calls that neither has learned from.

    Args:
        present: The forest that is there.
        successor: The one that may take its place.
        features: A row for each call, oldest first.
        groups: One for each row; as in training.
        lengths: What came.

    Returns:
        `None` where there are too few such calls to tell.
    """
    known = (present.taught, successor.taught)
    unseen = [at for at, group in enumerate(groups) if not any(group in those for those in known)]
    latest = unseen[-MOST_CALLS:]
    if len(latest) < LEAST_CALLS:
        return None
    rows, tokens = features[latest].tolist(), lengths[latest].tolist()
    losses = [
        [pinball(said, came) for said, came in zip(forest.predict(rows), tokens, strict=True)]
        for forest in (successor.forest, present.forest)
    ]
    return Trial(len(latest), *(sum(each) / len(latest) for each in losses))
