"""`headway bench live`: a workload over HTTP, once per seed, in the figures of `bench run`."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import uvloop

from dispatcher.bench.fleets import Fleet
from dispatcher.bench.live_client import LiveClient, LiveError
from dispatcher.bench.live_gauges import Gauges
from dispatcher.bench.live_play import LivePlayer
from dispatcher.bench.live_text import Measure, Texts
from dispatcher.bench.provenance import provenance
from dispatcher.bench.report import Figures, figures
from dispatcher.bench.run import summaries
from dispatcher.bench.work import Prepared, Work, prepared, rate_of, trace_of, warm_up
from dispatcher.core.errors import ConfigurationError
from dispatcher.traces import Played

LAG_TOLD_S = 0.25
"""A client that begins workflows later than this says so."""


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """How a target is driven.

    Raises:
        ConfigurationError: A number is out of range.
    """

    target: str
    """URL of an OpenAI endpoint, with or without `/v1`."""
    label: str
    """Its name in the report."""
    model: str | None = None
    """`None`: the first that it serves."""
    api_key: str | None = None
    time_scale: float = 1.0
    """The trace's seconds per real second."""
    concurrency_limit: int = 1024
    """Calls at once; further ones wait here, and the wait counts as latency."""
    limit_s: float = 1800.0
    """Longest time of one play, real seconds."""
    metrics: tuple[str, ...] = ()
    """URLs of engines whose metrics tell utilisation and cache hits."""
    warm_up: int = 10
    """Workflows that are played before the first seed, of another one."""

    def __post_init__(self) -> None:
        for name in ("time_scale", "limit_s"):
            if not 0.0 < getattr(self, name) < float("inf"):
                raise ConfigurationError(
                    f"--{name.replace('_', '-')}: expected more than 0, not {getattr(self, name)}"
                )


def steps(work: Work, seeds: Sequence[int]) -> int:
    """Workflows in all, warm-up aside."""
    count = work.count
    if work.trace is not None:
        count = len(trace_of(work, None, 0))
    return (count or 0) * len(seeds)


def warm_up_told(count: int) -> str:
    """What the target has seen of the workload when it is measured, in words."""
    if not count:
        return "none"
    return (
        f"{count} workflows that another seed gives are played first and not counted (none before a"
        " recorded trace)"
    )


def run(
    work: Work,
    fleet: Fleet,
    rate_per_s: float | None,
    seeds: Sequence[int],
    options: LiveOptions,
    *,
    on_workflow: Callable[[], None] = lambda: None,
) -> tuple[dict[str, Any], list[str]]:
    """Play a workload over HTTP, once per seed.

    Args:
        work: What arrives.
        fleet: What serves there: times alone, so SLOs, are worked out for it.
        rate_per_s: Workflows per second of the trace's time; `None`: as recorded.
        seeds: One play each.
        options: How.
        on_workflow: Called after each workflow.

    Returns:
        The document, and notes for people: what failed, whether the client kept up.

    Raises:
        LiveError: The target cannot be measured.
        HeadwayError: The work does not exist.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(
            measured(work, fleet, rate_per_s, seeds, options, on_workflow=on_workflow)
        )


async def measured(
    work: Work,
    fleet: Fleet,
    rate_per_s: float | None,
    seeds: Sequence[int],
    options: LiveOptions,
    *,
    on_workflow: Callable[[], None] = lambda: None,
) -> tuple[dict[str, Any], list[str]]:
    """As `run`, within a running event loop."""
    traces = [prepared(work, fleet, rate_per_s, seed) for seed in seeds]
    client = LiveClient(
        options.target,
        api_key=options.api_key,
        concurrency_limit=options.concurrency_limit,
        limit_s=options.limit_s,
    )
    live = _Live(client, options, fleet)
    try:
        await live.open()
        await live.warm(work, rate_per_s, seeds[0])
        results: list[Figures] = []
        for seed, ready in zip(seeds, traces, strict=True):
            played = await live.play(ready, f"seed {seed}", on_workflow)
            rate = rate_per_s if rate_per_s is not None else rate_of(ready.trace)
            head = {"policy": options.label, "rate": rate, "seed": seed, "seats": fleet.seats}
            results.append(
                head
                | figures(
                    played,
                    ready.alone_s,
                    slo_scale=work.slo_scale,
                    tenant_scales=work.tenant_scales,
                )
            )
    finally:
        await client.close()
    document = _document(
        work=work,
        fleet=fleet,
        rate_per_s=rate_per_s,
        seeds=seeds,
        options=options,
        live=live,
        results=results,
    )
    return document, live.notes


class _Live:
    """A target under measurement."""

    def __init__(self, client: LiveClient, options: LiveOptions, fleet: Fleet) -> None:
        self.notes: list[str] = []
        self.measure = Measure()
        self.model = ""
        self._client = client
        self._options = options
        self._fleet = fleet

    async def open(self) -> None:
        await self._client.open(self._options.model)
        self.model = self._client.model
        self.measure = await self._client.measure(Texts(Measure(), secrets.token_hex(4)))

    async def warm(self, work: Work, rate_per_s: float | None, seed: int) -> None:
        if not self._options.warm_up or work.trace is not None:
            return
        less = replace(work, count=min(work.count or 1, self._options.warm_up))
        ready = warm_up(less, self._fleet, rate_per_s, seed)
        if ready is not None:
            await self.play(ready, "warm-up", lambda: None)

    async def play(self, ready: Prepared, what: str, on_workflow: Callable[[], None]) -> Played:
        options, run_id = self._options, secrets.token_hex(4)
        player = LivePlayer(
            self._client,
            Texts(self.measure, run_id),
            run=run_id,
            time_scale=options.time_scale,
            concurrency_limit=options.concurrency_limit,
            limit_s=options.limit_s,
            on_workflow=on_workflow,
        )
        async with Gauges(options.metrics) as gauges:
            played = await player.play(ready.trace)
        self.notes += [f"{what}: {problem}" for problem in player.problems.most()]
        if player.other_lengths:
            self.notes.append(
                f"{what}: {player.other_lengths} of {len(played.calls)} calls had other lengths at"
                " the target than in the trace"
            )
        if player.lag_s > LAG_TOLD_S:
            self.notes.append(
                f"{what}: this client began a workflow {player.lag_s:.2f} s late; it counts as"
                " latency"
            )
        if not any(workflow.ok for workflow in played.workflows):
            said = "; ".join(player.problems.most()) or "no reason was told"
            raise LiveError(f"{options.target}: no workflow of {what} went well: {said}")
        instances = gauges.instances(seats=self._fleet.seats, time_scale=options.time_scale)
        return replace(played, instances=instances)


def _document(
    *,
    work: Work,
    fleet: Fleet,
    rate_per_s: float | None,
    seeds: Sequence[int],
    options: LiveOptions,
    live: _Live,
    results: list[Figures],
) -> dict[str, Any]:
    return {
        "scenario": work.name,
        "fleet": fleet.name,
        **provenance(),
        "seeds": list(seeds),
        "configuration": {
            "work": work.described(),
            "fleets": [fleet.described()],
            "rates": [rate_per_s],
            "target": options.target,
            "label": options.label,
            "model": live.model,
            "time_scale": options.time_scale,
            "concurrency_limit": options.concurrency_limit,
            "limit_s": options.limit_s,
            "tokens_per_word": live.measure.tokens_per_word,
            "overhead_tokens": live.measure.overhead_tokens,
            "warm_up": warm_up_told(options.warm_up),
            "times": "of the trace: real seconds times the time scale",
        },
        "results": results,
        "summary": summaries(results),
    }
