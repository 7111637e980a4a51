import asyncio
import gc
import itertools
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st
from relay_kit import HandFed

from dispatcher.core.types import Usage
from dispatcher.gateway.relay import (
    CHAT,
    MESSAGES,
    RESPONSES,
    ClientWatch,
    Dialect,
    Finish,
    RelayOutcome,
    StreamPump,
    relay_stream,
)
from dispatcher.gateway.relay.sse import MAX_TAIL_BYTES
from dispatcher.gateway.upstream import UpstreamClosedError

ROLE = b'data: {"id":"c-1","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
USAGE = (
    b'data: {"id":"c-1","choices":[],"usage":{"prompt_tokens":15,"total_tokens":19,'
    b'"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":3}}}\n\n'
)
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error": {"message": "EngineCore died", "code": 500}}\n\n'


def token(text: bytes) -> bytes:
    return b'data: {"id":"c-1","choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % text


TOKENS = [token(text) for text in (b" a", b" []", rb" \"choices\":[],\"usage\"", b" [DONE]")]
CHAT_STREAM = [ROLE, *TOKENS, USAGE, DONE]
RESPONSES_STREAM = [
    b'event: response.created\ndata: {"type":"response.created","response":{"usage":null}}\n\n',
    b'event: response.output_text.delta\ndata: {"delta":"x","logprobs":[]}\n\n',
    b'event: response.output_text.delta\ndata: {"delta":"[]"}\n\n',
    b'event: response.completed\ndata: {"response":{"usage":{"input_tokens":7,'
    b'"output_tokens":2,"input_tokens_details":{"cached_tokens":4}}}}\n\n',
]
MESSAGES_STREAM = [
    b'event: message_start\ndata: {"message":{"usage":{"input_tokens":9,"output_tokens":0}}}\n\n',
    b"event: ping\ndata: {}\n\n",
    b'event: content_block_delta\ndata: {"delta":{"text":"x"}}\n\n',
    b'event: content_block_delta\ndata: {"delta":{"text":"y"}}\n\n',
    b'event: message_delta\ndata: {"usage":{"output_tokens":2}}\n\n',
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
]


class Client:
    """The ASGI side: takes messages; can be made slow, or hang up."""

    def __init__(self) -> None:
        self.messages: list[dict] = []
        self.writable = asyncio.Event()
        self.writable.set()
        self.hung_up = asyncio.Event()
        self.error: Exception | None = None

    async def send(self, message) -> None:
        if not self.writable.is_set():
            await self.writable.wait()
        if self.error is not None:
            raise self.error
        self.messages.append(dict(message))

    async def receive(self) -> dict:
        await self.hung_up.wait()
        return {"type": "http.disconnect"}

    @property
    def body(self) -> bytes:
        return b"".join(m["body"] for m in self.messages if m["type"] == "http.response.body")

    @property
    def ended(self) -> bool:
        return bool(self.messages) and self.messages[-1].get("more_body") is False


class Listener:
    def __init__(self) -> None:
        self.first: list[float] = []
        self.reports: list[tuple[float, int]] = []

    def first_token(self, now_s: float) -> None:
        self.first.append(now_s)

    def progress(self, now_s: float, output_tokens: int) -> None:
        self.reports.append((now_s, output_tokens))


def begin(client: Client, fed: HandFed, dialect: Dialect = CHAT, **options):
    ticks = itertools.count(1)

    async def relay() -> RelayOutcome:
        async with ClientWatch(client.receive) as watch:
            return await relay_stream(
                fed.response,
                client.send,
                dialect,
                headers=[(b"content-type", b"text/event-stream")],
                watch=watch,
                **{"clock": lambda: float(next(ticks)), "strip_usage": True, **options},
            )

    return asyncio.create_task(relay())


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def relay_pieces(pieces: list[bytes], dialect: Dialect = CHAT, **options):
    client, fed = Client(), HandFed()
    task = begin(client, fed, dialect, **options)
    for number, piece in enumerate(pieces):
        await asyncio.sleep(0)
        fed.feed(piece, last=number == len(pieces) - 1)
    return client, await task


