"""Plays an engine model in real time: steps it and publishes tokens when they exist.

Virtual time is tied to the loop's clock once, at the start: iteration ends are awaited at absolute
moments, so a late wake-up or a busy CPU delays tokens but never slows the engine down. Only a stall
longer than `MAX_LAG_S` is forgiven, or a laptop that slept would answer hours of tokens at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dispatcher.emulator.metrics import EngineMetrics
from dispatcher.emulator.scripting import OutputPlan
from dispatcher.engine_model import EngineModel, EngineRequest, RequestState, StepResult

MAX_LAG_S = 5.0


class Sequence(EngineRequest):
    """One answer of a call.

    Attributes:
        call: The call that it belongs to.
        index: Its place among the call's choices.
        plan: What it will say.
        sent: Tokens handed to the client.
        available: Tokens that exist by now.
        done: Whether the last one does.
        first_token_s: When the first one did, virtual time.
        last_token_s: When the newest one did.
    """

    __slots__ = (
        "available",
        "call",
        "done",
        "first_token_s",
        "index",
        "last_token_s",
        "plan",
        "sent",
    )

    def __init__(
        self,
        request_id: str,
        call: Call,
        index: int,
        plan: OutputPlan,
        *,
        prompt_tokens: int,
        priority: int,
        block_hashes: list[int],
    ) -> None:
        super().__init__(
            request_id,
            prompt_tokens=prompt_tokens,
            output_tokens=len(plan),
            arrival_s=0.0,
            priority=priority,
            block_hashes=block_hashes,
        )
        self.call = call
        self.index = index
        self.plan = plan
        self.sent = 0
        self.available = 0
        self.done = False
        self.first_token_s = 0.0
        self.last_token_s = 0.0


class Call:
    """One HTTP call: its answers, and whoever waits for their tokens.

    Attributes:
        sequences: Its answers, by index.
        closed: Whether nobody waits any more: the client is gone, or it was cancelled.
        on_settled: Called once, when it is complete or closed.
    """

    __slots__ = ("_news", "_unfinished", "_waiter", "closed", "on_settled", "sequences")

    def __init__(self) -> None:
        self.sequences: list[Sequence] = []
        self.closed = False
        self.on_settled: Callable[[], None] | None = None
        self._unfinished = 0
        self._news = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def finished(self) -> bool:
        """Whether every answer is complete."""
        return self._unfinished == 0

    def start(self) -> None:
        """Count the answers to come."""
        self._unfinished = len(self.sequences)

    def finish_one(self) -> None:
        """Note that one answer is complete."""
        self._unfinished -= 1
        if self._unfinished == 0:
            self._settle()

    def close(self) -> None:
        """Note that nobody wants the rest."""
        self.closed = True
        self._settle()
        self.notify()

    def _settle(self) -> None:
        callback, self.on_settled = self.on_settled, None
        if callback is not None:
            callback()

    def notify(self) -> None:
        """Wake whoever waits for tokens."""
        self._news = True
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def wait(self) -> None:
        """Return once there is something new since the last return."""
        if not self._news:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._news = False

    async def wait_finished(self) -> None:
        """Return once every answer is complete, or the call is closed."""
        while self._unfinished and not self.closed:
            await self.wait()


class EngineDriver:
    """Runs one engine model against the event loop's clock.

    Args:
        model: The engine.
        metrics: Where what happens is counted.
        time_scale: Virtual seconds per real second.
        stream_interval: Tokens between two wake-ups of a call; the first comes at once.
    """

    def __init__(
        self,
        model: EngineModel,
        metrics: EngineMetrics,
        *,
        time_scale: float,
        stream_interval: int = 1,
    ) -> None:
        self.model = model
        self.metrics = metrics
        self._time_scale = time_scale
        self._stream_interval = stream_interval
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        #: loop time at which virtual time was zero
        self._epoch_s = 0.0

    def start(self) -> None:
        """Begin; inside a running loop."""
        self._epoch_s = asyncio.get_running_loop().time()
        self._task = asyncio.create_task(self._run(), name="engine-driver")

    async def stop(self) -> None:
        """End; calls in flight get nothing more."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None

    @property
    def healthy(self) -> bool:
        """Whether the engine is being played."""
        return self._task is not None and not self._task.done()

    def now_s(self) -> float:
        """Virtual time, seconds since the start."""
        return (asyncio.get_running_loop().time() - self._epoch_s) * self._time_scale

    def submit(self, call: Call) -> None:
        """Hand a call's answers to the engine.

        Raises:
            ValueError: The engine refuses one; none is left behind.
        """
        now_s = self.now_s()
        call.start()
        for seq in call.sequences:
            seq.arrival_s = now_s
            try:
                self.model.add(seq)
            except ValueError:
                self.abort(call)
                raise
        self._wake.set()

    def abort(self, call: Call) -> None:
        """Stop a call's unfinished answers and free what they hold; its waiter wakes."""
        if call.closed:
            return
        for seq in call.sequences:
            self.model.abort(seq.request_id)
        call.close()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        model = self.model
        virtual_s = 0.0
        while True:
            if not model.has_work:
                self._wake.clear()
                await self._wake.wait()
                virtual_s = max(virtual_s, self.now_s())
            result = model.step(virtual_s)
            virtual_s += result.duration_s
            due_s = self._epoch_s + virtual_s / self._time_scale
            lag_s = loop.time() - due_s
            if lag_s > MAX_LAG_S:
                self._epoch_s += lag_s
            # Also when late: the calls that were woken must get their turn.
            await asyncio.sleep(max(0.0, -lag_s))
            self._publish(result, virtual_s)

    def _publish(self, result: StepResult, now_s: float) -> None:
        interval = self._stream_interval
        metrics = self.metrics
        metrics.count_step(result)
        # Nearly all requests of a step got their last token at the end of the step before.
        usual_gap_s = result.duration_s
        usual = 0
        for seq in result.emitted:
            assert isinstance(seq, Sequence)  # noqa: S101 - the driver adds nothing else
            call = seq.call
            if call.closed:
                continue
            available = seq.available = seq.generated
            if available == 1:
                seq.first_token_s = now_s
                metrics.observe_first_token(seq, now_s)
            elif seq.last_token_s + usual_gap_s == now_s:
                usual += 1
            else:
                metrics.observe_inter_token(now_s - seq.last_token_s)
            seq.last_token_s = now_s
            if seq.state is RequestState.FINISHED:
                seq.done = True
                call.finish_one()
                metrics.observe_finished(seq, now_s)
                call.notify()
            elif available - seq.sent >= interval or available == 1:
                call.notify()
        if usual:
            metrics.observe_inter_token(usual_gap_s, usual)
