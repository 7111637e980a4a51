"""Trace files: what is written is read again, and what is wrong is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.types import CallClass
from dispatcher.traces import (
    PrefixPart,
    TraceCall,
    TraceError,
    TraceWorkflow,
    call_lines,
    read_trace,
    write_trace,
)

LINE = {
    "workflow": "w",
    "arrival_s": 0.0,
    "call": "a",
    "stage": "s",
    "prompt_tokens": 10,
    "output_tokens": 5,
}

seconds = st.floats(0, 1e6, allow_nan=False)
slo = st.none() | st.floats(1e-3, 1e6)
names = st.text(min_size=1, max_size=8)


@st.composite
def workflows(draw: st.DrawFn) -> TraceWorkflow:
    calls: list[TraceCall] = []
    for number in range(draw(st.integers(1, 4))):
        earlier = [call.call_id for call in calls]
        prompt = draw(st.integers(1, 5000))
        ends = sorted(draw(st.sets(st.integers(1, prompt), max_size=3)))
        calls.append(
            TraceCall(
                call_id=f"c{number}",
                stage=draw(names),
                prompt_tokens=prompt,
                output_tokens=draw(st.integers(1, 5000)),
                parents=tuple(draw(st.lists(st.sampled_from(earlier), unique=True)))
                if earlier
                else (),
                gap_s=draw(seconds),
                tool=draw(st.none() | names),
                prefix=tuple(PrefixPart(draw(names), end) for end in ends),
                streaming=draw(st.booleans()),
                call_class=draw(st.sampled_from(CallClass)),
                slo_ttft_s=draw(slo),
                slo_tpot_s=draw(slo),
            )
        )
    return TraceWorkflow(
        workflow_id=draw(names),
        application=draw(names),
        arrival_s=draw(seconds),
        calls=tuple(calls),
        slo_s=draw(slo),
        tenant=draw(names),
        model=draw(st.none() | names),
    )


@given(trace=st.lists(workflows(), min_size=1, max_size=5, unique_by=lambda w: w.workflow_id))
def test_what_is_written_is_read_again(
    trace: list[TraceWorkflow], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    write_trace(path, trace)
    assert read_trace(path) == sorted(trace, key=lambda workflow: workflow.arrival_s)


def test_a_line_names_only_what_is_not_default() -> None:
    call = TraceCall("a", "s", 10, 5)
    (line,) = call_lines(TraceWorkflow("w", "default", 0.0, (call,)))
    assert json.loads(line) == {**LINE, "application": "default"}


def written(tmp_path: Path, *lines: dict[str, object] | str) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text(
        "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    )
    return path


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["{"], r"line 1: Invalid JSON"),
        ([LINE, {**LINE, "call": "b", "prompt_tokens": 0}], r"line 2: prompt_tokens: .*found 0"),
        ([{**LINE, "promt_tokens": 1}], r"line 1: promt_tokens: .*not permitted"),
        ([{k: v for k, v in LINE.items() if k != "stage"}], r"line 1: stage: Field required"),
        ([LINE, {**LINE, "call": "b", "arrival_s": 1.0}], r"line 2: workflow 'w' differs"),
        ([LINE, LINE], r"line 1 and after: .*two calls are 'a'"),
        ([{**LINE, "parents": ["z"]}], r"follows 'z', which is no earlier call"),
        ([{**LINE, "prefix": [["p", 99]]}], r"prefix 'p' ends at 99 tokens"),
        ([{**LINE, "arrival_s": -1}], r"line 1: arrival_s: "),
        ([{**LINE, "slo_s": 0}], r"line 1: slo_s: "),
        ([{**LINE, "class": "fast"}], r"line 1: class: "),
        ([], r"no call in it"),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path, lines: list[dict[str, object] | str], said: str
) -> None:
    with pytest.raises(TraceError, match=said):
        read_trace(written(tmp_path, *lines))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"nowhere\.jsonl"):
        read_trace(tmp_path / "nowhere.jsonl")