@pytest.mark.parametrize("strip", [True, False])
async def test_bytes_pass_event_for_event_and_only_our_usage_is_taken_out(strip: bool):
    client, outcome = await relay_pieces([*CHAT_STREAM, b""], strip_usage=strip)
    kept = [e for e in CHAT_STREAM if not (strip and e is USAGE)]
    assert client.body == b"".join(kept)
    sent = [m["body"] for m in client.messages[1:] if m["body"]]
    assert sent == kept
    assert client.ended
    assert outcome.finish is Finish.COMPLETE
    assert outcome.response_complete
    assert outcome.usage == Usage(15, 4, 3)
    assert (outcome.events, outcome.output_tokens) == (7, 4)


@given(data=st.data())
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize(
    ("dialect", "stream", "usage", "tokens"),
    [
        (CHAT, CHAT_STREAM, Usage(15, 4, 3), 4),
        (RESPONSES, RESPONSES_STREAM, Usage(7, 2, 4), 2),
        (MESSAGES, MESSAGES_STREAM, Usage(9, 2, 0), 2),
    ],
    ids=["chat", "responses", "messages"],
)
def test_where_reads_are_cut_makes_no_difference(data, newline, dialect, stream, usage, tokens):
    events = [event.replace(b"\n", newline) for event in stream]
    wire = b"".join(events)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(wire) - 1), max_size=12)))
    pieces = [wire[a:b] for a, b in itertools.pairwise([0, *cuts, len(wire)])]
    client, outcome = asyncio.run(relay_pieces(pieces, dialect))
    expected = [e for e in events if dialect is not CHAT or b'"choices":[],"usage":{' not in e]
    assert client.body == b"".join(expected)
    assert outcome.finish is Finish.COMPLETE
    assert outcome.usage == usage
    assert outcome.output_tokens == tokens
    assert outcome.events == len(events)


async def test_usage_on_every_chunk_is_passed_on_and_read_from_the_last():
    chunks = [
        b'data: {"id":"c","choices":[{"delta":{"content":"x"}}],"usage":{"prompt_tokens":3,'
        b'"completion_tokens":%d}}\n\n' % number
        for number in (1, 2, 3)
    ]
    client, outcome = await relay_pieces([*chunks, DONE], strip_usage=False)
    assert client.body == b"".join([*chunks, DONE])
    assert outcome.usage == Usage(3, 3, 0)


async def test_times_and_coalesced_progress():
    listener = Listener()
    now_s = 100.0
    client, fed = Client(), HandFed()
    task = begin(client, fed, clock=lambda: now_s, observer=listener)
    await settle()
    fed.feed(ROLE)
    await settle()
    assert listener.first == []
    for number in range(120):
        now_s = 101.0 + number / 1000
        fed.feed(token(b"x"))
    now_s = 102.2
    fed.feed(token(b"y"))
    await settle()
    fed.feed(DONE, last=True)
    outcome = await task
    assert listener.first == [101.0]
    assert [tokens for _, tokens in listener.reports] == [50, 100, 121]
    assert (outcome.first_token_s, outcome.last_token_s) == (101.0, 102.2)


async def test_nothing_is_sent_before_the_first_event():
    client, fed = Client(), HandFed()
    task = begin(client, fed)
    await settle()
    assert client.messages == []
    fed.feed(ROLE[:20])
    await settle()
    assert client.messages == []
    fed.sink.on_error(UpstreamClosedError("gone", headers_seen=True))
    outcome = await task
    assert client.messages == []
    assert outcome.finish is Finish.CUT_SHORT
    assert outcome.retryable


