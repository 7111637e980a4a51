"""The metrics that dashboards and rules may ask for, and what an expression asks for."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

#: family -> (type, its own labels); the gateway is held to this too
PROMISED: dict[str, tuple[str, frozenset[str]]] = {
    name: (kind, frozenset(labels.split()))
    for name, kind, labels in (
        ("headway_requests_total", "counter", "endpoint model outcome"),
        ("headway_request_duration_seconds", "histogram", ""),
        ("headway_time_to_first_token_seconds", "histogram", ""),
        ("headway_time_per_output_token_seconds", "histogram", ""),
        ("headway_queue_wait_seconds", "histogram", "instance"),
        ("headway_queue_depth", "gauge", "instance"),
        ("headway_in_flight", "gauge", "instance"),
        ("headway_backlog_seconds", "gauge", "instance"),
        ("headway_seats", "gauge", "instance"),
        ("headway_in_flight_tokens", "gauge", "instance"),
        ("headway_kv_capacity_tokens", "gauge", "instance"),
        ("headway_paused_sessions", "gauge", "instance"),
        ("headway_paused_tokens", "gauge", "instance"),
        ("headway_prompt_tokens_total", "counter", "instance kind"),
        ("headway_engine_up", "gauge", "instance"),
        ("headway_dispatch_decision_seconds", "histogram", ""),
        ("headway_workflow_duration_seconds", "histogram", "workflow"),
        ("headway_workflow_slo_total", "counter", "workflow outcome"),
        ("headway_slo_total", "counter", "class outcome"),
        ("headway_service_gain_total", "counter", "class"),
        ("headway_goodput_tokens_total", "counter", "class"),
        ("headway_token_lag_seconds", "histogram", "class"),
        ("headway_class_time_to_first_token_seconds", "histogram", "class"),
        ("headway_class_request_duration_seconds", "histogram", "class"),
        ("headway_length_prediction_coverage", "gauge", "quantile"),
        ("headway_length_forest_state", "gauge", "state"),
        ("headway_length_forest_calls", "gauge", ""),
        ("headway_length_forest_trainings_total", "counter", "outcome"),
        ("headway_length_estimates_total", "counter", "outcome"),
        ("headway_length_estimate_seconds", "histogram", ""),
        ("headway_tokens_total", "counter", "kind"),
        ("headway_retries_total", "counter", "reason"),
        ("headway_preemptions_total", "counter", "instance"),
        ("headway_policy_info", "gauge", "name"),
        ("headway_alpha", "gauge", ""),
    )
}

#: what rules record: series -> its labels; each is a gauge
RECORDED = {
    "gateway_class:headway_slo_attainment:ratio_rate15m": frozenset({"gateway", "class"}),
    "gateway_class:headway_service_gain:rate5m": frozenset({"gateway", "class"}),
    "gateway_class:headway_goodput_tokens:rate5m": frozenset({"gateway", "class"}),
}

#: what vLLM and the emulator show under these names
ENGINE_METRICS = {
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:kv_cache_usage_perc": "gauge",
    "vllm:num_preemptions_total": "counter",
    "vllm:prefix_cache_hits_total": "counter",
    "vllm:prefix_cache_queries_total": "counter",
    "vllm:external_prefix_cache_hits_total": "counter",
    "vllm:external_prefix_cache_queries_total": "counter",
}

#: labels that the scrape configuration adds
SCRAPED = frozenset({"job", "gateway", "instance"})

_SERIES = re.compile(
    r"(?:(?P<call>rate|increase|label_values)\()?"
    r"(?<![\w:])(?P<name>(?:headway_|vllm:|\w+:headway_)[\w:]+)(?P<selector>\{[^}]*\})?(?P<range>\[[^\]]+\])?"
)
_LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"([^\"]*)\"")
_BY = re.compile(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)")
_LABEL_VALUES = re.compile(r"label_values\([^,]+,\s*(\w+)\)")


@dataclass
class Asked:
    """What one expression asks for."""

    families: set[str] = field(default_factory=set)
    labels: set[str] = field(default_factory=set)
    values: list[tuple[str, str]] = field(default_factory=list)


def family_of(series: str) -> str:
    """The family of a series name: histograms have three kinds of series."""
    base = re.sub(r"_(bucket|sum|count)$", "", series)
    return base if PROMISED.get(base, ("", ()))[0] == "histogram" else series


def mistakes(expression: str) -> list[str]:
    """What is wrong with an expression, as far as names, labels and types tell."""
    found = []
    for opening, closing in ("()", "{}", "[]"):
        if expression.count(opening) != expression.count(closing):
            found.append(f"{opening} and {closing} do not match")
    asked = Asked()
    for match in _SERIES.finditer(expression):
        found += _series_mistakes(match, asked)
    for names in _BY.findall(expression):
        asked.labels |= {name.strip() for name in names.split(",")}
    asked.labels |= set(_LABEL_VALUES.findall(expression))
    known = SCRAPED | {"le"}
    for family in asked.families:
        known |= RECORDED.get(family) or PROMISED.get(family, ("", frozenset()))[1]
    found += [f"no family here has the label {label!r}" for label in asked.labels - known]
    if "histogram_quantile" in expression and "le" not in asked.labels:
        found.append("histogram_quantile needs the label le kept")
    return found


def _series_mistakes(match: re.Match[str], asked: Asked) -> list[str]:
    series, call = match["name"], match["call"]
    family = family_of(series)
    kind = "gauge" if family in RECORDED else ENGINE_METRICS.get(family)
    kind = PROMISED[family][0] if family in PROMISED else kind
    if kind is None:
        return [f"unknown metric {series!r}"]
    asked.families.add(family)
    for label, value in _LABEL.findall(match["selector"] or ""):
        asked.labels.add(label)
        asked.values.append((label, value))
    if kind == "histogram" and series == family:
        return [f"{series!r} is a histogram: ask for _bucket, _sum or _count"]
    grows = kind in ("counter", "histogram")
    if call == "label_values":
        return []
    if grows and (call not in ("rate", "increase") or match["range"] is None):
        return [f"{series!r} only grows: ask for its rate or increase over a range"]
    if not grows and call is not None:
        return [f"{series!r} is a gauge: it has no {call}"]
    return []


def label_values(expression: str) -> list[tuple[str, str]]:
    """Every label and value that the expression's selectors name."""
    found = []
    for match in _SERIES.finditer(expression):
        found += _LABEL.findall(match["selector"] or "")
    return found
