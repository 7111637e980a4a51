"""What goes over the wire, byte shapes of vLLM 0.32 included."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from emulated import CHAT, chat_body, engine, events

FINGERPRINT = r'"system_fingerprint":"vllm-0\.32\.0-[0-9a-f]{8}"'
TEXT = r'"(?:[^"\\]|\\.)*"'


def assert_stream(text: str, *patterns: str) -> None:
    """Check an event stream, event by event; a pattern stands for a whole event."""
    assert text.endswith("\n\n")
    blocks = text[:-2].split("\n\n")
    assert len(blocks) == len(patterns), blocks
    for block, pattern in zip(blocks, patterns, strict=True):
        assert re.fullmatch(pattern, block), f"{block}\nis not\n{pattern}"


def chunk(rest: str) -> str:
    head = '{"id":"chatcmpl-req-1","object":"chat.completion.chunk","created":'
    return r"data: " + re.escape(head) + r"\d+," + re.escape('"model":"tiny",') + rest


def delta(tail: str, usage: str = "") -> str:
    return chunk(
        re.escape('"choices":[{"index":0,"delta":{"content":')
        + TEXT
        + re.escape('},"logprobs":null,"finish_reason":' + tail + ',"token_ids":null}]')
        + usage
    )


ROLE = chunk(
    re.escape(
        '"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,'
        '"finish_reason":null}],"prompt_token_ids":null,"prompt_text":null}'
    )
)
LAST = '"length","stop_reason":null'


async def post(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> httpx.Response:
    response = await client.post(path, json=body, headers={"x-request-id": "req-1"})
    assert response.status_code == 200, response.text
    return response


async def test_chat_stream(client: httpx.AsyncClient):
    response = await post(client, CHAT, chat_body(stream=True))
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["x-request-id"] == "req-1"
    assert_stream(
        response.text,
        ROLE,
        *[delta("null") + "}"] * 3,
        delta(LAST) + "," + FINGERPRINT + "}",
        r"data: \[DONE\]",
    )


async def test_chat_stream_with_usage(client: httpx.AsyncClient):
    body = chat_body(stream=True, stream_options={"include_usage": True})
    usage = (
        r'"choices":\[\],"usage":{"prompt_tokens":14,"total_tokens":18,"completion_tokens":4,'
        r'"prompt_tokens_details":{"cached_tokens":0,"created_cache_tokens":0}},'
    )
    assert_stream(
        (await post(client, CHAT, body)).text,
        ROLE,
        *[delta("null") + "}"] * 3,
        delta(LAST) + "}",
        chunk(usage + FINGERPRINT + "}"),
        r"data: \[DONE\]",
    )


async def test_continuous_usage_is_on_every_event_and_only_with_include_usage(
    client: httpx.AsyncClient,
):
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = chat_body(stream=True, stream_options=options)
    seen = events((await post(client, CHAT, body)).text)
    assert [event["usage"]["completion_tokens"] for event in seen] == [0, 1, 2, 3, 4, 4]
    body = chat_body(stream=True, stream_options={"continuous_usage_stats": True})
    seen = events((await post(client, CHAT, body)).text)
    assert all("usage" not in event for event in seen)


async def test_chat_in_one_piece(client: httpx.AsyncClient):
    answer = (await post(client, CHAT, chat_body())).json()
    assert list(answer) == [
        *("id", "object", "created", "model", "choices", "service_tier", "system_fingerprint"),
        *("usage", "prompt_logprobs", "prompt_token_ids", "prompt_text"),
        *("kv_transfer_params", "ec_transfer_params", "metrics"),
    ]
    assert (answer["id"], answer["object"]) == ("chatcmpl-req-1", "chat.completion")
    [choice] = answer["choices"]
    assert list(choice["message"]) == [
        *("role", "content", "refusal", "annotations", "audio", "function_call", "reasoning")
    ]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("length", None)
    assert answer["usage"]["completion_tokens"] == 4


async def test_streamed_text_is_the_text_in_one_piece(client: httpx.AsyncClient):
    body = chat_body(max_tokens=60, ignore_eos=False, n=2)
    whole = (await post(client, CHAT, body)).json()
    seen = events((await post(client, CHAT, {**body, "stream": True})).text)
    for index in range(2):
        parts = [c for e in seen for c in e["choices"] if c["index"] == index]
        text = "".join(part["delta"]["content"] for part in parts)
        assert text == whole["choices"][index]["message"]["content"]
        assert parts[-1]["finish_reason"] == whole["choices"][index]["finish_reason"]


async def test_completions_of_several_prompts(client: httpx.AsyncClient):
    body = {"model": "tiny", "prompt": ["def a(", "class B"], "max_tokens": 2, "n": 2}
    answer = (await post(client, "/v1/completions", {**body, "ignore_eos": True})).json()
    assert answer["id"] == "cmpl-req-1"
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["completion_tokens"] == 8
    stream = {**body, "ignore_eos": True, "stream": True}
    text = (await post(client, "/v1/completions", stream)).text
    assert re.fullmatch(
        r'data: {"id":"cmpl-req-1","object":"text_completion","created":\d+,"model":"tiny",'
        r'"choices":\[{"index":0,"text":' + TEXT + r',"logprobs":null,"finish_reason":null,'
        r'"stop_reason":null,"prompt_token_ids":null,"token_ids":null}\]}',
        text.split("\n\n")[0],
    )
    assert text.endswith("data: [DONE]\n\n")


async def test_completions_default_to_sixteen_tokens_and_echo_the_prompt(
    client: httpx.AsyncClient,
):
    body = {"model": "tiny", "prompt": "hello", "ignore_eos": True, "echo": True}
    answer = (await post(client, "/v1/completions", body)).json()
    assert answer["usage"]["completion_tokens"] == 16
    assert answer["choices"][0]["text"].startswith("hello ")
    streamed = events((await post(client, "/v1/completions", {**body, "stream": True})).text)
    text = "".join(event["choices"][0]["text"] for event in streamed)
    assert text == answer["choices"][0]["text"]


async def test_generated_token_ids_go_on_as_a_prompt(client: httpx.AsyncClient):
    body = {"model": "tiny", "prompt": "def f(", "max_tokens": 40, "ignore_eos": True}
    first = (await post(client, "/v1/completions", {**body, "return_token_ids": True})).json()
    [choice] = first["choices"]
    resumed = [*choice["prompt_token_ids"], *choice["token_ids"]]
    second = (await post(client, "/v1/completions", {**body, "prompt": resumed})).json()
    assert second["usage"]["prompt_tokens"] == len(resumed)
    # All full blocks but the newest token's, whose KV was never computed.
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == (len(resumed) - 1) // 16 * 16
    text = (await client.post("/detokenize", json={"tokens": choice["token_ids"]})).json()
    assert text["prompt"] == choice["text"]


async def test_messages_stream(client: httpx.AsyncClient):
    body = {"model": "tiny", "max_tokens": 2, "messages": [{"role": "user", "content": "Hi."}]}
    text = (await post(client, "/v1/messages", {**body, "stream": True})).text
    usage = '"usage":{"input_tokens":10,"output_tokens":0}'
    block = r'event: content_block_{0}\ndata: {{"type":"content_block_{0}",'
    part = block.format("delta") + r'"delta":{"type":"text_delta","text":' + TEXT
    assert_stream(
        text,
        r'event: message_start\ndata: {"type":"message_start","message":{"id":"chatcmpl-req-1",'
        r'"type":"message","role":"assistant","content":\[\],"model":"tiny","stop_reason":null,'
        r'"stop_sequence":null,' + usage + "}}",
        block.format("start") + r'"content_block":{"type":"text","text":""},"index":0}',
        *[part + r'},"index":0}'] * 2,
        block.format("stop") + r'"index":0}',
        r'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"max_tokens",'
        r'"stop_sequence":null},"usage":{"input_tokens":10,"output_tokens":2,'
        r'"cache_creation_input_tokens":0,"cache_read_input_tokens":0}}',
        r'event: message_stop\ndata: {"type":"message_stop"}',
    )


async def test_responses_stream_ends_with_completed_and_no_done(client: httpx.AsyncClient):
    body = {"model": "tiny", "input": "Hi.", "max_output_tokens": 2, "stream": True}
    text = (await post(client, "/v1/responses", body)).text
    seen = events(text)
    assert [event["type"].removeprefix("response.") for event in seen] == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("output_text.delta", "output_text.delta", "output_text.done"),
        *("content_part.done", "output_item.done", "completed"),
    ]
    assert [event["sequence_number"] for event in seen] == list(range(10))
    assert seen[-1]["response"]["usage"]["output_tokens"] == 2
    assert "[DONE]" not in text


async def test_stream_interval_puts_several_tokens_into_an_event():
    async with engine(stream_interval=4) as client:
        body = chat_body(stream=True, max_tokens=12, return_token_ids=True)
        seen = events((await post(client, CHAT, body)).text)[1:]
    assert [len(event["choices"][0]["token_ids"]) for event in seen] == [1, 4, 4, 3]


@pytest.mark.parametrize("switched_on", [True, False])
async def test_launch_flags_decide_on_request_id_headers_and_token_details(switched_on: bool):
    flags = {
        "enable_request_id_headers": switched_on,
        "enable_prompt_tokens_details": switched_on,
    }
    async with engine(**flags) as client:
        response = await client.post(CHAT, json=chat_body())
    assert ("x-request-id" in response.headers) is switched_on
    details = response.json()["usage"]["prompt_tokens_details"]
    assert (details is not None) is switched_on