async def test_an_error_at_the_very_start_leaves_the_client_untouched():
    client, fed = Client(), HandFed()
    task = begin(client, fed)
    await settle()
    fed.feed(ERROR)
    outcome = await task
    assert client.messages == []
    assert outcome.finish is Finish.ENGINE_ERROR
    assert outcome.error == "EngineCore died"
    assert outcome.retryable
    assert fed.aborted


async def test_a_later_error_is_passed_on_as_the_engine_said_it():
    client, outcome = await relay_pieces([ROLE, TOKENS[0], ERROR, DONE])
    assert client.body == ROLE + TOKENS[0] + ERROR + DONE
    assert outcome.finish is Finish.ENGINE_ERROR
    assert outcome.error == "EngineCore died"
    assert client.ended
    assert not outcome.retryable


@pytest.mark.parametrize("clean", [True, False])
async def test_a_stream_cut_short_is_left_open_for_the_caller(clean: bool):
    client, fed = Client(), HandFed()
    task = begin(client, fed)
    await settle()
    fed.feed(ROLE)
    await settle()
    fed.feed(TOKENS[0] + (b"" if clean else TOKENS[1][:30]))
    if clean:
        fed.feed(b"", last=True)
    else:
        fed.sink.on_error(UpstreamClosedError("reset", headers_seen=True))
    outcome = await task
    assert client.body == ROLE + TOKENS[0]
    assert not client.ended
    assert outcome.finish is Finish.CUT_SHORT
    assert outcome.first_byte_sent
    assert not outcome.response_complete
    assert not outcome.retryable


async def test_a_stream_that_ends_with_a_token_is_cut_short():
    client, outcome = await relay_pieces([ROLE, TOKENS[0], TOKENS[0]])
    assert client.body == ROLE + TOKENS[0] * 2
    assert outcome.finish is Finish.CUT_SHORT
    assert not client.ended


async def test_an_event_whose_first_line_came_earlier_keeps_its_place():
    pieces = [ROLE, TOKENS[0], b": a comment\n", TOKENS[0], b"event: x\n", TOKENS[0], DONE, b""]
    client, outcome = await relay_pieces(pieces)
    assert client.body == b"".join(pieces)
    assert outcome.output_tokens == 3


async def test_a_close_behind_the_end_mark_is_no_failure():
    client, fed = Client(), HandFed()
    task = begin(client, fed)
    await settle()
    fed.feed(TOKENS[0] + DONE)
    fed.sink.on_error(UpstreamClosedError("reset", headers_seen=True))
    outcome = await task
    assert outcome.finish is Finish.COMPLETE
    assert client.ended


async def test_a_slow_client_pauses_its_own_engine_only():
    slow, quick = Client(), Client()
    fed_slow, fed_quick = HandFed(), HandFed()
    tasks = [begin(slow, fed_slow), begin(quick, fed_quick)]
    await settle()
    for fed in (fed_slow, fed_quick):
        fed.feed(ROLE)
    await settle()
    slow.writable.clear()
    fed_slow.feed(TOKENS[0])
    assert fed_slow.paused == 1
    for event in TOKENS[1:]:
        fed_slow.feed(event)
    for event in TOKENS:
        fed_quick.feed(event)
    await settle()
    assert slow.body == ROLE
    assert fed_slow.resumed == 0
    assert quick.body == ROLE + b"".join(TOKENS)
    assert fed_quick.paused == 0
    slow.writable.set()
    await settle()
    assert slow.body == quick.body
    assert fed_slow.resumed == 1
    fed_slow.feed(TOKENS[0])
    for fed in (fed_slow, fed_quick):
        fed.feed(DONE, last=True)
    outcomes = await asyncio.gather(*tasks)
    assert slow.body == ROLE + b"".join(TOKENS) + TOKENS[0] + DONE
    assert [outcome.finish for outcome in outcomes] == [Finish.COMPLETE] * 2


