"""The process that tests windows and replays traces: it serves, it dies, it is replaced."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import tuner_fakes
from tuner_fakes import alive

from dispatcher.gateway.worker import Worker, WorkerError


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
