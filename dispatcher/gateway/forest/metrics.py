"""What `/metrics` shows of the forest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dispatcher.gateway.forest.health import State

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


class Fate(StrEnum):
    """What became of a call's request for an estimate; a metric label."""

    USED = "used"
    UNUSED = "unused"
    """It came, and the fallback is believed now."""
    LATE = "late"
    """It took longer than `predictors.late_s`."""
    GONE = "gone"
    """The call had ended."""
    DROPPED = "dropped"
    """Too many waited."""
    FAILED = "failed"
    """The worker was lost, or another forest came meanwhile."""


class Counters:
    """Counts in the registry of the gateway's metrics."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        requests = Counter(
            "headway_length_estimates",
            "Estimates asked of the forest by what became of them",
            ("outcome",),
            registry=registry,
        )
        self._fates = {fate: requests.labels(fate.value) for fate in Fate}
        self.seconds = Histogram(
            "headway_length_estimate_seconds",
            "From a call's arrival to its estimate by the forest",
            buckets=_SECONDS,
            registry=registry,
        )
        trainings = Counter(
            "headway_length_forest_trainings",
            "Trainings of forests by what came of them",
            ("outcome",),
            registry=registry,
        )
        self.trained, self.not_trained = trainings.labels("done"), trainings.labels("failed")
        #: what came of it was worse than the forest that is there
        self.refused = trainings.labels("refused")
        #: the same counts for the admin API
        self.by_fate = dict.fromkeys(Fate, 0)

    def count(self, fate: Fate, calls: int = 1) -> None:
        """So many calls more."""
        self._fates[fate].inc(calls)
        self.by_fate[fate] += calls

    def watch(self, state: Callable[[], State], calls: Callable[[], int]) -> None:
        """Read the gauges of these from now on."""
        self._registry.register(_Gauges(state, calls))


class _Gauges(Collector):
    def __init__(self, state: Callable[[], State], calls: Callable[[], int]) -> None:
        self._state = state
        self._calls = calls

    def describe(self) -> list[Metric]:
        """Nothing yet: names are known when values are."""
        return []

    def collect(self) -> Iterator[Metric]:
        """One sample for each state: 1 where it is that."""
        state = GaugeMetricFamily(
            "headway_length_forest_state",
            "How the length forest does: 1 for its state",
            labels=["state"],
        )
        now = self._state()
        for one in State:
            state.add_metric([one.value], float(one is now))
        yield state
        yield GaugeMetricFamily(
            "headway_length_forest_calls",
            "Ended calls that the length forest may be trained on",
            value=self._calls(),
        )
