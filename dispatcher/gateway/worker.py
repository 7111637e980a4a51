"""A process for what takes long, so that no token waits for it.

A `ProcessPoolExecutor` would do the same but for three things: in Python 3.11 it has no public way
to end a worker that is at work, its workers outlive a parent that is killed, and each of them
imports the parent's main module, which is all of the gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import TypeVar, cast

from dispatcher.core.errors import HeadwayError
from dispatcher.gateway.worker_process import HEAD

A = TypeVar("A")
R = TypeVar("R")

NICE = 10
"""How far behind the gateway it stands in the line for a core."""

_PIECE_BYTES = 1 << 17
"""Written at once; a whole training set would be copied over and over."""
_LAST_BREATH_S = 1.0
"""For a process that has closed its pipe to end, so that its exit code can be told."""

_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop());"
    " from dispatcher.gateway.worker_process import main; main()"
)
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""For libraries that would take every core, and memory for each of them."""


class WorkerError(HeadwayError):
    """A job that came to nothing; says why."""


class WorkerLostError(WorkerError):
    """The process has ended, and all it had in memory is gone."""


class Worker:
    """Runs jobs in a process, which is started with the first one and again after it was lost."""

    def __init__(
        self,
        *,
        lanes: int = 1,
        nice: int = NICE,
        on_lost: Callable[[str], None] | None = None,
    ) -> None:
        """No process yet.

        Args:
            lanes: How many jobs it may be given at once; more wait for one of these to end.
            nice: How far it stands back.
            on_lost: Hears why, as soon as a process has ended that nobody had ended here.
        """
        self._nice = nice
        self._on_lost = on_lost
        self._lanes = asyncio.Semaphore(lanes)
        self._process: asyncio.Task[_Process] | None = None

    @property
    def pid(self) -> int | None:
        """Of its process, while there is one."""
        task = self._process
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return None
        process = task.result()
        return None if process.ended else process.pid

    async def run(
        self, function: Callable[[A], R], argument: A, limit_s: float, *, small: bool = False
    ) -> R:
        """What `function(argument)` returns there.

        Args:
            function: Top-level: it travels by its name.
            argument: Can be pickled.
            limit_s: After so long the process is killed.
            small: The argument is pickled in no time: going to a thread for it would take longer.

        Raises:
            WorkerError: The function raised, or cannot travel.
            WorkerLostError: The process died, or it took too long.
        """
        async with self._lanes:
            process = self._started()
            try:
                async with asyncio.timeout(limit_s):
                    if small:
                        job = _packed(function, argument)
                    else:
                        job = await asyncio.to_thread(_packed, function, argument)
                    # starting it goes on where this is given up: who ends it waits for it
                    fine, result = await (await asyncio.shield(process)).ask(job)
            except TimeoutError:
                await self._end(process)
                raise WorkerLostError(
                    f"it took longer than {limit_s:g} s and was stopped"
                ) from None
            except asyncio.CancelledError:
                await asyncio.shield(self._end(process))
                raise
            except OSError as error:
                await self._end(process)
                raise WorkerLostError(f"no worker process could be started: {error}") from error
        if not fine:
            raise WorkerError(str(result))
        return cast(R, result)

    async def stop(self) -> None:
        """Kill the process, whatever it does; the next job starts another."""
        if self._process is not None:
            await self._end(self._process)

    def _started(self) -> asyncio.Task[_Process]:
        if self._process is None or (self._process.done() and self.pid is None):
            self._process = asyncio.create_task(_Process.start(self._nice, self._on_lost))
        return self._process

    async def _end(self, process: asyncio.Task[_Process]) -> None:
        if self._process is process:
            self._process = None
        started, _ = await asyncio.wait({process})
        if all(task.exception() is None for task in started):
            await process.result().end()


def _packed(function: Callable[[A], R], argument: A) -> bytes:
    """What is large, or made of many parts, takes long."""
    try:
        return pickle.dumps((function, argument))
    except Exception as error:
        raise WorkerError(f"the job cannot travel: {error!r}") from error


class _Process:
    """One process, from its start to its end."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        on_lost: Callable[[str], None] | None,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.pid = process.pid
        self._on_lost = on_lost
        #: it has been waited for
        self.ended = False
        self._process = process
        self._writer = writer
        #: by number; no more than it has lanes
        self._jobs: dict[int, asyncio.Future[tuple[bool, object]]] = {}
        self._asked = 0
        self._sending = asyncio.Lock()
        self._watch = asyncio.create_task(self._read(reader), name=f"worker-{process.pid}")

    @staticmethod
    async def start(nice: int, on_lost: Callable[[str], None] | None) -> _Process:
        """Raises `OSError` where there is no room for one more process."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = await asyncio.to_thread(_spawn, theirs.fileno(), nice)
            return _Process(process, on_lost, *await asyncio.open_unix_connection(sock=ours))
        except BaseException:
            ours.close()
            raise

    async def ask(self, job: bytes) -> tuple[bool, object]:
        """Whether it went well, and its result, or else what went wrong.

        Raises:
            WorkerLostError: The process ended before it was done.
        """
        self._asked += 1
        number = self._asked
        answer: asyncio.Future[tuple[bool, object]] = asyncio.get_running_loop().create_future()
        self._jobs[number] = answer
        try:
            await self._send(HEAD.pack(number, len(job)) + job)
            if self.ended:
                raise WorkerLostError("the worker process has ended")
            return await answer
        finally:
            del self._jobs[number]

    async def _send(self, message: bytes) -> None:
        """In pieces that hold nobody up, one message after the other."""
        # whoever reads tells that the process has ended, and how
        async with self._sending:
            with contextlib.suppress(OSError):
                for start in range(0, len(message), _PIECE_BYTES):
                    self._writer.write(message[start : start + _PIECE_BYTES])
                    await self._writer.drain()

    async def end(self) -> None:
        """Kill it, whatever it does."""
        self._on_lost = None
        if not self.ended:
            self._process.kill()
        await asyncio.wait({self._watch})

    async def _read(self, reader: asyncio.StreamReader) -> None:
        why = ""
        try:
            while True:
                number, size = HEAD.unpack(await reader.readexactly(HEAD.size))
                answer: tuple[bool, object] = pickle.loads(  # noqa: S301 - from our own process
                    await reader.readexactly(size)
                )
                if number in self._jobs and not self._jobs[number].done():
                    self._jobs[number].set_result(answer)
        except (EOFError, OSError):
            pass  # it has ended; its exit code tells how
        except Exception as error:  # noqa: BLE001 - told to whoever waits for a job
            why = f": its answer cannot be read: {error!r}"
            self._process.kill()
        code = await asyncio.to_thread(_reap, self._process)
        self.ended = True
        self._writer.close()
        why = f"the worker process ended with exit code {code}{why}"
        for job in self._jobs.values():
            if not job.done():
                job.set_exception(WorkerLostError(why))
        if self._on_lost is not None:
            self._on_lost(why)


def _spawn(descriptor: int, nice: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - this interpreter
        [sys.executable, "-P", "-c", _PROGRAM, str(descriptor), str(nice), json.dumps(sys.path)],
        stdin=subprocess.DEVNULL,
        pass_fds=(descriptor,),
        env={**_ONE_THREAD, **os.environ},
    )


def _reap(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(_LAST_BREATH_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
