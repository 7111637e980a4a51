import asyncio

import pytest
from relay_kit import HandFed

from dispatcher.core.types import Usage
from dispatcher.gateway.relay import CHAT, RESPONSES, ClientWatch, Finish, relay_whole
from dispatcher.gateway.relay.whole import HOLD_BYTES, PARSE_BYTES
from dispatcher.gateway.upstream import UpstreamClosedError

TAIL = b'","usage":{"prompt_tokens":8,"completion_tokens":9,"prompt_tokens_details":{}}}'


async def relay(pieces, *, dialect=CHAT, status=200, error=None, hang_up=False):
    messages: list[dict] = []
    hung_up = asyncio.Event()

    async def send(message) -> None:
        messages.append(message)

    async def receive() -> dict:
        await hung_up.wait()
        return {"type": "http.disconnect"}

    fed = HandFed(status)
    headers = [(b"content-length", b"%d" % sum(map(len, pieces)))]
    async with ClientWatch(receive) as watch:
        task = asyncio.create_task(
            relay_whole(
                fed.response, send, dialect, headers=headers, watch=watch, clock=lambda: 4.0
            )
        )
        for piece in pieces:
            fed.feed(piece)
            await asyncio.sleep(0)
        if hang_up:
            hung_up.set()
            await fed.abort_called.wait()
        if error is not None:
            fed.response.fail(error)
        else:
            fed.feed(b"", last=True)
        outcome = await task
    return messages, outcome


@pytest.mark.parametrize("size", [0, HOLD_BYTES - 1000, HOLD_BYTES * 2, PARSE_BYTES * 2])
async def test_every_size_arrives_unchanged_with_its_usage(size: int):
    body = b'{"choices":"' + b"x" * size + TAIL
    pieces = [body[start : start + 100_000] for start in range(0, len(body), 100_000)]
    messages, outcome = await relay(pieces)
    assert b"".join(m["body"] for m in messages[1:]) == body
    assert messages[0]["headers"] == [(b"content-length", b"%d" % len(body))]
    assert [m["more_body"] for m in messages[1:]] == [True] * (len(messages) - 2) + [False]
    assert outcome.usage == Usage(8, 9, 0)
    assert outcome.finish is Finish.COMPLETE
    assert outcome.response_complete
    assert outcome.last_token_s == 4.0


async def test_usage_of_another_dialect():
    body = b'{"output":[],"usage":{"input_tokens":1,"output_tokens":2}}'
    assert (await relay([body], dialect=RESPONSES))[1].usage == Usage(1, 2, 0)


@pytest.mark.parametrize(
    "body", [b"not json", b"[]", b'{"usage":null}', b'{"usage":', b"x" * PARSE_BYTES + b'"usage":{']
)
async def test_a_body_without_usage(body: bytes):
    messages, outcome = await relay([body])
    assert b"".join(m["body"] for m in messages[1:]) == body
    assert outcome.usage is None
    assert outcome.finish is Finish.COMPLETE


@pytest.mark.parametrize(("size", "retryable"), [(1000, True), (HOLD_BYTES + 1, False)])
async def test_cut_short(size: int, retryable: bool):
    error = UpstreamClosedError("reset", headers_seen=True)
    messages, outcome = await relay([b"x" * size], error=error)
    assert outcome.finish is Finish.CUT_SHORT
    assert outcome.retryable is retryable
    assert (messages == []) is retryable
    assert not outcome.response_complete


async def test_hang_up():
    error = UpstreamClosedError("aborted", headers_seen=True)
    messages, outcome = await relay([b"x"], error=error, hang_up=True)
    assert messages == []
    assert outcome.finish is Finish.CLIENT_GONE
    assert not outcome.retryable
