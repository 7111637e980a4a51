"""Which tools answers ask for, whole and streamed, in every endpoint's language."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from relay_kit import HandFed

from dispatcher.gateway.relay import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    RESPONSES,
    ClientWatch,
    Dialect,
    RelayOutcome,
    relay_stream,
    tool_calls,
)
from dispatcher.gateway.relay.tool_calls import NAME_CHARS_MAX, NAMES_MAX, ToolListener

DIALECTS = {"chat": CHAT, "responses": RESPONSES, "messages": MESSAGES}


def function(name: object) -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": "{"}}


def chat(*calls: object, reason: object = "tool_calls") -> dict[str, Any]:
    return {"choices": [{"message": {"tool_calls": list(calls)}, "finish_reason": reason}]}


def responses(*items: object, status: str = "completed") -> dict[str, Any]:
    return {"output": list(items), "status": status}


def messages(*blocks: object, reason: object = "tool_use") -> dict[str, Any]:
    return {"content": list(blocks), "stop_reason": reason}


def item(name: object, **more: object) -> dict[str, object]:
    return {"type": "function_call", "name": name, "arguments": '{"a', **more}


def block(name: object) -> dict[str, object]:
    return {"type": "tool_use", "id": "t", "name": name, "input": {}}


TEXT_ITEM = {"type": "message", "content": [{"type": "output_text", "text": "function_call"}]}
MANY = [f"tool_{n}" for n in range(9)]
JOINED = "+".join(MANY[:NAMES_MAX])


@pytest.mark.parametrize(
    ("endpoint", "answer", "tool"),
    [
        ("chat", chat(function("run_sql")), "run_sql"),
        ("chat", chat(function("b"), function("a"), function("b")), "a+b"),
        ("chat", chat(*map(function, MANY)), JOINED),
        # vLLM, where the request named the function
        ("chat", chat(function("run_sql"), reason="stop"), "run_sql"),
        ("chat", chat(function("run_sql"), reason="length"), None),
        ("chat", chat(reason="tool_calls"), ""),
        ("chat", chat(reason="stop"), None),
        ("chat", chat(function(None)), ""),
        ("chat", chat(function(7), function("a")), "a"),
        ("chat", chat(function("x" * 10**6)), "x" * NAME_CHARS_MAX),
        ("chat", chat(function("new\nline"), reason="stop"), ""),
        ("chat", chat("x", None, {"function": "x", "id": "c"}, 7), ""),
        ("chat", {"choices": [None, {"message": "x", "finish_reason": {}}]}, None),
        ("chat", {"choices": {"message": {}}}, None),
        ("responses", responses(TEXT_ITEM, item("run_sql")), "run_sql"),
        ("responses", responses(item("b"), item("a")), "a+b"),
        ("responses", responses(*map(item, MANY)), JOINED),
        ("responses", responses(item("a", status="incomplete")), None),
        ("responses", responses(item("a"), status="incomplete"), None),
        ("responses", responses({"type": "custom_tool_call", "name": "patch"}), "patch"),
        ("responses", responses({"type": "local_shell_call"}), "local_shell"),
        ("responses", responses({"type": "web_search_call"}, TEXT_ITEM), None),
        ("responses", responses({"type": ["function_call"]}, 3, item([])), ""),
        ("responses", {"output": "function_call"}, None),
        ("messages", messages({"type": "text", "text": "tool_use"}, block("run_sql")), "run_sql"),
        ("messages", messages(block("b"), block("a")), "a+b"),
        ("messages", messages(*map(block, MANY)), JOINED),
        ("messages", messages(block("a"), reason="max_tokens"), None),
        ("messages", messages(block({})), ""),
        ("messages", messages({"type": "text", "text": "hi"}, reason="end_turn"), None),
        ("messages", {"content": None, "stop_reason": 4}, None),
    ],
)
def test_a_whole_answer(endpoint: str, answer: dict[str, Any], tool: str | None) -> None:
    heard = ToolListener(DIALECTS[endpoint])
    heard.usage(answer)
    assert heard.tool() == tool


def test_completions_ask_for_nothing() -> None:
    heard = ToolListener(COMPLETIONS)
    heard.usage(chat(function("run_sql")))
    assert heard.tool() is None
    assert heard.look_out is None


# --- streams ------------------------------------------------------------------------------------


def data(payload: object) -> bytes:
    return b"data: " + json.dumps(payload, separators=(",", ":")).encode() + b"\n\n"


def named(payload: dict[str, Any]) -> bytes:
    return f"event: {payload['type']}\n".encode() + data(payload)


def chunk(delta: object, reason: str | None = None, created: int = 1) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return data({"id": "c-1", "created": created, "model": "m", "choices": [choice]})


def piece(text: str, name: str | None = None) -> bytes:
    call: dict[str, Any] = {"index": 0, "function": {"arguments": text}}
    if name is not None:
        call |= {"id": "call_1", "type": "function"}
        call["function"]["name"] = name
    return chunk({"tool_calls": [call]})


USAGE = data({"id": "c-1", "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}})
DONE = b"data: [DONE]\n\n"
WORDS = [chunk({"content": text}) for text in ("I", " ask", ' "tool_calls":', " [", "]")]
CHAT_STREAM = [
    chunk({"role": "assistant", "content": ""}),
    *WORDS,
    piece("", "run_sql"),
    piece('{"quer'),
    piece("y"),
    chunk({}, "tool_calls"),
    USAGE,
    DONE,
]
PLAIN_STREAM = [CHAT_STREAM[0], *WORDS, chunk({}, "stop"), USAGE, DONE]
CALL = item("run_sql", status="completed")
ENDED = {"output": [CALL], "usage": {"input_tokens": 9, "output_tokens": 4}}
RESPONSES_STREAM = [
    named({"type": "response.created", "response": {"output": [], "usage": None}}),
    named({"type": "response.output_item.added", "item": item("run_sql", status="in_progress")}),
    named({"type": "response.function_call_arguments.delta", "delta": '{"quer'}),
    named({"type": "response.function_call_arguments.delta", "delta": ' "function_call"'}),
    named({"type": "response.output_item.done", "item": CALL}),
    named({"type": "response.completed", "response": ENDED}),
]
MESSAGES_STREAM = [
    named({"type": "message_start", "message": {"usage": {"input_tokens": 9}, "content": []}}),
    named({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "tool_use"}}),
    named({"type": "content_block_start", "content_block": block("run_sql")}),
    named({"type": "content_block_delta", "delta": {"partial_json": '{"quer'}}),
    named({"type": "content_block_delta", "delta": {"partial_json": "y"}}),
    named(
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use"},
            "usage": {"output_tokens": 4},
        }
    ),
    named({"type": "message_stop"}),
]
STREAMS = {"chat": CHAT_STREAM, "responses": RESPONSES_STREAM, "messages": MESSAGES_STREAM}
TOKENS = {"chat": 9, "responses": 2, "messages": 3}


async def relay(reads: list[bytes], dialect: Dialect) -> tuple[bytes, RelayOutcome]:
    sent: list[bytes] = []
    fed = HandFed()
    ticks = itertools.count(1)

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    async def receive() -> dict[str, Any]:
        return await asyncio.Future()

    async def run() -> RelayOutcome:
        async with ClientWatch(receive) as watch:
            return await relay_stream(
                fed.response,
                send,
                dialect,
                headers=[],
                watch=watch,
                clock=lambda: float(next(ticks)),
            )

    task = asyncio.create_task(run())
    for read in reads:
        await asyncio.sleep(0)
        fed.feed(read)
    fed.feed(b"", last=True)
    outcome = await task
    return b"".join(sent), outcome


async def tool_of(reads: list[bytes], dialect: Dialect = CHAT) -> str | None:
    heard = ToolListener(dialect)
    passed, outcome = await relay(reads, heard)
    assert passed == b"".join(reads)
    return heard.tool(outcome.last_tokens)


@given(data=st.data())
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("endpoint", STREAMS)
def test_a_stream_however_it_is_cut_into_reads(
    endpoint: str, newline: bytes, data: st.DataObject
) -> None:
    whole = b"".join(STREAMS[endpoint]).replace(b"\n", newline)
    places = st.lists(st.integers(0, len(whole)), max_size=40)
    ends = [0, *sorted(data.draw(places)), len(whole)]
    reads = [whole[start:end] for start, end in itertools.pairwise(ends) if start < end]
    heard = ToolListener(DIALECTS[endpoint])
    passed, outcome = asyncio.run(relay(reads, heard))
    plain = asyncio.run(relay(reads, DIALECTS[endpoint]))
    assert passed == whole
    assert heard.tool(outcome.last_tokens) == "run_sql"
    assert outcome.output_tokens == TOKENS[endpoint]
    # listening changes nothing of what else is told
    assert (plain[0], plain[1].usage, plain[1].output_tokens) == (
        passed,
        outcome.usage,
        outcome.output_tokens,
    )


@pytest.mark.parametrize("at_once", [1, 3, 99])
async def test_a_stream_that_only_speaks_of_tools_asks_for_none(at_once: int) -> None:
    reads = [
        b"".join(PLAIN_STREAM[start : start + at_once])
        for start in range(0, len(PLAIN_STREAM), at_once)
    ]
    assert await tool_of(reads) is None


async def test_a_tool_call_that_the_length_cut_off_is_none() -> None:
    cut = [*CHAT_STREAM[:8], chunk({"content": ""}, "length"), USAGE, DONE]
    assert await tool_of(cut) is None
    assert await tool_of([b"".join(cut)]) is None


async def test_a_named_function_ends_its_stream_by_stop() -> None:
    assert await tool_of([*CHAT_STREAM[:9], chunk({}, "stop"), USAGE, DONE]) == "run_sql"


async def test_an_engine_that_dates_every_event() -> None:
    dated = [
        event.replace(b'"created":1', b'"created":%d' % number)
        for number, event in enumerate(CHAT_STREAM)
    ]
    assert await tool_of(dated) == "run_sql"


@pytest.mark.parametrize(
    ("broken", "tool"),
    [
        (b'data: {"id":"c-1","choices":[{"delta":{"tool_calls":[{"function":{"na\n\n', ""),
        (data({"id": "c-1", "choices": [{"delta": {"tool_calls": {"a": 1}}}]}), ""),
        (data({"id": "c-1", "choices": [{"delta": {"tool_calls": [[]]}}]}), ""),
        (piece("", "x" * 70_000), "x" * NAME_CHARS_MAX),
        (b'data: {"id":"c-1","choices":[{"delta":{"tool_calls":[{"id":"\xff"}]}}]}\n\n', ""),
    ],
)
async def test_a_tool_call_that_cannot_be_read_passes_all_the_same(
    broken: bytes, tool: str
) -> None:
    assert await tool_of([*WORDS, broken, chunk({}, "tool_calls"), USAGE, DONE]) == tool


async def test_only_events_with_tool_calls_are_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard = ToolListener(CHAT)
    seen: list[bytes] = []
    classify = ToolListener.classify

    def noting(self: ToolListener, event: bytes) -> Any:
        seen.append(event)
        return classify(self, event)

    monkeypatch.setattr(ToolListener, "classify", noting)
    words = [chunk({"content": f" {n}"}) for n in range(500)]
    await relay([CHAT_STREAM[0], *words, *CHAT_STREAM[6:]], heard)
    # the first word is what the others are known by
    assert seen == [CHAT_STREAM[0], words[0], *CHAT_STREAM[6:]]


async def test_pieces_of_arguments_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []
    payload_of = tool_calls.payload_of

    def noting(event: bytes) -> Any:
        parsed.append(event)
        return payload_of(event)

    monkeypatch.setattr(tool_calls, "payload_of", noting)
    begins, ends = piece("", "run_sql"), chunk({}, "tool_calls")
    pieces = [piece(f'"name": {n}') for n in range(500)]
    assert await tool_of([*WORDS, begins, *pieces, ends, USAGE, DONE]) == "run_sql"
    assert parsed in ([begins], [begins, ends])
