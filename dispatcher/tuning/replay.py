"""The port behind which a simulator plays a recent trace under other values of alpha."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from dispatcher.core.gpu_profiles import CostProfile
from dispatcher.core.ports import CostModel
from dispatcher.core.types import InstanceId, InstanceSpec
from dispatcher.traces.types import TraceWorkflow

ALPHAS = tuple(round(0.1 * step, 1) for step in range(11))
"""0.0 to 1.0 in steps of 0.1 (HexGen-Flow, section 4.3)."""

_PROBE_TOKENS = 1e5
_PROBE_RUNNING = 1e3


@dataclass(frozen=True, slots=True)
class ReplayInstance:
    """One engine as plain data."""

    spec: InstanceSpec
    profile: CostProfile
    """Its cost as fitted by now (`spec.profile` is what it started from)."""
    seats: int
    """Sequences it may hold in flight; at least 1."""
    cached_share: float = 0.0
    """Share of prompt tokens that its prefix cache saved of late, 0 to 1. Recorded traces do not
    tell which prompts share what; this is what is known instead."""


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """What to replay; plain data that can be pickled."""

    trace: tuple[TraceWorkflow, ...]
    """By arrival, from 0 on; not empty."""
    fleet: tuple[ReplayInstance, ...]
    """The engines that are up; not empty."""
    policy: str
    """A name from the catalog."""
    params: Mapping[str, object]
    """Its parameters; `alpha` is to be replaced by each of `alphas`."""
    alphas: tuple[float, ...] = ALPHAS
    """Ascending, each in [0, 1]; not empty."""
    seed: int = 0
    """The same for all alphas, so that they differ by nothing else."""


@dataclass(frozen=True, slots=True)
class AlphaScore:
    """How the trace would have gone under one alpha."""

    alpha: float
    p95_s: float
    """95th percentile of workflow latency, seconds; infinite where too many did not end."""
    slo_attainment: float | None = None
    """Share of the workflows with an SLO that met it; `None`: none has one."""
    p95_slo_ratio: float | None = None
    """95th percentile of latency over SLO: the least factor on all SLOs that 95 % would have met;
    `None`: not every workflow has an SLO."""


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The curve over alpha."""

    curve: tuple[AlphaScore, ...]
    """One score for each alpha that was asked for."""


class Replay(Protocol):
    """Plays one trace under several alphas.

    A top-level function: it is pickled by its name, and runs in a process of its own where nothing
    of the gateway is.
    """

    def __call__(self, request: ReplayRequest) -> ReplayResult:
        """Play it. Whatever it raises fails this tune, and is shown in the tuner's history."""


def fitted_profile(costs: CostModel, instance_id: InstanceId) -> CostProfile:
    """What a cost model has learned of an instance, by asking it: the port promises a line.

    Raises:
        UnknownInstanceError: The instance is not in the fleet.
    """
    fixed_s = costs.prefill_s(instance_id, 0.0)
    long_s = costs.prefill_s(instance_id, _PROBE_TOKENS)
    base_s = costs.tpot_s(instance_id, 0.0, 0.0)
    busy_s = costs.tpot_s(instance_id, _PROBE_RUNNING, 0.0)
    full_s = costs.tpot_s(instance_id, 0.0, _PROBE_TOKENS)
    return CostProfile(
        prefill_s_per_token=(long_s - fixed_s) / _PROBE_TOKENS,
        prefill_fixed_s=fixed_s,
        tpot_base_s=base_s,
        tpot_per_running_s=(busy_s - base_s) / _PROBE_RUNNING,
        tpot_per_kv_token_s=(full_s - base_s) / _PROBE_TOKENS,
    )


def latest(trace: Sequence[TraceWorkflow], max_calls: int) -> tuple[TraceWorkflow, ...]:
    """The last workflows with at most so many calls; at least one workflow, where there is one.

    Args:
        trace: In the order in which they ended.
        max_calls: Of all of them together.
    """
    first, calls = len(trace), 0
    while first:
        calls += len(trace[first - 1].calls)
        if calls > max_calls and first < len(trace):
            break
        first -= 1
    return tuple(trace[first:])


def from_zero(trace: Sequence[TraceWorkflow]) -> tuple[TraceWorkflow, ...]:
    """By arrival, counted from the first one's."""
    ordered = sorted(trace, key=lambda workflow: workflow.arrival_s)
    first_s = ordered[0].arrival_s if ordered else 0.0
    return tuple(replace(one, arrival_s=one.arrival_s - first_s) for one in ordered)


def replay_from_zero(job: tuple[Replay, ReplayRequest]) -> ReplayResult:
    """Replay a request whose trace is as it was seen: what a worker process is given to do."""
    replay, request = job
    return replay(replace(request, trace=from_zero(request.trace)))
