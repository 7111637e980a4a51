"""One HTTP/1.1 connection to an engine: an asyncio protocol over httptools' response parser.

The token path runs through `data_received`, so it holds nothing that a token does not need: the
parser appends body pieces to a list (no Python frame), one call hands their join to the response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import httptools

from dispatcher.gateway.upstream.errors import (
    UpstreamClosedError,
    UpstreamError,
    UpstreamProtocolError,
)
from dispatcher.gateway.upstream.response import BodySink, EngineResponse

if TYPE_CHECKING:
    from dispatcher.gateway.upstream.pool import EnginePool

#: More than this before the end of the head is an engine gone wrong, not a response.
MAX_HEAD_BYTES = 256 * 1024

_NO_BODY_STATUSES = frozenset({204, 304})


class EngineConnection(asyncio.Protocol):
    """Carries one request at a time; goes back to its pool when the response is over.

    Attributes:
        idle_since_s: event-loop time at which it last became idle.
        closed: whether the socket is gone.
    """

    __slots__ = (
        "_at_chunk",
        "_complete",
        "_deliver",
        "_feed",
        "_head_bytes",
        "_head_done",
        "_headers",
        "_interim",
        "_parser",
        "_parts",
        "_pool",
        "_response",
        "_reusable",
        "_transport",
        "_until_close",
        "closed",
        "idle_since_s",
        "on_body",
    )

    def __init__(self, pool: EnginePool) -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._response: EngineResponse | None = None
        self._deliver: Callable[[bytes, bool], None] | None = None
        self._parts: list[bytes] = []
        #: Read by the parser when it is made: body pieces go into the list from C.
        self.on_body = self._parts.append
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._head_done = False
        self._interim = False
        self._complete = False
        self._reusable = False
        self._until_close = False
        #: The parser stands between two chunks, and the last read ended there.
        self._at_chunk = False
        self._parser: Any = httptools.HttpResponseParser(self)
        self._feed: Callable[[bytes], None] = self._parser.feed_data
        self.closed = False
        self.idle_since_s = 0.0

    # Requests.

    def begin(self, head: bytes, body: bytes) -> EngineResponse:
        """Write a request and return the response that will fill up.

        `head` ends with the empty line; `body` may be empty.
        """
        response = EngineResponse(self)
        self._response = response
        self._deliver = response.deliver
        self._headers = []
        self._head_bytes = 0
        self._head_done = self._interim = self._complete = False
        self._reusable = self._until_close = self._at_chunk = False
        transport = self._transport
        if transport is None or not self.usable:
            self._fail(UpstreamClosedError("connection was already closed", headers_seen=False))
            return response
        if len(body) <= 65536:
            transport.write(head + body)
        else:
            transport.write(head)
            transport.write(body)
        return response

    @property
    def usable(self) -> bool:
        """Whether another request may be written."""
        return not self.closed and self._transport is not None and not self._transport.is_closing()

    @property
    def silent(self) -> bool:
        """Whether nothing has been received since the last request."""
        return self._head_bytes == 0 and not self._head_done

    def divert(self, sink: BodySink) -> None:
        """Give body bytes to `sink` from now on: one call less per token."""
        self._deliver = sink.on_data

    def abort(self) -> None:
        """Close the socket now; a response that is owed fails."""
        if self._transport is not None:
            self._transport.abort()
        if self._response is not None:
            self._fail(UpstreamClosedError("aborted by the gateway", headers_seen=self._head_done))

    def abandon(self) -> None:
        """Drop a connection that was never given out; it hears nothing any more."""
        self.closed = True
        self.abort()
        self._transport = None
        self._parser = None
        self._feed = _discard
        self._pool.forget(self)

    def pause_reading(self) -> None:
        """Leave bytes in the kernel."""
        if self._transport is not None and not self.closed:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        if self._transport is not None and not self.closed:
            self._transport.resume_reading()

    # asyncio's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        if self.closed:  # abandoned meanwhile
            cast(asyncio.Transport, transport).abort()
            return
        self._transport = cast(asyncio.Transport, transport)
        self._pool.remember(self)

    def data_received(self, data: bytes) -> None:
        """Parse, and deliver what this read brought in one piece."""
        if self._at_chunk:
            # One whole chunk, as nearly every token comes: cut by hand, since the parser would
            # end where it began.
            start = data.find(b"\r\n") + 2
            size = len(data) - start - 2
            if size > 0 and data[: start - 2].lower() == b"%x" % size and data.endswith(b"\r\n"):
                if self._deliver is not None:
                    self._deliver(data[start:-2], False)
                return
        self._parse(data)

    def _parse(self, data: bytes) -> None:
        try:
            self._feed(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            if not self._complete:
                self._head_bytes += len(data)
                self._fail_protocol(str(exc))
                return
            self._reusable = False
        if self._complete:
            self._finish()
            return
        if self._at_chunk and not data.endswith(b"\r\n"):
            self._at_chunk = False  # A part of the next chunk's size line.
        parts = self._parts
        if parts:
            if len(parts) == 1:
                piece = parts.pop()
            else:
                piece = b"".join(parts)
                parts.clear()
            if self._deliver is not None:
                self._deliver(piece, False)
        elif not self._head_done:
            self._head_bytes += len(data)
            if self._response is None or self._head_bytes > MAX_HEAD_BYTES:
                self._fail_protocol("bytes that no request asked for, or a head without end")

    def connection_lost(self, exc: Exception | None) -> None:
        """Finish a body that only the close delimits; fail what is cut short."""
        self.closed = True
        if self._response is not None:
            if self._until_close and self._head_done and exc is None:
                self._finish()
            else:
                why = f": {exc}" if exc else ""
                self._fail(
                    UpstreamClosedError(
                        f"the engine closed the connection{why}", headers_seen=self._head_done
                    )
                )
        self._transport = None
        self._parser = None
        self._feed = _discard
        self._pool.forget(self)

    # httptools' side.

    def on_message_begin(self) -> None:
        """A second message behind a finished one is nothing we asked for."""
        if self._complete or self._response is None:
            self._reusable = False
            raise httptools.HttpParserError("unsolicited response")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header; trailers are dropped."""
        if not self._head_done:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Hand over the head, unless it is an interim one."""
        status = self._parser.get_status_code()
        if 100 <= status < 200:
            self._interim = True
            return
        self._head_done = True
        self._until_close = status not in _NO_BODY_STATUSES and not any(
            name in (b"content-length", b"transfer-encoding") for name, _ in self._headers
        )
        if self._response is not None:
            self._response.head_arrived(status, self._headers)

    def on_chunk_header(self) -> None:
        """A chunk's size is known; its data comes."""
        self._at_chunk = False

    def on_chunk_complete(self) -> None:
        """A chunk is whole, its line break included."""
        self._at_chunk = True

    def on_message_complete(self) -> None:
        """Note the end; `data_received` acts on it once the parser has returned."""
        self._at_chunk = False
        if self._interim:
            self._interim = False
            self._headers = []
            return
        self._complete = True
        self._reusable = self._parser.should_keep_alive()

    # Ends.

    def _finish(self) -> None:
        response, deliver = self._response, self._deliver
        piece = b"".join(self._parts)
        self._parts.clear()
        self._response = self._deliver = None
        if response is None or deliver is None:
            self.abort()
            return
        if self._reusable and not self.closed:
            response.let_go()
            self._pool.put_back(self)
        else:
            response.let_go()
            if self._transport is not None:
                self._transport.close()
        deliver(piece, True)

    def _fail_protocol(self, why: str) -> None:
        error = UpstreamProtocolError(f"not HTTP/1.1: {why}", headers_seen=self._head_done)
        if self._transport is not None:
            self._transport.abort()
        self._fail(error)

    def _fail(self, error: UpstreamError) -> None:
        response, self._response, self._deliver = self._response, None, None
        piece = b"".join(self._parts)
        self._parts.clear()
        if response is not None:
            if piece:
                response.deliver(piece, False)
            response.fail(error)


def _discard(data: bytes) -> None:
    """Stand in for the parser of a closed connection."""
