"""Measuring one engine or several, within a time limit."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from time import perf_counter

from dispatcher.calibration.client import CalibrationError, Description, EngineClient
from dispatcher.calibration.fit import TooFewSamplesError, fit_times
from dispatcher.calibration.probe import LONGEST, Plan, Probe
from dispatcher.config.profiles import EngineProfile, MeasuredTimes

_ALONE_SHARE = 0.4
"""Of the time, where engines are measured alone and together."""
_WINDOW_SHARE, _WINDOWS = 0.6, 12
"""Of the time, for decoding; in so many windows a round, before an engine of few seats."""
_STEPS = 18
"""In a round, before an engine of few seats; only tells how far along it is."""


@dataclass(frozen=True, slots=True)
class CalibrationOptions:
    """What is measured and for how long.

    Attributes:
        urls: Base URLs of the engines.
        model: Which model to ask; none: the first that each lists.
        api_key: Key that they ask for.
        seats: Calls that each runs at once; none: found out.
        most_running: Calls at once that are never exceeded.
        longest_prompt: Prompt tokens that are never exceeded, if the context allows them.
        budget_s: Longest time for everything.
        rounds: How often everything is measured; a fast engine ends before its time is up.
        apart: Measure several engines one after another only, never together.
    """

    urls: tuple[str, ...]
    model: str | None = None
    api_key: str | None = None
    seats: int | None = None
    most_running: int = 64
    longest_prompt: int = LONGEST
    budget_s: float = 100.0
    rounds: int = 3
    apart: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a calibration is: `share` of its time or its work, in [0, 1], and at what."""

    share: float
    doing: str


Report = Callable[[Progress], None]


async def calibrate(
    options: CalibrationOptions, report: Report, warn: Callable[[str], None]
) -> tuple[EngineProfile, ...]:
    """Measure engines and fit their profiles; in the order of `options.urls`.

    Several engines are measured one by one and then, unless `apart`, all at the same time: what
    shares a machine slows each other. The profile then is that under common load, and has what
    each does `alone` beside it. However this ends, no call of it goes on.

    Raises:
        CalibrationError: An engine does not answer, fails, or could not be measured in time.
    """
    silence_s = min(30.0, options.budget_s / 3)
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                EngineClient(url, model=options.model, api_key=options.api_key, silence_s=silence_s)
            )
            for url in options.urls
        ]
        described = [await client.describe() for client in clients]
        for client, about in zip(clients, described, strict=True):
            if about.busy_calls:
                warn(f"{client.url} is busy with {about.busy_calls} calls: they count as its speed")
        session = _Session(options, clients, described, report)
        return await session.run()


