"""What is played: a workload at a rate, or a recorded trace; the same for every policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import cycle
from pathlib import Path

from dispatcher.bench.fleets import Fleet
from dispatcher.bench.slo import alone_times, with_slo
from dispatcher.core.errors import ConfigurationError
from dispatcher.simulator.workloads import ARRIVALS, WORKLOADS, make_trace
from dispatcher.traces import Trace, TraceWorkflow, read_trace

WARM_UP_SEED_AFTER = 1_000_003
"""What is learned before a trace of seed `s` is played comes from the trace of seed `s` + this."""
_KEPT = 16
_NO_TENANT = "default"
"""Of workflows of which nobody has said whose they are."""


@dataclass(frozen=True, slots=True)
class Work:
    """What arrives, apart from how fast and from which seed.

    Raises:
        ConfigurationError: Not exactly one of scenario and trace, an unknown name, or a number out
            of range.
    """

    scenario: str | None = None
    """Name of a workload."""
    trace: Path | None = None
    """File of a recorded trace; its SLOs give way to those of its times alone, its models to the
    one that the fleet serves."""
    arrivals: str = "poisson"
    """Name of an arrival process; a recorded trace has its own."""
    count: int | None = 100
    """Workflows; `None`: all of a recorded trace."""
    slo_scale: float = 5.0
    """SLO of each workflow: its time alone times this."""
    tenants: tuple[tuple[str, float], ...] = ()
    """Names and SLO scales of tenants; none: one tenant. Workflows are dealt to them in turn,
    unless they are theirs already."""
    warm_trace: Path | None = None
    """What is learned from before a recorded trace is played."""

    def __post_init__(self) -> None:
        if (self.scenario is None) == (self.trace is None):
            raise ConfigurationError("expected a scenario or a trace, and not both")
        if self.scenario is not None:
            _known("scenario", self.scenario, WORKLOADS)
            if self.count is None:
                raise ConfigurationError("a scenario needs a count of workflows")
        if self.warm_trace is not None and self.trace is None:
            raise ConfigurationError(
                "a trace to learn from goes with a trace: a scenario is learned from another seed"
            )
        _known("arrivals", self.arrivals, ARRIVALS)
        if self.count is not None and self.count < 1:
            raise ConfigurationError(f"count: expected at least 1 workflow, not {self.count}")
        for scale in (self.slo_scale, *(scale for _, scale in self.tenants)):
            if not 0.0 < scale < float("inf"):
                raise ConfigurationError(f"SLO scale: expected more than 0, not {scale}")

    @property
    def name(self) -> str:
        """For tables and files."""
        return self.scenario or f"trace {self.trace}"

    @property
    def tenant_scales(self) -> dict[str, float]:
        """SLO scales by tenant."""
        return dict(self.tenants)

    def described(self) -> dict[str, object]:
        """What it is, as plain JSON values."""
        return {
            "scenario": self.scenario,
            "trace": None if self.trace is None else str(self.trace),
            "warm_trace": None if self.warm_trace is None else str(self.warm_trace),
            "arrivals": self.arrivals if self.trace is None else "recorded",
            "count": self.count,
            "slo_scale": self.slo_scale,
            "tenants": self.tenant_scales,
        }


def _known(what: str, name: str, table: object) -> None:
    names = sorted(table)  # type: ignore[call-overload]
    if name not in names:
        raise ConfigurationError(f"no such {what}: {name!r}; expected one of {', '.join(names)}")


def trace_of(work: Work, rate_per_s: float | None, seed: int) -> list[TraceWorkflow]:
    """The workflows, dealt to tenants, without SLO; they ask for whatever model is served.

    Args:
        work: What arrives.
        rate_per_s: Workflows per second; `None`: as recorded.
        seed: Of the workload; a recorded trace is the same under any.

    Raises:
        ConfigurationError: No rate for a workload, or one that a trace cannot be brought to.
        TraceError: The file cannot be read.
    """
    if work.scenario is None:
        assert work.trace is not None  # noqa: S101 - `Work` sees to it
        recorded = read_trace(work.trace)[: work.count]
        trace = _at_rate([replace(workflow, model=None) for workflow in recorded], rate_per_s)
    elif rate_per_s is None or not 0.0 < rate_per_s < float("inf"):
        raise ConfigurationError(f"rate: expected workflows per second above 0, not {rate_per_s}")
    else:
        trace = make_trace(
            WORKLOADS[work.scenario],
            ARRIVALS[work.arrivals],
            rate_per_s=rate_per_s,
            seed=seed,
            count=work.count,
        )
    return list(_dealt(trace, work.tenants))


def _dealt(trace: Trace, tenants: Sequence[tuple[str, float]]) -> Iterator[TraceWorkflow]:
    if not tenants:
        return iter(trace)
    names = [name for name, _ in tenants]
    own = {workflow.tenant for workflow in trace}
    if own <= set(names) and own != {_NO_TENANT}:
        return iter(trace)
    return (
        replace(workflow, tenant=tenant)
        for workflow, tenant in zip(trace, cycle(names), strict=False)
    )


def _at_rate(trace: list[TraceWorkflow], rate_per_s: float | None) -> list[TraceWorkflow]:
    if rate_per_s is None:
        return trace
    own = rate_of(trace)
    if own is None or not 0.0 < rate_per_s < float("inf"):
        raise ConfigurationError(
            f"rate: a trace of {len(trace)} workflows cannot be brought to {rate_per_s} per second"
        )
    first_s = trace[0].arrival_s
    return [replace(w, arrival_s=(w.arrival_s - first_s) * own / rate_per_s) for w in trace]


def rate_of(trace: Trace) -> float | None:
    """Workflows per second from the first arrival to the last; `None` where that is no time."""
    span_s = trace[-1].arrival_s - trace[0].arrival_s
    return (len(trace) - 1) / span_s if span_s > 0.0 else None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A trace with SLOs, and what they were made from."""

    trace: list[TraceWorkflow]
    alone_s: dict[str, float]
    """Time alone by workflow id."""


@lru_cache(maxsize=_KEPT)
def prepared(work: Work, fleet: Fleet, rate_per_s: float | None, seed: int) -> Prepared:
    """The trace to play, with times alone and SLOs; the same objects for the same arguments."""
    trace = trace_of(work, rate_per_s, seed)
    alone_s = _alone_s(work, fleet, seed)
    return Prepared(with_slo(trace, alone_s, work.slo_scale, work.tenant_scales), alone_s)


@lru_cache(maxsize=_KEPT)
def _alone_s(work: Work, fleet: Fleet, seed: int) -> dict[str, float]:
    """Times alone, which no rate changes: lengths and gaps are the same at any."""
    return alone_times(trace_of(work, None if work.trace else 1.0, seed), fleet)


def warm_up(work: Work, fleet: Fleet, rate_per_s: float | None, seed: int) -> Prepared | None:
    """The trace to learn from before the one of `seed` is played; `None`: there is no other."""
    if work.trace is None:
        return prepared(work, fleet, rate_per_s, seed + WARM_UP_SEED_AFTER)
    if work.warm_trace is None:
        return None
    return prepared(replace(work, trace=work.warm_trace), fleet, rate_per_s, seed)
