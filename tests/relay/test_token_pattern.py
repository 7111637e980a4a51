"""What the pump takes for tokens at a glance, however reads and events fall together."""

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from relay_kit import HandFed

from dispatcher.core.types import Usage
from dispatcher.gateway.relay import CHAT, RESPONSES, ClientWatch, RelayOutcome, relay_stream
from dispatcher.gateway.relay.sse import EventSplitter

HEAD = b'data: {"id":"c-1","object":"chat.completion.chunk","created":%d,"model":"m",'
DONE = b"data: [DONE]\n\n"


def token(text: bytes, created: int = 7) -> bytes:
    return HEAD % created + b'"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % text


def usage(created: int = 7) -> bytes:
    return HEAD % created + b'"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4}}\n\n'


TEXTS = (b"a", b"[]", rb"\"choices\":[]", rb"data: {\n\n", b" d")
STEADY = [token(text) for text in TEXTS] * 3
DATED = [token(text, created) for created, text in enumerate(TEXTS)] * 3


async def relay(reads: list[bytes], dialect=CHAT) -> tuple[bytes, RelayOutcome]:
    sent: list[bytes] = []
    fed = HandFed()
    ticks = itertools.count(1)

    async def send(message) -> None:
        sent.append(message.get("body", b""))

    async def receive() -> dict:
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
                strip_usage=True,
            )

    task = asyncio.create_task(run())
    for read in reads:
        await asyncio.sleep(0)
        fed.feed(read)
    fed.feed(b"", last=True)
    outcome = await task
    return b"".join(sent), outcome


@pytest.mark.parametrize("tokens", [STEADY, DATED], ids=["steady", "dated"])
@given(cuts=st.lists(st.integers(1, 2000), max_size=12), after=st.integers(0, 15))
async def test_counts_and_bytes_do_not_depend_on_how_reads_fall(tokens, cuts, after):
    events = [*tokens[:after], usage(), *tokens[after:], DONE]
    whole = b"".join(events)
    at = sorted({min(cut, len(whole)) for cut in cuts})
    reads = [whole[a:b] for a, b in itertools.pairwise([0, *at, len(whole)]) if a < b]
    body, outcome = await relay(reads)
    assert body == b"".join(e for e in events if e != usage())
    assert (outcome.output_tokens, outcome.events) == (len(tokens), len(events))
    assert outcome.usage == Usage(prompt_tokens=9, output_tokens=4)


async def test_a_read_of_several_tokens_is_not_taken_apart(monkeypatch):
    looked_at = []
    feed = EventSplitter.feed

    def noting(self, data: bytes) -> list[bytes]:
        looked_at.append(data)
        return feed(self, data)

    monkeypatch.setattr(EventSplitter, "feed", noting)
    three = b"".join(STEADY[1:4])
    await relay([STEADY[0], three, STEADY[4], DONE])
    assert looked_at == [STEADY[0], DONE, b""]


async def test_an_end_behind_tokens_in_one_read_is_seen():
    body, outcome = await relay([STEADY[0], b"".join([*STEADY[1:3], DONE])])
    assert body == b"".join([*STEADY[:3], DONE])
    assert outcome.response_complete
    assert outcome.output_tokens == 3


async def test_usage_in_the_last_of_several_tokens_is_read():
    last = token(b"x").replace(b"}]}", b'}],"usage":{"prompt_tokens":3,"completion_tokens":3}}')
    _, outcome = await relay([STEADY[0], STEADY[1] + last, DONE])
    assert outcome.usage == Usage(prompt_tokens=3, output_tokens=3)
    assert outcome.output_tokens == 3


async def test_named_events_of_other_kinds_between_tokens_are_seen():
    delta = b'event: response.output_text.delta\ndata: {"delta":"x"}\n\n'
    failed = b'event: response.failed\ndata: {"response":{"error":{"message":"no"}}}\n\n'
    body, outcome = await relay([delta, delta + delta, delta + failed], RESPONSES)
    assert body == 4 * delta + failed
    assert outcome.output_tokens == 4
    assert outcome.error == "no"