@pytest.mark.parametrize("slow", [False, True])
async def test_a_hang_up_stops_the_engine(slow: bool):
    client, fed = Client(), HandFed()
    task = begin(client, fed)
    await settle()
    fed.feed(ROLE)
    await settle()
    if slow:
        client.writable.clear()
        fed.feed(TOKENS[0])
        await settle()
    client.hung_up.set()
    await settle()
    assert fed.aborted
    client.writable.set()  # As a server does whose client has gone.
    outcome = await task
    assert outcome.finish is Finish.CLIENT_GONE
    assert not outcome.response_complete


async def test_a_failing_send_is_a_client_gone_or_a_defect():
    for error, raised in ((ConnectionResetError(), False), (RuntimeError("defect"), True)):
        client, fed = Client(), HandFed()
        task = begin(client, fed)
        await settle()
        fed.feed(ROLE)
        await settle()
        client.error = error
        fed.feed(TOKENS[0])
        if raised:
            with pytest.raises(RuntimeError, match="defect"):
                await task
        else:
            assert (await task).finish is Finish.CLIENT_GONE
        assert fed.aborted


async def test_cancelling_the_relay_stops_the_engine_and_keeps_the_account():
    client, fed = Client(), HandFed()
    pump = StreamPump(
        fed.response,
        client.send,
        CHAT,
        headers=[],
        clock=lambda: 3.0,
        strip_usage=True,
        observer=Listener(),
        started=False,
        stall_timeout_s=None,
    )
    task = asyncio.create_task(pump.run())
    await settle()
    fed.feed(ROLE)
    await settle()
    client.writable.clear()
    fed.feed(TOKENS[0])
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert fed.aborted
    assert (pump.outcome.output_tokens, pump.outcome.last_token_s) == (1, 3.0)


async def test_a_stream_that_falls_silent():
    now_s = 0.0
    client, fed = Client(), HandFed()
    task = begin(client, fed, clock=lambda: now_s, stall_timeout_s=0.01)
    await settle()
    fed.feed(ROLE)
    await settle()
    now_s = 1.0
    outcome = await task
    assert outcome.finish is Finish.STALLED
    assert fed.aborted


async def test_an_event_without_end_is_not_held_for_ever():
    client, fed = Client(), HandFed()
    task = begin(client, fed)
    await settle()
    sent = 0
    while not client.body:
        fed.feed(b"x" * 65536)
        sent += 65536
        await settle()
        assert sent <= MAX_TAIL_BYTES + 2 * 65536
    assert client.body == b"x" * sent
    fed.feed(b"\n\n" + DONE, last=True)
    assert (await task).finish is Finish.COMPLETE


async def test_headers_already_sent_are_not_sent_again():
    client, outcome = await relay_pieces([ROLE, DONE], started=True)
    assert [m["type"] for m in client.messages] == ["http.response.body"] * 2
    assert outcome.response_complete


@pytest.mark.parametrize("well", [True, False])
async def test_a_finished_stream_leaves_nothing_to_the_collector(well: bool):
    client, fed = Client(), HandFed()
    pump = StreamPump(
        fed.response,
        client.send,
        CHAT,
        headers=[],
        clock=lambda: 3.0,
        strip_usage=True,
        observer=Listener(),
        started=False,
        stall_timeout_s=9.0,
    )
    alive = weakref.ref(pump)
    gc.collect()
    gc.disable()
    try:
        task = asyncio.create_task(pump.run())
        await settle()
        fed.feed(ROLE)
        await settle()
        if well:
            fed.feed(DONE, last=True)
        else:
            fed.response.fail(UpstreamClosedError("reset", headers_seen=True))
            fed.sink = None
        await task
        del pump, task
        assert alive() is None
    finally:
        gc.enable()


def refusal(code: object) -> bytes:
    return b'data: {"error":{"message":"no such token","type":"x","code":%b}}\n\n' % (
        str(code).encode()
    )


