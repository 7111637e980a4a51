"""The process that tests windows and replays traces: it serves, it dies, it is replaced."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import light_fakes
import pytest
import tuner_fakes
from tuner_fakes import alive

from dispatcher.gateway.worker import Worker, WorkerError, WorkerLostError


@asynccontextmanager
async def worker() -> AsyncIterator[Worker]:
    made = Worker()
    try:
        yield made
    finally:
        await made.stop()


async def test_a_worker_serves_job_after_job_in_one_process() -> None:
    async with worker() as at_work:
        assert at_work.pid is None
        assert await at_work.run(tuner_fakes.twice, 4, 60) == 8
        pid = at_work.pid
        assert await asyncio.gather(*(at_work.run(tuner_fakes.twice, n, 60) for n in (1, 2))) == [
            2,
            4,
        ]
        assert at_work.pid == pid != os.getpid()
    assert pid is not None
    assert not alive(pid)


@pytest.mark.parametrize(
    ("job", "limit_s", "says"),
    [(tuner_fakes.gone, 60, "exit code 7"), (tuner_fakes.stuck, 0.2, "longer than 0.2 s")],
)
async def test_a_worker_that_was_lost_is_replaced(
    job: Callable[[int], int], limit_s: float, says: str
) -> None:
    async with worker() as at_work:
        assert await at_work.run(tuner_fakes.twice, 1, 60) == 2
        before = at_work.pid
        assert before is not None
        with pytest.raises(WorkerError, match=says):
            await at_work.run(job, 7, limit_s)
        assert not alive(before)
        assert await at_work.run(tuner_fakes.twice, 3, 60) == 6


async def test_a_job_that_is_cancelled_takes_its_process_along() -> None:
    async with worker() as at_work:
        assert await at_work.run(tuner_fakes.twice, 1, 60) == 2
        pid = at_work.pid
        assert pid is not None
        job = asyncio.create_task(at_work.run(tuner_fakes.stuck, 1, 60))
        await asyncio.sleep(0)
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
        assert not alive(pid)
        assert await at_work.run(tuner_fakes.twice, 3, 60) == 6


async def test_a_lane_is_free_while_the_other_is_busy() -> None:
    at_work = Worker(lanes=2)
    try:
        stuck = asyncio.create_task(at_work.run(tuner_fakes.stuck, 1, 60))
        assert await at_work.run(tuner_fakes.twice, 4, 60) == 8
        assert not stuck.done()
        await at_work.stop()
        with pytest.raises(WorkerLostError, match="exit code -9"):
            await stuck
    finally:
        await at_work.stop()


async def test_a_process_that_ends_while_nobody_waits_for_it_is_told_of_once() -> None:
    told: asyncio.Queue[str] = asyncio.Queue()
    at_work = Worker(on_lost=told.put_nowait)
    try:
        assert await at_work.run(tuner_fakes.twice, 4, 60) == 8
        pid = at_work.pid
        assert pid is not None
        os.kill(pid, signal.SIGTERM)
        assert await told.get() == "the worker process ended with exit code -15"
        assert at_work.pid is None
        assert await at_work.run(tuner_fakes.twice, 5, 60) == 10
    finally:
        await at_work.stop()
    # ended on purpose
    assert told.empty()


@pytest.mark.parametrize(
    ("job", "says"),
    [
        (tuner_fakes.untold, "its result cannot travel"),
        (tuner_fakes.leaves, "SystemExit: 3"),
        (tuner_fakes.unread, "its answer cannot be read"),
    ],
)
async def test_what_cannot_be_told_ends_the_job(job: Callable[[int], object], says: str) -> None:
    async with worker() as at_work:
        with pytest.raises(WorkerError, match=says):
            await at_work.run(job, 7, 60)
        assert await at_work.run(tuner_fakes.twice, 3, 60) == 6


async def test_a_worker_loads_nothing_of_the_gateway() -> None:
    async with worker() as at_work:
        loaded = await at_work.run(light_fakes.loaded, 0, 60)
        assert "dispatcher.gateway.worker_process" in loaded
        assert not loaded & {"fastapi", "uvicorn", "pydantic", "dispatcher.cli"}
