"""Several emulated engines in one process, one port each."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import asynccontextmanager

import uvicorn
import uvloop

from dispatcher.emulator.app import create_app
from dispatcher.emulator.settings import EmulatorSettings

SHUTDOWN_S = 5
"""How long open calls may go on after the end was asked for."""

_BACKLOG = 2048


class _Server(uvicorn.Server):
    """A server whose signals are somebody else's business."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals alone: one handler ends the whole fleet."""
        yield


@asynccontextmanager
async def running_fleet(fleet: Sequence[EmulatorSettings]) -> AsyncIterator[list[int]]:
    """Run engines while the block lasts; yields their ports, in order, once all listen.

    Raises:
        OSError: A port is taken.
        ValueError: A replies file cannot be used.
    """
    sockets: list[socket.socket] = []
    servers: list[_Server] = []
    tasks: list[asyncio.Task[None]] = []
    try:
        for settings in fleet:
            sockets.append(_bind(settings.host, settings.port))
        for settings, sock in zip(fleet, sockets, strict=True):
            config = uvicorn.Config(
                create_app(settings),
                http="httptools",
                lifespan="on",
                access_log=False,
                log_level="warning",
                timeout_graceful_shutdown=SHUTDOWN_S,
                backlog=_BACKLOG,
            )
            server = _Server(config)
            servers.append(server)
            tasks.append(asyncio.create_task(server.serve(sockets=[sock])))
        await _all_started(servers, tasks)
        yield [sock.getsockname()[1] for sock in sockets]
    finally:
        for server in servers:
            server.should_exit = True
        await asyncio.gather(*tasks, return_exceptions=True)
        for sock in sockets:
            sock.close()


async def serve_fleet(
    fleet: Sequence[EmulatorSettings],
    *,
    stop: asyncio.Event | None = None,
    on_ready: Callable[[list[int]], None] | None = None,
) -> None:
    """Run engines until SIGTERM or SIGINT, or until `stop` is set.

    Args:
        fleet: One setting per engine; port 0 picks a free one.
        stop: Ends the fleet when set; None makes one.
        on_ready: Called with the ports once all listen.

    Raises:
        OSError: A port is taken.
        ValueError: A replies file cannot be used.
    """
    stop = stop or asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        async with running_fleet(fleet) as ports:
            if on_ready is not None:
                on_ready(ports)
            await stop.wait()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def run_fleet(
    fleet: Sequence[EmulatorSettings], on_ready: Callable[[list[int]], None] | None = None
) -> None:
    """Run engines in this process until a signal ends them; blocks. Uses uvloop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve_fleet(fleet, on_ready=on_ready))


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's delay off only where the protocol is named, 40 ms a call otherwise
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


async def _all_started(servers: list[_Server], tasks: list[asyncio.Task[None]]) -> None:
    """Return once all servers answer; raise what ended one early."""
    while not all(server.started for server in servers):
        for task in tasks:
            if task.done():
                task.result()
                raise RuntimeError("an emulated engine ended while it was starting")
        await asyncio.sleep(0.005)
