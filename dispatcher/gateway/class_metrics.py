"""Metrics by request class: who was promised what, and who got it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

from dispatcher.core.types import CallClass
from dispatcher.core.workflow_types import CallRecord, WorkflowRecord
from dispatcher.gateway.attainment import Attainment, Verdict, ttft_s

_LABEL = ("class",)
_LAG_S = (0, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_FIRST_S = (0.05, 0.1, 0.25, 0.5, 1, 2, 3, 5, 10, 30, 60)
_WHOLE_S = (0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600, 1800)


class _OfClass:
    """The children of one class; looked up once, since every call counts in several."""

    __slots__ = ("duration", "first_token", "gain", "good_tokens", "lag", "met", "missed")

    def __init__(self, metrics: ClassMetrics, name: str) -> None:
        self.met = metrics.slo.labels(name, "met")
        self.missed = metrics.slo.labels(name, "missed")
        self.gain = metrics.gain.labels(name)
        self.good_tokens = metrics.good_tokens.labels(name)
        self.lag = metrics.lag.labels(name)
        self.first_token = metrics.first_token.labels(name)
        self.duration = metrics.duration.labels(name)


class ClassMetrics:
    """Families with the label `class`; all four classes are shown from the start, at 0."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.slo = Counter(
            "headway_slo",
            "Calls by whether they kept the SLO of their class; workflows, where it is collective",
            ("class", "outcome"),
            registry=registry,
        )
        self.gain = Counter(
            "headway_service_gain",
            "Service gain: tokens, output twice as heavy as prompt, less the later they came",
            _LABEL,
            registry=registry,
        )
        self.good_tokens = Counter(
            "headway_goodput_tokens",
            "Output tokens of what kept its SLO, or had none to keep",
            _LABEL,
            registry=registry,
        )
        self.lag = Histogram(
            "headway_token_lag_seconds",
            "Worst delay of a stream's tokens against its timeline; 0: none came late",
            _LABEL,
            buckets=_LAG_S,
            registry=registry,
        )
        self.first_token = Histogram(
            "headway_class_time_to_first_token_seconds",
            "From arrival to the first token of a stream",
            _LABEL,
            buckets=_FIRST_S,
            registry=registry,
        )
        self.duration = Histogram(
            "headway_class_request_duration_seconds",
            "From arrival to the end of the answer",
            _LABEL,
            buckets=_WHOLE_S,
            registry=registry,
        )
        self._classes = {each: _OfClass(self, each.value) for each in CallClass}
        self._attainment = Attainment()

    def call_ended(self, record: CallRecord) -> None:
        """One call is over."""
        of_class = self._classes[record.call_class]
        of_class.duration.observe(record.ended_s - record.arrived_s)
        first_s = ttft_s(record)
        if record.streaming and first_s is not None:
            of_class.first_token.observe(first_s)
        if record.token_lag_s is not None:
            of_class.lag.observe(max(0.0, record.token_lag_s))
        self._count(self._attainment.call_ended(record))

    def workflow_ended(self, record: WorkflowRecord) -> None:
        """One workflow is over."""
        self._count(self._attainment.workflow_ended(record))

    def _count(self, verdict: Verdict | None) -> None:
        if verdict is None:
            return
        of_class = self._classes[verdict.call_class]
        if verdict.met is not None:
            (of_class.met if verdict.met else of_class.missed).inc()
        of_class.gain.inc(verdict.gain)
        of_class.good_tokens.inc(verdict.good_tokens)
