"""Which class a call gets, and which SLOs, as a table of cases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.config import Settings, load_settings
from dispatcher.core.errors import ConfigurationError
from dispatcher.core.types import CallClass, CallSpec, Slo
from dispatcher.gateway.parsing.body import CHAT, read_body
from dispatcher.gateway.parsing.hints import HeaderBag, Hints, read_hints
from dispatcher.gateway.parsing.spec import TenantTerms, derive_class, make_spec

USUAL = Slo(ttft_s=2.0, tpot_s=0.1)
APPLICATION, WORKFLOW = {"x-headway-workflow": "sql"}, {"x-headway-workflow-id": "w"}
TTFT, TPOT = {"x-headway-slo-ttft-ms": "900"}, {"x-llm-d-slo-tpot-ms": "50"}
END = {"x-headway-slo-ms": "20000"}
FLEX = {"service_tier": "flex"}
MODEST = TenantTerms(name="t", max_class=CallClass.THROUGHPUT)


def spec_of(
    headers: dict[str, str],
    body: dict[str, Any] | None = None,
    *,
    tenant: TenantTerms | None = None,
    usual: Slo = Slo(),  # noqa: B008 - frozen
) -> CallSpec:
    messages = [{"role": "user", "content": "hi"}]
    whole = {"model": "m", "messages": messages, **(body or {})}
    said = read_hints(HeaderBag([(k.encode(), v.encode()) for k, v in headers.items()]), whole)
    return make_spec(
        said,
        read_body(CHAT, whole, None),
        tenant or TenantTerms(),
        call_id="c",
        made_up_workflow_id="made-up",
        served_model="m",
        pinned_to=None,
        estimate_tokens=lambda model, size: size,
        usual_slo_s=lambda application: 60.0,
        usual_stream=usual,
    )


@pytest.mark.parametrize(
    ("headers", "body", "stream", "expected"),
    [
        # nobody says anything: somebody reads a stream along, an answer in one piece is waited for
        ({}, {}, True, CallClass.LATENCY),
        ({}, {}, False, CallClass.THROUGHPUT),
        # an SLO says what matters
        (TTFT, {}, True, CallClass.LATENCY),
        (TPOT, {}, True, CallClass.LATENCY),
        (END, {}, True, CallClass.THROUGHPUT),
        (END, {}, False, CallClass.THROUGHPUT),
        (END | TPOT, {}, True, CallClass.LATENCY),
        # of an answer that comes whole no token is seen
        (TTFT, {}, False, CallClass.THROUGHPUT),
        # parts of workflows
        (WORKFLOW, {}, True, CallClass.COLLECTIVE),
        (WORKFLOW, {}, False, CallClass.COLLECTIVE),
        (WORKFLOW | END, {}, False, CallClass.COLLECTIVE),
        (WORKFLOW | TTFT, {}, True, CallClass.LATENCY),
        (WORKFLOW | TTFT, {}, False, CallClass.COLLECTIVE),
        ({"x-session-id": "chat-9"}, {}, True, CallClass.COLLECTIVE),
        ({}, {"metadata": {"workflow_id": "w"}}, False, CallClass.COLLECTIVE),
        (APPLICATION, {}, False, CallClass.COLLECTIVE),
        (APPLICATION, {}, True, CallClass.LATENCY),
        (APPLICATION | END, {}, True, CallClass.COLLECTIVE),
        # what may wait
        ({}, FLEX, False, CallClass.BEST_EFFORT),
        ({}, FLEX, True, CallClass.BEST_EFFORT),
        (APPLICATION, FLEX, False, CallClass.BEST_EFFORT),
        ({}, {"service_tier": "auto"}, False, CallClass.THROUGHPUT),
        ({}, {"service_tier": ["flex"]}, False, CallClass.THROUGHPUT),
        (END, FLEX, False, CallClass.THROUGHPUT),
        (TTFT, FLEX, True, CallClass.LATENCY),
        (WORKFLOW, FLEX, False, CallClass.COLLECTIVE),
        # whoever names a class has it
        ({"x-headway-class": "best-effort"} | WORKFLOW | TTFT, {}, True, CallClass.BEST_EFFORT),
        ({"x-headway-class": "latency"}, FLEX, False, CallClass.LATENCY),
        ({"x-headway-class": "Throughput"}, {}, True, CallClass.THROUGHPUT),
        ({"x-headway-class": "collective"}, {}, True, CallClass.COLLECTIVE),
    ],
)
def test_the_class_of_a_call(
    headers: dict[str, str], body: dict[str, Any], stream: bool, expected: CallClass
) -> None:
    assert spec_of(headers, {**body, "stream": stream}).call_class is expected


@given(st.data())
def test_what_is_derived_never_promises_less_for_saying_more(data: st.DataObject) -> None:
    """A TTFT or TPOT SLO on a stream always makes it one that is read along."""
    some = st.none() | st.floats(0.001, 100)
    words = st.none() | st.just("w")
    hints = Hints(
        workflow_id=data.draw(words),
        application=data.draw(words),
        slo_s=data.draw(some),
        ttft_s=data.draw(some),
        tpot_s=data.draw(some),
    )
    flex = data.draw(st.booleans())
    streamed = derive_class(hints, stream=True, flex=flex)
    whole = derive_class(hints, stream=False, flex=flex)
    paced = hints.ttft_s is not None or hints.tpot_s is not None
    assert not paced or streamed is CallClass.LATENCY
    assert whole is not CallClass.LATENCY
    promised = paced or hints.slo_s is not None or hints.workflow_id is not None
    assert not promised or streamed is not CallClass.BEST_EFFORT


@pytest.mark.parametrize(
    ("asked", "most", "got"),
    [
        (CallClass.LATENCY, CallClass.THROUGHPUT, CallClass.THROUGHPUT),
        (CallClass.COLLECTIVE, CallClass.THROUGHPUT, CallClass.THROUGHPUT),
        (CallClass.LATENCY, CallClass.COLLECTIVE, CallClass.COLLECTIVE),
        (CallClass.BEST_EFFORT, CallClass.THROUGHPUT, CallClass.BEST_EFFORT),
        (CallClass.LATENCY, CallClass.BEST_EFFORT, CallClass.BEST_EFFORT),
    ],
)
def test_a_tenants_class_is_clamped(asked: CallClass, most: CallClass, got: CallClass) -> None:
    tenant = TenantTerms(name="t", max_class=most)
    assert spec_of({"x-headway-class": asked.value}, tenant=tenant).call_class is got


def test_a_derived_class_is_clamped_as_well_and_its_pace_does_not_count() -> None:
    spec = spec_of(TTFT | TPOT, {"stream": True}, tenant=MODEST, usual=USUAL)
    assert (spec.call_class, spec.slo) == (CallClass.THROUGHPUT, Slo())


@pytest.mark.parametrize(
    ("headers", "stream", "slo"),
    [
        ({}, True, USUAL),
        (TTFT, True, Slo(ttft_s=0.9, tpot_s=0.1)),
        (TPOT, True, Slo(ttft_s=2.0, tpot_s=0.05)),
        (TTFT | TPOT, True, Slo(ttft_s=0.9, tpot_s=0.05)),
        (WORKFLOW | TTFT | END, True, Slo(20.0, 0.9, 0.1)),
        ({"x-headway-class": "latency"} | WORKFLOW, True, USUAL),
        ({}, False, Slo()),
        ({"x-headway-class": "latency"}, False, Slo()),
        (WORKFLOW, True, Slo()),
        (END, True, Slo(20.0)),
        ({"x-headway-class": "best-effort"}, True, Slo()),
    ],
)
def test_streams_that_are_read_along_have_the_usual_pace(
    headers: dict[str, str], stream: bool, slo: Slo
) -> None:
    assert spec_of(headers, {"stream": stream}, usual=USUAL).slo == slo


def test_no_pace_is_usual_unless_it_is_configured(tmp_path: Path) -> None:
    usual = Settings().slo.latency
    assert (usual.ttft_s, usual.tpot_s) == (None, None)
    path = tmp_path / "headway.yaml"
    path.write_text("slo: {latency: {ttft_s: 2, tpot_s: 0.1}}\n")
    usual = load_settings(path).slo.latency
    assert (usual.ttft_s, usual.tpot_s) == (2.0, 0.1)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("slo: {latency: {ttft_s: 0}}", "slo.latency.ttft_s"),
        ("slo: {latency: {tpot_s: true}}", "slo.latency.tpot_s"),
        ("slo: {latency: {tbt_s: 1}}", "slo.latency.tbt_s"),
        ("slo: {throughput: {ttft_s: 1}}", "slo.throughput"),
    ],
)
def test_a_mistake_names_its_key(tmp_path: Path, text: str, key: str) -> None:
    path = tmp_path / "headway.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=key):
        load_settings(path)
