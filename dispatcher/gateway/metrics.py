"""Prometheus metrics: a registry of their own, every label set bounded, gauges read when asked."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dispatcher.config import CENTRAL
from dispatcher.core.coordinator import Coordinator
from dispatcher.core.types import LengthEstimate, Outcome, Usage, WorkflowId
from dispatcher.core.workflow_types import CallRecord, WorkflowRecord
from dispatcher.gateway.cache_metrics import cache_families
from dispatcher.gateway.class_metrics import ClassMetrics
from dispatcher.gateway.fleet.monitor import Fleet

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

MODELS_MAX = 100
WORKFLOWS_MAX = 100
OTHER = "other"
_COVERAGE_WINDOW = 2000
_COVERED_QUANTILES = (0.5, 0.8, 0.9, 0.95)

_LONG_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600, 1800)
_SHORT_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1)
_DECISION_S = (0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1)


class BoundedLabels:
    """Client-supplied label values: the first `most` keep their names, later ones are `other`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def __call__(self, value: str) -> str:
        """The label to use."""
        if value in self._known:
            return value
        if len(self._known) >= self._most:
            return OTHER
        self._known.add(value)
        return value


class Coverage:
    """How often outputs stayed within their predicted quantiles, over the latest calls.

    Example:
        >>> coverage = Coverage()
        >>> estimate = LengthEstimate(10.0, ((0.5, 10.0), (0.9, 20.0)))
        >>> coverage.learn(estimate, 15)
        >>> coverage.shares()[0.5], coverage.shares()[0.9]
        (0.0, 1.0)
    """

    def __init__(self, window: int = _COVERAGE_WINDOW) -> None:
        self._hits = {q: deque[bool](maxlen=window) for q in _COVERED_QUANTILES}

    def learn(self, estimate: LengthEstimate, output_tokens: int) -> None:
        """One call has ended; an estimate without quantiles says nothing."""
        if estimate.quantiles:
            for quantile, hits in self._hits.items():
                hits.append(output_tokens <= estimate.quantile_tokens(quantile))

    def shares(self) -> dict[float, float]:
        """Share of calls at or below each quantile; quantiles without a call are left out."""
        return {q: sum(hits) / len(hits) for q, hits in self._hits.items() if hits}


class Metrics:
    """What is counted; `page` is what `/metrics` answers."""

    def __init__(self) -> None:
        # a creation time beside every counter doubles the page and tells nobody anything
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        registry = self.registry
        self._model = BoundedLabels(MODELS_MAX)
        self._workflow = BoundedLabels(WORKFLOWS_MAX)
        self.coverage = Coverage()
        self.requests = Counter(
            "headway_requests",
            "Requests by how they ended",
            ("endpoint", "model", "outcome"),
            registry=registry,
        )
        self.duration = Histogram(
            "headway_request_duration_seconds",
            "From arrival to the end of the answer",
            buckets=_LONG_S,
            registry=registry,
        )
        self.first_token = Histogram(
            "headway_time_to_first_token_seconds",
            "From arrival to the first token of a stream",
            buckets=_SHORT_S,
            registry=registry,
        )
        self.per_token = Histogram(
            "headway_time_per_output_token_seconds",
            "Mean time between the tokens of a stream",
            buckets=_TOKEN_S,
            registry=registry,
        )
        self.queue_wait = Histogram(
            "headway_queue_wait_seconds",
            "From arrival to the first dispatch",
            ("instance",),
            buckets=_LONG_S,
            registry=registry,
        )
        self.decision = Histogram(
            "headway_dispatch_decision_seconds",
            "Time to decide upon one arrival",
            buckets=_DECISION_S,
            registry=registry,
        )
        self.workflow_duration = Histogram(
            "headway_workflow_duration_seconds",
            "From a workflow's first call to the end of its last",
            ("workflow",),
            buckets=_LONG_S,
            registry=registry,
        )
        self.workflow_slo = Counter(
            "headway_workflow_slo",
            "Workflows by whether they met their SLO",
            ("workflow", "outcome"),
            registry=registry,
        )
        self.tokens = Counter(
            "headway_tokens", "Tokens as engines counted them", ("kind",), registry=registry
        )
        self.retries = Counter(
            "headway_retries", "Attempts that failed unseen", ("reason",), registry=registry
        )
        self.preemptions = Counter(
            "headway_preemptions",
            "Calls stopped at an engine so that another is served",
            ("instance",),
            registry=registry,
        )
        self.classes = ClassMetrics(registry)
        self._token_children = [self.tokens.labels(k) for k in ("prompt", "cached", "output")]
        #: as bounded as their labels: models above, the rest are ours
        self._request_children: dict[tuple[str, str, str], Counter] = {}
        self._wait_children: dict[str, Histogram] = {}
        #: the workflow that the latest call without one was by itself
        self._single: WorkflowId | None = None
        self._gauges: _Gauges | None = None
        self._writing = asyncio.Lock()

    def request(self, endpoint: str, model: str, outcome: str) -> None:
        """One request has been answered."""
        # finding a child by its labels costs more than counting, on every request
        key = (endpoint, self._model(model), outcome)
        child = self._request_children.get(key)
        if child is None:
            child = self._request_children[key] = self.requests.labels(*key)
        child.inc()

    def call(self, record: CallRecord, sequences: int, *, single: bool = False) -> None:
        """One scheduled call is over.

        Args:
            record: What became of it.
            sequences: Were written side by side in it.
            single: Its client spoke of no workflow and no end-to-end SLO. What it was by itself
                ends next, and has neither kept nor missed what nobody promised.
        """
        self._single = record.placement.workflow_id if single else None
        self.classes.call_ended(record)
        self.duration.observe(record.ended_s - record.arrived_s)
        if record.dispatched_s is not None:
            self.waited(record.instance_id or "none", record.dispatched_s - record.arrived_s)
        if record.streaming and record.first_token_s is not None:
            self.first_token.observe(record.first_token_s - record.arrived_s)
            tokens = record.output_tokens / sequences
            if record.outcome is Outcome.OK and tokens > 1:
                decode_s = record.ended_s - record.first_token_s
                self.per_token.observe(decode_s / (tokens - 1))

    def waited(self, instance: str, wait_s: float) -> None:
        """One call has waited that long for its first dispatch."""
        child = self._wait_children.get(instance)
        if child is None:
            child = self._wait_children[instance] = self.queue_wait.labels(instance)
        child.observe(wait_s)

    def used(self, usage: Usage) -> None:
        """Tokens of one call."""
        for child, tokens in zip(
            self._token_children,
            (usage.prompt_tokens, usage.cached_tokens, usage.output_tokens),
            strict=True,
        ):
            child.inc(tokens)

    def workflow(self, record: WorkflowRecord) -> None:
        """A workflow has ended; one that its client dropped has neither met nor missed."""
        self.classes.workflow_ended(record)
        name = self._workflow(record.application)
        if record.outcome is Outcome.CANCELLED:
            return
        self.workflow_duration.labels(name).observe(max(0.0, record.duration_s))
        if record.workflow_id == self._single:
            return
        # both from the first on: where there were only misses, a share met is 0 and not absent
        met, missed = (self.workflow_slo.labels(name, how) for how in ("met", "missed"))
        (met if record.met_slo else missed).inc()

    def watch(
        self, coordinator: Coordinator, fleet: Fleet, alpha: Callable[[], float | None]
    ) -> None:
        """Read the gauges of these from now on."""
        self._gauges = _Gauges(coordinator, fleet, self.coverage, alpha)
        self.registry.register(self._gauges)

    def render(self) -> bytes:
        """The page, in Prometheus' text format."""
        return generate_latest(self.registry)

    async def page(self) -> bytes:
        """The page, written in a thread: it may take longer than a token may wait.

        Gauges are read here, where what they read does not change meanwhile; counters have locks
        of their own. One page is written at a time.
        """
        async with self._writing:
            if self._gauges is not None:
                self._gauges.read()
            return await asyncio.to_thread(self.render)


