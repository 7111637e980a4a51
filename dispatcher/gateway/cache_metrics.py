"""What engines hold in their KV caches, and how much of it was of use, as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from dispatcher.core.coordinator import Coordinator

_LABEL = "instance"


def cache_families(coordinator: Coordinator) -> Iterator[Metric]:
    """Of every instance in the fleet; counters begin anew with one that joins again."""
    fleet = coordinator.fleet
    in_flight = GaugeMetricFamily(
        "headway_in_flight_tokens", "Context tokens of the calls at an engine", labels=[_LABEL]
    )
    capacity = GaugeMetricFamily(
        "headway_kv_capacity_tokens", "Tokens that an engine's KV cache holds", labels=[_LABEL]
    )
    sessions = GaugeMetricFamily(
        "headway_paused_sessions",
        "Workflows that wait for a tool and will soon go on from what they left at an engine",
        labels=[_LABEL],
    )
    paused = GaugeMetricFamily(
        "headway_paused_tokens", "Context tokens of paused sessions", labels=[_LABEL]
    )
    prompts = CounterMetricFamily(
        "headway_prompt_tokens",
        "Prompt tokens of calls that ended well: all, those found in the prefix cache, and those"
        " that were expected to be",
        labels=[_LABEL, "kind"],
    )
    for instance in fleet:
        name = str(instance.instance_id)
        in_flight.add_metric([name], instance.in_flight_tokens)
        if instance.spec.kv_capacity_tokens is not None:
            capacity.add_metric([name], instance.spec.kv_capacity_tokens)
        sessions.add_metric([name], fleet.sessions.paused_count(instance.instance_id, fleet.now_s))
        paused.add_metric([name], fleet.paused_tokens(instance))
        prompts.add_metric([name, "all"], instance.prompt_tokens_total)
        prompts.add_metric([name, "cached"], instance.cached_tokens_total)
        prompts.add_metric([name, "expected_cached"], instance.expected_cached_total)
    yield from (in_flight, capacity, sessions, paused, prompts)
