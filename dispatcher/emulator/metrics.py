"""An engine's metrics under vLLM's names.

Counting is plain arithmetic; families are put together when they are scraped. Times are real
seconds, as a client of a faster engine would see them: virtual time divided by the time scale.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from dispatcher.engine_model import EngineModel, StepResult

if TYPE_CHECKING:
    from dispatcher.emulator.driver import Sequence

_TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TPOT_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_LATENCY_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0),
    *(40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_ITERATION_BUCKETS = tuple(float(2**power) for power in (0, *range(3, 15)))
_FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")


def _one_two_five(largest: int) -> tuple[float, ...]:
    buckets: list[float] = []
    power = 1
    while True:
        for mantissa in (1, 2, 5):
            if mantissa * power > largest:
                return tuple(buckets)
            buckets.append(float(mantissa * power))
        power *= 10


class _Histogram:
    """Counts per bucket, cumulated when read."""

    __slots__ = ("_bounds", "_counts", "_sum", "help", "name")

    def __init__(self, name: str, documentation: str, bounds: tuple[float, ...]) -> None:
        self.name = name
        self.help = documentation
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def family(self, labels: tuple[str, str]) -> HistogramMetricFamily:
        cumulated = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip([*map(str, self._bounds), "+Inf"], self._counts, strict=True):
            cumulated += count
            buckets.append((bound, cumulated))
        family = HistogramMetricFamily(self.name, self.help, labels=_LABELS)
        family.add_metric(labels, buckets=buckets, sum_value=self._sum)
        return family


_LABELS = ("engine", "model_name")


class EngineMetrics(Collector):
    """What one engine counts, and how it is shown.

    Args:
        model: The engine, asked for its gauges on every scrape.
        model_name: Value of the label `model_name`.
        time_scale: Virtual seconds per real second.
        kv_bytes_per_token: Of the model whose speed is played.
    """

    def __init__(
        self, model: EngineModel, model_name: str, time_scale: float, kv_bytes_per_token: int
    ) -> None:
        self._model = model
        offload_tokens = model.config.offload_blocks * model.config.block_size
        self._offload_gib = offload_tokens * kv_bytes_per_token / 2**30
        self._labels = ("0", model_name)
        self._per_virtual_s = 1.0 / time_scale
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._generation_tokens = 0
        self._finished = dict.fromkeys(_FINISHED_REASONS, 0)
        tokens = _one_two_five(model.config.max_model_len)
        latency = _LATENCY_BUCKETS
        self.time_to_first_token = _Histogram(
            "vllm:time_to_first_token_seconds", "Time to first token in seconds.", _TTFT_BUCKETS
        )
        self.inter_token = _Histogram(
            "vllm:inter_token_latency_seconds", "Inter-token latency in seconds.", _TPOT_BUCKETS
        )
        self.time_per_output_token = _Histogram(
            "vllm:request_time_per_output_token_seconds",
            "Mean time per output token of a request in seconds.",
            _TPOT_BUCKETS,
        )
        self.e2e = _Histogram(
            "vllm:e2e_request_latency_seconds", "End to end request latency in seconds.", latency
        )
        self.queue_time = _Histogram(
            "vllm:request_queue_time_seconds", "Time in the waiting phase.", latency
        )
        self.inference_time = _Histogram(
            "vllm:request_inference_time_seconds", "Time in the running phase.", latency
        )
        self.prefill_time = _Histogram(
            "vllm:request_prefill_time_seconds", "Time in the prefill phase.", latency
        )
        self.decode_time = _Histogram(
            "vllm:request_decode_time_seconds", "Time in the decode phase.", latency
        )
        self.request_prompt_tokens = _Histogram(
            "vllm:request_prompt_tokens", "Prompt tokens of a request.", tokens
        )
        self.request_generation_tokens = _Histogram(
            "vllm:request_generation_tokens", "Generated tokens of a request.", tokens
        )
        self.iteration_tokens = _Histogram(
            "vllm:iteration_tokens_total", "Tokens of one iteration.", _ITERATION_BUCKETS
        )
        self._histograms = [value for value in vars(self).values() if isinstance(value, _Histogram)]
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)

    def render(self) -> bytes:
        """Return the Prometheus text."""
        return generate_latest(self.registry)

    # -- counting --------------------------------------------------------------------------

    def count_step(self, result: StepResult) -> None:
        """Count one iteration."""
        self.iteration_tokens.observe(result.prefill_tokens + result.decode_tokens)
        self._generation_tokens += len(result.emitted)

    def observe_first_token(self, seq: Sequence, now_s: float) -> None:
        """Count a request's first token."""
        self.time_to_first_token.observe((now_s - seq.arrival_s) * self._per_virtual_s)
        self._prompt_tokens += seq.prompt_tokens
        self._cached_tokens += max(0, seq.cached_tokens)

    def observe_inter_token(self, gap_s: float, count: int = 1) -> None:
        """Count later tokens, each `gap_s` of virtual time after the one before."""
        self.inter_token.observe(gap_s * self._per_virtual_s, count)

    def observe_finished(self, seq: Sequence, now_s: float) -> None:
        """Count a complete answer."""
        per = self._per_virtual_s
        scheduled_s = seq.arrival_s if seq.scheduled_s is None else seq.scheduled_s
        decode_s = (now_s - seq.first_token_s) * per
        self._finished[seq.plan.finish_reason] += 1
        self.e2e.observe((now_s - seq.arrival_s) * per)
        self.queue_time.observe((scheduled_s - seq.arrival_s) * per)
        self.inference_time.observe((now_s - scheduled_s) * per)
        self.prefill_time.observe((seq.first_token_s - scheduled_s) * per)
        self.decode_time.observe(decode_s)
        self.request_prompt_tokens.observe(seq.prompt_tokens)
        self.request_generation_tokens.observe(seq.generated)
        if seq.generated > 1:
            self.time_per_output_token.observe(decode_s / (seq.generated - 1))

    # -- showing ---------------------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        """Yield all families."""
        yield from self._gauges()
        yield from self._counters()
        for histogram in self._histograms:
            yield histogram.family(self._labels)

    def _gauges(self) -> Iterator[Metric]:
        model = self._model
        waiting = model.waiting_count
        for name, documentation, value in (
            ("num_requests_running", "Requests in model execution batches.", model.running_count),
            ("num_requests_waiting", "Requests waiting to be processed.", waiting),
            ("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", model.kv_usage),
        ):
            family = GaugeMetricFamily(f"vllm:{name}", documentation, labels=_LABELS)
            family.add_metric(self._labels, value)
            yield family
        by_reason = GaugeMetricFamily(
            "vllm:num_requests_waiting_by_reason",
            "Waiting requests by reason.",
            labels=(*_LABELS, "reason"),
        )
        by_reason.add_metric((*self._labels, "capacity"), waiting)
        by_reason.add_metric((*self._labels, "deferred"), 0)
        yield by_reason
        config = model.config
        info = {
            "block_size": config.block_size,
            "cache_dtype": "auto",
            "enable_prefix_caching": config.enable_prefix_caching,
            "engine": "0",
            "gpu_memory_utilization": 0.9,
            "kv_cache_size_tokens": config.kv_capacity_tokens,
            "kv_offloading_backend": "native",
            "kv_offloading_size": self._offload_gib or None,
            "num_gpu_blocks": config.num_blocks,
        }
        cache = GaugeMetricFamily(
            "vllm:cache_config_info",
            "Information of the LLMEngine CacheConfig",
            labels=list(info),
        )
        cache.add_metric([str(value) for value in info.values()], 1)
        yield cache

    def _counters(self) -> Iterator[Metric]:
        model = self._model
        for name, documentation, value in (
            ("prompt_tokens", "Number of prefill tokens processed.", self._prompt_tokens),
            ("prompt_tokens_cached", "Number of cached prompt tokens.", self._cached_tokens),
            ("generation_tokens", "Number of generation tokens.", self._generation_tokens),
            ("prefix_cache_queries", "Queried tokens.", model.prefix_queries_tokens),
            ("prefix_cache_hits", "Cached tokens.", model.prefix_hits_tokens),
            ("external_prefix_cache_queries", "Queried tokens.", model.offload_queries_tokens),
            ("external_prefix_cache_hits", "Cached tokens.", model.offload_hits_tokens),
            ("num_preemptions", "Cumulative number of preemptions.", model.preemptions),
        ):
            family = CounterMetricFamily(f"vllm:{name}", documentation, labels=_LABELS)
            family.add_metric(self._labels, value)
            yield family
        success = CounterMetricFamily(
            "vllm:request_success",
            "Count of successfully processed requests.",
            labels=("engine", "finished_reason", "model_name"),
        )
        engine, model_name = self._labels
        for reason, count in self._finished.items():
            success.add_metric((engine, reason, model_name), count)
        yield success