async def test_a_refusal_at_the_very_start_is_the_clients_to_see():
    client, outcome = await relay_pieces([refusal(400), DONE])
    assert client.body == refusal(400) + DONE
    assert client.ended
    assert outcome.finish is Finish.REFUSED
    assert outcome.error == "no such token"
    assert not outcome.retryable


@pytest.mark.parametrize("code", [401, 408, 429, 500, 503, '"server_error"', "null", 4000])
async def test_what_is_not_the_requests_fault_can_be_tried_elsewhere(code: object):
    client, fed = Client(), HandFed()
    task = begin(client, fed)
    await settle()
    fed.feed(refusal(code))
    assert (await task).retryable
    assert client.messages == []


@pytest.mark.parametrize(
    ("dialect", "event"),
    [
        (RESPONSES, b'event: error\ndata: {"type":"error","code":"400","message":"bad"}\n\n'),
        (
            RESPONSES,
            b'event: response.failed\ndata: {"type":"response.failed","response":'
            b'{"error":{"code":"422","message":"bad"}}}\n\n',
        ),
        (
            MESSAGES,
            b'event: error\ndata: {"type":"error","error":'
            b'{"type":"invalid_request_error","message":"bad"}}\n\n',
        ),
    ],
)
async def test_every_api_can_refuse_inside_its_stream(dialect: Dialect, event: bytes):
    client, outcome = await relay_pieces([event, b""], dialect)
    assert (outcome.finish, outcome.error) == (Finish.REFUSED, "bad")
    assert client.body == event


async def test_a_response_that_has_only_been_opened_can_go_elsewhere():
    """vLLM opens a response while it still waits inside: nothing of it is the client's yet."""
    for start in (RESPONSES_STREAM[:1], [RESPONSES_STREAM[0].replace(b"created", b"in_progress")]):
        client, fed = Client(), HandFed()
        task = begin(client, fed, RESPONSES, clock=lambda: 0.0, stall_timeout_s=0.001)
        await settle()
        for event in start:
            fed.feed(event)
            await settle()
        assert client.messages == []
        fed.sink.on_error(UpstreamClosedError("reset", headers_seen=True))
        outcome = await task
        assert client.messages == []
        assert outcome.retryable


async def test_an_opened_response_comes_whole_with_its_first_token():
    client, fed = Client(), HandFed()
    task = begin(client, fed, RESPONSES)
    await settle()
    fed.feed(RESPONSES_STREAM[0])
    await settle()
    fed.feed(RESPONSES_STREAM[1])
    await settle()
    assert client.body == RESPONSES_STREAM[0] + RESPONSES_STREAM[1]
    fed.feed(b"".join(RESPONSES_STREAM[2:]), last=True)
    assert (await task).finish is Finish.COMPLETE
    assert client.body == b"".join(RESPONSES_STREAM)


async def test_opening_without_end_is_not_held_for_ever():
    client, fed = Client(), HandFed()
    task = begin(client, fed, RESPONSES)
    await settle()
    sent = 0
    while not client.body:
        fed.feed(RESPONSES_STREAM[0])
        sent += 1
        await settle()
        assert sent < 100
    assert client.body == RESPONSES_STREAM[0] * sent
    fed.feed(RESPONSES_STREAM[-1], last=True)
    assert (await task).finish is Finish.COMPLETE


async def test_waiting_inside_the_engine_is_no_stall():
    """Early headers: the response has started, the answer has not."""
    now_s = 0.0
    client, fed = Client(), HandFed()
    task = begin(client, fed, RESPONSES, clock=lambda: now_s, stall_timeout_s=0.001, started=True)
    await settle()
    fed.feed(RESPONSES_STREAM[0])
    for _ in range(3):
        now_s += 1.0
        await asyncio.sleep(0.002)
    assert not task.done()
    fed.feed(b"".join(RESPONSES_STREAM[1:]), last=True)
    assert (await task).finish is Finish.COMPLETE
