"""Usage: asked of the engine for every stream, counted, and shown only to clients that asked."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from drive import PATHS, body_for, data_of, samples, total
from gateway_process import Gateway

TOKENS = 5
ON_REQUEST = ["chat", "completions"]


def stream_options(**options: bool) -> dict[str, Any]:
    return {"stream": True, "stream_options": options}


async def post(
    http: httpx.AsyncClient, url: str, endpoint: str, body: dict[str, Any]
) -> httpx.Response:
    answer = await http.post(url + PATHS[endpoint], json=body)
    assert answer.status_code == 200, answer.text
    return answer


def shape(event: Any) -> Any:
    """The keys of an event, without the fingerprint, which vLLM moves to the usage chunk."""
    if isinstance(event, dict):
        return {k: shape(v) for k, v in event.items() if k != "system_fingerprint"}
    return [shape(item) for item in event] if isinstance(event, list) else type(event)


@pytest.mark.parametrize("endpoint", ON_REQUEST)
@pytest.mark.parametrize("options", [{}, {"include_usage": False}])
async def test_usage_not_asked_for_is_taken_out(
    http: httpx.AsyncClient, gateway: Gateway, endpoint: str, options: dict[str, bool]
) -> None:
    body = {**body_for(endpoint, "count me", TOKENS), **stream_options(**options)}
    if not options:
        del body["stream_options"]
    answer = await post(http, gateway.url, endpoint, body)
    engine = gateway.engines[answer.headers["x-headway-instance"]]
    ours = data_of(answer.text)
    theirs = data_of((await post(http, engine.url, endpoint, body)).text)
    assert ours[-1] == "[DONE]"
    assert all("usage" not in event and event["choices"] for event in ours[:-1])
    assert shape(ours[0]) == shape(theirs[0])
    assert shape(ours[-2]) == shape(theirs[-2])


@pytest.mark.parametrize("endpoint", ON_REQUEST)
async def test_usage_asked_for_is_left_as_the_engine_says_it(
    http: httpx.AsyncClient, gateway: Gateway, endpoint: str
) -> None:
    body = {**body_for(endpoint, "count me", TOKENS), **stream_options(include_usage=True)}
    answer = await post(http, gateway.url, endpoint, body)
    engine = gateway.engines[answer.headers["x-headway-instance"]]
    ours = data_of(answer.text)
    theirs = data_of((await post(http, engine.url, endpoint, body)).text)
    assert sum("usage" in event for event in ours[:-1]) == 1
    assert ours[-2]["usage"] == theirs[-2]["usage"]
    assert shape(ours[-2]) == shape(theirs[-2])
    assert ours[-2]["usage"]["completion_tokens"] == TOKENS


@pytest.mark.parametrize("endpoint", ON_REQUEST)
async def test_continuous_usage_is_left_alone(
    http: httpx.AsyncClient, gateway: Gateway, endpoint: str
) -> None:
    options = stream_options(include_usage=True, continuous_usage_stats=True)
    body = {**body_for(endpoint, "count me", TOKENS), **options}
    events = data_of((await post(http, gateway.url, endpoint, body)).text)[:-1]
    assert all("usage" in event for event in events)
    written = [event["usage"]["completion_tokens"] for event in events]
    assert written == sorted(written)
    assert written[-1] == TOKENS


@pytest.mark.parametrize("endpoint", PATHS)
@pytest.mark.parametrize("streaming", [True, False])
async def test_tokens_are_counted_whether_asked_for_or_not(
    http: httpx.AsyncClient, gateway: Gateway, endpoint: str, streaming: bool
) -> None:
    body = {**body_for(endpoint, "count me, please", TOKENS), "stream": streaming}
    before = {str(k): v for k, v in await samples(http, gateway.url, "headway_tokens_total")}
    answer = await post(http, gateway.url, endpoint, body)
    engine = gateway.engines[answer.headers["x-headway-instance"]]
    prompt, written = await usage_of(http, engine.url, endpoint, {**body, "stream": False})
    after = {str(k): v for k, v in await samples(http, gateway.url, "headway_tokens_total")}
    grown = sorted(value - before.get(kind, 0) for kind, value in after.items())
    assert prompt in grown
    assert written in grown


async def usage_of(
    http: httpx.AsyncClient, url: str, endpoint: str, body: dict[str, Any]
) -> tuple[int, int]:
    """Prompt and written tokens of the same greedy call, asked of the engine itself."""
    usage = (await post(http, url, endpoint, body)).json()["usage"]
    if endpoint in ON_REQUEST:
        return usage["prompt_tokens"], usage["completion_tokens"]
    return usage["input_tokens"], usage["output_tokens"]


async def test_a_stream_of_two_choices_has_no_usage_left(
    http: httpx.AsyncClient, gateway: Gateway
) -> None:
    before = await total(http, gateway.url, "headway_tokens_total")
    body = {**body_for("chat", "count us", TOKENS, n=2, temperature=1, seed=1), "stream": True}
    events = data_of((await post(http, gateway.url, "chat", body)).text)
    assert events[-1] == "[DONE]"
    assert all("usage" not in event and event["choices"] for event in events[:-1])
    assert {event["choices"][0]["index"] for event in events[:-1]} == {0, 1}
    assert await total(http, gateway.url, "headway_tokens_total") - before >= 2 * TOKENS
