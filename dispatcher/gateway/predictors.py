"""All that predicts, built from the settings and wired together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from prometheus_client import CollectorRegistry

from dispatcher import catalog
from dispatcher.config import PredictorSettings
from dispatcher.core.ports import CostModel, Learned, LengthPredictor, Observer
from dispatcher.gateway.forest.live import LiveForest
from dispatcher.gateway.forest.metrics import Counters
from dispatcher.registry import PolicyServices
from dispatcher.trained import TrainedLengths
from predictors.prompt_tokens import PromptTokens


@runtime_checkable
class Explained(Protocol):
    """A predictor that tells how it is doing."""

    def stats(self) -> dict[str, object]:
        """JSON-ready."""


class Predictors:
    """Each by the name under which it is told of and kept."""

    def __init__(
        self,
        settings: PredictorSettings,
        services: PolicyServices,
        *,
        registry: CollectorRegistry,
        clock: Callable[[], float],
        trained: TrainedLengths | None = None,
    ) -> None:
        """Build them.

        Args:
            settings: Which, and how.
            services: What they may draw on.
            registry: Where they count.
            clock: Seconds that never run backwards.
            trained: The forest; none: the catalog's.
        """
        self.prompt_tokens: PromptTokens = catalog.prompt_counters().build(
            catalog.DEFAULT_PROMPT_COUNTER, {}, services
        )
        self.costs: CostModel = catalog.cost_models().build(
            catalog.DEFAULT_COST_MODEL, {}, services
        )
        #: speaks at once, and whenever the forest cannot
        self.fallback: LengthPredictor = catalog.length_predictors().build(
            catalog.DEFAULT_LENGTH_PREDICTOR, {}, services
        )
        self.forest: LiveForest | None = None
        if settings.lengths == "forest":
            method = trained or catalog.trained_lengths().build(
                catalog.DEFAULT_TRAINED_LENGTHS, {}, services
            )
            self.forest = LiveForest(
                settings, method, self.fallback, counters=Counters(registry), clock=clock
            )

    @property
    def lengths(self) -> LengthPredictor:
        """What calls are predicted by as they arrive."""
        return self.fallback if self.forest is None else self.forest

    @property
    def observers(self) -> tuple[Observer, ...]:
        """Those that hear of arrivals."""
        return () if self.forest is None else (self.forest,)

    def told(self) -> dict[str, object]:
        """What each tells of itself; JSON-ready."""
        told = {name: part.stats() for name, part in self._parts() if isinstance(part, Explained)}
        if self.forest is None:
            told["forest"] = {"speaks": "fallback", "state": "off"}
        return {**told}

    def learned(self) -> dict[str, Learned]:
        """Those that are put away and taken up again."""
        return {name: part for name, part in self._parts() if isinstance(part, Learned)}

    def _parts(self) -> list[tuple[str, object]]:
        return [
            ("lengths", self.fallback),
            ("forest", self.forest),
            ("costs", self.costs),
            ("prompt_tokens", self.prompt_tokens),
        ]