class _Gauges(Collector):
    """Values that others keep, read when the page is asked for."""

    def __init__(
        self,
        coordinator: Coordinator,
        fleet: Fleet,
        coverage: Coverage,
        alpha: Callable[[], float | None],
    ) -> None:
        self._coordinator = coordinator
        self._fleet = fleet
        self._coverage = coverage
        self._alpha = alpha
        self._taken: list[Metric] | None = None

    def describe(self) -> list[Metric]:
        """Nothing yet: names are known when values are."""
        return []

    def read(self) -> None:
        """Take the values now; the next `collect`, wherever it runs, gives these."""
        self._taken = list(self._values())

    def collect(self) -> Iterator[Metric]:
        """All gauges, as they were read, else as they are."""
        taken, self._taken = self._taken, None
        yield from self._values() if taken is None else taken

    def _values(self) -> Iterator[Metric]:
        yield from self._instances()
        yield from cache_families(self._coordinator)
        up = GaugeMetricFamily(
            "headway_engine_up", "Whether an engine answers", labels=["instance"]
        )
        for engine in self._fleet.engines:
            up.add_metric([engine.settings.id], float(engine.up))
        yield up
        coverage = GaugeMetricFamily(
            "headway_length_prediction_coverage",
            "Share of latest calls whose output stayed within this predicted quantile",
            labels=["quantile"],
        )
        for quantile, share in self._coverage.shares().items():
            coverage.add_metric([str(quantile)], share)
        yield coverage
        policy = GaugeMetricFamily(
            "headway_policy_info", "The policy that decides now", labels=["name"]
        )
        policy.add_metric([self._coordinator.policy.name], 1.0)
        yield policy
        alpha = GaugeMetricFamily(
            "headway_alpha", "Routing weight of a call's own speed against the queues"
        )
        value = self._alpha()
        if value is not None:
            alpha.add_metric([], value)
        yield alpha

    def _instances(self) -> Iterator[Metric]:
        fleet = self._coordinator.fleet
        families = {
            "headway_queue_depth": "Calls that wait for an instance"
            " (central: held at the gateway, for any)",
            "headway_in_flight": "Calls at an engine",
            "headway_backlog_seconds": "Time until what an instance has would be done",
            "headway_seats": "Calls that an instance may hold at once",
        }
        gauges = {
            name: GaugeMetricFamily(name, text, labels=["instance"])
            for name, text in families.items()
        }
        for instance in fleet:
            label = [str(instance.instance_id)]
            gauges["headway_queue_depth"].add_metric(label, instance.queued)
            gauges["headway_in_flight"].add_metric(label, len(instance.in_flight))
            gauges["headway_backlog_seconds"].add_metric(label, fleet.backlog_s(instance))
            gauges["headway_seats"].add_metric(label, instance.seats)
        placing = self._coordinator.placing
        gauges["headway_queue_depth"].add_metric([CENTRAL], placing.held + len(placing.moving))
        yield from gauges.values()
