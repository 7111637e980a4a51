"""Errors: the engine's own verdicts reach the client as the engine wrote them."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx
import openai
import pytest
from drive import LONG, PATHS, body_for, data_of
from engines import MAX_MODEL_LEN, MODEL
from gateway_process import Gateway

#: A gateway cannot know the tokenizer: only the engine can tell that this does not fit.
TOO_LONG = "a b c " * MAX_MODEL_LEN

#: What only the engine judges, by endpoint and the fields that make it refuse.
VERDICTS: list[tuple[str, dict[str, Any]]] = [
    ("chat", {"messages": [{"role": "user", "content": TOO_LONG}]}),
    ("completions", {"prompt": TOO_LONG}),
    ("responses", {"input": TOO_LONG}),
    ("messages", {"messages": [{"role": "user", "content": TOO_LONG}]}),
    ("chat", {"min_tokens": 9}),
    ("chat", {"top_p": 2}),
    ("chat", {"max_tokens": MAX_MODEL_LEN + 1}),
    ("completions", {"max_tokens": MAX_MODEL_LEN + 1}),
    ("responses", {"max_output_tokens": MAX_MODEL_LEN + 1}),
    ("messages", {"max_tokens": MAX_MODEL_LEN + 1}),
    ("completions", {"temperature": -1}),
]


@pytest.mark.parametrize(("endpoint", "fields"), VERDICTS)
@pytest.mark.parametrize("streaming", [True, False])
async def test_a_refusal_of_the_engine_passes_unchanged(
    http: httpx.AsyncClient,
    gateway: Gateway,
    endpoint: str,
    fields: dict[str, Any],
    streaming: bool,
) -> None:
    body = {**body_for(endpoint, "x", 4), **fields, "stream": streaming}
    theirs = await http.post(gateway.engines["fast"].url + PATHS[endpoint], json=body)
    ours = await http.post(gateway.url + PATHS[endpoint], json=body)
    assert theirs.status_code == 400
    assert ours.status_code == theirs.status_code
    assert ours.content == theirs.content


@pytest.mark.parametrize("endpoint", PATHS)
async def test_an_unknown_model_is_404(
    http: httpx.AsyncClient, gateway: Gateway, endpoint: str
) -> None:
    body = body_for(endpoint, "x", 4, model="nope")
    answer = await http.post(gateway.url + PATHS[endpoint], json=body)
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert "nope" in error["message"]
    if endpoint != "messages":
        assert set(error) == {"message", "type", "param", "code"}
        assert error["param"] == "model"


async def test_the_clients_see_their_own_error_types(gateway: Gateway) -> None:
    message = [{"role": "user", "content": "x"}]
    too_long = [{"role": "user", "content": TOO_LONG}]
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="x") as client:
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="nope", messages=message)
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model=MODEL, messages=too_long)
    async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key="x") as claude:
        with pytest.raises(anthropic.NotFoundError):
            await claude.messages.create(model="nope", messages=message, max_tokens=4)
        with pytest.raises(anthropic.BadRequestError):
            await claude.messages.create(model=MODEL, messages=too_long, max_tokens=4)


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        ("chat", {"messages": "x"}),
        ("chat", {"max_tokens": "abc"}),
        ("chat", {"messages": None}),
        ("completions", {"max_tokens": "abc"}),
        ("responses", {"max_output_tokens": "abc"}),
        ("messages", {"max_tokens": "abc"}),
    ],
)
async def test_wrong_types_are_400_in_openais_shape(
    http: httpx.AsyncClient, gateway: Gateway, endpoint: str, fields: dict[str, Any]
) -> None:
    body = {**body_for(endpoint, "x", 4), **fields}
    answer = await http.post(gateway.url + PATHS[endpoint], json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize("route", ["/v1/embeddings", "/v1/rerank", "/v1/score"])
async def test_what_no_engine_of_the_fleet_does_is_404(
    http: httpx.AsyncClient, gateway: Gateway, route: str
) -> None:
    answer = await http.post(gateway.url + route, json={"model": MODEL, "input": "x"})
    assert answer.status_code == 404


async def test_a_refused_call_leaves_its_seat(http: httpx.AsyncClient, gateway: Gateway) -> None:
    """More refusals than all seats together, then a call that must still be served."""
    refused = body_for("completions", TOO_LONG, 4)
    for _ in range(12):
        answer = await http.post(gateway.url + PATHS["completions"], json=refused)
        assert answer.status_code == 400
    served = await http.post(
        gateway.url + PATHS["completions"], json=body_for("completions", "x", 4)
    )
    assert served.status_code == 200


async def test_a_limit_beyond_the_context_is_clipped_by_the_engine(
    http: httpx.AsyncClient, gateway: Gateway
) -> None:
    """Prompt and limit together are over the context, each alone is not: a 200 that stops early."""
    prompt = [7] * (MAX_MODEL_LEN - 40)
    body = body_for("completions", "", LONG, prompt=prompt)
    answer = await http.post(gateway.url + PATHS["completions"], json=body)
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 40


async def test_a_refusal_inside_a_stream_passes_unchanged(
    http: httpx.AsyncClient, gateway: Gateway
) -> None:
    """vLLM looks at token ids after the headers have left: a 200 that holds an error only."""
    body = {**body_for("completions", "", 4, prompt=[10**6]), "stream": True}
    theirs = await http.post(gateway.engines["fast"].url + PATHS["completions"], json=body)
    ours = await http.post(gateway.url + PATHS["completions"], json=body)
    assert theirs.status_code == ours.status_code == 200
    assert data_of(ours.text) == data_of(theirs.text)
    assert data_of(ours.text)[0]["error"]["code"] == 400
