"""Figures of a trace that was played, simulated or live.

Percentiles lie between neighbours linearly (place `q (n - 1)` of the sorted values, as numpy's
default); the SLO scale at 95 % does not (see `dispatcher.bench.slo.scale_at`). All figures are
rounded to `DIGITS` significant digits, so that files stay readable.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dispatcher.bench.slo import SCALES, attainment, ratios, scale_at
from dispatcher.core.types import Outcome
from dispatcher.traces import Played, PlayedCall, PlayedWorkflow

DIGITS = 9

Figures = dict[str, Any]
"""Plain JSON values."""


def percentile(values: Sequence[float], share: float) -> float:
    """The value at that share of the sorted values, between neighbours linearly; NaN of none.

    Example:
        >>> percentile([1.0, 2.0, 3.0, 4.0], 0.5)
        2.5
    """
    if not values:
        return math.nan
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low, high = math.floor(place), math.ceil(place)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def distribution(values: Sequence[float]) -> dict[str, float]:
    """P50, P95, P99 and mean; all NaN of none."""
    return {
        "p50": percentile(values, 0.50),
        "p95": percentile(values, 0.95),
        "p99": percentile(values, 0.99),
        "mean": statistics.fmean(values) if values else math.nan,
    }


def figures(
    played: Played,
    alone_s: Mapping[str, float],
    *,
    slo_scale: float,
    tenant_scales: Mapping[str, float] | None = None,
    scales: Sequence[float] = SCALES,
) -> Figures:
    """What a play comes to, as plain JSON values; null where there is nothing to measure.

    Args:
        played: What happened. Latencies, TTFT and TPOT are of what ended well; a workflow that
            failed attains no scale.
        alone_s: Time alone of each workflow, by id.
        slo_scale: At which it was scheduled: goodput counts workflows that kept it.
        tenant_scales: Scales of tenants that had another.
        scales: Scales to score.
    """
    of = played.workflows
    done = [workflow for workflow in of if workflow.ok]
    in_time = _in_time(of, alone_s, slo_scale, tenant_scales or {})
    every = ratios(of, alone_s)
    calls = [call for call in played.calls if call.outcome is Outcome.OK]
    found: Figures = {
        "workflows": len(of),
        "failed": len(of) - len(done),
        "calls": len(played.calls),
        "makespan_s": played.makespan_s,
        "latency_s": distribution([workflow.latency_s for workflow in done]),
        **_slo(every, scales),
        "slo_met": in_time / len(of) if of else math.nan,
        "throughput_per_s": _rate(len(done), played.makespan_s),
        "goodput_per_s": _rate(in_time, played.makespan_s),
        "ttft_s": distribution(
            [call.first_token_s - call.sent_s for call in calls if call.first_token_s is not None]
        ),
        "tpot_s": distribution([tpot for call in calls if (tpot := _tpot_s(call)) is not None]),
        "queue_s": distribution([call.queue_s for call in calls if call.queue_s is not None]),
        "utilisation": utilisation(played),
        "prefix_hit_rate": prefix_hit_rate(played),
        "placement": placement(played.calls),
    }
    tenants = sorted({workflow.tenant for workflow in of})
    if len(tenants) > 1:
        found["tenants"] = {
            tenant: _of_tenant(
                [workflow for workflow in of if workflow.tenant == tenant], alone_s, scales
            )
            for tenant in tenants
        }
    return _plain(found)


def _of_tenant(
    workflows: Sequence[PlayedWorkflow], alone_s: Mapping[str, float], scales: Sequence[float]
) -> Figures:
    done = [workflow.latency_s for workflow in workflows if workflow.ok]
    return {
        "workflows": len(workflows),
        "failed": len(workflows) - len(done),
        "latency_s": distribution(done),
        **_slo(ratios(workflows, alone_s), scales),
    }


def _slo(latency_ratios: Sequence[float], scales: Sequence[float]) -> Figures:
    return {
        "slo_attainment": {f"{scale:g}": attainment(latency_ratios, scale) for scale in scales},
        "slo_scale_at_95": scale_at(latency_ratios),
    }


def _in_time(
    workflows: Sequence[PlayedWorkflow],
    alone_s: Mapping[str, float],
    slo_scale: float,
    tenant_scales: Mapping[str, float],
) -> int:
    return sum(
        workflow.ok
        and workflow.latency_s / alone_s[workflow.workflow_id]
        <= tenant_scales.get(workflow.tenant, slo_scale)
        for workflow in workflows
    )


def _rate(count: int, over_s: float) -> float:
    return count / over_s if over_s > 0.0 else math.nan


def _tpot_s(call: PlayedCall) -> float | None:
    if call.first_token_s is None or call.output_tokens < 2:
        return None
    return (call.ended_s - call.first_token_s) / (call.output_tokens - 1)


def utilisation(played: Played) -> float:
    """Seats in use over seats there are, over the makespan, in [0, 1]; NaN where not seen."""
    offered_s = sum(i.seats for i in played.instances.values()) * played.makespan_s
    used_s = sum(i.seat_s for i in played.instances.values())
    return used_s / offered_s if offered_s > 0.0 else math.nan


def prefix_hit_rate(played: Played) -> float:
    """Share of prompt tokens that prefix caches held, in [0, 1]; NaN where not seen."""
    asked = sum(instance.prefix_queries_tokens for instance in played.instances.values())
    found = sum(instance.prefix_hits_tokens for instance in played.instances.values())
    return found / asked if asked else math.nan


def placement(calls: Iterable[PlayedCall]) -> dict[str, dict[str, int]]:
    """Calls of each stage by instance; divided by an instance's sum: HexGen-Flow's Table 2."""
    counted: dict[str, Counter[str]] = {}
    for call in calls:
        if call.instance is not None:
            counted.setdefault(call.instance, Counter())[call.stage] += 1
    return {name: dict(sorted(stages.items())) for name, stages in sorted(counted.items())}


SUMMARISED = (
    "slo_scale_at_95",
    "slo_met",
    "throughput_per_s",
    "goodput_per_s",
    "utilisation",
    "prefix_hit_rate",
    "makespan_s",
    "failed",
)


def spread(found: Sequence[Figures]) -> Figures:
    """Mean and spread of the figures of one setting over its seeds.

    Of each figure the mean, the least, the most and the standard deviation (of a sample, n - 1; 0
    of one seed); null where it is missing under any seed. The attainment of each scale is the mean.
    """
    summary: Figures = {
        f"latency_{name}_s": _spread([one["latency_s"][name] for one in found])
        for name in ("p50", "p95", "p99", "mean")
    }
    summary |= {name: _spread([one[name] for one in found]) for name in SUMMARISED}
    scales = found[0]["slo_attainment"] if found else {}
    summary["slo_attainment"] = {
        scale: _mean([one["slo_attainment"][scale] for one in found]) for scale in scales
    }
    return _plain(summary)


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return statistics.fmean(there) if there and len(there) == len(values) else None


def _spread(values: Sequence[float | None]) -> dict[str, float] | None:
    there = [value for value in values if value is not None]
    if not there or len(there) < len(values):
        return None
    return {
        "mean": statistics.fmean(there),
        "min": min(there),
        "max": max(there),
        "sd": statistics.stdev(there) if len(there) > 1 else 0.0,
    }


def _plain(found: Figures) -> Figures:
    return {key: plain(value) for key, value in found.items()}


def plain(value: Any) -> Any:
    """The same with numbers rounded, and null for what is no finite number."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value
