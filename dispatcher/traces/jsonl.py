"""Traces as JSON lines, one call a line; docs/traces.md describes the fields.

What belongs to the workflow (application, arrival, SLO, tenant, model) stands on each of its
lines and must agree. Lines of different workflows may be mixed; within one, parents come first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dispatcher.core.errors import HeadwayError
from dispatcher.core.types import CallClass
from dispatcher.traces.types import PrefixPart, Trace, TraceCall, TraceWorkflow

_Tokens = Annotated[int, Field(ge=1, le=1 << 40)]
_Seconds = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
_SloSeconds = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
_Name = Annotated[str, Field(min_length=1)]


class TraceError(HeadwayError):
    """A trace file that cannot be read; says which file, which line and what was expected."""


class _Line(BaseModel):
    """One call, with what its workflow is."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    workflow: _Name
    application: _Name = "default"
    tenant: _Name = "default"
    model: str | None = None
    arrival_s: _Seconds
    slo_s: _SloSeconds | None = None
    call: _Name
    stage: _Name
    parents: tuple[str, ...] = ()
    gap_s: _Seconds = 0.0
    tool: str | None = None
    prompt_tokens: _Tokens
    output_tokens: _Tokens
    prefix: tuple[tuple[_Name, _Tokens], ...] = ()
    stream: bool = False
    call_class: CallClass = Field(CallClass.COLLECTIVE, alias="class")
    slo_ttft_s: _SloSeconds | None = None
    slo_tpot_s: _SloSeconds | None = None

    def of_workflow(self) -> tuple[object, ...]:
        """What all lines of a workflow must agree on."""
        return self.application, self.tenant, self.model, self.arrival_s, self.slo_s

    def trace_call(self) -> TraceCall:
        return TraceCall(
            call_id=self.call,
            stage=self.stage,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            parents=self.parents,
            gap_s=self.gap_s,
            tool=self.tool,
            prefix=tuple(PrefixPart(content, end) for content, end in self.prefix),
            streaming=self.stream,
            call_class=self.call_class,
            slo_ttft_s=self.slo_ttft_s,
            slo_tpot_s=self.slo_tpot_s,
        )


def read_trace(path: Path) -> list[TraceWorkflow]:
    """All workflows of a file, by arrival; those that arrive together in the order of the file.

    Raises:
        TraceError: It cannot be read, or a line of it is not a call of a trace.
    """
    lines: dict[str, list[tuple[int, _Line]]] = {}
    try:
        with path.open(encoding="utf-8") as file:
            for number, text in enumerate(file, 1):
                if text.strip():
                    line = _parsed(text, path, number)
                    lines.setdefault(line.workflow, []).append((number, line))
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: {error}") from error
    if not lines:
        raise TraceError(f"{path}: no call in it; expected one JSON object a line")
    workflows = [_workflow(name, of_one, path) for name, of_one in lines.items()]
    return sorted(workflows, key=lambda workflow: workflow.arrival_s)


def _parsed(text: str, path: Path, number: int) -> _Line:
    try:
        return _Line.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        found = "" if first["type"] == "json_invalid" else f" (found {first['input']!r})"
        problem = f"{where}: {first['msg']}{found}" if where else first["msg"]
        raise TraceError(f"{path}, line {number}: {problem}") from error


def _workflow(name: str, lines: list[tuple[int, _Line]], path: Path) -> TraceWorkflow:
    first_number, first = lines[0]
    for number, line in lines[1:]:
        if line.of_workflow() != first.of_workflow():
            raise TraceError(
                f"{path}, line {number}: workflow {name!r} differs from its line {first_number} in"
                " application, tenant, model, arrival_s or slo_s; expected the same on all"
            )
    try:
        return TraceWorkflow(
            workflow_id=name,
            application=first.application,
            arrival_s=first.arrival_s,
            calls=tuple(line.trace_call() for _, line in lines),
            slo_s=first.slo_s,
            tenant=first.tenant,
            model=first.model,
        )
    except ValueError as error:
        raise TraceError(f"{path}, line {first_number} and after: {error}") from error


def call_lines(workflow: TraceWorkflow) -> Iterator[str]:
    """The lines of one workflow, each without its line end; what is default is left out."""
    for call in workflow.calls:
        line = {
            "workflow": workflow.workflow_id,
            "application": workflow.application,
            "tenant": workflow.tenant,
            "model": workflow.model,
            "arrival_s": workflow.arrival_s,
            "slo_s": workflow.slo_s,
            "call": call.call_id,
            "stage": call.stage,
            "parents": list(call.parents),
            "gap_s": call.gap_s,
            "tool": call.tool,
            "prompt_tokens": call.prompt_tokens,
            "output_tokens": call.output_tokens,
            "prefix": [list(part) for part in call.prefix],
            "stream": call.streaming,
            "class": call.call_class.value,
            "slo_ttft_s": call.slo_ttft_s,
            "slo_tpot_s": call.slo_tpot_s,
        }
        yield json.dumps({key: value for key, value in line.items() if not _is_default(key, value)})


_ALWAYS = ("workflow", "application", "arrival_s", "call", "stage")


def _is_default(key: str, value: object) -> bool:
    if key in _ALWAYS:
        return False
    name = {"class": "call_class"}.get(key, key)
    default = _Line.model_fields[name].default
    return value == (list(default) if isinstance(default, tuple) else default)


def write_trace(path: Path, trace: Trace | Iterable[TraceWorkflow]) -> None:
    """Write all workflows, one line per call; what was in the file is gone.

    Raises:
        OSError: It cannot be written.
    """
    with path.open("w", encoding="utf-8") as file:
        for workflow in trace:
            for line in call_lines(workflow):
                file.write(line + "\n")
