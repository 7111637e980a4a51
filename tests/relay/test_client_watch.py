import asyncio

import pytest

from dispatcher.gateway.relay import ClientGoneError, ClientWatch


class Line:
    def __init__(self) -> None:
        self.messages: asyncio.Queue[dict] = asyncio.Queue()

    async def receive(self) -> dict:
        return await self.messages.get()

    def hang_up(self) -> None:
        self.messages.put_nowait({"type": "http.request", "body": b"", "more_body": False})
        self.messages.put_nowait({"type": "http.disconnect"})


async def test_callbacks_are_told_once_unless_discarded():
    line, told = Line(), []
    async with ClientWatch(line.receive) as watch:
        kept, dropped = (lambda: told.append("kept")), (lambda: told.append("dropped"))
        watch.add(kept)
        watch.add(dropped)
        watch.discard(dropped)
        watch.discard(dropped)
        noticed = asyncio.Event()
        watch.add(noticed.set)
        line.hang_up()
        await noticed.wait()
        assert watch.gone
        assert told == ["kept"]
        watch.add(lambda: told.append("late"))
        assert told == ["kept", "late"]


async def test_a_guarded_wait_ends_with_the_hang_up():
    line = Line()
    async with ClientWatch(line.receive) as watch:
        with pytest.raises(ClientGoneError):
            async with watch.guard():
                line.hang_up()
                await asyncio.Event().wait()
        with pytest.raises(ClientGoneError):
            async with watch.guard():
                raise AssertionError("a guard whose client has gone does not begin")
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0


async def test_a_guard_lets_results_errors_and_other_cancellations_through():
    line = Line()
    async with ClientWatch(line.receive) as watch:
        async with watch.guard():
            await asyncio.sleep(0)
        with pytest.raises(KeyError):
            async with watch.guard():
                raise KeyError

    async def guarded() -> None:
        async with ClientWatch(line.receive) as watch, watch.guard():
            await asyncio.Event().wait()

    task = asyncio.create_task(guarded())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_server_whose_receive_fails_is_not_kept_quiet():
    async def receive() -> dict:
        raise RuntimeError("broken server")

    with pytest.raises(RuntimeError, match="broken server"):
        async with ClientWatch(receive):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
