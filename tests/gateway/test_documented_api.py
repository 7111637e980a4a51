"""The page about the API names every header, route and reason that there is."""

from __future__ import annotations

import re
from pathlib import Path

from gateway_harness import Gate, gateway, scripted

from dispatcher.core.types import CallClass, RejectReason
from dispatcher.gateway.errors import _REJECTIONS
from dispatcher.gateway.parsing import hints

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "api.md").read_text()


def test_every_request_header_and_class_is_documented() -> None:
    assert len(hints._ALL_HEADERS) > 20
    for name in hints._ALL_HEADERS | {each.value for each in CallClass}:
        assert f"`{name}`" in PAGE, name


def test_no_header_of_ours_is_made_up() -> None:
    written = set(re.findall(r"`(x-headway-[a-z-]+)`", PAGE))
    answers = {"x-headway-instance", "x-headway-queue-ms", "x-headway-dropped-reason"}
    assert written == {h for h in hints._ALL_HEADERS if h.startswith("x-headway-")} | answers


def test_every_rejection_has_its_status_on_the_page() -> None:
    for reason, (status, _) in _REJECTIONS.items():
        assert re.search(rf"^\| [^|]*\b{status}\b", PAGE, re.MULTILINE), status
        if reason is not RejectReason.ENGINE_FAILED:
            assert f"`{reason.value}`" in PAGE, reason


async def test_every_route_is_documented() -> None:
    async with scripted(Gate()) as (engine,), gateway([engine.url]) as running:
        document = (await running.http.get("/openapi.json")).json()
    assert len(document["paths"]) > 20
    for path, methods in document["paths"].items():
        shown = re.sub(r"\{[^}]+\}", "{id}", path)
        lines = [line for line in PAGE.splitlines() if f"{shown}`" in line or f"{shown} {{" in line]
        assert lines, path
        for method in methods:
            assert any(f"`{method.upper()}" in line for line in lines), (method, path)


def test_every_page_is_linked_from_the_readme() -> None:
    linked = set(re.findall(r"\(docs/([a-z-]+\.md)\)", (ROOT / "README.md").read_text()))
    assert {page.name for page in (ROOT / "docs").glob("*.md")} == linked
