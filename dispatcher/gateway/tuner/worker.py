"""One process for what takes long, so that no token waits for it.

A `ProcessPoolExecutor` would do the same but for two things: in Python 3.11 it has no public way
to end a worker that is at work, and its workers outlive a parent that is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import TypeVar, cast

from dispatcher.core.errors import HeadwayError

A = TypeVar("A")
R = TypeVar("R")

NICE = 10
"""How far behind the gateway it stands in the line for a core."""


_LAST_BREATH_S = 1.0
"""For a process that has closed its pipe to end, so that its exit code can be told."""


class WorkerError(HeadwayError):
    """A job that came to nothing; says why."""


class Worker:
    """Runs one job at a time in a spawned process, which is started with the first one."""

    def __init__(self, nice: int = NICE) -> None:
        self._nice = nice
        self._process: SpawnProcess | None = None
        self._connection: Connection | None = None
        #: what a thread does for it now: no connection is closed under a thread's hands
        self._step: asyncio.Future[object] | None = None
        self._busy = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """Of its process, while there is one."""
        return None if self._process is None else self._process.pid

    async def run(self, function: Callable[[A], R], argument: A, limit_s: float) -> R:
        """What `function(argument)` returns there.

        Args:
            function: Top-level: it travels by its name.
            argument: Can be pickled.
            limit_s: After so long the process is killed.

        Raises:
            WorkerError: The function raised, the process died, or it took too long.
        """
        async with self._busy:
            try:
                async with asyncio.timeout(limit_s):
                    fine, result = await self._ask(function, argument)
            except TimeoutError:
                await self.stop()
                raise WorkerError(f"it took longer than {limit_s:g} s and was stopped") from None
            except asyncio.CancelledError:
                await asyncio.shield(self.stop())
                raise
            except (EOFError, OSError) as error:
                code = await self._end(wait_s=_LAST_BREATH_S)
                raise WorkerError(
                    f"the worker process ended with exit code {code} ({type(error).__name__})"
                ) from error
            except Exception as error:
                await self.stop()
                raise WorkerError(f"the job cannot travel: {error!r}") from error
        if not fine:
            raise WorkerError(str(result))
        return cast(R, result)

    async def stop(self) -> None:
        """Kill the process, whatever it does; the next job starts another."""
        await self._end(wait_s=0.0)

    async def _ask(self, function: Callable[[A], R], argument: A) -> tuple[bool, object]:
        if self._connection is None:
            await self._in_thread(self._start)
        connection = self._connection
        if connection is None:
            raise EOFError
        # it takes as long as the process takes to come up and read
        await self._in_thread(lambda: connection.send((function, argument)))
        await _readable(connection)
        return cast(tuple[bool, object], await self._in_thread(connection.recv))

    async def _in_thread(self, step: Callable[[], object]) -> object:
        """A thread cannot be cancelled: who ends the process waits for it."""
        self._step = asyncio.ensure_future(asyncio.to_thread(step))
        return await asyncio.shield(self._step)

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        # daemonic: an interpreter that ends without `stop` takes it along
        process = context.Process(
            target=serve, args=(theirs, self._nice), name="headway-tuner", daemon=True
        )
        process.start()
        # so that either side sees the end of the other
        theirs.close()
        self._process, self._connection = process, ours

    async def _end(self, wait_s: float) -> int | None:
        """Its exit code; it gets so long to end by itself."""
        step, self._step = self._step, None
        if step is not None and self._process is None:
            await asyncio.wait({step})  # it is being started
        process, self._process = self._process, None
        connection, self._connection = self._connection, None
        code = None if process is None else await asyncio.to_thread(_reap, process, wait_s)
        if step is not None:
            # its pipe is broken now
            await asyncio.gather(step, return_exceptions=True)
        if connection is not None:
            connection.close()
        return code


def _reap(process: SpawnProcess, wait_s: float) -> int | None:
    process.join(wait_s)
    if process.exitcode is None:
        process.kill()
        process.join()
    code = process.exitcode
    process.close()
    return code


async def _readable(connection: Connection) -> None:
    """Return once there is something to read, or the other side has gone."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    descriptor = connection.fileno()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


def serve(connection: Connection, nice: int) -> None:
    """The process: take jobs until the other side has gone."""
    # Ctrl-C reaches the whole group, and is the gateway's to act upon
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(nice)
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            function, argument = connection.recv()
            try:
                answer = (True, function(argument))
            except Exception as error:  # noqa: BLE001 - told to the gateway, which writes it down
                answer = (False, f"{type(error).__name__}: {error}")
            connection.send(answer)
