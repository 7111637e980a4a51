"""The shortcut past ASGI's `send`: taken with uvicorn, and nobody can tell."""

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable

import pytest
from relay_kit import LAST_CHUNK, SSE_HEAD, Exchange, asgi_server, chunk, engine

from dispatcher.gateway.relay import CHAT, ClientWatch, StreamPump, pump, relay_stream
from dispatcher.gateway.relay.asgi import OneWrite, chunk_writer
from dispatcher.gateway.upstream import EnginePool

START = {"type": "http.response.start", "status": 200, "headers": [(b"x", b"y")]}
END = {"type": "http.response.body", "body": b"", "more_body": False}
DONE = b"data: [DONE]\n\n"


def token(text: bytes) -> bytes:
    return b'data: {"id":"c","choices":[{"delta":{"content":"%b"}}]}\n\n' % text


def body(piece: bytes) -> dict:
    return {"type": "http.response.body", "body": piece, "more_body": True}


async def wire(app, method: bytes = b"GET") -> bytes:
    """Everything that a client gets from an app."""
    async with asgi_server(app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(method + b" / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        got = await reader.read(-1)
        writer.close()
        await writer.wait_closed()
    head, _, rest = got.partition(b"\r\n\r\n")
    kept = [line for line in head.split(b"\r\n") if not line.startswith(b"date:")]
    return b"\r\n".join(kept) + b"\r\n\r\n" + rest


async def test_with_uvicorn_it_is_there_and_writes_what_send_would():
    pieces = [b"a", b"data: x\n\n", b"y" * 5000]

    async def past_send(scope, receive, send) -> None:
        assert chunk_writer(send) is None  # The head is not out yet.
        await send(START)
        write = chunk_writer(send)
        assert write is not None, "this uvicorn is not the one that the shortcut knows"
        assert all(write(piece) for piece in pieces)
        await send(END)
        assert not write(b"behind the end")

    async def through_send(scope, receive, send) -> None:
        await send(START)
        for piece in pieces:
            await send(body(piece))
        await send(END)

    assert await wire(past_send) == await wire(through_send)


@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
async def test_a_response_without_chunks_goes_through_send(method: bytes):
    asked = []

    async def app(scope, receive, send) -> None:
        await send({**START, "headers": [(b"content-length", b"2")]})
        asked.append(chunk_writer(send))
        await send({**END, "body": b"ok"})

    await wire(app, method)
    assert asked == [None]


async def test_any_other_send_is_left_alone():
    class RequestResponseCycle:
        """One of another server, though its name be the same."""

        async def send(self, message) -> None: ...

    async def plain(message) -> None: ...

    found = []

    async def app(scope, receive, send) -> None:
        await send(START)
        found.append(chunk_writer(functools.partial(send)))
        other = type(send.__self__)
        send.__self__.__class__ = type("RequestResponseCycle", (other,), {})
        found.append(chunk_writer(send.__self__.send))
        send.__self__.__class__ = other
        del send.__self__.disconnected  # As if uvicorn had renamed it.
        found.append(chunk_writer(send))
        send.__self__.disconnected = False
        await send(END)

    assert chunk_writer(plain) is None
    assert chunk_writer(RequestResponseCycle().send) is None
    await wire(app)
    assert found == [None, None, None]


class Relay:
    """An app that relays; `wrap` hides uvicorn's `send` from the relay."""

    def __init__(self, pool: EnginePool, *, wrap: bool) -> None:
        self.pool = pool
        self.wrap = wrap

    async def __call__(self, scope, receive, send) -> None:
        await receive()

        async def wrapped(message) -> None:
            await send(message)

        response = await self.pool.request(b"POST", b"/", [])
        async with ClientWatch(receive) as watch:
            await relay_stream(
                response,
                wrapped if self.wrap else send,
                CHAT,
                headers=[(b"content-type", b"text/event-stream")],
                watch=watch,
                clock=asyncio.get_running_loop().time,
            )


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What the pump's shortcuts have said, in order."""
    said: list[bool] = []

    def watched(send):
        write = chunk_writer(send)

        def writing(piece: bytes) -> bool:
            said.append(write(piece))
            return said[-1]

        return None if write is None else writing

    monkeypatch.setattr(pump, "chunk_writer", watched)
    return said


async def relayed(
    script: Callable[[Exchange], Awaitable[None]],
    *,
    wrap: bool,
    read: Callable[[asyncio.StreamReader], Awaitable[bytes]],
) -> bytes:
    async with (
        engine(script) as up,
        EnginePool(up.url) as pool,
        asgi_server(Relay(pool, wrap=wrap)) as port,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        got = await read(reader)
        writer.close()
        await writer.wait_closed()
    return got[got.index(b"\r\n\r\n") :]


async def test_a_relayed_stream_is_the_same_either_way(written: list[bool]):
    arrived = asyncio.Semaphore(0)

    async def script(exchange: Exchange) -> None:
        await exchange.write(SSE_HEAD)
        for number in range(50):
            await exchange.write(chunk(token(b"%d" % number)))
            await arrived.acquire()
        await exchange.write(chunk(DONE) + LAST_CHUNK)

    async def read(reader: asyncio.StreamReader) -> bytes:
        got = b""
        while not got.endswith(LAST_CHUNK):
            got += await reader.read(65536)
            if got.endswith(b"\n\n\r\n"):
                arrived.release()
        return got

    through = await relayed(script, wrap=True, read=read)
    assert written == []
    past = await relayed(script, wrap=False, read=read)
    assert past == through
    # The first goes out with the head, the last with the end.
    assert written == [True] * 49


@pytest.mark.parametrize("wrap", [False, True])
async def test_a_client_that_does_not_read_stops_its_engine(
    wrap: bool, written: list[bool], monkeypatch: pytest.MonkeyPatch
):
    big = token(b"x" * 100_000)
    count = 300  # 30 MB: more than all the sockets on the way hold.
    stuck = asyncio.Event()
    step_send = StreamPump._step_send

    def stepping(self: StreamPump, data: bytes) -> None:
        step_send(self, data)
        if self._suspended is not None:
            stuck.set()

    monkeypatch.setattr(StreamPump, "_step_send", stepping)

    async def script(exchange: Exchange) -> None:
        await exchange.write(SSE_HEAD)
        for _ in range(count):
            await exchange.write(chunk(big))
        await exchange.write(chunk(DONE) + LAST_CHUNK)

    async def read(reader: asyncio.StreamReader) -> bytes:
        await stuck.wait()
        got = bytearray()
        while not got.endswith(LAST_CHUNK):
            got += await reader.read(1 << 20)
        return bytes(got)

    got = await relayed(script, wrap=wrap, read=read)
    assert got.count(b"x" * 100_000) == count
    assert (False in written) is not wrap


@pytest.mark.parametrize("more", [True, False])
async def test_head_and_first_piece_go_out_together(more: bool):
    writes = []

    def app(*, together: bool):
        async def serve(scope, receive, send) -> None:
            transport = send.__self__.transport
            seen = len(writes)
            real_write = send.__self__.transport.write

            class Counting:
                """uvicorn's transport, counted."""

                def __getattr__(self, name: str):
                    return getattr(transport, name)

                def write(self, data: bytes) -> None:
                    writes.append(data)
                    real_write(data)

            send.__self__.transport = Counting()
            with OneWrite(send) if together else contextlib.nullcontext():
                await send(START)
                await send({**body(b"first"), "more_body": more})
            assert len(writes) - seen == (1 if together else 2)
            if more:
                await send({**END, "body": b"second"})

        return serve

    assert await wire(app(together=True)) == await wire(app(together=False))


async def test_what_was_kept_goes_out_when_sending_fails():
    async def app(scope, receive, send) -> None:
        try:
            with OneWrite(send):
                await send(START)
                await send({"type": "not a message"})
        except RuntimeError:
            await send({**END, "body": b"after all"})

    assert (await wire(app)).endswith(chunk(b"after all") + LAST_CHUNK)


async def test_a_client_that_has_gone_is_left_to_send():
    gone = asyncio.Event()
    said = []

    async def app(scope, receive, send) -> None:
        await receive()
        await send(START)
        write = chunk_writer(send)
        said.append(write(b"x"))
        while (await receive())["type"] != "http.disconnect":
            pass
        said.append(write(b"y"))
        await send(body(b"y"))  # As ever: no complaint, and nothing done.
        gone.set()

    async with asgi_server(app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await reader.readuntil(b"x\r\n")
        writer.close()
        await writer.wait_closed()
        await gone.wait()
    assert said == [True, False]
