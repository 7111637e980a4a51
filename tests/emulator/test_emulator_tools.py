"""Answers that ask for tools, as an agent and its client library see them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from emulated import CHAT, chat_body, engine, events

from dispatcher.emulator import EmulatorSettings, running_fleet

SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string"},
                "most": {"type": "integer", "minimum": 1},
                "where": {"enum": ["web", "files"]},
            },
            "required": ["query"],
        },
    },
}
READ = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}
NAMED = {"type": "function", "function": {"name": "search"}}
SCRIPT = {
    "replies": [
        {"pattern": "rows: 42", "texts": ["There are 42."]},
        {
            "pattern": r"How many (?P<what>\w+)",
            "texts": ["Let me count the {what}."],
            "tool": {"name": "search", "arguments": {"query": "{what}", "deep": [["{what}"]]}},
        },
        {"pattern": "Only a tool", "tool": {"name": "read"}},
        {"pattern": "tool", "texts": ["No such tool here."]},
    ]
}


def asking(text: str = "Go on.", **fields: Any) -> dict[str, Any]:
    return chat_body(text, **{"ignore_eos": False, "max_tokens": 200, **fields})


async def said(client: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    response = await client.post(CHAT, json=body)
    assert response.status_code == 200, response.text
    [choice] = response.json()["choices"]
    return dict(choice)


@pytest.fixture
async def scripted(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    path = tmp_path / "replies.json"
    path.write_text(json.dumps(SCRIPT))
    async with engine(replies=path) as client:
        yield client


@pytest.mark.parametrize(("choice", "reason"), [("required", "tool_calls"), (NAMED, "stop")])
async def test_a_request_that_leaves_no_choice_gets_a_call_that_fits_its_tool(
    client: httpx.AsyncClient, choice: object, reason: str
):
    told = await said(client, asking(tools=[SEARCH], tool_choice=choice))
    assert told["finish_reason"] == reason
    assert told["message"]["content"] == ""
    assert list(told["message"])[5:] == ["function_call", "tool_calls", "reasoning"]
    [call] = told["message"]["tool_calls"]
    assert (call["type"], call["function"]["name"]) == ("function", "search")
    assert call["id"].startswith("chatcmpl-tool-")
    given = json.loads(call["function"]["arguments"])
    assert set(given) == {"query", "most", "where"}
    assert isinstance(given["query"], str)
    assert given["most"] >= 1
    assert given["where"] in ("web", "files")


@pytest.mark.parametrize("choice", [None, "auto", "none"])
async def test_by_itself_an_answer_is_text(client: httpx.AsyncClient, choice: str | None):
    fields = {} if choice is None else {"tool_choice": choice}
    told = await said(client, asking(tools=[SEARCH], **fields))
    assert told["message"]["content"]
    assert "tool_calls" not in told["message"]
    assert told["finish_reason"] in ("stop", "length")


async def test_a_script_asks_for_tools_that_are_on_offer(scripted: httpx.AsyncClient):
    told = await said(scripted, asking("How many ships?", tools=[READ, SEARCH]))
    assert told["message"]["content"] == "Let me count the ships."
    [call] = told["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"query": "ships", "deep": [["ships"]]}
    assert told["finish_reason"] == "tool_calls"
    for others in ({}, {"tools": [READ]}, {"tools": [SEARCH], "tool_choice": "none"}):
        told = await said(scripted, asking("How many ships?", **others))
        assert told["message"]["content"] == "Let me count the ships."
        assert "tool_calls" not in told["message"]
    told = await said(scripted, asking("Only a tool", tools=[READ]))
    assert told["message"]["content"] is None
    assert [c["function"] for c in told["message"]["tool_calls"]] == [
        {"name": "read", "arguments": "{}"}
    ]
    told = await said(scripted, asking("Only a tool", tools=[SEARCH]))
    assert told["message"]["content"] == "No such tool here."


async def test_a_stream_says_the_same_in_pieces(scripted: httpx.AsyncClient):
    body = asking("How many ships?", tools=[SEARCH])
    whole = await said(scripted, body)
    seen = events((await scripted.post(CHAT, json={**body, "stream": True})).text)
    deltas = [event["choices"][0]["delta"] for event in seen]
    content = "".join(delta.get("content") or "" for delta in deltas)
    assert content == whole["message"]["content"]
    pieces = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    [told] = whole["message"]["tool_calls"]
    first, *others = pieces
    assert (first["id"], first["type"]) == (told["id"], "function")
    assert first["function"]["name"] == "search"
    assert len(others) > 3
    assert all(set(piece) == {"index", "function"} for piece in others)
    assert all(set(piece["function"]) == {"arguments"} for piece in others)
    spoken = "".join(piece["function"]["arguments"] for piece in pieces)
    assert spoken == told["function"]["arguments"]
    reasons = [event["choices"][0]["finish_reason"] for event in seen]
    assert reasons[-1] == "tool_calls"
    assert set(reasons[:-1]) == {None}


async def test_several_tokens_of_text_and_call_may_share_an_event(tmp_path: Path):
    path = tmp_path / "replies.json"
    path.write_text(json.dumps(SCRIPT))
    async with engine(replies=path, stream_interval=50) as client:
        body = asking("How many ships?", tools=[SEARCH])
        whole = await said(client, body)
        seen = events((await client.post(CHAT, json={**body, "stream": True})).text)
    deltas = [event["choices"][0]["delta"] for event in seen]
    assert any(delta.get("content") and "tool_calls" in delta for delta in deltas)
    content = "".join(delta.get("content") or "" for delta in deltas)
    assert content == whole["message"]["content"]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_limit_cuts_a_call_short(client: httpx.AsyncClient, stream: bool):
    body = asking(tools=[SEARCH], tool_choice="required", max_tokens=12)
    if stream:
        seen = events((await client.post(CHAT, json={**body, "stream": True})).text)
        assert seen[-1]["choices"][0]["finish_reason"] == "length"
        return
    told = await said(client, body)
    assert told["finish_reason"] == "length"
    [call] = told["message"]["tool_calls"]
    assert call["function"]["arguments"].startswith('{"')
    with pytest.raises(ValueError, match=r"Expecting|Unterminated"):
        json.loads(call["function"]["arguments"])


@pytest.mark.parametrize("fields", [{"min_tokens": 120}, {"ignore_eos": True, "max_tokens": 120}])
async def test_an_answer_that_has_to_be_long_talks_before_it_calls(
    client: httpx.AsyncClient, fields: dict[str, Any]
):
    body = asking(tools=[SEARCH], tool_choice="required", **fields)
    answer = (await client.post(CHAT, json=body)).json()
    assert 120 <= answer["usage"]["completion_tokens"] <= 121
    [choice] = answer["choices"]
    assert len(choice["message"]["content"]) > 200
    assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])


@pytest.mark.parametrize("text", ["word " * 40, "How many ships?"])
async def test_the_next_turn_finds_what_this_one_said_in_the_prefix_cache(
    tmp_path: Path, text: str
):
    path = tmp_path / "replies.json"
    path.write_text(json.dumps(SCRIPT))
    async with engine(block_size=4, replies=path) as client:
        body = asking(text, tools=[SEARCH], tool_choice="required")
        answer = (await client.post(CHAT, json=body)).json()
        result = {"role": "tool", "tool_call_id": "c", "content": "rows: 42"}
        turns = [*body["messages"], answer["choices"][0]["message"], result]
        usage = (await client.post(CHAT, json={**body, "messages": turns})).json()["usage"]
    held = answer["usage"]["total_tokens"]
    assert held - 8 < usage["prompt_tokens_details"]["cached_tokens"] <= held


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"tools": []}, "tools", "`tools` must not be an empty array."),
        ({"tool_choice": "required"}, "tool_choice", "When using `tool_choice`, `tools` must be"),
        ({"tools": [READ], "tool_choice": "some"}, "tool_choice", "Invalid value for `tool_choice"),
        ({"tools": [READ], "tool_choice": {}}, "tool_choice.function", "Invalid value for `funct"),
        (
            {"tools": [READ], "tool_choice": {"function": {}}},
            "tool_choice.function.name",
            "Expected field `name`",
        ),
        (
            {"tools": [READ], "tool_choice": {"function": {"name": ""}}},
            "tool_choice.function.name",
            "Invalid `name` in `function`",
        ),
        ({"tools": [READ], "tool_choice": NAMED}, "tool_choice", "does not match any of the"),
    ],
)
async def test_what_does_not_go_together_is_refused(
    client: httpx.AsyncClient, fields: dict[str, Any], param: str, message: str
):
    response = await client.post(CHAT, json=asking(**fields))
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert message in error["message"]


@pytest.mark.parametrize("tool", [{"arguments": {}}, {"name": "x", "arguments": "text"}])
async def test_a_scripted_tool_that_cannot_be_used_is_refused(tmp_path: Path, tool: object):
    path = tmp_path / "replies.json"
    path.write_text(json.dumps({"replies": [{"pattern": "x", "tool": tool}]}))
    with pytest.raises(ValueError, match="tool"):
        async with engine(replies=path):
            pass


async def agent(
    client: openai.AsyncOpenAI, question: str, *, stream: bool
) -> tuple[list[str], str]:
    """Ask, run tools until there is an answer; the tools it ran, and the answer."""
    turns: list[Any] = [{"role": "user", "content": question}]
    ran: list[str] = []
    for _ in range(4):
        asked = {"model": "tiny", "messages": turns, "tools": [SEARCH]}
        if stream:
            async with client.chat.completions.stream(**asked) as answers:  # type: ignore[arg-type]
                choice = (await answers.get_final_completion()).choices[0]
        else:
            choice = (await client.chat.completions.create(**asked)).choices[0]  # type: ignore[call-overload]
        if choice.finish_reason != "tool_calls":
            return ran, choice.message.content or ""
        turns.append(choice.message.model_dump(exclude_none=True, exclude={"parsed"}))
        for call in choice.message.tool_calls or ():
            query = json.loads(call.function.arguments)["query"]
            ran.append(f"{call.function.name} {query}")
            turns.append({"role": "tool", "tool_call_id": call.id, "content": "rows: 42"})
    return ran, ""


@pytest.mark.parametrize("stream", [False, True])
async def test_an_agent_with_the_official_client_runs_its_tool_and_is_answered(
    tmp_path: Path, stream: bool
):
    path = tmp_path / "replies.json"
    path.write_text(json.dumps(SCRIPT))
    settings = EmulatorSettings(port=0, model="tiny", time_scale=500, replies=path)
    async with running_fleet([settings]) as [port]:
        url = f"http://127.0.0.1:{port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:
            ran, answer = await agent(client, "How many ships?", stream=stream)
    assert (ran, answer) == (["search ships"], "There are 42.")


async def test_the_manual_s_script_plays_as_it_says(tmp_path: Path):
    manual = (Path(__file__).parents[2] / "docs/deploy.md").read_text()
    path = tmp_path / "replies.json"
    path.write_text(manual.split("```json\n")[1].split("```")[0])
    run_sql = {"type": "function", "function": {"name": "run_sql"}}
    async with engine(replies=path) as client:
        first = asking("How many ships?", tools=[run_sql])
        told = (await said(client, first))["message"]
        [call] = told["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"query": "SELECT count(*) FROM ships"}
        result = {"role": "tool", "tool_call_id": call["id"], "content": "rows: 42"}
        turns = [*first["messages"], told, result]
        assert (await said(client, {**first, "messages": turns}))["message"]["content"] == (
            "There they are."
        )


# --- the other endpoints, by their official clients ---

FUNCTION = {"type": "function", "name": "search", "parameters": SEARCH["function"]["parameters"]}
TOOL = {"name": "search", "input_schema": SEARCH["function"]["parameters"]}


@pytest.fixture
async def scripted_url(tmp_path: Path) -> AsyncIterator[str]:
    path = tmp_path / "replies.json"
    path.write_text(json.dumps(SCRIPT))
    settings = EmulatorSettings(port=0, model="tiny", time_scale=500, replies=path, block_size=4)
    async with running_fleet([settings]) as [port]:
        yield f"http://127.0.0.1:{port}"


async def respond(client: openai.AsyncOpenAI, body: dict[str, Any], *, stream: bool) -> Any:
    if not stream:
        return await client.responses.create(**body)
    async with client.responses.stream(**body) as events_:
        kinds = [event.type async for event in events_]
        assert kinds.count("response.output_item.done") == kinds.count("response.output_item.added")
        assert "response.function_call_arguments.done" in kinds
        return await events_.get_final_response()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_holds_a_message_and_a_call_and_goes_on_from_its_output(
    scripted_url: str, stream: bool
):
    async with openai.AsyncOpenAI(base_url=f"{scripted_url}/v1", api_key="none") as client:
        question = {"role": "user", "content": "How many ships?"}
        body = {"model": "tiny", "input": [question], "tools": [FUNCTION]}
        answer = await respond(client, body, stream=stream)
        message, call = answer.output
        assert message.content[0].text == "Let me count the ships."
        assert (call.type, call.name, call.status) == ("function_call", "search", "completed")
        assert json.loads(call.arguments)["query"] == "ships"
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "rows: 42"}
        going_on = {"model": "tiny", "previous_response_id": answer.id, "input": [result]}
        last = await client.responses.create(**going_on)
        assert last.output_text == "There are 42."
        again = [question, *answer.output, result]
        assert (await client.responses.create(**{**body, "input": again})).output_text == (
            "There are 42."
        )
        forced = {**body, "input": "Go on.", "tool_choice": "required"}
        [only] = (await respond(client, forced, stream=stream)).output
        assert (only.type, json.loads(only.arguments)["most"] >= 1) == ("function_call", True)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_message_holds_text_and_a_tool_s_use_and_goes_on_in_the_prefix_cache(
    scripted_url: str, stream: bool
):
    async with anthropic.AsyncAnthropic(base_url=scripted_url, api_key="none") as client:

        async def say(turns: list[Any], **fields: Any) -> Any:
            body = {"model": "tiny", "max_tokens": 200, "messages": turns, "tools": [TOOL]}
            if not stream:
                return await client.messages.create(**{**body, **fields})
            async with client.messages.stream(**{**body, **fields}) as events_:
                return await events_.get_final_message()

        turns: list[Any] = [{"role": "user", "content": "How many ships?"}]
        answer = await say(turns)
        text, use = answer.content
        assert (text.text, use.type, use.name) == ("Let me count the ships.", "tool_use", "search")
        assert use.input == {"query": "ships", "deep": [["ships"]]}
        assert answer.stop_reason == "tool_use"
        result = {"type": "tool_result", "tool_use_id": use.id, "content": "rows: 42"}
        said_before = [block.model_dump(include=KEPT[block.type]) for block in answer.content]
        turns += [
            {"role": "assistant", "content": said_before},
            {"role": "user", "content": [result]},
        ]
        last = await say(turns)
        assert (last.stop_reason, last.content[0].text) == ("end_turn", "There are 42.")
        spent = answer.usage
        held = spent.input_tokens + spent.cache_creation_input_tokens + spent.output_tokens
        assert held - 8 < last.usage.cache_read_input_tokens <= held
        go_on: list[Any] = [{"role": "user", "content": "Go on."}]
        for choice in ({"type": "any"}, {"type": "tool", "name": "search"}):
            [only] = (await say(go_on, tool_choice=choice)).content
            assert (only.type, only.name, only.input["most"] >= 1) == ("tool_use", "search", True)
        [only] = (await say(turns[:1], tool_choice={"type": "none"})).content
        assert only.type == "text"


KEPT = {"text": {"type", "text"}, "tool_use": {"type", "id", "name", "input"}}


async def test_a_call_that_was_cut_short_is_not_to_be_run(client: httpx.AsyncClient):
    forced = {"tool_choice": {"type": "any"}, "max_tokens": 12, "model": "tiny"}
    asked = {"messages": [{"role": "user", "content": "Go on."}], "tools": [TOOL], **forced}
    message = (await client.post("/v1/messages", json=asked)).json()
    assert message["stop_reason"] == "max_tokens"
    assert message["content"] == [{"type": "text", "text": ""}]
    body = {"model": "tiny", "input": "Go on.", "tools": [FUNCTION], "max_output_tokens": 12}
    answer = (await client.post("/v1/responses", json={**body, "tool_choice": "required"})).json()
    [call] = answer["output"]
    assert (answer["status"], call["type"], call["status"]) == (
        *("incomplete", "function_call", "incomplete"),
    )
