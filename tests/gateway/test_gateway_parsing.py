"""What is read from headers and bodies, as a table of cases."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatcher.core.types import CallClass, CallSpec
from dispatcher.gateway.errors import ApiError
from dispatcher.gateway.parsing.body import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    RESPONSES,
    SCHEDULED,
    parse_json,
    read_body,
)
from dispatcher.gateway.parsing.hints import HeaderBag, Hints, read_hints
from dispatcher.gateway.parsing.spec import TenantTerms, clamp_class, make_spec


def hints(body: dict[str, Any] | None = None, **headers: str) -> Hints:
    raw = [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]
    return read_hints(HeaderBag(raw), body or {})


def spec(
    said: Hints, body: dict[str, Any], path: str = CHAT, tenant: TenantTerms | None = None
) -> CallSpec:
    return make_spec(
        said,
        read_body(path, {"model": "m", **body}, None),
        tenant or TenantTerms(),
        call_id="c",
        made_up_workflow_id="made-up",
        served_model="m",
        pinned_to=None,
        estimate_tokens=lambda model, size: size,
        usual_slo_s=lambda application: 60.0,
    )


@pytest.mark.parametrize(
    ("prompt", "n", "prompts", "each", "seats"),
    [
        ("abcd", 1, 1, 4, 1),
        ("abcd", 3, 1, 4, 3),
        (["ab", "cde"], 1, 2, 3, 2),
        (["ab", "cde"], 2, 2, 3, 4),
        ([[1, 2], [3], [4]], 1, 3, 2, 3),
        ([1, 2, 3], 1, 1, 3, 1),
    ],
)
def test_prompt_tokens_are_those_of_one_prompt(
    prompt: object, n: int, prompts: int, each: int, seats: int
) -> None:
    made = spec(Hints(), {"prompt": prompt, "n": n}, COMPLETIONS)
    assert (made.prompts, made.prompt_tokens, made.seats) == (prompts, each, seats)


def test_a_conversation_is_one_prompt() -> None:
    messages = [{"role": "user", "content": "ab"}, {"role": "user", "content": "cd"}]
    made = spec(Hints(), {"messages": messages, "n": 2})
    assert (made.prompts, made.seats) == (1, 2)


@pytest.mark.parametrize(
    "header",
    [
        "x-headway-workflow-id",
        "x-session-id",
        "x-claude-code-session-id",
        "session-id",
        "session_id",
        "x-dynamo-session-id",
    ],
)
def test_every_name_of_a_workflow_id_is_understood(header: str) -> None:
    assert read_hints(HeaderBag([(header.encode(), b"w")]), {}).workflow_id == "w"


def test_our_own_header_wins_over_the_others_and_headers_over_the_body() -> None:
    body = {"metadata": {"workflow_id": "meta"}}
    assert hints(body, x_session_id="s", x_headway_workflow_id="h").workflow_id == "h"
    assert hints(body, x_session_id="s").workflow_id == "s"
    assert hints(body).workflow_id == "meta"


@pytest.mark.parametrize("as_text", [False, True])
def test_the_agentic_context_of_a_body(as_text: bool) -> None:
    context: Any = {
        "program_id": "p",
        "workflow_type": "t",
        "step_id": 3,
        "deadline_seconds": 1.5,
    }
    if as_text:
        context = '{"program_id":"p","workflow_type":"t","step_id":3,"deadline_seconds":1.5}'
    said = hints({"vllm_xargs": {"agentic_context": context}})
    assert (said.workflow_id, said.application, said.stage, said.slo_s) == ("p", "t", "3", 1.5)


@pytest.mark.parametrize(
    ("headers", "field", "value"),
    [
        ({"x_headway_workflow": "text2sql"}, "application", "text2sql"),
        ({"x_headway_stage": "link"}, "stage", "link"),
        ({"x_headway_stage_width": "4"}, "stage_width", 4),
        ({"x_headway_slo_ms": "1500"}, "slo_s", 1.5),
        ({"x_headway_slo_ttft_ms": "200"}, "ttft_s", 0.2),
        ({"x_llm_d_slo_ttft_ms": "200"}, "ttft_s", 0.2),
        ({"x_slo_ttft_ms": "200"}, "ttft_s", 0.2),
        ({"x_headway_slo_tpot_ms": "50"}, "tpot_s", 0.05),
        ({"x_llm_d_slo_tpot_ms": "50"}, "tpot_s", 0.05),
        ({"x_slo_tpot_ms": "50"}, "tpot_s", 0.05),
        ({"x_headway_class": "Best-Effort"}, "call_class", CallClass.BEST_EFFORT),
        ({"x_headway_tool": "sqlite"}, "tool", "sqlite"),
        ({"x_headway_final": "1"}, "final", True),
        ({"x_headway_final": "0"}, "final", False),
        ({"x_dynamo_session_final": "true"}, "final", True),
        ({"x_headway_tenant": "acme"}, "tenant", "acme"),
        ({"x_llm_d_inference_fairness_id": "acme"}, "tenant", "acme"),
        ({"x_request_id": "r"}, "request_id", "r"),
        ({"x_correlation_id": "r"}, "request_id", "r"),
        ({"idempotency_key": "i"}, "idempotency_key", "i"),
        ({"x_headway_early_headers": "1"}, "early_headers", True),
    ],
)
def test_a_header_is_read(headers: dict[str, str], field: str, value: object) -> None:
    assert getattr(hints(**headers), field) == value


USER = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize(
    ("path", "body", "seats"),
    [
        (CHAT, {"messages": USER}, 1),
        (CHAT, {"messages": USER, "n": 3}, 3),
        (COMPLETIONS, {"prompt": "a"}, 1),
        (COMPLETIONS, {"prompt": ["a", "b"]}, 2),
        (COMPLETIONS, {"prompt": ["a", "b"], "n": 2}, 4),
        (COMPLETIONS, {"prompt": [1, 2, 3]}, 1),
        (COMPLETIONS, {"prompt": [[1, 2], [3]], "n": 2}, 4),
        (RESPONSES, {"input": "a"}, 1),
        (MESSAGES, {"messages": USER, "max_tokens": 3}, 1),
    ],
)
def test_seats(path: str, body: dict[str, Any], seats: int) -> None:
    assert read_body(path, {"model": "m", **body}, None).seats == seats


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6, "max_tokens": 5}, 6),
        ({"max_output_tokens": 7}, 7),
        ({"max_tokens": None}, None),
        ({"max_tokens": 0}, None),
        ({"max_tokens": 5.0}, 5),
    ],
)
def test_the_limit_of_output(body: dict[str, Any], limit: int | None) -> None:
    assert spec(hints(), {"messages": USER, **body}).max_tokens == limit


def test_prompts_are_measured_without_their_pictures() -> None:
    parts = [
        {"type": "text", "text": "abcé"},
        {"type": "image_url", "image_url": {"url": "data:" + "x" * 10_000}},
    ]
    facts = read_body(CHAT, {"model": "m", "messages": [{"role": "u", "content": parts}]}, None)
    assert facts.prompt_bytes == len("uabc") + 2
    assert facts.modalities == {"image"}
    ids = read_body(COMPLETIONS, {"model": "m", "prompt": [[1, 2], [3]]}, None)
    assert (ids.prompt_bytes, ids.prompt_token_ids) == (0, 3)


def test_features_are_numbers_with_known_names() -> None:
    facts = read_body(
        CHAT,
        {
            "model": "m",
            "messages": USER * 2,
            "temperature": 0.5,
            "min_tokens": 4,
            "ignore_eos": True,
            "tools": [{}],
            "top_p": "high",
        },
        None,
        with_text=False,
    )
    assert facts.features == {
        "last_role": 1.0,
        "messages": 2.0,
        "tools": 1.0,
        "temperature": 0.5,
        "min_tokens": 4.0,
        "ignore_eos": 1.0,
        "structured": 0.0,
    }


def test_a_tenant_clamps_class_and_priority() -> None:
    modest = TenantTerms(name="t", max_class=CallClass.THROUGHPUT)
    said = hints(x_headway_class="latency")
    clamped = spec(said, {"messages": USER, "priority": -5}, tenant=modest)
    assert clamped.call_class is CallClass.THROUGHPUT
    assert clamped.client_priority == 0
    assert spec(said, {"messages": USER, "priority": -5}).client_priority == -5
    assert spec(said, {"messages": USER, "priority": -(10**12)}).client_priority == -1000
    for asked in CallClass:
        assert clamp_class(asked, CallClass.LATENCY) is asked


def test_a_call_without_a_workflow_is_a_workflow_of_its_own() -> None:
    alone = spec(hints(), {"messages": USER})
    assert (alone.workflow_id, alone.final) == ("made-up", True)
    among = spec(hints(x_headway_workflow_id="w"), {"messages": USER})
    assert (among.workflow_id, among.final) == ("w", False)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)  # beyond these orjson reads a float
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "text", "content", "model", "program_id", "step_id", "agentic_context"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)
KEYS = st.sampled_from(
    [
        "model",
        "messages",
        "prompt",
        "input",
        "n",
        "max_tokens",
        "stream",
        "priority",
        "tools",
        "metadata",
        "vllm_xargs",
        "temperature",
        "previous_response_id",
    ]
)


@settings(suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no finding
@given(path=st.sampled_from(SCHEDULED), body=st.dictionaries(KEYS, JSON, max_size=6))
def test_any_body_is_read_or_refused_with_a_400(path: str, body: dict[str, Any]) -> None:
    try:
        facts = read_body(path, body, "m")
        read_hints(HeaderBag([]), body)
    except ApiError as error:
        assert error.status == 400
    else:
        assert facts.seats >= facts.prompts >= 1
        assert facts.prompt_bytes >= 0


@given(st.binary(max_size=64))
def test_any_bytes_are_json_or_refused(raw: bytes) -> None:
    try:
        assert isinstance(parse_json(raw), dict)
    except ApiError as error:
        assert error.code == "invalid_json"
