"""The embedded fleet: emulated engines in one child process, where no real one is configured."""

from __future__ import annotations

import asyncio
import logging
import sys
from types import TracebackType
from typing import Self

import orjson

from dispatcher.config import EmbeddedSettings, EngineSettings
from dispatcher.core.errors import HeadwayError

log = logging.getLogger("headway.embedded")

START_LIMIT_S = 60.0
STOP_LIMIT_S = 10.0


class EmbeddedFleetError(HeadwayError):
    """The child process did not come up."""


class EmbeddedFleet:
    """Runs while the block lasts.

    The child lives in a session of its own, so that Ctrl-C reaches the gateway first, and ends by
    itself when its standard input closes, so that it never outlives the gateway.
    """

    def __init__(self, settings: EmbeddedSettings) -> None:
        self._settings = settings
        self._process: asyncio.subprocess.Process | None = None
        self.engines: tuple[EngineSettings, ...] = ()

    async def __aenter__(self) -> Self:
        """Start; returns once all engines listen. Raises `EmbeddedFleetError`."""
        own = self._settings
        fleet = [
            {
                "gpu": gpu,
                "size": own.size,
                "time_scale": own.time_scale,
                "max_num_seqs": own.max_num_seqs,
                # one seed for all: a call's length must not depend on where it runs
                "seed": own.seed,
                "replies": replies_path(),
                "port": 0,
            }
            for gpu in own.gpus
        ]
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "dispatcher.emulator",
            orjson.dumps(fleet).decode(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(START_LIMIT_S):
                ports = await self._ready()
        except TimeoutError:
            await self._end()
            raise EmbeddedFleetError(
                f"the embedded fleet did not start within {START_LIMIT_S:g} s"
            ) from None
        except BaseException:
            await self._end()
            raise
        self.engines = tuple(
            EngineSettings(
                id=name,
                url=f"http://127.0.0.1:{port}",
                gpu=gpu,
                size=own.size,
                seats=own.max_num_seqs,
            )
            for name, gpu, port in zip(names(own.gpus), own.gpus, ports, strict=True)
        )
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._end()

    async def _ready(self) -> list[int]:
        process = self._process
        if process is None or process.stdout is None:
            raise EmbeddedFleetError("the embedded fleet was not started")
        line = await process.stdout.readline()
        if not line:
            status = await process.wait()
            raise EmbeddedFleetError(f"the embedded fleet ended at once, with status {status}")
        return [int(port) for port in orjson.loads(line)["ports"]]

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(STOP_LIMIT_S):
                await process.wait()
        except TimeoutError:
            log.warning("the embedded fleet did not end by itself; killing it")
            process.kill()
            await process.wait()


def names(gpus: tuple[str, ...]) -> list[str]:
    """`a100-0`, `a100-1`, `l40-0`: one name per engine, by type.

    Example:
        >>> names(("A100-80G", "L40", "A100-80G"))
        ['a100-0', 'l40-0', 'a100-1']
    """
    seen: dict[str, int] = {}
    out = []
    for gpu in gpus:
        kind = gpu.lower().split("-")[0]
        number = seen.get(kind, 0)
        seen[kind] = number + 1
        out.append(f"{kind}-{number}")
    return out


def replies_path() -> str:
    """The scripted replies that come with the package."""
    from importlib.resources import files  # noqa: PLC0415

    return str(files("dispatcher.emulator") / "replies" / "text2sql.json")
