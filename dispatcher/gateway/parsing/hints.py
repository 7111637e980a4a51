"""What headers and body say of the workflow a call belongs to (all of it optional)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from dispatcher.core.types import CallClass
from dispatcher.gateway.errors import bad_request
from dispatcher.gateway.parsing.fields import (
    MS_MAX,
    body_text,
    header_count,
    header_flag,
    header_milliseconds,
    header_text,
)

WIDTH_MAX = 10_000

#: Each meaning under its own name first, then the names also understood; the first present wins.
WORKFLOW_ID = (
    "x-headway-workflow-id",
    "x-session-id",
    "x-claude-code-session-id",
    "session-id",
    "session_id",
    "x-dynamo-session-id",
)
APPLICATION = ("x-headway-workflow",)
STAGE = ("x-headway-stage",)
STAGE_WIDTH = ("x-headway-stage-width",)
SLO = ("x-headway-slo-ms",)
SLO_TTFT = ("x-headway-slo-ttft-ms", "x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
SLO_TPOT = ("x-headway-slo-tpot-ms", "x-llm-d-slo-tpot-ms", "x-slo-tpot-ms")
CLASS = ("x-headway-class",)
TOOL = ("x-headway-tool",)
FINAL = ("x-headway-final", "x-dynamo-session-final")
TENANT = ("x-headway-tenant", "x-llm-d-inference-fairness-id")
REQUEST_ID = ("x-request-id", "x-correlation-id")
IDEMPOTENCY = ("idempotency-key", "x-idempotency-key", "x-stainless-idempotency-key")
EARLY_HEADERS = ("x-headway-early-headers",)


@dataclass(frozen=True, slots=True)
class Hints:
    """What the client said; `None` where it said nothing. Times are seconds."""

    workflow_id: str | None = None
    application: str | None = None
    stage: str | None = None
    stage_width: int | None = None
    slo_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    call_class: CallClass | None = None
    tool: str | None = None
    final: bool = False
    tenant: str | None = None
    request_id: str | None = None
    idempotency_key: str | None = None
    early_headers: bool = False

    @property
    def of_no_workflow(self) -> bool:
        """Neither a workflow nor an application is named, and no end-to-end SLO is asked for."""
        return self.workflow_id is None and self.application is None and self.slo_s is None


_NOTHING_SAID = Hints()
_ALL_HEADERS = frozenset(
    name
    for names in (
        *(WORKFLOW_ID, APPLICATION, STAGE, STAGE_WIDTH, SLO, SLO_TTFT, SLO_TPOT, CLASS, TOOL),
        *(FINAL, TENANT, REQUEST_ID, IDEMPOTENCY, EARLY_HEADERS),
    )
    for name in names
)


class HeaderBag:
    """A request's headers, first value of each name, names in lower case."""

    def __init__(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self._values: dict[str, bytes] = {}
        for name, value in headers:
            self._values.setdefault(name.decode("latin-1"), value)

    def get(self, name: str) -> bytes | None:
        """The value of one header."""
        return self._values.get(name)

    @property
    def silent(self) -> bool:
        """Whether none of the headers is a hint."""
        return _ALL_HEADERS.isdisjoint(self._values)

    def first(self, names: Iterable[str]) -> tuple[str, bytes] | None:
        """The first of these names that is present, with its value."""
        for name in names:
            value = self._values.get(name)
            if value is not None:
                return name, value
        return None

    def text(self, names: Iterable[str]) -> str | None:
        """The first of these names, as text."""
        found = self.first(names)
        return None if found is None else header_text(*found)

    def seconds(self, names: Iterable[str]) -> float | None:
        """The first of these names, milliseconds turned into seconds."""
        found = self.first(names)
        return None if found is None else header_milliseconds(*found)

    def flag(self, names: Iterable[str]) -> bool:
        """The first of these names, as yes or no; absent is no."""
        found = self.first(names)
        return found is not None and header_flag(*found)


def request_id_of(bag: HeaderBag) -> str | None:
    """The client's own request id. Raises a 400 where it cannot be read."""
    return bag.text(REQUEST_ID)


def read_hints(bag: HeaderBag, body: Mapping[str, Any]) -> Hints:
    """Headers win over the body.

    Raises:
        ApiError: 400, naming the header or field that cannot be read.
    """
    if bag.silent and "metadata" not in body and "vllm_xargs" not in body:
        return _NOTHING_SAID
    context = _agentic_context(body)
    metadata = body.get("metadata")
    in_metadata = (
        body_text(metadata, "workflow_id", "metadata.workflow_id")
        if isinstance(metadata, dict)
        else None
    )
    where = "vllm_xargs.agentic_context."
    width = bag.first(STAGE_WIDTH)
    return Hints(
        workflow_id=bag.text(WORKFLOW_ID)
        or body_text(context, "program_id", where + "program_id")
        or in_metadata,
        application=bag.text(APPLICATION)
        or body_text(context, "workflow_type", where + "workflow_type"),
        stage=bag.text(STAGE) or _step(context, where + "step_id"),
        stage_width=None if width is None else header_count(*width, WIDTH_MAX),
        slo_s=bag.seconds(SLO) or _deadline_s(context, where + "deadline_seconds"),
        ttft_s=bag.seconds(SLO_TTFT),
        tpot_s=bag.seconds(SLO_TPOT),
        call_class=_call_class(bag),
        tool=bag.text(TOOL),
        final=bag.flag(FINAL),
        tenant=bag.text(TENANT),
        request_id=request_id_of(bag),
        idempotency_key=bag.text(IDEMPOTENCY),
        early_headers=bag.flag(EARLY_HEADERS),
    )


def _call_class(bag: HeaderBag) -> CallClass | None:
    found = bag.first(CLASS)
    if found is None:
        return None
    name, value = found
    try:
        return CallClass(header_text(name, value).lower())
    except ValueError:
        known = ", ".join(each.value for each in CallClass)
        raise bad_request(
            f"Header {name}: expected one of {known}.", param=name, code="invalid_header"
        ) from None


def _agentic_context(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """`vllm_xargs.agentic_context`, an object or the JSON of one; empty where absent."""
    xargs = body.get("vllm_xargs")
    context = xargs.get("agentic_context") if isinstance(xargs, dict) else None
    if context is None:
        return {}
    if isinstance(context, str):
        try:
            context = orjson.loads(context)
        except orjson.JSONDecodeError:
            context = None
    if not isinstance(context, dict):
        raise bad_request(
            "vllm_xargs.agentic_context: expected an object.", param="vllm_xargs.agentic_context"
        )
    return context


def _step(context: Mapping[str, Any], param: str) -> str | None:
    """Step ids are numbers as often as names."""
    value = context.get("step_id")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return body_text(context, "step_id", param)


def _deadline_s(context: Mapping[str, Any], param: str) -> float | None:
    value = context.get("deadline_seconds")
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value <= MS_MAX / 1000.0:
        raise bad_request(f"{param}: expected seconds above 0.", param=param)
    return float(value)
