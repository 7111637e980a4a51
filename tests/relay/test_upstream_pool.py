import asyncio
import ssl
from pathlib import Path

import pytest
from relay_kit import LAST_CHUNK, SSE_HEAD, Exchange, answer, chunk, engine

from dispatcher.core.errors import ConfigurationError
from dispatcher.gateway.upstream import (
    EnginePool,
    UpstreamClosedError,
    UpstreamConnectError,
    UpstreamProtocolError,
    UpstreamTimeoutError,
)
from dispatcher.gateway.upstream.response import HIGH_WATER_BYTES

PEM = Path(__file__).parent / "data" / "localhost.pem"


async def post(pool: EnginePool, body: bytes = b"{}"):
    return await pool.request(b"POST", b"/v1/x", [(b"a", b"b")], body)


async def test_a_request_arrives_whole_and_its_connection_is_used_again():
    async def script(exchange: Exchange) -> None:
        await exchange.write(answer(exchange.body, b"X-Seen: 1", b"X-Seen: 2"))

    async with engine(script) as up, EnginePool(up.url + "/prefix/") as pool:
        for body in (b"one", b"", b"x" * 200_000):
            response = await post(pool, body)
            assert response.status == 200
            assert [v for k, v in response.headers if k == b"x-seen"] == [b"1", b"2"]
            assert await response.read_all(1 << 20) == body
        assert up.connections == 1
        assert pool.idle_connections == pool.open_connections == 1
        head = up.exchanges[0].head
        assert head.startswith(b"POST /prefix/v1/x HTTP/1.1\r\nhost: 127.0.0.1:")
        assert b"\r\na: b\r\n" in head
    assert pool.open_connections == 0


