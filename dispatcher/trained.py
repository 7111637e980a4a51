"""Length predictors that have to be trained, and so live in a process of their own."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dispatcher.core.types import CallSpec, LengthEstimate


class Forest(Protocol):
    """What training gives; it stays in the process that trained it."""

    def predict(self, rows: Sequence[Sequence[float]]) -> list[LengthEstimate]:
        """One estimate for each row of features."""

    def stats(self) -> dict[str, object]:
        """What it has become; JSON-ready."""

    @property
    def taught(self) -> Container[Hashable]:
        """Groups of the calls that it has learned from; others may judge it."""


class Train(Protocol):
    """Grows a forest."""

    def __call__(
        self, rows: Any, lengths: Any, *, seed: int, groups: Sequence[int] | None = None
    ) -> Forest:
        """The same input and seed give the same forest.

        Args:
            rows: Features, an array with a row for each call.
            lengths: Output tokens per sequence, an array.
            seed: Of all chance.
            groups: One for each row: calls of the same group are no judges of each other.

        Raises:
            ValueError: Nothing can be learned from so little.
        """


class Verdict(Protocol):
    """Whether predictions may be used."""

    @property
    def drifted(self) -> bool:
        """They may not."""

    @property
    def reason(self) -> str:
        """In words."""


class Coverage(Protocol):
    """Watches how often lengths stay within their predicted quantiles, and corrects these."""

    def corrected(self, estimate: LengthEstimate) -> LengthEstimate:
        """What a forest says, moved to where its quantiles have been right of late."""

    def observe(self, estimate: LengthEstimate, tokens: float) -> None:
        """A length has come of which the forest, uncorrected, had said this."""

    def verdict(self) -> Verdict:
        """As things are now."""

    def stats(self) -> dict[str, object]:
        """JSON-ready."""


@dataclass(frozen=True, slots=True)
class TrainedLengths:
    """One way to predict lengths that has to be trained."""

    train: str
    """Where its `Train` is found, `package.module:function`: imported by the worker process only,
    since what trains takes memory and time to import."""
    features: Callable[[CallSpec], Sequence[float]]
    """Of a call as the coordinator knows it: finite, and the same in every process."""
    names: tuple[str, ...]
    """One for each of the features."""
    coverage: Callable[[], Coverage]
    """A new one."""


@dataclass(frozen=True, slots=True)
class TrainedStages:
    """One way to learn which stages of an application tell of which."""

    learn: str
    """Where its `workflows.fitting.LearnNetwork` is found, `package.module:function`: imported
    only where a network is learned."""
