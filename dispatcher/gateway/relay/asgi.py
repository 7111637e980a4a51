"""The ASGI side: its types, a coroutine that changes hands, and shortcuts where it is uvicorn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ChunkWriter = Callable[[bytes], bool]

_UVICORN = "uvicorn.protocols.http.httptools_impl"


class Resumed:
    """Awaits a coroutine that was stepped by hand up to its first suspension."""

    __slots__ = ("_coroutine", "_yielded")

    def __init__(self, coroutine: Coroutine[Any, Any, None], yielded: Any) -> None:
        self._coroutine = coroutine
        self._yielded = yielded

    def __await__(self) -> Generator[Any, Any, None]:
        yielded = self._yielded
        try:
            while True:
                try:
                    value = yield yielded
                except BaseException as exc:  # noqa: BLE001 - whatever it is, it is the coroutine's
                    yielded = self._coroutine.throw(exc)
                else:
                    yielded = self._coroutine.send(value)
        except StopIteration:
            return

    def close(self) -> None:
        """Give the coroutine up."""
        self._coroutine.close()


def _uvicorn_cycle(send: Send) -> Any:
    """The request that a `send` of uvicorn belongs to; None where it is another's or wrapped."""
    cycle: Any = getattr(send, "__self__", None)
    kind = type(cycle)
    known = kind.__module__ == _UVICORN and kind.__qualname__ == "RequestResponseCycle"
    return cycle if known and getattr(send, "__func__", None) is kind.send else None


class OneWrite:
    """A context in which uvicorn's writes for one request are put together to one at its end.

    A response's head and its first event come together, and a second system call for them is the
    dearest part of starting a stream. With any other server it does nothing.
    """

    __slots__ = ("_cycle", "_parts", "_transport")

    def __init__(self, send: Send) -> None:
        self._cycle = _uvicorn_cycle(send)
        self._transport: Any = getattr(self._cycle, "transport", None)
        self._parts: list[bytes] = []

    def __enter__(self) -> None:
        if self._transport is not None:
            self._cycle.transport = self

    def __exit__(self, *error: object) -> None:
        if self._transport is not None:
            self._cycle.transport = self._transport
            self._flush()

    def _flush(self) -> None:
        if self._parts:
            self._transport.write(b"".join(self._parts))
            self._parts.clear()

    # What the cycle asks of its transport.

    def write(self, data: bytes) -> None:
        """Keep for the end."""
        self._parts.append(data)

    def close(self) -> None:
        """The response is complete, and the connection is not to be kept."""
        self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """As the transport says."""
        return bool(self._transport.is_closing())


def chunk_writer(send: Send) -> ChunkWriter | None:
    """Return what writes body pieces of a started response past `send`; None where none is known.

    A token's way through `send` is a coroutine and a dictionary made, stepped and thrown away: a
    third of what the gateway itself spends on it. So where the server is uvicorn, and it sends the
    response in chunks, its chunks are written to its transport as it would write them.

    Args:
        send: ASGI's; `http.response.start` has been sent, the response's end has not.

    Returns:
        A function that writes one piece (not empty) and says whether it has: while the client is
        slow, or when it has gone, the piece has to go through `send`, which waits or drops it.
    """
    cycle = _uvicorn_cycle(send)
    if cycle is None:
        return None
    try:
        write, flow = cycle.transport.write, cycle.flow
        chunked = cycle.chunked_encoding is True and cycle.scope["method"] != "HEAD"
        ready = (flow.write_paused, cycle.disconnected, cycle.response_complete)
    except AttributeError:  # Another uvicorn than the one that is known here.
        return None
    if not chunked or not all(isinstance(state, bool) for state in ready):
        return None

    def write_chunk(body: bytes) -> bool:
        if flow.write_paused or cycle.disconnected or cycle.response_complete:
            return False
        write(b"%x\r\n%b\r\n" % (len(body), body))
        return True

    return write_chunk
