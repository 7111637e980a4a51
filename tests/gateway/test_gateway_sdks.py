"""The official clients, unchanged, against the gateway before an emulated fleet."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anthropic
import openai
import pytest
from gateway_harness import MODEL, Running, emulated, gateway


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with emulated(2) as urls, gateway(urls) as running:
        yield running


@pytest.fixture
async def client(running: Running) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none") as client:
        yield client


MESSAGES = [{"role": "user", "content": "Say something."}]


async def test_chat(client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=6, extra_body={"ignore_eos": True}
    )
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 6
    stream = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=6, stream=True, extra_body={"ignore_eos": True}
    )
    chunks = [chunk async for chunk in stream]
    assert all(chunk.usage is None for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "length"
    asked = await client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=6,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    usages = [chunk.usage async for chunk in asked if chunk.usage is not None]
    assert [usage.completion_tokens for usage in usages] == [6]


async def test_completions(client: openai.AsyncOpenAI) -> None:
    whole = await client.completions.create(model=MODEL, prompt=["one", "two"], max_tokens=3)
    assert len(whole.choices) == 2
    stream = await client.completions.create(
        model=MODEL, prompt="one", max_tokens=3, stream=True, extra_body={"ignore_eos": True}
    )
    assert len([chunk async for chunk in stream if chunk.choices]) >= 1


async def test_responses(client: openai.AsyncOpenAI) -> None:
    whole = await client.responses.create(model=MODEL, input="hello", max_output_tokens=5)
    assert whole.output_text
    assert (await client.responses.retrieve(whole.id)).id == whole.id
    stream = await client.responses.create(
        model=MODEL, input="hello", max_output_tokens=5, stream=True
    )
    kinds = [event.type async for event in stream]
    assert kinds[-1] in ("response.completed", "response.incomplete")


async def test_models_and_errors(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == [MODEL]
    with pytest.raises(openai.NotFoundError) as caught:
        await client.chat.completions.create(model="nope", messages=MESSAGES)
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError):
        await client.chat.completions.create(model=MODEL, messages=[])


async def test_anthropic_messages(running: Running) -> None:
    async with anthropic.AsyncAnthropic(base_url=running.url, api_key="none") as client:
        whole = await client.messages.create(model=MODEL, messages=MESSAGES, max_tokens=5)
        assert whole.usage.output_tokens == 5
        async with client.messages.stream(model=MODEL, messages=MESSAGES, max_tokens=5) as stream:
            assert "".join([text async for text in stream.text_stream])
        counted = await client.messages.count_tokens(model=MODEL, messages=MESSAGES)
        assert counted.input_tokens > 0
