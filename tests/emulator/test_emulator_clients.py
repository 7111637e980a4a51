"""The official clients work unchanged."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anthropic
import openai
import pytest

from dispatcher.emulator import EmulatorSettings, running_fleet

MESSAGES = [{"role": "user", "content": "Tell me about schedulers."}]


@pytest.fixture
async def base_url() -> AsyncIterator[str]:
    settings = EmulatorSettings(port=0, model="tiny", time_scale=500, api_key="secret")
    async with running_fleet([settings]) as ports:
        yield f"http://127.0.0.1:{ports[0]}"


@pytest.fixture
async def client(base_url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{base_url}/v1", api_key="secret") as client:
        yield client


async def test_openai_chat(client: openai.AsyncOpenAI):
    answer = await client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=30)
    assert answer.usage is not None
    text = answer.choices[0].message.content
    stream = await client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        max_tokens=30,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    streamed = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert streamed == text
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens


async def test_openai_completions(client: openai.AsyncOpenAI):
    answer = await client.completions.create(model="tiny", prompt="def f(", max_tokens=8)
    stream = await client.completions.create(
        model="tiny", prompt="def f(", max_tokens=8, stream=True
    )
    assert "".join([chunk.choices[0].text async for chunk in stream]) == answer.choices[0].text


async def test_openai_responses(client: openai.AsyncOpenAI):
    first = await client.responses.create(model="tiny", input="Hi.", max_output_tokens=400)
    assert first.status == "completed"
    assert first.output_text
    assert (await client.responses.retrieve(first.id)).output_text == first.output_text
    stream = await client.responses.create(
        model="tiny", input="Hi.", max_output_tokens=400, stream=True
    )
    kinds = [(event.type, event) async for event in stream]
    assert kinds[-1][0] == "response.completed"
    text = "".join(event.delta for kind, event in kinds if kind == "response.output_text.delta")
    assert text == first.output_text
    second = await client.responses.create(
        model="tiny", input="Go on.", previous_response_id=first.id, max_output_tokens=10
    )
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.input_tokens > first.usage.total_tokens
    assert second.usage.input_tokens_details.cached_tokens > 0


async def test_openai_background_response_is_cancelled(client: openai.AsyncOpenAI):
    response = await client.responses.create(
        model="tiny", input="Hi.", background=True, extra_body={"ignore_eos": True}
    )
    assert response.status == "queued"
    cancelled = await client.responses.cancel(response.id)
    assert cancelled.status == "cancelled"
    with pytest.raises(openai.BadRequestError, match="Cannot cancel a synchronous response"):
        await client.responses.cancel(response.id)


async def test_openai_errors(client: openai.AsyncOpenAI):
    with pytest.raises(openai.NotFoundError, match="The model `nope` does not exist"):
        await client.chat.completions.create(model="nope", messages=MESSAGES)
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="wrong").models.list()
    with pytest.raises(openai.NotFoundError, match="'resp_nope' not found"):
        await client.responses.retrieve("resp_nope")


async def test_openai_models(client: openai.AsyncOpenAI):
    [model] = (await client.models.list()).data
    assert model.id == "tiny"
    assert model.max_model_len == 131_072  # type: ignore[attr-defined]


async def test_anthropic_messages(base_url: str):
    async with anthropic.AsyncAnthropic(base_url=base_url, auth_token="secret") as client:
        whole = await client.messages.create(model="tiny", max_tokens=400, messages=MESSAGES)
        assert (whole.stop_reason, whole.type) == ("end_turn", "message")
        async with client.messages.stream(
            model="tiny", max_tokens=400, messages=MESSAGES
        ) as stream:
            text = await stream.get_final_text()
        assert text == whole.content[0].text
        counted = await client.messages.count_tokens(model="tiny", messages=MESSAGES)
        usage = whole.usage
        assert counted.input_tokens == usage.input_tokens + (usage.cache_creation_input_tokens or 0)
