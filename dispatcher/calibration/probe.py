"""What is asked of one engine, round by round, and how much of it the time allows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial

from dispatcher.calibration.client import CalibrationError, Description, EngineClient
from dispatcher.calibration.samples import (
    PrefillSample,
    Samples,
    StreamTrace,
    admission_sample,
    decode_sample,
    overlapping,
)

SHORTEST = 24
"""Prompt tokens of the shortest probe: a text that no other call began with takes some."""

LONGEST = 8_192
"""Prompt tokens of the longest probe, unless told otherwise."""

_WARM_UP_TOKENS = 16
_LEAST_OUTPUT, _MOST_OUTPUT = 64, 1_024
_PREFILL_STEPS = 5
_VISITORS = 3
_SETTLE_GAPS = 8
_MOST_HOSTS = 8
_KV_SHARE = 0.8
_TEXT_MARGIN = 1.15
"""A prompt may come out so many times longer than was aimed at."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How an engine is measured.

    Attributes:
        seats: Calls that it runs at once; none: found by asking for more and more.
        most_running: Calls at once that are never exceeded.
        longest_prompt: Prompt tokens that are never exceeded, if the context allows them.
        rounds: How often everything is measured.
        window_s: How long calls should decode side by side in one measurement.
        longest_step_s: A step that would take longer is left out.
    """

    seats: int | None = None
    most_running: int = 64
    longest_prompt: int = LONGEST
    rounds: int = 3
    window_s: float = 2.0
    longest_step_s: float = 20.0


Step = tuple[str, Callable[[], Awaitable[None]]]


class Probe:
    """Measures one engine; `samples` holds what has been measured so far.

    Attributes:
        samples: Measured so far.
        seats: Calls that it runs at once, as given or found; None while more always ran.
        most_running: Most calls that ran side by side.
    """

    def __init__(self, client: EngineClient, about: Description, plan: Plan) -> None:
        self._client = client
        self._about = about
        self._plan = plan
        self.samples = Samples()
        self.seats = plan.seats
        self.most_running = 0
        self._longest = max(SHORTEST, min(plan.longest_prompt, round(about.max_model_len * 0.75)))
        if about.max_model_len < 4 * SHORTEST:
            raise CalibrationError(
                f"{client.url}: a context of {about.max_model_len} tokens is too short to measure"
            )
        #: rough figures so far, for what fits into the time
        self._token_s = 0.0
        self._token_times_s: list[float] = []
        self._prefill_s_per_token = 0.0

    async def warm_up(self) -> None:
        """Have the engine make what it makes once, and learn roughly how fast it is."""
        await self._client.call(SHORTEST, _WARM_UP_TOKENS)
        await self._client.call(self._longest // 2, 1)
        trace = await self._client.call(SHORTEST, _WARM_UP_TOKENS)
        self._note_token_s((trace.last_s - trace.first_s) / (_WARM_UP_TOKENS - 1))

    def steps(self) -> Iterator[Step]:
        """One round: name and action of each step, to be done in this order, one by one."""
        for tokens in self._prefill_lengths():
            yield f"prefill of {tokens} tokens", partial(self._prefill, tokens)
        for tokens in self._contexts():
            for running in self._levels():
                yield (
                    f"{running} running at {tokens} tokens",
                    partial(self._decode, running, tokens),
                )
        if self._limit > 1:
            yield "prefills among running calls", self._admissions

    # --- steps ---

    async def _prefill(self, tokens: int) -> None:
        trace = await self._client.call(tokens, 1)
        self._note_prefill(trace)
        self.samples.prefill.append(
            PrefillSample(trace.uncached_tokens, trace.first_s - trace.sent_s)
        )

    def _note_token_s(self, token_s: float) -> None:
        self._token_times_s = [*self._token_times_s[-8:], token_s]
        self._token_s = max(1e-5, sorted(self._token_times_s)[len(self._token_times_s) // 2])

    def _note_prefill(self, trace: StreamTrace) -> None:
        if trace.uncached_tokens >= self._longest // 4:
            self._prefill_s_per_token = (trace.first_s - trace.sent_s) / trace.uncached_tokens

    async def _decode(self, running: int, tokens: int) -> None:
        output = self._output(running, tokens)
        if output is None:
            return
        traces = await self._side_by_side(running, tokens, output)
        together = len(overlapping(traces))
        if together < running and self.seats is None:
            # once more: tokens that were held back look like calls that had to wait
            async with self._client.watched() as load:
                traces = await self._side_by_side(running, tokens, output)
            together = max(together, len(overlapping(traces)))
            if load.says_nothing or load.waiting:
                self.seats = max(together, load.running)
                self.seats = self.seats if self.seats < running else None
        self.most_running = max(self.most_running, together)
        sample = decode_sample(traces)
        if sample is not None:
            self.samples.decode.append(sample)
            if together == 1:
                self._note_token_s(sample.tpot_s)

    async def _side_by_side(self, running: int, tokens: int, output: int) -> list[StreamTrace]:
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(self._client.call(tokens, output)) for _ in range(running)]
        return [call.result() for call in calls]

    async def _admissions(self) -> None:
        """Calls of several lengths that come, one by one, while others decode."""
        running = max(1, min(self._limit - 1, self.most_running, _MOST_HOSTS))
        lengths = self._visits()
        # they must outlast the visitors
        need_s = sum(self._prefill_guess_s(t) + 4 * _SETTLE_GAPS * self._token_s for t in lengths)
        output = round(4 * need_s / self._token_s) + 2 * _LEAST_OUTPUT
        output = min(output, self._about.max_model_len - 2 * SHORTEST)
        background = _Background(running)
        tasks = [
            asyncio.create_task(self._client.call(SHORTEST, output, watch=background.watch(number)))
            for number in range(running)
        ]
        try:
            await background.tokens(_SETTLE_GAPS, tasks)
            for tokens in lengths:
                await self._visit(tokens, background, tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _visit(
        self, tokens: int, background: _Background, tasks: list[asyncio.Task[StreamTrace]]
    ) -> None:
        begin = background.counts()
        await background.tokens(_SETTLE_GAPS, tasks)
        gap_s = background.gap_s(begin)
        visitor = await self._client.call(tokens, 1)
        await background.tokens(3, tasks)
        if gap_s is None or any(task.done() for task in tasks):
            return
        sample = admission_sample(background.points, visitor, gap_s)
        if sample is not None:
            self.samples.admission.append(sample)

    # --- sizes ---

    def _prefill_lengths(self) -> list[int]:
        return _between(SHORTEST, self._longest, _PREFILL_STEPS)

    def _visits(self) -> list[int]:
        """Lengths of calls that come while others run, the longest of them a middling one."""
        return _between(SHORTEST, max(SHORTEST + 1, self._longest // 2), _VISITORS)

    def _contexts(self) -> list[int]:
        """Prompt lengths of calls that decode: short first, since that finds the seats."""
        room = self._about.max_model_len - _LEAST_OUTPUT
        longest = max(SHORTEST, min(self._longest, round(room / _TEXT_MARGIN) - 8))
        return sorted({SHORTEST, (SHORTEST + longest) // 2, longest})

    def _levels(self) -> Iterator[int]:
        """1, 2, 4, ... up to the seats, which any of these steps may find."""
        running = 1
        while running < self._limit:
            yield running
            running *= 2
        yield self._limit

    @property
    def _limit(self) -> int:
        most = self._plan.most_running
        return most if self.seats is None else min(most, self.seats)

    def _output(self, running: int, tokens: int) -> int | None:
        """Output tokens of calls that are to decode side by side; None where that is too much."""
        room = self._about.max_model_len - round(tokens * _TEXT_MARGIN) - 8
        output = round(self._plan.window_s / self._token_s)
        # while they join one by one, the first ones go on decoding
        output += round(running * self._prefill_guess_s(tokens) / self._token_s)
        output = min(max(output, _LEAST_OUTPUT), _MOST_OUTPUT, room)
        kv_tokens = running * (tokens * _TEXT_MARGIN + output)
        capacity = self._about.kv_capacity_tokens
        if output < _LEAST_OUTPUT // 2 or (capacity and kv_tokens > _KV_SHARE * capacity):
            return None
        step_s = running * self._prefill_guess_s(tokens) + output * self._token_s
        return output if step_s <= self._plan.longest_step_s else None

    def _prefill_guess_s(self, tokens: int) -> float:
        return self._token_s + tokens * self._prefill_s_per_token


class _Background:
    """Calls that decode while others come and go."""

    def __init__(self, count: int) -> None:
        self.points: list[list[tuple[float, int]]] = [[] for _ in range(count)]
        self._news = asyncio.Event()

    def watch(self, number: int) -> Callable[[float, int], None]:
        def note(now_s: float, tokens: int) -> None:
            self.points[number].append((now_s, tokens))
            self._news.set()

        return note

    def counts(self) -> list[int]:
        """How many times each has been heard of."""
        return [len(points) for points in self.points]

    def gap_s(self, begin: list[int]) -> float | None:
        """Usual time per token since `begin`; None where nothing came."""
        gaps = []
        for points, first in zip(self.points, begin, strict=True):
            if first == 0 or len(points) <= first:
                return None
            (start_s, before), (stop_s, after) = points[first - 1], points[-1]
            gaps.append((stop_s - start_s) / (after - before))
        return sum(gaps) / len(gaps)

    async def tokens(self, count: int, tasks: list[asyncio.Task[StreamTrace]]) -> None:
        """Wait until each has made so many more, or one has ended.

        Raises:
            CalibrationError: One of the calls failed.
        """
        begin = [points[-1][1] if points else 0 for points in self.points]
        while not any(task.done() for task in tasks):
            now = [points[-1][1] if points else 0 for points in self.points]
            if all(b - a >= count for a, b in zip(begin, now, strict=True)):
                return
            self._news.clear()
            news = asyncio.ensure_future(self._news.wait())
            try:
                await asyncio.wait([news, *tasks], return_when=asyncio.FIRST_COMPLETED)
            finally:
                news.cancel()
        for task in tasks:
            if task.done():
                task.result()


def _between(low: int, high: int, count: int) -> list[int]:
    """About `count` numbers from `low` to `high`, each the same times the one before."""
    ratio = (high / low) ** (1 / (count - 1))
    return sorted({round(low * ratio**step) for step in range(count)})
