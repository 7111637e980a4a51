"""LLMSched and its baselines: parameters and entries.

What is described here is what `docs/policies.md`, `GET /admin/policies` and error messages say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from dispatcher.catalog.shared_parts import SeatParams, by_seats
from dispatcher.core.ports import Ordering, Policy
from dispatcher.registry import PolicyServices, entry
from policies.affinity import with_affinity
from policies.argus import Argus, Level
from policies.carbyne import Carbyne
from policies.fair_jobs import FairJobs
from policies.fewest_running import FewestRunning
from policies.job_estimates import Measure, Profile
from policies.llmsched import Llmsched, Order
from policies.running_jobs import RunningJobs
from policies.session_fcfs import SessionFcfs
from policies.shortest_job import ShortestJob

_PAPER = "LLMSched"

Placement = Literal["speed", "count"]

_TICK_S = 0.1
"""How often some of the jobs are looked at anew."""

_OVERDUE_SHARE = 0.02

_PROFILES = (
    "by what the application's model says, given what has ended (network); by mean durations of "
    "the stages that are left (stages); or by the mean of the application's jobs (mean)"
)


_PLACEMENT = (
    "a call goes, when a seat frees, to where least runs: over the engine's speed, or by count"
)


class JobParams(SeatParams):
    """Parameters of everything that LLMSched is compared with."""

    placement: Placement = Field("speed", description=_PLACEMENT)


class ArgusParams(JobParams):
    """Parameters of stages by their place in the graph."""

    level: Level = Field(
        "depth", description="what ranks first: stages before it, or the longest path after it"
    )


class CarbyneParams(JobParams):
    """Parameters of fair shares with gifts."""

    profile: Profile = Field("mean", description=f"how long a job still takes: {_PROFILES}")


class _Form(NamedTuple):
    """What goes with the form where nothing was asked for."""

    placement: Placement
    measure: Measure
    overdue_share: float


_FORMS: Mapping[str, _Form] = {
    "settled": _Form("speed", "work", _OVERDUE_SHARE),
    "paper": _Form("count", "path", 0.0),
}


class LlmschedParams(SeatParams):
    """Parameters of uncertainty-aware scheduling."""

    form: Literal["settled", "paper"] = Field(
        "settled",
        description="what placement, measure and overdue_share are where they are null: speed, "
        "work, 0.02; or as published: count, path, 0",
    )
    placement: Placement | None = Field(None, description=_PLACEMENT)
    epsilon: float = Field(
        0.2, ge=0.0, le=1.0, description="probability of taking the stage that would tell most"
    )
    sample_ratio: float = Field(
        0.3, gt=0.0, le=1.0, description="r: part of such a stage's calls that is taken"
    )
    uncertainty: bool = Field(
        True, description="take such stages at all; false: the shortest remaining job first"
    )
    profile: Profile = Field("network", description=f"how long a job still takes: {_PROFILES}")
    measure: Measure | None = Field(
        None,
        description="what counts of that: time along the critical path, or work of engines, side "
        "by side added up",
    )
    order: Order = Field(
        "srtf", description="the shortest remaining job by its mean, or by its Gittins index"
    )
    overdue_s: float = Field(
        60.0, ge=0.0, description="wait from which a call may have a turn of the overdue"
    )
    overdue_share: Annotated[float, Field(ge=0.0, lt=1.0)] | None = Field(
        None,
        description="part of what leaves a queue that is the oldest overdue call; 0: none, long "
        "jobs may starve",
    )

    def in_form(self) -> _Form:
        """As asked for, else as goes with the form."""
        form, share = _FORMS[self.form], self.overdue_share
        return _Form(
            self.placement or form.placement,
            self.measure or form.measure,
            form.overdue_share if share is None else share,
        )

    def effective(self) -> dict[str, object]:
        """With what goes with the form."""
        return {**self.model_dump(), **self.in_form()._asdict()}


def _by_jobs(
    name: str,
    ordering: Ordering,
    placement: Placement,
    params: SeatParams,
    services: PolicyServices,
    *,
    tick_s: float | None = None,
) -> Policy:
    """Bound when a seat frees, to where least runs."""
    routing = with_affinity(FewestRunning(by_speed=placement == "speed"), params.affinity)
    return replace(by_seats(name, routing, ordering, params, services), tick_s=tick_s)


def _fcfs_jobs(params: JobParams, services: PolicyServices) -> Policy:
    return _by_jobs("fcfs-jobs", SessionFcfs(), params.placement, params, services)


def _fair(params: JobParams, services: PolicyServices) -> Policy:
    ordering = FairJobs(services.observer(RunningJobs))
    return _by_jobs("fair", ordering, params.placement, params, services)


def _sjf_jobs(params: JobParams, services: PolicyServices) -> Policy:
    placement = params.placement
    return _by_jobs("sjf-jobs", ShortestJob(), placement, params, services, tick_s=_TICK_S)


def _argus(params: ArgusParams, services: PolicyServices) -> Policy:
    ordering = Argus(params.level)
    return _by_jobs("argus", ordering, params.placement, params, services, tick_s=_TICK_S)


def _carbyne(params: CarbyneParams, services: PolicyServices) -> Policy:
    ordering = Carbyne(services.observer(RunningJobs), params.profile)
    return _by_jobs("carbyne", ordering, params.placement, params, services, tick_s=_TICK_S)


def _llmsched(params: LlmschedParams, services: PolicyServices) -> Policy:
    form = params.in_form()
    ordering = Llmsched(
        services.random,
        epsilon=params.epsilon,
        sample_ratio=params.sample_ratio,
        uncertainty=params.uncertainty,
        profile=params.profile,
        measure=form.measure,
        order=params.order,
        overdue_s=params.overdue_s,
        overdue_share=form.overdue_share,
    )
    policy = _by_jobs("llmsched", ordering, form.placement, params, services, tick_s=_TICK_S)
    return replace(policy, held_key=ordering.held_key)


LLMSCHED_OBSERVERS = (RunningJobs,)

LLMSCHED_ENTRIES = (
    entry(
        "llmsched",
        "The shortest remaining job first, and now and then the stage that would tell most.",
        f"{_PAPER}, sections IV-B to IV-D, Eqs. 1-6, Algorithm 1",
        LlmschedParams,
        _llmsched,
    ),
    entry(
        "fcfs-jobs",
        "The workflow that came first goes first, on any engine.",
        f"{_PAPER}, section V, baseline",
        JobParams,
        _fcfs_jobs,
    ),
    entry(
        "fair",
        "The workflow with the fewest running calls goes first.",
        f"{_PAPER}, section V, baseline",
        JobParams,
        _fair,
    ),
    entry(
        "sjf-jobs",
        "The workflow of the application whose workflows are shortest, on average, goes first.",
        f"{_PAPER}, section V, baseline",
        JobParams,
        _sjf_jobs,
    ),
    entry(
        "argus",
        "The stage that is deepest in its workflow goes first, then the one with most children.",
        f"Wu et al., IPDPS '21; {_PAPER}, section V, baseline",
        ArgusParams,
        _argus,
    ),
    entry(
        "carbyne",
        "Fair shares of seats; what a workflow does not need of its share goes to the shortest.",
        f"Grandl et al., OSDI '16; {_PAPER}, section V, baseline",
        CarbyneParams,
        _carbyne,
    ),
)
