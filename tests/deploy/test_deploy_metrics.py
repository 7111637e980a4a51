"""Dashboard and alert rules ask for metrics that exist, by labels that they have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from promised_metrics import ENGINE_METRICS, PROMISED, RECORDED, label_values, mistakes

from dispatcher.config import Settings, StoreSettings
from dispatcher.core.types import Outcome
from dispatcher.emulator.fleet import running_fleet
from dispatcher.emulator.settings import EmulatorSettings
from dispatcher.gateway.runtime import Gateway

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana/dashboards/headway.json").read_text())
MANUAL = (DEPLOY.parent / "docs/metrics.md").read_text()
RULES = yaml.safe_load((DEPLOY / "prometheus/rules.yml").read_text())["groups"]


def panel_targets() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            yield panel, target


def variables() -> list[dict[str, Any]]:
    return [v for v in DASHBOARD["templating"]["list"] if v["type"] == "query"]


def rules(kind: str) -> list[dict[str, Any]]:
    return [rule for group in RULES for rule in group["rules"] if kind in rule]


EXPRESSIONS = {
    **{f"panel {p['title']} {p['id']}{t['refId']}": t["expr"] for p, t in panel_targets()},
    **{f"variable {v['name']}": v["query"]["query"] for v in variables()},
    **{f"alert {rule['alert']}": rule["expr"] for rule in rules("alert")},
    **{f"record {rule['record']}": rule["expr"] for rule in rules("record")},
}


@pytest.mark.parametrize("where", EXPRESSIONS)
def test_asks_for_what_exists(where: str) -> None:
    assert mistakes(EXPRESSIONS[where]) == []


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("sum(rate(headway_request_total[5m]))", "unknown metric"),
        ("sum(headway_requests_total)", "only grows"),
        ("rate(headway_requests_total)", "only grows"),
        ("rate(headway_queue_depth[5m])", "is a gauge"),
        ("sum by (engine) (headway_queue_depth)", "label 'engine'"),
        ('headway_alpha{instance_id="a"}', "label 'instance_id'"),
        ("rate(headway_queue_wait_seconds[5m])", "is a histogram"),
        (
            "histogram_quantile(0.5, sum(rate(headway_queue_wait_seconds_bucket[5m])))",
            "label le kept",
        ),
        ("sum(headway_seats", "do not match"),
        ("sum(rate(headway_tokens_total{kind=~'a'}[1m])) by (model)", "label 'model'"),
        ("rate(vllm:num_requests_waiting[5m])", "is a gauge"),
        ("rate(gateway_class:headway_service_gain:rate5m[5m])", "is a gauge"),
        ("gateway_class:headway_service_loss:rate5m", "unknown metric"),
        ('headway_alpha{class="latency"}', "label 'class'"),
    ],
)
def test_the_check_sees_a_mistake(expression: str, complaint: str) -> None:
    assert any(complaint in mistake for mistake in mistakes(expression))


def test_every_metric_that_the_manual_names_is_held_to_it() -> None:
    rows = re.findall(r"^\| `(headway_\w+)` \| (\w+) \|([^|]*)\|", MANUAL, re.MULTILINE)
    named = {name: (kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    assert named == PROMISED


def test_outcomes_are_those_that_are_counted() -> None:
    counted = {outcome.value for outcome in Outcome} | {"met", "missed"}
    asked = {v for e in EXPRESSIONS.values() for label, v in label_values(e) if label == "outcome"}
    assert asked
    assert asked <= counted


def test_every_family_is_on_the_dashboard() -> None:
    shown = " ".join(target["expr"] for _, target in panel_targets())
    assert [name for name in PROMISED if name not in shown] == []


async def test_the_gateway_shows_what_is_promised() -> None:
    gateway = Gateway(Settings(store=StoreSettings(path=None)))
    try:
        page = gateway.metrics.render().decode()
        counted = gateway.metrics.registry.collect()
    finally:
        await gateway.stop()
    shown = {f.name + "_total" * (f.type == "counter"): f.type for f in counted}
    assert {name: shown.get(name) for name in PROMISED} == {
        name: kind for name, (kind, _) in PROMISED.items()
    }
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if (base := re.sub(r"_(bucket|sum|count|created)$", "", sample.name)) in PROMISED:
                assert set(sample.labels) - {"le"} == PROMISED[base][1], sample


async def test_an_engine_shows_what_is_asked_of_it() -> None:
    async with running_fleet([EmulatorSettings(port=0)]) as [port], httpx.AsyncClient() as client:
        page = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
    shown = {line.split("{")[0] for line in page.splitlines() if not line.startswith("#")}
    assert set(ENGINE_METRICS) <= shown


def test_alerts_say_what_happened_and_how_bad() -> None:
    names = [rule["alert"] for rule in rules("alert")]
    assert len(names) == len(set(names))
    for rule in rules("alert"):
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}, rule["alert"]
        assert re.fullmatch(r"[1-9]\d*[smh]", rule["for"])
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description"}


def test_what_is_recorded_has_the_labels_that_its_name_says() -> None:
    assert {rule["record"] for rule in rules("record")} == set(RECORDED)
    for rule in rules("record"):
        level, metric, operation = rule["record"].split(":")
        assert set(level.split("_")) == RECORDED[rule["record"]]
        assert metric.startswith("headway_")
        assert operation.endswith(re.findall(r"\[(\w+)\]", rule["expr"])[0])
        by = {name.strip() for name in re.findall(r"by \(([^)]*)\)", rule["expr"])[0].split(",")}
        assert by == RECORDED[rule["record"]]
    assert len(RULES) == len({group["name"] for group in RULES})


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells


def test_dashboard_uses_only_its_own_variables_and_grafanas() -> None:
    own = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD["panels"])))
    assert used - own == {"__rate_interval", "__range"}
    assert own <= used
