"""Chunks that are cut by hand, and those that are not."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from relay_kit import LAST_CHUNK, SSE_HEAD, chunk

from dispatcher.gateway.upstream import EnginePool
from dispatcher.gateway.upstream.connection import EngineConnection


class Wire(asyncio.Transport):
    """A socket that swallows."""

    def write(self, data: bytes) -> None: ...

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None: ...

    def close(self) -> None: ...


class Engine:
    """A connection whose reads a test decides, and the sink of its response."""

    def __init__(self) -> None:
        self.connection = EngineConnection(EnginePool("http://127.0.0.1:1"))
        self.connection.connection_made(Wire())
        self.pieces: list[bytes] = []
        self.over: object = None
        self.parsed = 0
        feed = self.connection._feed

        def counting(data: bytes) -> None:
            self.parsed += 1
            feed(data)

        self.connection._feed = counting
        response = self.connection.begin(b"POST / HTTP/1.1\r\n\r\n", b"")
        response.attach(self)
        self.read = self.connection.data_received

    def on_data(self, data: bytes, last: bool) -> None:
        self.pieces.append(data)
        self.over = last or None

    def on_error(self, error: object) -> None:
        self.over = error


async def test_a_read_that_is_one_whole_chunk_needs_no_parser():
    engine = Engine()
    engine.read(SSE_HEAD)
    engine.read(chunk(b"first"))
    parsed = engine.parsed
    for size in (1, 9, 10, 15, 16, 255, 256, 70_000):
        engine.read(chunk(b"x" * size))
    engine.read(b"A\r\n0123456789\r\n")
    assert engine.parsed == parsed
    assert engine.pieces[-1] == b"0123456789"
    engine.read(LAST_CHUNK)
    assert engine.over is True
    assert b"".join(engine.pieces).endswith(b"0123456789")


@pytest.mark.parametrize(
    "read",
    [
        b"5;name=value\r\nhello\r\n",
        b"0005\r\nhello\r\n",
        chunk(b"hel") + chunk(b"lo"),
        b"5\r\nhello\r\n5",
        b"5\r\nhello\r\n5\r\n",
    ],
    ids=["extension", "zeros", "two", "part of the next", "size line of the next"],
)
async def test_what_is_not_exactly_one_chunk_is_the_parsers(read: bytes):
    engine = Engine()
    engine.read(SSE_HEAD + chunk(b"first"))
    parsed = engine.parsed
    engine.read(read)
    assert engine.parsed == parsed + 1
    assert engine.pieces == [b"first", b"hello"]
    assert engine.over is None


@pytest.mark.parametrize(
    "read",
    [
        b"-2\r\n",
        b"+5\r\nhello\r\n",
        b" 5\r\nhello\r\n",
        b"0x5\r\nhello\r\n",
        b"1_0\r\n0123456789abcdef\r\n",
        b"5\r\nhello!!",
        b"\r\nhello\r\n",
    ],
)
async def test_what_is_no_chunk_is_refused(read: bytes):
    engine = Engine()
    engine.read(SSE_HEAD + chunk(b"first"))
    engine.read(read)
    assert isinstance(engine.over, Exception)
    assert engine.pieces in ([b"first"], [b"first", b"hello"])


async def test_a_chunk_inside_a_chunk_is_data():
    inner = chunk(b"hello")
    engine = Engine()
    engine.read(SSE_HEAD + chunk(b"first"))
    outer = chunk(inner + inner)
    start = outer.index(b"\r\n") + 2
    engine.read(outer[:start])
    engine.read(inner)
    engine.read(inner)
    engine.read(b"\r\n")
    engine.read(inner)
    assert engine.pieces == [b"first", inner, inner, b"hello"]


async def test_a_body_of_known_length_is_never_taken_for_chunks():
    inner = chunk(b"hello")
    engine = Engine()
    engine.read(SSE_HEAD + chunk(b"first") + LAST_CHUNK)
    engine.over = None
    engine.connection.begin(b"POST / HTTP/1.1\r\n\r\n", b"").attach(engine)
    engine.read(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (2 * len(inner)))
    engine.read(inner)
    engine.read(inner)
    assert b"".join(engine.pieces[1:]) == inner + inner
    assert engine.over is True


@given(
    bodies=st.lists(st.binary(min_size=1, max_size=40) | st.just(b"5\r\nhello\r\n"), min_size=1),
    data=st.data(),
)
def test_where_reads_are_cut_makes_no_difference(bodies: list[bytes], data: st.DataObject):
    async def run() -> None:
        engine = Engine()
        chunks = [chunk(body) for body in bodies]
        wire = SSE_HEAD + b"".join(chunks) + LAST_CHUNK
        ends = [len(SSE_HEAD)]
        for each in chunks:
            ends.append(ends[-1] + len(each))
        anywhere = st.integers(1, len(wire) - 1) | st.sampled_from(ends)
        cuts = sorted(data.draw(st.sets(anywhere)))
        for start, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
            engine.read(wire[start:end])
        assert b"".join(engine.pieces) == b"".join(bodies)
        assert engine.over is True

    asyncio.run(run())
