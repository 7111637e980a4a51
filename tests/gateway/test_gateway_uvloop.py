"""On the loop that the gateway really runs on."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from dispatcher.gateway.upstream import EnginePool


@pytest.mark.parametrize("turns", range(8))
def test_a_connect_that_is_cancelled_at_any_moment_leaves_nothing_behind(turns: int) -> None:
    async def main() -> None:
        async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        server = await asyncio.start_server(engine, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        pool = EnginePool(f"http://127.0.0.1:{port}")
        request = asyncio.create_task(pool.request(b"GET", b"/", []))
        for _ in range(turns):
            await asyncio.sleep(0)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        await pool.aclose()  # returns when every socket it knows is gone
        assert pool.open_connections == 0
        server.close()
        await server.wait_closed()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