class _Session:
    def __init__(
        self,
        options: CalibrationOptions,
        clients: Sequence[EngineClient],
        described: Sequence[Description],
        report: Report,
    ) -> None:
        self._options = options
        self._clients = clients
        self._described = described
        self._report = report
        self._begin_s = perf_counter()
        #: of the engines that are measured now, by URL
        self._shares: dict[str, float] = {}
        self._phase = (0.0, 1.0)

    async def run(self) -> tuple[EngineProfile, ...]:
        together = len(self._clients) > 1 and not self._options.apart
        budget_s = self._options.budget_s
        share = (_ALONE_SHARE if together else 1.0) / len(self._clients)
        alone = []
        for number in range(len(self._clients)):
            self._phase = (number * share, share)
            alone += await self._measured([number], budget_s * share, self._options.seats)
        if not together:
            return tuple(self._profile(number, probe) for number, probe in enumerate(alone))
        self._phase = (_ALONE_SHARE, 1.0 - _ALONE_SHARE)
        # an engine that had time to spare leaves it to this
        left_s = max(budget_s * self._phase[1], budget_s - (perf_counter() - self._begin_s))
        loaded = await self._measured(
            range(len(self._clients)), left_s, self._options.seats, [p.seats for p in alone]
        )
        return tuple(
            self._profile(number, probe, alone[number]) for number, probe in enumerate(loaded)
        )

    async def _measured(
        self,
        numbers: Sequence[int],
        budget_s: float,
        seats: int | None,
        found: Sequence[int | None] = (),
    ) -> list[Probe]:
        """Measure these engines at the same time; what the time does not allow is left out."""
        probes = [
            Probe(
                self._clients[number],
                self._described[number],
                self._plan(budget_s, seats or (found[number] if found else None)),
            )
            for number in numbers
        ]
        self._shares = {self._clients[number].url: 0.0 for number in numbers}
        unfinished = set(numbers)
        # the end of the time is no error: what was measured until then is fitted
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(budget_s):
                try:
                    async with asyncio.TaskGroup() as group:
                        for number, probe in zip(numbers, probes, strict=True):
                            group.create_task(self._rounds(number, probe, unfinished))
                except* CalibrationError as failures:
                    raise _first(failures) from None
        return probes

    def _plan(self, budget_s: float, seats: int | None) -> Plan:
        options = self._options
        # longer ones even out the hiccups of a busy machine
        window_s = min(2.0, max(0.1, _WINDOW_SHARE * budget_s / (_WINDOWS * options.rounds)))
        return Plan(
            seats=seats,
            most_running=min(options.most_running, seats or options.most_running),
            longest_prompt=options.longest_prompt,
            rounds=options.rounds,
            window_s=window_s,
            longest_step_s=budget_s / 5,
        )

    async def _rounds(self, number: int, probe: Probe, unfinished: set[int]) -> None:
        """All rounds of one engine, and more of them until those beside it have done theirs."""
        client = self._clients[number]
        rounds = self._options.rounds
        self._tell(client, 0.0, "warming up")
        await probe.warm_up()
        done = 0
        while done < rounds or unfinished:
            for position, (name, act) in enumerate(probe.steps()):
                share = (done + min(position / _STEPS, 0.95)) / rounds
                self._tell(client, min(share, 1.0), name)
                await act()
                if done >= rounds and not unfinished:
                    break
            done += 1
            if done >= rounds:
                unfinished.discard(number)
        self._tell(client, 1.0, "done")

    def _tell(self, client: EngineClient, share: float, doing: str) -> None:
        self._shares[client.url] = share
        start, width = self._phase
        mean = sum(self._shares.values()) / len(self._shares)
        passed = (perf_counter() - self._begin_s) / self._options.budget_s
        self._report(
            Progress(min(1.0, max(start + width * mean, passed)), f"{client.url}: {doing}")
        )

    def _profile(self, number: int, probe: Probe, alone: Probe | None = None) -> EngineProfile:
        about, url = self._described[number], self._clients[number].url
        times = self._fitted(url, probe)
        others = tuple(client.url for client in self._clients if client.url != url)
        return EngineProfile(
            url=url,
            model=about.model,
            vllm_version=about.vllm_version,
            max_model_len=about.max_model_len,
            kv_capacity_tokens=about.kv_capacity_tokens,
            seats=probe.seats,
            most_running=probe.most_running or None,
            loaded_with=others if alone is not None else (),
            prefill=times.prefill,
            decode=times.decode,
            admission=times.admission,
            alone=None if alone is None else self._fitted(url, alone),
        )

    def _fitted(self, url: str, probe: Probe) -> MeasuredTimes:
        try:
            return fit_times(probe.samples)
        except TooFewSamplesError as error:
            raise CalibrationError(
                f"{url}: could not be measured in {self._options.budget_s:g} s ({error}): give it"
                " more time (--budget-s), and see that the machine has nothing else to do"
            ) from error


def _first(failures: ExceptionGroup[CalibrationError]) -> CalibrationError:
    """Any one of them; what else failed at the same time failed of the same."""
    for failure in failures.exceptions:
        return _first(failure) if isinstance(failure, ExceptionGroup) else failure
    raise AssertionError("a group holds at least one")
