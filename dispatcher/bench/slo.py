"""Deadlines by the time alone, and which scale of them was kept.

HexGen-Flow (arXiv:2505.05286), section 5.1: the SLO of a workflow is its time in an exclusive
environment, times a scale. Scheduling happens once, at one scale; what another scale would have
made of the same latencies is counted afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from dispatcher.bench.fleets import Fleet, FleetError
from dispatcher.core.types import AttemptId
from dispatcher.simulator import SimulatedEngine
from dispatcher.simulator.engines import Attempt, EnginePlayer
from dispatcher.simulator.kernel import Kernel
from dispatcher.simulator.prefixes import block_hashes
from dispatcher.traces import PlayedWorkflow, Trace, TraceCall, TraceWorkflow

DEFAULT_SCALE = 5.0
"""At which scheduling happens unless another is asked for; HexGen-Flow's minima at 95 % lie between
3.5 and 8."""

SCALES: tuple[float, ...] = (
    *(0.25 * step for step in range(4, 41)),
    *(float(scale) for scale in range(11, 21)),
    *(25.0, 30.0, 40.0, 50.0),
)
"""Scales that are scored: 1 to 10 by quarters, to 20 by ones, then 25, 30, 40, 50."""

ATTAINMENT_ASKED = 0.95


def alone_times(trace: Trace, fleet: Fleet) -> dict[str, float]:
    """Time of each workflow alone on the fleet, seconds, by workflow id.

    That is the critical path through its calls and gaps on the engine on which this is shortest.
    Each call has the idle engine to itself, so calls side by side do not slow each other down. Its
    prefix cache holds what earlier calls of the same workflow have left there, and nothing else.

    Raises:
        FleetError: A prompt fits on no engine.
    """
    engines = fleet.kinds()
    alone_s = {
        workflow.workflow_id: min(alone_on(workflow, engine) for engine in engines)
        for workflow in trace
    }
    for name, time_s in alone_s.items():
        if math.isinf(time_s):
            raise FleetError(
                f"fleet {fleet.name}: workflow {name} has a prompt that is longer than the context"
                " of every engine"
            )
    return alone_s


def alone_on(workflow: TraceWorkflow, engine: SimulatedEngine) -> float:
    """Time of a workflow alone on one engine, seconds; infinite where a prompt does not fit."""
    if max(call.prompt_tokens for call in workflow.calls) >= engine.config.max_model_len:
        return math.inf
    idle = _IdleEngine(engine)
    ends_s: dict[str, float] = {}
    for number, call in enumerate(workflow.calls):
        sent_s = max((ends_s[parent] for parent in call.parents), default=0.0) + call.gap_s
        ends_s[call.call_id] = sent_s + engine.overhead_s + idle.call_s(number, call)
    return max(ends_s.values())


class _IdleEngine:
    """Plays one call at a time; what each leaves in the prefix cache stays there."""

    def __init__(self, engine: SimulatedEngine) -> None:
        self._config = engine.config
        self._kernel = Kernel()
        self._player = EnginePlayer(
            engine.config, self._kernel, on_first_token=_ignore, on_end=_ignore
        )

    def call_s(self, number: int, call: TraceCall) -> float:
        """Time of one call, seconds."""
        began_s, config = self._kernel.now_s, self._config
        self._player.add(
            Attempt(
                AttemptId(number),
                prompt_tokens=call.prompt_tokens,
                output_tokens=call.output_tokens,
                arrival_s=began_s,
                priority=0,
                block_hashes=block_hashes(call, config.block_size)
                if config.enable_prefix_caching
                else (),
                streaming=False,
            )
        )
        self._kernel.run()
        return self._kernel.now_s - began_s


def _ignore(_attempt: Attempt) -> None:
    """Nobody waits for it."""


def with_slo(
    trace: Trace,
    alone_s: Mapping[str, float],
    scale: float,
    tenant_scales: Mapping[str, float] | None = None,
) -> list[TraceWorkflow]:
    """Give every workflow its time alone times the scale as SLO, its tenant's where it has one."""
    by_tenant = tenant_scales or {}
    return [
        replace(
            workflow,
            slo_s=alone_s[workflow.workflow_id] * by_tenant.get(workflow.tenant, scale),
        )
        for workflow in trace
    ]


def ratios(workflows: Sequence[PlayedWorkflow], alone_s: Mapping[str, float]) -> list[float]:
    """Latency over time alone of each workflow, ascending; infinite where it failed."""
    return sorted(
        workflow.latency_s / alone_s[workflow.workflow_id] if workflow.ok else math.inf
        for workflow in workflows
    )


def attainment(latency_ratios: Sequence[float], scale: float) -> float:
    """Share of workflows whose latency is at most `scale` times their time alone; NaN of none."""
    if not latency_ratios:
        return math.nan
    return sum(ratio <= scale for ratio in latency_ratios) / len(latency_ratios)


def scale_at(latency_ratios: Sequence[float], share: float = ATTAINMENT_ASKED) -> float:
    """The least scale that at least `share` of the workflows attain; NaN of none.

    Exactly: the k-th least ratio of latency to time alone, k = ceil(share x workflows). Infinite
    where too many failed. Nothing is interpolated, so `attainment` at it is at least `share`.

    Example:
        >>> scale_at([1.0, 2.0, 3.0, 4.0], 0.75)
        3.0
    """
    if not latency_ratios:
        return math.nan
    ordered = sorted(latency_ratios)
    # 0.95 x 20 is a little above 19 in binary
    return ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)]
