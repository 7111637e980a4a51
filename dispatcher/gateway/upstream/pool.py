"""Keep-alive connections to one engine."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from dispatcher.core.errors import ConfigurationError
from dispatcher.gateway.upstream.connection import EngineConnection
from dispatcher.gateway.upstream.errors import (
    UpstreamClosedError,
    UpstreamConnectError,
    UpstreamTimeoutError,
)
from dispatcher.gateway.upstream.response import EngineResponse

#: uvicorn, which serves vLLM, closes idle connections after 5 s; we let go of them before it does.
DEFAULT_IDLE_S = 4.0
#: A reused connection that dies this soon after a request, without a byte, was closed by the
#: engine before it read the request.
STALE_WINDOW_S = 0.25

Headers = Iterable[tuple[bytes, bytes]]


class EnginePool:
    """HTTP/1.1 connections to one engine: last in, first out; no bound on those in use.

    Seats bound what is in flight, so the pool only bounds what it keeps idle.

    A request on a kept connection that ends without one byte of a response within
    `STALE_WINDOW_S` is sent once more on a fresh connection: the engine's side of a keep-alive
    race. Later, or on a fresh connection, or after a byte, the failure is the caller's to judge.

    Args:
        base_url: `http://host[:port][/prefix]` or `https://...`.
        connect_timeout_s: bound on connecting, TLS included, in seconds.
        head_timeout_s: bound on the wait for status and headers; None waits for ever, which is
            right for a call without a stream (it sends no head until it is done).
        max_idle: connections kept for reuse.
        idle_s: seconds after which a kept connection is closed rather than used.
        ssl_context: for `https`; the system's trust store by default.

    Raises:
        ConfigurationError: `base_url` is not such a URL.
    """

    def __init__(
        self,
        base_url: str,
        *,
        connect_timeout_s: float = 5.0,
        head_timeout_s: float | None = None,
        max_idle: int = 256,
        idle_s: float = DEFAULT_IDLE_S,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        try:
            url = urlsplit(base_url)
            host, port = url.hostname, url.port
        except ValueError as exc:
            raise ConfigurationError(f"engine URL {base_url!r}: {exc}") from exc
        if url.scheme not in ("http", "https") or not host or url.query or url.fragment:
            raise ConfigurationError(f"engine URL {base_url!r}: expected http(s)://host[:port]")
        secure = url.scheme == "https"
        self.base_url = base_url
        self._host = host
        self._port = port or (443 if secure else 80)
        self._ssl = (ssl_context or ssl.create_default_context()) if secure else None
        self._prefix = url.path.rstrip("/").encode("ascii")
        self._authority = url.netloc.rpartition("@")[2].encode("ascii")
        self._connect_timeout_s = connect_timeout_s
        self._head_timeout_s = head_timeout_s
        self._max_idle = max_idle
        self._idle_s = idle_s
        self._idle: deque[EngineConnection] = deque()
        self._connections: set[EngineConnection] = set()
        self._empty: asyncio.Future[None] | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    @property
    def open_connections(self) -> int:
        """Connections that exist, idle ones included."""
        return len(self._connections)

    @property
    def idle_connections(self) -> int:
        """Connections kept for reuse, at most `max_idle`."""
        return len(self._idle)

    async def request(
        self, method: bytes, target: bytes, headers: Headers, body: bytes = b""
    ) -> EngineResponse:
        """Send one request and wait for the response's head.

        Args:
            method: upper case, not HEAD or CONNECT.
            target: path and query, beginning with a slash; the URL's prefix goes before it.
            headers: without `host`, `content-length` and hop-by-hop ones, which are ours.
            body: the whole body.

        Returns:
            The response; its body is still arriving. Whoever gets it reads it to the end or
            aborts it. Cancelling this call closes the connection.

        Raises:
            UpstreamConnectError: the engine cannot be reached.
            UpstreamTimeoutError: connecting or the head took too long.
            UpstreamClosedError: the engine closed without answering.
            ValueError: a header or the target holds a line break.
        """
        head = self._head(method, target, headers, len(body))
        loop = asyncio.get_running_loop()
        connection = self._take_idle(loop.time())
        if connection is not None:
            sent_s = loop.time()
            try:
                return await self._exchange(connection, head, body)
            except UpstreamClosedError as exc:
                stale = connection.silent and loop.time() - sent_s < STALE_WINDOW_S
                if exc.headers_seen or not stale or self._closed:
                    raise
        return await self._exchange(await self._connect(), head, body)

    async def aclose(self) -> None:
        """Close everything; responses under way fail. Returns when all sockets are gone."""
        self._closed = True
        self._idle.clear()
        for connection in tuple(self._connections):
            connection.abort()
        if self._connections:
            self._empty = asyncio.get_running_loop().create_future()
            await self._empty

    # The connection's side.

    def remember(self, connection: EngineConnection) -> None:
        """Take note of a connection that has just been made; a closed pool wants none."""
        self._connections.add(connection)
        if self._closed:
            connection.abort()

    def put_back(self, connection: EngineConnection) -> None:
        """Keep a connection whose response is complete, or close it if there are enough."""
        if self._closed or len(self._idle) >= self._max_idle:
            connection.abort()
            return
        connection.idle_since_s = asyncio.get_running_loop().time()
        self._idle.append(connection)

    def forget(self, connection: EngineConnection) -> None:
        """Drop a connection whose socket is gone."""
        self._connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if self._empty is not None and not self._connections and not self._empty.done():
            self._empty.set_result(None)

    # Inside.

    def _take_idle(self, now_s: float) -> EngineConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if now_s - connection.idle_since_s < self._idle_s and connection.usable:
                return connection
            connection.abort()
        return None

    async def _connect(self) -> EngineConnection:
        if self._closed:
            raise UpstreamConnectError(f"{self.base_url}: the pool is closed")
        loop = asyncio.get_running_loop()
        made: list[EngineConnection] = []

        def make() -> EngineConnection:
            made.append(EngineConnection(self))
            return made[-1]

        connected = False
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                transport, connection = await loop.create_connection(
                    make, self._host, self._port, ssl=self._ssl
                )
            connected = True
        except TimeoutError as exc:
            raise UpstreamTimeoutError(
                f"{self.base_url}: no connection within {self._connect_timeout_s} s"
            ) from exc
        except (OSError, ssl.CertificateError) as exc:
            raise UpstreamConnectError(f"{self.base_url}: {exc}") from exc
        finally:
            if not connected:
                # uvloop closes a connection whose making was cancelled without a word to it
                for half_made in made:
                    half_made.abandon()
        if transport.is_closing():
            raise UpstreamConnectError(f"{self.base_url}: closed while connecting")
        return connection

    async def _exchange(
        self, connection: EngineConnection, head: bytes, body: bytes
    ) -> EngineResponse:
        response = connection.begin(head, body)
        try:
            if self._head_timeout_s is None:
                await response.wait_head()
            else:
                async with asyncio.timeout(self._head_timeout_s):
                    await response.wait_head()
        except TimeoutError as exc:
            response.abort()
            raise UpstreamTimeoutError(
                f"{self.base_url}: no response within {self._head_timeout_s} s"
            ) from exc
        except BaseException:
            response.abort()
            raise
        return response

    def _head(self, method: bytes, target: bytes, headers: Headers, body_bytes: int) -> bytes:
        lines = [
            b"%b %b%b HTTP/1.1" % (method, self._prefix, target),
            b"host: %b" % self._authority,
        ]
        lines += [b"%b: %b" % header for header in headers]
        lines.append(b"content-length: %d" % body_bytes)
        head = b"\r\n".join(lines)
        if head.count(b"\n") != len(lines) - 1 or head.count(b"\r") != len(lines) - 1:
            raise ValueError("a line break in a header or in the target")
        return head + b"\r\n\r\n"
