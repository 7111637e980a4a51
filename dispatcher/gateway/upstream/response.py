"""One response of an engine, as it arrives."""

from __future__ import annotations

import asyncio
from typing import Protocol

from dispatcher.gateway.upstream.errors import UpstreamError

#: Bytes held for a reader that is behind before the engine's socket is no longer read.
HIGH_WATER_BYTES = 256 * 1024


class BodySink(Protocol):
    """Takes a response's body without a task switch per piece."""

    def on_data(self, data: bytes, last: bool) -> None:
        """Take what one socket read brought (possibly empty when `last`). Must not raise.

        Never called again after `last`.
        """

    def on_error(self, error: UpstreamError) -> None:
        """The body ends here, unfinished. Must not raise; nothing follows."""


class Channel(Protocol):
    """What a response needs of the connection that carries it."""

    def divert(self, sink: BodySink) -> None:
        """Give body bytes to `sink` from now on, past the response."""

    def abort(self) -> None:
        """Close the socket at once."""

    def pause_reading(self) -> None:
        """Leave further bytes in the kernel, so that the engine feels the backpressure."""

    def resume_reading(self) -> None:
        """Read again."""


class EngineResponse:
    """Status, headers and a body, read piece by piece or handed to a `BodySink`.

    Attributes:
        status: HTTP status, 200..599 (interim responses are swallowed).
        headers: names in lower case, in the engine's order, duplicates kept.
    """

    __slots__ = (
        "_channel",
        "_ended",
        "_error",
        "_held",
        "_held_bytes",
        "_paused",
        "_sink",
        "_waiter",
        "headers",
        "status",
    )

    def __init__(self, channel: Channel) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self._channel: Channel | None = channel
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._paused = False
        self._ended = False
        self._error: UpstreamError | None = None
        self._sink: BodySink | None = None
        self._waiter: asyncio.Future[None] | None = None

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of a header (`name` in lower case), None where absent."""
        for key, value in self.headers:
            if key == name:
                return value
        return None

    @property
    def complete(self) -> bool:
        """Whether the whole response has arrived (the reader may still be behind)."""
        return self._ended

    def abort(self) -> None:
        """Close the engine's socket at once unless the response is over; idempotent.

        An engine that sees its client go stops the request, so this is how a call is cancelled.
        A pending `read` raises `UpstreamClosedError`; a sink hears `on_error`.
        """
        if self._channel is not None:
            self._channel.abort()

    async def read(self) -> bytes:
        """Return the next bytes of the body, b"" at its end.

        Raises:
            UpstreamClosedError: the connection ended first (bytes that came before are returned
                first).
        """
        while not self._held:
            if self._error is not None:
                raise self._error
            if self._ended:
                return b""
            await self._wait()
        data = self._held[0] if len(self._held) == 1 else b"".join(self._held)
        self._held.clear()
        self._held_bytes = 0
        self.resume_reading()
        return data

    async def read_all(self, limit_bytes: int) -> bytes | None:
        """Return the whole body if it fits; None, and the connection closed, where it does not.

        Raises:
            UpstreamClosedError: as `read`.
        """
        parts: list[bytes] = []
        size = 0
        while data := await self.read():
            size += len(data)
            if size > limit_bytes:
                self.abort()
                return None
            parts.append(data)
        return b"".join(parts)

    def attach(self, sink: BodySink) -> None:
        """Hand the rest of the body to `sink`, from inside the socket's callback.

        What is already held is delivered before this returns.
        """
        held = b"".join(self._held)
        self._held.clear()
        self._held_bytes = 0
        if held or self._ended:
            sink.on_data(held, self._ended)
        if self._error is not None:
            sink.on_error(self._error)
        elif self._channel is not None:
            self._sink = sink
            self._channel.divert(sink)
            self.resume_reading()

    def pause_reading(self) -> None:
        """Stop reading from the engine until `resume_reading`."""
        if self._channel is not None and not self._paused:
            self._paused = True
            self._channel.pause_reading()

    def resume_reading(self) -> None:
        """Undo `pause_reading`."""
        if self._paused:
            self._paused = False
            if self._channel is not None:
                self._channel.resume_reading()

    # The connection's side.

    @property
    def error(self) -> UpstreamError | None:
        """Why the response is unfinished, None while it is not."""
        return self._error

    async def wait_head(self) -> None:
        """Wait until status and headers have arrived.

        Raises:
            UpstreamClosedError: the connection ended first.
        """
        while not self.status:
            if self._error is not None:
                raise self._error
            await self._wait()

    def head_arrived(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Take the final response's head."""
        self.status = status
        self.headers = headers
        self._wake()

    def let_go(self) -> None:
        """All has arrived: the connection is no longer this response's."""
        self.resume_reading()
        self._ended = True
        self._channel = self._sink = None  # No reference cycle is left for the collector.

    def deliver(self, data: bytes, last: bool) -> None:
        """Take body bytes, until a sink takes them."""
        if self._sink is not None:
            self._sink.on_data(data, last)
            return
        if data:
            self._held.append(data)
            self._held_bytes += len(data)
            if self._held_bytes > HIGH_WATER_BYTES:
                self.pause_reading()
        self._wake()

    def fail(self, error: UpstreamError) -> None:
        """End the response unfinished; only the first call counts."""
        if self._ended or self._error is not None:
            return
        self._error = error
        self._channel = None
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.on_error(error)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
