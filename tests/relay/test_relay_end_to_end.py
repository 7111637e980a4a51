"""Engine, relay, uvicorn and client over real sockets."""

import asyncio
import time

import httpx
import orjson
import pytest
from relay_kit import LAST_CHUNK, SSE_HEAD, Exchange, answer, asgi_server, chunk, engine

from dispatcher.core.types import Usage
from dispatcher.gateway.relay import (
    CHAT,
    ClientGoneError,
    ClientWatch,
    Finish,
    RelayOutcome,
    edit_body,
    is_event_stream,
    relay_stream,
    relay_whole,
    request_headers,
    response_headers,
)
from dispatcher.gateway.upstream import EnginePool

USAGE = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":40}}\n\n'
DONE = b"data: [DONE]\n\n"
PATH = "/v1/chat/completions"


def token(number: int) -> bytes:
    return b'data: {"id":"c","choices":[{"delta":{"content":" t%d"}}]}\n\n' % number


class Gateway:
    """The least that an app does with the relay."""

    def __init__(self, pool: EnginePool) -> None:
        self.pool = pool
        self.outcomes: asyncio.Queue[RelayOutcome | ClientGoneError] = asyncio.Queue()

    async def __call__(self, scope, receive, send) -> None:
        raw, more = b"", True
        while more:
            message = await receive()
            raw, more = raw + message["body"], message["more_body"]
        body = edit_body(raw, orjson.loads(raw), CHAT, priority=3)
        async with ClientWatch(receive) as watch:
            try:
                async with watch.guard():
                    response = await self.pool.request(
                        b"POST", PATH.encode(), request_headers(scope["headers"]), body
                    )
            except ClientGoneError as exc:
                self.outcomes.put_nowait(exc)
                return
            headers = response_headers(response.headers, extra=[(b"x-headway-instance", b"e")])
            options = {"headers": headers, "watch": watch, "clock": time.monotonic}
            if is_event_stream(response.headers):
                outcome = await relay_stream(response, send, CHAT, strip_usage=True, **options)
            else:
                outcome = await relay_whole(response, send, CHAT, **options)
        self.outcomes.put_nowait(outcome)


async def connect(port: int, stream: bool = True, limit: int = 65536):
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=limit)
    body = b'{"stream": %b, "messages": []}' % (b"true" if stream else b"false")
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b"
        % (len(body), body)
    )
    await writer.drain()
    return reader, writer


async def test_two_hundred_streams_side_by_side_arrive_as_sent():
    sent: dict[str, bytes] = {}

    async def script(exchange: Exchange) -> None:
        parsed = orjson.loads(exchange.body)
        assert parsed["priority"] == 3
        assert parsed["stream_options"] == {"include_usage": True}
        events = [token(exchange.number * 1000 + number) for number in range(40)]
        sent[parsed["user"]] = b"".join([*events, DONE])
        await exchange.write(SSE_HEAD)
        for position, event in enumerate(events):
            if position % 7 == exchange.number % 7:  # Not every event is one chunk, one read.
                await exchange.write(chunk(event[:50]))
                await asyncio.sleep(0)
                await exchange.write(chunk(event[50:]))
            else:
                await exchange.write(chunk(event))
        glue = exchange.number % 2
        await exchange.write(chunk(USAGE + DONE) if glue else chunk(USAGE) + chunk(DONE))
        await exchange.write(LAST_CHUNK)

    async with engine(script) as up, EnginePool(up.url) as pool:
        gateway = Gateway(pool)
        async with asgi_server(gateway) as port:
            limits = httpx.Limits(max_connections=50)
            async with httpx.AsyncClient(limits=limits, timeout=60) as client:

                async def one(number: int) -> None:
                    reply = await client.post(
                        f"http://127.0.0.1:{port}{PATH}", json={"stream": True, "user": str(number)}
                    )
                    assert reply.status_code == 200
                    assert reply.headers["x-headway-instance"] == "e"
                    assert reply.content == sent[str(number)]

                await asyncio.gather(*(one(number) for number in range(200)))
        assert gateway.outcomes.qsize() == 200
        while not gateway.outcomes.empty():
            outcome = gateway.outcomes.get_nowait()
            assert isinstance(outcome, RelayOutcome)
            assert outcome.finish is Finish.COMPLETE
            assert outcome.usage == Usage(5, 40, 0)
            assert outcome.output_tokens == 40


