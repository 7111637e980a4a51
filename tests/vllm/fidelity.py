"""One trace, live through a gateway and again in the simulator: what a comparison of them needs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
from engines import MAX_MODEL_LEN, MODEL, Engine
from gateway_process import Gateway

from dispatcher.bench.live_client import LiveClient
from dispatcher.bench.live_play import LivePlayer
from dispatcher.bench.live_text import Measure, Texts
from dispatcher.calibration.client import EngineClient
from dispatcher.calibration.served import ServedCall, ServedTimes, fit_served
from dispatcher.core.types import InstanceId, InstanceSpec
from dispatcher.engine_model import EngineConfig, Measured
from dispatcher.simulator import Experience, Simulated, SimulatedEngine, simulate
from dispatcher.traces import Played, PlayedCall, TraceWorkflow
from dispatcher.tuning import percentile

BLOCK_TOKENS = 32
BATCH_TOKENS = 2048
CONCURRENCY_LIMIT = 512
PLAY_LIMIT_S = 120.0


# --- the machine ---


@contextmanager
def cores_of_their_own(first: Engine, second: Engine, gateway: Gateway) -> Iterator[None]:
    """Keep the engines off each other's core; the gateway and this process share the second's.

    Engines have GPUs of their own elsewhere. Left to itself, the kernel moves all of them about,
    and lets those that sleep much (gateway, client) wait for up to a second.
    """
    allowed = os.sched_getaffinity(0)
    cores = sorted(allowed)
    rest = set(cores[2:]) or {cores[-1]}
    assert gateway.process is not None
    wanted = [
        *((pid, {cores[0]}) for pid in _pids(first)),
        *((pid, {cores[-1]} if len(cores) < 3 else {cores[1]}) for pid in _pids(second)),
        (gateway.process.pid, rest),
        (os.getpid(), rest),
    ]
    try:
        for pid, own in wanted:
            _pin(pid, own)
        yield
    finally:
        for pid, _ in wanted:
            _pin(pid, allowed)


def _pids(engine: Engine) -> tuple[int, int]:
    assert engine.process is not None
    return engine.process.pid, engine.core_pid()


def _pin(pid: int, cores: set[int]) -> None:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), cores)


def cpu_s(*pids: int) -> float:
    """CPU time that these processes have used so far."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def machine_cpu_s() -> float:
    """CPU time that the whole machine has used so far, or that was taken from it."""
    user, nice, system, _idle, _wait, irq, softirq, steal = (
        int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


# --- live ---


@dataclass(frozen=True)
class Live:
    """A trace as it was played through the gateway."""

    trace: Sequence[TraceWorkflow]
    played: Played
    served: dict[str, list[ServedCall]]
    """By engine, as the gateway saw it."""
    client_s: float
    """Mean of what a call takes outside of the gateway: client, connection."""
    others_share: float
    """Of the machine's time, used by processes that have no part in this."""

    def utilisation(self, seats: int) -> float:
        """Share of the seats that was in use, of all engines, from first arrival to last end."""
        seat_s = sum(call.taken_s for calls in self.served.values() for call in calls)
        return seat_s / (len(self.served) * seats * self.played.makespan_s)


class Stage:
    """Engines, gateway and client, on which traces are played one after another."""

    def __init__(self, engines: dict[str, Engine], gateway: Gateway, http: httpx.AsyncClient):
        self._gateway = gateway
        self._http = http
        self._engines = engines
        self._client = LiveClient(
            gateway.url, api_key=None, concurrency_limit=CONCURRENCY_LIMIT, limit_s=PLAY_LIMIT_S
        )
        self._measure = Measure()
        self._plays = 0
        assert gateway.process is not None
        pids = [pid for engine in engines.values() for pid in _pids(engine)]
        self._pids = (*pids, gateway.process.pid, os.getpid())

    async def __aenter__(self) -> Stage:
        await self._client.open(MODEL)
        self._measure = await self._client.measure(Texts(Measure(), "measure"))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def play(self, trace: Sequence[TraceWorkflow]) -> Live:
        """Play a trace; every call of it must go well."""
        self._plays += 1
        run = f"play{self._plays}"
        player = LivePlayer(
            self._client,
            Texts(self._measure, run),
            run=run,
            time_scale=1.0,
            concurrency_limit=CONCURRENCY_LIMIT,
            limit_s=PLAY_LIMIT_S,
        )
        all_s, own_s = machine_cpu_s(), cpu_s(*self._pids)
        played = await player.play(trace)
        others_s = machine_cpu_s() - all_s - (cpu_s(*self._pids) - own_s)
        assert not player.problems.most(), player.problems.most()
        told = {
            workflow.workflow_id: await self._told(f"{run}-{workflow.workflow_id}")
            for workflow in trace
        }
        served, client_s = _joined(trace, played, told, list(self._engines))
        cores = os.cpu_count() or 1
        return Live(trace, played, served, client_s, others_s / (cores * played.makespan_s))

    async def _told(self, workflow_id: str) -> list[dict[str, Any]]:
        """A workflow's calls as the gateway saw them; times since it arrived there."""
        answer = await self._http.get(f"{self._gateway.url}/v1/workflows/{workflow_id}")
        answer.raise_for_status()
        return [
            {**call, "stage": stage["name"]}
            for stage in answer.json()["stages"]
            for call in stage["calls"]
        ]


def _joined(
    trace: Sequence[TraceWorkflow],
    played: Played,
    told: dict[str, list[dict[str, Any]]],
    engines: Sequence[str],
) -> tuple[dict[str, list[ServedCall]], float]:
    """What the gateway saw of each call, on the client's clock, and the time the client adds."""
    by_workflow: dict[str, list[PlayedCall]] = {}
    for call in played.calls:
        by_workflow.setdefault(call.workflow_id, []).append(call)
    served: dict[str, list[ServedCall]] = {name: [] for name in engines}
    outside_s = []
    for workflow in trace:
        truth = {call.call_id: call for call in workflow.calls}
        # the gateway names calls its own way; those alike in all of this may change places
        seen = sorted(by_workflow[workflow.workflow_id], key=_seen_key)
        known = sorted(told[workflow.workflow_id], key=_told_key)
        pairs = list(zip(seen, known, strict=True))
        assert all(_seen_key(a)[:-1] == _told_key(b)[:-1] for a, b in pairs)
        # nothing arrives there before it was sent here, and hardly later where it had no delay
        began_s = max(here.sent_s - there["arrived_s"] for here, there in pairs)
        for here, there in pairs:
            outside_s.append(here.ended_s - here.sent_s - (there["ended_s"] - there["arrived_s"]))
            dispatched_s = there["arrived_s"] + there["queued_s"]
            call = truth[here.call_id]
            shared = max((part.end_tokens for part in call.prefix), default=0)
            call = replace(call, prompt_tokens=max(here.prompt_tokens, shared))
            served[there["instance"]].append(
                ServedCall(call, began_s + dispatched_s, there["ended_s"] - dispatched_s)
            )
    return served, sum(outside_s) / len(outside_s)


def _seen_key(call: PlayedCall) -> tuple[Any, ...]:
    return call.stage, call.instance, call.prompt_tokens, call.output_tokens, call.sent_s


def _told_key(call: dict[str, Any]) -> tuple[Any, ...]:
    names = ("stage", "instance", "prompt_tokens", "output_tokens", "arrived_s")
    return tuple(call[name] for name in names)


# --- simulated ---


@dataclass(frozen=True)
class Calibrated:
    """Engines and client as they were while other traces were played."""

    fleet: list[SimulatedEngine]
    client_s: float
    times: dict[str, ServedTimes]

    def simulated(
        self, traces: Sequence[Sequence[TraceWorkflow]], *, policy: str, params: dict[str, object]
    ) -> Simulated:
        """Play traces one after another, the scheduler keeping what it learns; the last one."""
        learned: Experience | None = None
        result = None
        for trace in traces:
            delayed = [self._delayed(workflow) for workflow in trace]
            result = simulate(delayed, self.fleet, policy=policy, params=params, learned=learned)
            learned = result.learned
        assert result is not None
        return result

    def _delayed(self, workflow: TraceWorkflow) -> TraceWorkflow:
        calls = (replace(call, gap_s=call.gap_s + self.client_s) for call in workflow.calls)
        return replace(workflow, calls=tuple(calls))


async def calibrated(plays: Sequence[Live], engines: dict[str, Engine]) -> Calibrated:
    """Fit each engine to the calls it served in these plays."""
    fleet, times = [], {}
    for name, engine in engines.items():
        config = await launched(engine)
        fitted = fit_served([play.served[name] for play in plays], config)
        times[name] = fitted
        spec = InstanceSpec(
            InstanceId(name),
            models=frozenset({MODEL}),
            max_model_len=MAX_MODEL_LEN,
            seats=engine.max_num_seqs,
            kv_capacity_tokens=config.kv_capacity_tokens,
        )
        config = replace(config, timing=fitted.timing)
        fleet.append(SimulatedEngine(spec, config, overhead_s=fitted.request_s))
    client_s = sum(play.client_s for play in plays) / len(plays)
    return Calibrated(fleet, client_s, times)


async def launched(engine: Engine) -> EngineConfig:
    """What an engine was launched with, its times left open."""
    async with EngineClient(engine.url) as client:
        about = await client.describe()
    assert about.kv_capacity_tokens is not None
    return EngineConfig(
        timing=Measured(1.0),
        num_blocks=about.kv_capacity_tokens // BLOCK_TOKENS,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=BATCH_TOKENS,
        block_size=BLOCK_TOKENS,
        scheduling_policy="priority",
    )


def latencies(played: Played) -> tuple[float, float]:
    """P50 and P95 of the workflows, seconds."""
    taken = [workflow.latency_s for workflow in played.workflows]
    return percentile(taken, 0.5), percentile(taken, 0.95)
