"""A scripted engine on a real socket, a server for ASGI apps, and hand-fed responses."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import uvicorn

from dispatcher.gateway.upstream import BodySink, EngineResponse

SSE_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def answer(body: bytes, *headers: bytes, status: bytes = b"200 OK") -> bytes:
    lines = [b"HTTP/1.1 " + status, *headers, b"content-length: %d" % len(body), b"", body]
    return b"\r\n".join(lines)


@dataclass
class Exchange:
    """One request that reached the engine, and the socket to answer on."""

    number: int
    connection: int
    head: bytes
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def client_closed(self) -> None:
        """Return when the other side has closed the connection."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass


@dataclass
class ScriptedEngine:
    """Runs `script` for each request; a script that returns True closes the connection."""

    script: Callable[[Exchange], Awaitable[bool | None]]
    exchanges: list[Exchange] = field(default_factory=list)
    connections: int = 0
    url: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        connection = self.connections
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                body = await reader.readexactly(length)
                exchange = Exchange(len(self.exchanges) + 1, connection, head, body, reader, writer)
                self.exchanges.append(exchange)
                if await self.script(exchange):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


@contextlib.asynccontextmanager
async def engine(
    script: Callable[[Exchange], Awaitable[bool | None]], tls: ssl.SSLContext | None = None
) -> AsyncIterator[ScriptedEngine]:
    scripted = ScriptedEngine(script)
    handlers: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handlers.add(task)
        try:
            await scripted.serve(reader, writer)
        finally:
            handlers.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    scripted.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    try:
        yield scripted
    finally:
        server.close()
        while handlers:
            await asyncio.wait(set(handlers))
        await server.wait_closed()


@contextlib.asynccontextmanager
async def asgi_server(app: object) -> AsyncIterator[int]:
    """Serve an ASGI app with uvicorn and httptools; gives the port."""
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=0,
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
    )
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await server.shutdown()


class HandFed:
    """Stands in for a connection, so that a test decides what each read brings."""

    def __init__(self, status: int = 200) -> None:
        self.abort_called = asyncio.Event()
        self.paused = 0
        self.resumed = 0
        self.sink: BodySink | None = None
        self.response = EngineResponse(self)
        self.response.head_arrived(status, [(b"content-type", b"text/event-stream")])

    def divert(self, sink: BodySink) -> None:
        self.sink = sink

    def abort(self) -> None:
        self.abort_called.set()

    @property
    def aborted(self) -> bool:
        return self.abort_called.is_set()

    def pause_reading(self) -> None:
        self.paused += 1

    def resume_reading(self) -> None:
        self.resumed += 1

    def feed(self, data: bytes, last: bool = False) -> None:
        sink = self.sink
        if last:
            self.response.let_go()
            self.sink = None
        if sink is not None:
            sink.on_data(data, last)
        else:
            self.response.deliver(data, last)
