"""Every scheduled endpoint through the gateway, streaming and not, with the official clients."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anthropic
import httpx
import openai
import pytest
import pytest_asyncio
from drive import LONG, PATHS, becomes, body_for, running_in, text_of
from engines import MODEL, Engine
from gateway_process import Gateway

TOKENS = 6
MESSAGES = [{"role": "user", "content": "Name three schedulers."}]
GREEDY = {"temperature": 0, "extra_body": {"ignore_eos": True}}


@pytest_asyncio.fixture
async def client(gateway: Gateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{gateway.url}/v1", api_key="none", max_retries=0
    ) as client:
        yield client


@pytest_asyncio.fixture
async def claude(gateway: Gateway) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(
        base_url=gateway.url, api_key="none", max_retries=0
    ) as client:
        yield client


async def test_chat(client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=TOKENS, **GREEDY
    )
    assert whole.choices[0].message.content
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == TOKENS
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + TOKENS


async def test_chat_streaming(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=TOKENS, stream=True, **GREEDY
    )
    chunks = [chunk async for chunk in stream]
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == "length"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


async def test_completions(client: openai.AsyncOpenAI) -> None:
    whole = await client.completions.create(
        model=MODEL, prompt="def schedule(", max_tokens=TOKENS, **GREEDY
    )
    assert whole.choices[0].text
    assert whole.usage is not None
    assert whole.usage.completion_tokens == TOKENS


async def test_completions_of_several_prompts(client: openai.AsyncOpenAI) -> None:
    """Takes two seats, answers once."""
    whole = await client.completions.create(
        model=MODEL, prompt=["def a(", "class B"], max_tokens=TOKENS, **GREEDY
    )
    assert [choice.index for choice in whole.choices] == [0, 1]
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 2 * TOKENS


async def test_completions_streaming(client: openai.AsyncOpenAI) -> None:
    stream = await client.completions.create(
        model=MODEL, prompt="def schedule(", max_tokens=TOKENS, stream=True, **GREEDY
    )
    chunks = [chunk async for chunk in stream]
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)
    assert "".join(chunk.choices[0].text for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "length"


async def test_responses(client: openai.AsyncOpenAI) -> None:
    whole = await client.responses.create(
        model=MODEL, input="Name three schedulers.", max_output_tokens=TOKENS, **GREEDY
    )
    assert whole.output_text
    assert whole.usage is not None
    assert whole.usage.output_tokens == TOKENS


async def test_responses_streaming(client: openai.AsyncOpenAI) -> None:
    stream = await client.responses.create(
        model=MODEL,
        input="Name three schedulers.",
        max_output_tokens=TOKENS,
        stream=True,
        **GREEDY,
    )
    events = [event async for event in stream]
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == events[-1].response.output_text
    assert events[-1].response.usage is not None
    assert events[-1].response.usage.output_tokens == TOKENS


async def test_a_stored_response_is_found_on_the_engine_that_holds_it(
    client: openai.AsyncOpenAI,
) -> None:
    """Several, so that a lucky routing does not pass for a right one."""
    for number in range(4):
        made = await client.responses.create(
            model=MODEL, input=f"Remember {number}.", max_output_tokens=TOKENS, **GREEDY
        )
        assert (await client.responses.retrieve(made.id)).output_text == made.output_text
        follow_up = await client.responses.create(
            model=MODEL,
            input="And then?",
            previous_response_id=made.id,
            max_output_tokens=TOKENS,
            **GREEDY,
        )
        assert follow_up.previous_response_id == made.id
        assert follow_up.usage is not None and made.usage is not None
        assert follow_up.usage.input_tokens > made.usage.input_tokens


async def test_a_background_response_is_cancelled_on_its_engine(
    client: openai.AsyncOpenAI, http: httpx.AsyncClient, engine_pair: tuple[Engine, Engine]
) -> None:
    made = await client.responses.create(
        model=f"{MODEL}-slow",
        input="Go on for long.",
        max_output_tokens=LONG,
        background=True,
        **GREEDY,
    )
    assert (await client.responses.cancel(made.id)).status == "cancelled"
    for engine in engine_pair:
        await becomes(running_in, http, engine.url, 0)


async def test_messages(claude: anthropic.AsyncAnthropic) -> None:
    whole = await claude.messages.create(model=MODEL, messages=MESSAGES, max_tokens=TOKENS)
    assert whole.content[0].type == "text"
    assert whole.usage.input_tokens > 0
    assert 1 <= whole.usage.output_tokens <= TOKENS


async def test_messages_streaming(claude: anthropic.AsyncAnthropic) -> None:
    async with claude.messages.stream(model=MODEL, messages=MESSAGES, max_tokens=TOKENS) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        final = await stream.get_final_message()
    assert final.content[0].text == text
    assert final.stop_reason in ("max_tokens", "end_turn")
    assert 1 <= final.usage.output_tokens <= TOKENS


async def test_models_are_the_union_of_the_fleet(client: openai.AsyncOpenAI) -> None:
    names = {model.id async for model in client.models.list()}
    assert names == {MODEL, f"{MODEL}-fast", f"{MODEL}-slow"}


@pytest.mark.parametrize("instance", ["fast", "slow"])
async def test_a_call_goes_only_where_its_model_is_served(
    http: httpx.AsyncClient, gateway: Gateway, instance: str
) -> None:
    body = body_for("chat", "x", 1, model=f"{MODEL}-{instance}")
    for _ in range(4):
        answer = await http.post(gateway.url + PATHS["chat"], json=body)
        assert answer.status_code == 200
        assert answer.headers["x-headway-instance"] == instance


async def test_tokenize_and_back(http: httpx.AsyncClient, gateway: Gateway) -> None:
    told = await http.post(
        f"{gateway.url}/tokenize", json={"model": MODEL, "prompt": "def schedule("}
    )
    assert told.status_code == 200
    body = {"model": MODEL, "tokens": told.json()["tokens"]}
    back = await http.post(f"{gateway.url}/detokenize", json=body)
    assert back.json() == {"prompt": "def schedule("}


@pytest.mark.parametrize("endpoint", PATHS)
@pytest.mark.parametrize("streaming", [True, False])
async def test_the_answer_is_the_engines(
    http: httpx.AsyncClient, gateway: Gateway, endpoint: str, streaming: bool
) -> None:
    """The same greedy call, sent to the engine that served it, says the same, headers included."""
    body = {**body_for(endpoint, "Say it again.", TOKENS), "stream": streaming}
    headers = {"x-request-id": f"twice-{endpoint}-{streaming}", "x-headway-workflow": "echo"}
    ours = await http.post(gateway.url + PATHS[endpoint], json=body, headers=headers)
    engine = gateway.engines[ours.headers["x-headway-instance"]]
    theirs = await http.post(engine.url + PATHS[endpoint], json=body, headers=headers)
    assert ours.status_code == theirs.status_code == 200
    assert ours.headers["content-type"] == theirs.headers["content-type"]
    assert ours.headers["x-request-id"] == headers["x-request-id"]
    assert ours.headers["x-headway-workflow-id"]
    assert float(ours.headers["x-headway-queue-ms"]) >= 0
    assert text_of(ours.text, endpoint, streaming) == text_of(theirs.text, endpoint, streaming)