@pytest.mark.parametrize("streaming", [False, True], ids=["before-the-head", "mid-stream"])
async def test_a_hang_up_closes_the_engines_connection(streaming: bool):
    arrived, closed = asyncio.Event(), asyncio.Event()

    async def script(exchange: Exchange) -> None:
        if streaming:
            await exchange.write(SSE_HEAD + chunk(token(1)))
        arrived.set()
        await exchange.client_closed()
        closed.set()

    async with engine(script) as up, EnginePool(up.url) as pool:
        gateway = Gateway(pool)
        async with asgi_server(gateway) as port:
            reader, writer = await connect(port)
            await arrived.wait()
            if streaming:
                await reader.readuntil(token(1))
            writer.close()
            await writer.wait_closed()
            await closed.wait()
            ended = await gateway.outcomes.get()
        if streaming:
            assert isinstance(ended, RelayOutcome)
            assert ended.finish is Finish.CLIENT_GONE
        else:
            assert isinstance(ended, ClientGoneError)
        assert pool.idle_connections == 0


async def test_a_slow_client_holds_up_nobody_and_loses_nothing():
    count = 20_000  # Some 40 MB: more than the buffers of all sockets on the way.
    written = 0
    pad = b"x" * 2000

    def event(number: int) -> bytes:
        return token(number).replace(b" t", pad)

    async def script(exchange: Exchange) -> None:
        nonlocal written
        await exchange.write(SSE_HEAD)
        if exchange.number == 1:
            for start in range(0, count, 100):
                await exchange.write(chunk(b"".join(map(event, range(start, start + 100)))))
                written = start + 100
        await exchange.write(chunk(DONE) + LAST_CHUNK)

    async with engine(script) as up, EnginePool(up.url) as pool:
        gateway = Gateway(pool)
        async with asgi_server(gateway) as port:
            slow, slow_writer = await connect(port)
            before = -1
            while before != written or written == 0:
                before = written
                await asyncio.sleep(0.05)
            assert written < count
            quick, quick_writer = await connect(port)
            assert DONE in await quick.readuntil(b"0\r\n\r\n")
            quick_writer.close()
            await quick_writer.wait_closed()
            assert (await gateway.outcomes.get()).finish is Finish.COMPLETE
            received = bytearray()
            while not received.endswith(b"0\r\n\r\n"):
                received += await slow.read(65536)
            slow_writer.close()
            await slow_writer.wait_closed()
            outcome = await gateway.outcomes.get()
            assert outcome.finish is Finish.COMPLETE
            assert outcome.output_tokens == count
        assert dechunk(bytes(received)) == b"".join(map(event, range(count))) + DONE


def dechunk(wire: bytes) -> bytes:
    position = wire.index(b"\r\n\r\n") + 4
    parts = []
    while True:
        end = wire.index(b"\r\n", position)
        size = int(wire[position:end], 16)
        if size == 0:
            return b"".join(parts)
        parts.append(wire[end + 2 : end + 2 + size])
        position = end + 4 + size


async def test_a_whole_answer_and_an_engines_own_refusal():
    replies = [
        (b"200 OK", b'{"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":3}}'),
        (b"404 Not Found", b'{"error":{"message":"no such model"}}'),
    ]

    async def script(exchange: Exchange) -> None:
        status, body = replies[exchange.number - 1]
        await exchange.write(answer(body, b"content-type: application/json", status=status))

    async with engine(script) as up, EnginePool(up.url) as pool:
        gateway = Gateway(pool)
        async with asgi_server(gateway) as port, httpx.AsyncClient() as client:
            for status, body in replies:
                reply = await client.post(f"http://127.0.0.1:{port}{PATH}", json={})
                assert reply.status_code == int(status[:3])
                assert reply.content == body
                assert reply.headers["content-length"] == str(len(body))
            first = await gateway.outcomes.get()
            second = await gateway.outcomes.get()
        assert (first.usage, first.output_tokens) == (Usage(2, 3, 0), 3)
        assert (second.status, second.usage, second.finish) == (404, None, Finish.COMPLETE)
