"""Live traffic as a trace file, and as the recent past that the tuner replays."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Protocol

from dispatcher.core.types import CallSpec
from dispatcher.core.workflow_types import CallRecord, WorkflowRecord
from dispatcher.traces import TraceWorkflow, call_lines
from dispatcher.traces.assembly import Assembled, Assembler

log = logging.getLogger("headway.recording")

WAITING_MAX = 10_000
"""Workflows that wait to be written; where a disk is slower than the traffic, more are dropped."""
_BATCH = 500
"""Workflows written in one go."""
BEFORE = ".before"
"""Added to the name of a file that is there when a recording begins."""


class Recording:
    """Writes workflows that have ended, in a thread; off the event loop is all that takes time.

    A file holds one life of a gateway: arrivals count from its start. One that is there already is
    moved aside. When the next workflow would pass the bound, recording ends, and says so.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._waiting: deque[TraceWorkflow] = deque()
        self._wake = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._file: FileIO | None = None
        #: `starting`, `recording`, `full`, `failed` or `ended`
        self.status = "starting"
        self.why: str | None = None
        self.calls = 0
        self.workflows = 0
        self.bytes = 0
        #: workflows that came faster than they could be written
        self.dropped = 0

    async def start(self) -> None:
        """Open the file. Where that fails, the gateway serves on without recording."""
        try:
            moved = await asyncio.to_thread(self._open)
        except (OSError, ValueError) as error:
            self._fail(error)
            return
        if moved:
            log.info("recording: what was in %s is in %s%s now", self._path, self._path, BEFORE)
        log.info("recording live traffic to %s, without texts", self._path)
        self.status = "recording"
        self._writer = asyncio.create_task(self._keep_writing())

    def add(self, workflow: TraceWorkflow) -> None:
        """Have one written."""
        if self.status not in ("starting", "recording"):
            return
        if len(self._waiting) >= WAITING_MAX:
            if not self.dropped:
                log.warning("recording: %s takes it too slowly, workflows are dropped", self._path)
            self.dropped += 1
            return
        self._waiting.append(workflow)
        self._wake.set()

    async def stop(self) -> None:
        """Write what waits, and close."""
        writer, self._writer = self._writer, None
        if writer is not None:
            # not cancelled in the midst of a write, which would go on in its thread
            self.status = "ended" if self.status == "recording" else self.status
            self._wake.set()
            await writer
        if self._file is not None:
            file, self._file = self._file, None
            try:
                await asyncio.to_thread(file.close)
            except OSError as error:
                self._fail(error)
            log.info("recorded %d calls of %d workflows", self.calls, self.workflows)

    def state(self) -> dict[str, object]:
        """JSON-ready."""
        return {
            "path": str(self._path),
            "status": self.status,
            "why": self.why,
            "calls": self.calls,
            "workflows": self.workflows,
            "bytes": self.bytes,
            "max_bytes": self._max_bytes,
            "waiting": len(self._waiting),
            "dropped": self.dropped,
        }

    async def _keep_writing(self) -> None:
        while self.status == "recording" or (self.status == "ended" and self._waiting):
            await self._wake.wait()
            self._wake.clear()
            while self._waiting and self.status in ("recording", "ended"):
                batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
                try:
                    full = await asyncio.to_thread(self._write, batch)
                except OSError as error:
                    self._fail(error)
                else:
                    if full:
                        self._end_full()
        self._waiting.clear()

    def _end_full(self) -> None:
        self.status = "full"
        self.why = f"the next workflow would pass recording.max_mb = {self._max_bytes / 1e6:g}"
        log.warning("recording to %s has ended: %s", self._path, self.why)

    def _fail(self, error: Exception) -> None:
        self.status, self.why = "failed", str(error)
        self._waiting.clear()
        log.error("recording to %s has failed: %s", self._path, error)

    # --- in a thread ---

    def _open(self) -> bool:
        """Whether a file was there and has been moved aside."""
        there = self._path.exists() and self._path.stat().st_size > 0
        if there:
            self._path.replace(self._path.with_name(self._path.name + BEFORE))
        self._file = self._path.open("wb", buffering=0)
        return there

    def _write(self, batch: list[TraceWorkflow]) -> bool:
        """Whole workflows only, whatever happens; whether the file is full now."""
        file = self._file
        if file is None:
            raise OSError("the file is closed")
        for workflow in batch:
            text = "".join(line + "\n" for line in call_lines(workflow)).encode()
            if self.bytes + len(text) > self._max_bytes:
                return True
            try:
                left = memoryview(text)
                while left:
                    left = left[file.write(left) :]
            except OSError:
                # half a line would keep all the others from being read
                with contextlib.suppress(OSError):
                    file.truncate(self.bytes)
                raise
            self.bytes += len(text)
            self.calls += len(workflow.calls)
            self.workflows += 1
        return False


class WantsTraffic(Protocol):
    """Whoever goes by recent traffic."""

    @property
    def listening(self) -> bool:
        """Whether it wants any now."""

    def workflow_ended(self, ended: Assembled) -> None:
        """One more has ended."""


class Traffic:
    """Puts ended calls together, where somebody wants them, and hands whole workflows on."""

    def __init__(
        self, clock: Callable[[], float], recording: Recording | None, listener: WantsTraffic
    ) -> None:
        self._assembler = Assembler(epoch_s=clock())
        self._recording = recording
        self._listener = listener

    @property
    def wanted(self) -> bool:
        """Whether it is worth while to collect."""
        return self._recording is not None or self._listener.listening

    @property
    def left_out(self) -> int:
        """Workflows that were too long to be kept."""
        return self._assembler.left_out

    def call_ended(self, spec: CallSpec, record: CallRecord) -> None:
        """A call is over."""
        if self.wanted:
            self._assembler.call_ended(spec, record)

    def workflow_ended(self, record: WorkflowRecord) -> None:
        """A workflow is over."""
        ended = self._assembler.workflow_ended(record)
        if ended is None:
            return
        if self._recording is not None:
            self._recording.add(ended.trace)
        if self._listener.listening:
            self._listener.workflow_ended(ended)

    async def stop(self) -> None:
        """Record what has not ended as far as it came, and close the file."""
        if self._recording is not None:
            for workflow in self._assembler.flush():
                self._recording.add(workflow)
            await self._recording.stop()