@pytest.mark.parametrize(
    ("wire", "closes", "status", "body"),
    [
        (SSE_HEAD + chunk(b"ab") + chunk(b"cd") + LAST_CHUNK, False, 200, b"abcd"),
        (SSE_HEAD + chunk(b"ab") + b"0\r\nTrailer: x\r\n\r\n", False, 200, b"ab"),
        (b"HTTP/1.1 200 OK\r\n\r\nuntil close", True, 200, b"until close"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + answer(b"after", b"x:"), False, 200, b"after"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", False, 204, b""),
        (answer(b"bye", b"connection: close"), True, 200, b"bye"),
        (answer(b"", status=b"500 Internal Server Error"), False, 500, b""),
    ],
    ids=["chunked", "trailer", "until-close", "interim", "204", "connection-close", "empty"],
)
async def test_every_framing_of_a_body(wire: bytes, closes: bool, status: int, body: bytes):
    async def script(exchange: Exchange) -> bool:
        for byte in range(len(wire)):
            await exchange.write(wire[byte : byte + 1])
        return closes

    async with engine(script) as up, EnginePool(up.url) as pool:
        response = await post(pool)
        assert response.status == status
        assert await response.read_all(1 << 20) == body
        assert response.complete
        assert pool.idle_connections == (0 if closes else 1)


async def test_a_body_cut_short_says_that_its_head_was_seen():
    async def script(exchange: Exchange) -> bool:
        await exchange.write(SSE_HEAD + chunk(b"half"))
        return True

    async with engine(script) as up, EnginePool(up.url) as pool:
        response = await post(pool)
        assert await response.read() == b"half"
        with pytest.raises(UpstreamClosedError) as info:
            await response.read()
        assert info.value.headers_seen
        assert not response.complete


async def test_a_fresh_connection_that_closes_silently_is_not_tried_again():
    async def script(exchange: Exchange) -> bool:
        return True

    async with engine(script) as up, EnginePool(up.url) as pool:
        with pytest.raises(UpstreamClosedError) as info:
            await post(pool)
        assert not info.value.headers_seen
        assert len(up.exchanges) == 1


async def test_a_stale_connection_is_replaced_once():
    async def script(exchange: Exchange) -> bool:
        if exchange.number == 2:
            return True  # As an engine does whose keep-alive time has just run out.
        await exchange.write(answer(b"ok"))
        return False

    async with engine(script) as up, EnginePool(up.url) as pool:
        assert await (await post(pool)).read_all(9) == b"ok"
        assert await (await post(pool)).read_all(9) == b"ok"
        assert [exchange.connection for exchange in up.exchanges] == [1, 1, 2]


async def test_a_kept_connection_that_began_to_answer_is_not_tried_again():
    async def script(exchange: Exchange) -> bool:
        await exchange.write(answer(b"ok") if exchange.number == 1 else b"HTTP/1.1 200")
        return exchange.number == 2

    async with engine(script) as up, EnginePool(up.url) as pool:
        await (await post(pool)).read_all(9)
        with pytest.raises(UpstreamClosedError):
            await post(pool)
        assert len(up.exchanges) == 2


async def test_nobody_listens():
    async def script(exchange: Exchange) -> None: ...

    async with engine(script) as up:
        url = up.url
    async with EnginePool(url) as pool:
        with pytest.raises(UpstreamConnectError, match=url):
            await post(pool)


async def test_waiting_for_a_head_is_bounded_where_asked():
    async def script(exchange: Exchange) -> None:
        await exchange.client_closed()

    async with engine(script) as up, EnginePool(up.url, head_timeout_s=0.05) as pool:
        with pytest.raises(UpstreamTimeoutError):
            await post(pool)


@pytest.mark.parametrize(
    "wire", [b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\nx: " + b"y" * 300_000], ids=["ssh", "endless"]
)
async def test_what_is_not_http_is_refused(wire: bytes):
    async def script(exchange: Exchange) -> None:
        await exchange.write(wire)
        await exchange.client_closed()

    async with engine(script) as up, EnginePool(up.url) as pool:
        with pytest.raises(UpstreamProtocolError):
            await post(pool)


async def test_a_response_nobody_asked_for_spoils_the_connection():
    async def script(exchange: Exchange) -> None:
        await exchange.write(answer(b"ok") + answer(b"smuggled"))

    async with engine(script) as up, EnginePool(up.url) as pool:
        assert await (await post(pool)).read_all(99) == b"ok"
        assert await (await post(pool)).read_all(99) == b"ok"
        assert up.connections == 2


async def test_abort_closes_the_engines_socket_and_wakes_the_reader():
    closed = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.write(SSE_HEAD + chunk(b"x"))
        await exchange.client_closed()
        closed.set()

    async with engine(script) as up, EnginePool(up.url) as pool:
        response = await post(pool)
        assert await response.read() == b"x"
        reading = asyncio.create_task(response.read())
        await asyncio.sleep(0)
        response.abort()
        await closed.wait()
        with pytest.raises(UpstreamClosedError, match="aborted"):
            await reading


async def test_cancelling_a_request_closes_its_connection():
    arrived, closed = asyncio.Event(), asyncio.Event()

    async def script(exchange: Exchange) -> None:
        arrived.set()
        await exchange.client_closed()
        closed.set()

    async with engine(script) as up, EnginePool(up.url) as pool:
        task = asyncio.create_task(post(pool))
        await arrived.wait()
        task.cancel()
        await closed.wait()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_reader_that_is_behind_stops_the_engine():
    size = 64 * 1024 * 1024
    written = 0

    async def script(exchange: Exchange) -> bool:
        nonlocal written
        await exchange.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        piece = bytes(65536)
        while written < size:
            await exchange.write(piece)
            written += len(piece)
        return False

    async with engine(script) as up, EnginePool(up.url) as pool:
        response = await post(pool)
        total = len(await response.read())
        before = -1
        while before != written:  # Until the kernel's buffers are full too.
            before = written
            await asyncio.sleep(0.05)
        assert written < size
        assert sum(map(len, response._held)) <= 2 * HIGH_WATER_BYTES
        while data := await response.read():
            total += len(data)
        assert total == size
        assert pool.idle_connections == 1


async def test_too_large_for_read_all():
    async def script(exchange: Exchange) -> None:
        await exchange.write(answer(b"x" * 1000))

    async with engine(script) as up, EnginePool(up.url) as pool:
        assert await (await post(pool)).read_all(999) is None
        assert await (await post(pool)).read_all(1000) == b"x" * 1000


async def test_idle_connections_are_bounded_in_number_and_age():
    all_here = asyncio.Barrier(5)

    async def script(exchange: Exchange) -> None:
        if exchange.number <= 5:
            await all_here.wait()
        await exchange.write(answer(b"ok"))

    async with engine(script) as up:
        async with EnginePool(up.url, max_idle=2) as pool:
            tasks = [asyncio.create_task(post(pool)) for _ in range(5)]
            for task in tasks:
                assert await (await task).read_all(9) == b"ok"
            assert pool.idle_connections == 2
        async with EnginePool(up.url, idle_s=0.0) as pool:
            for _ in range(2):
                assert await (await post(pool)).read_all(9) == b"ok"
            assert up.connections == 7


async def test_closing_the_pool_fails_what_is_under_way():
    async def script(exchange: Exchange) -> None:
        await exchange.write(SSE_HEAD)
        await exchange.client_closed()

    async with engine(script) as up, EnginePool(up.url) as pool:
        response = await post(pool)
        await pool.aclose()
        with pytest.raises(UpstreamClosedError):
            await response.read()
        with pytest.raises(UpstreamConnectError, match="closed"):
            await post(pool)


async def test_tls():
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(PEM)

    async def script(exchange: Exchange) -> None:
        await exchange.write(answer(exchange.body))

    trusting = ssl.create_default_context(cafile=str(PEM))
    async with engine(script, server) as up:
        async with EnginePool(up.url, ssl_context=trusting) as pool:
            for _ in range(2):
                assert await (await post(pool, b"secret")).read_all(99) == b"secret"
            assert up.connections == 1
        async with EnginePool(up.url) as pool:
            with pytest.raises(UpstreamConnectError, match="certificate"):
                await post(pool)


@pytest.mark.parametrize("url", ["ftp://x", "http://", "x", "http://h:99999", "http://h?q=1"])
async def test_a_url_that_cannot_be_one(url: str):
    with pytest.raises(ConfigurationError, match="engine URL"):
        EnginePool(url)


async def test_a_header_cannot_smuggle_another():
    async with EnginePool("http://127.0.0.1:1") as pool:
        with pytest.raises(ValueError, match="line break"):
            await pool.request(b"POST", b"/", [(b"a", b"b\r\nc: d")], b"")
