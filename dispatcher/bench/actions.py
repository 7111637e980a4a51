"""What `headway bench run | live | paper` do, once their options are read.

Apart from the options, so that commands which have nothing to do with it do not load a simulator.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import orjson

from dispatcher.bench import claims, live_run, plots, shown
from dispatcher.bench.fleets import Fleet, fleet_named
from dispatcher.bench.papers import PAPERS
from dispatcher.bench.policies import policies_named
from dispatcher.bench.run import Comparison, document, results_of, warm_up_told
from dispatcher.bench.slo import DEFAULT_SCALE
from dispatcher.bench.work import Work
from dispatcher.core.errors import ConfigurationError

_out = shown.console()
_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True)
class Asked:
    """What `run` and `live` have in common, as it was asked for."""

    scenario: str | None
    trace: Path | None
    fleet: str
    size: str | None
    seeds: str
    count: int | None
    slo_scale: float | None
    tenants: str | None
    arrivals: str
    json: Path | None
    out: Path | None

    def work(self, warm_trace: Path | None = None) -> Work:
        """What arrives."""
        return Work(
            scenario=self.scenario,
            trace=self.trace,
            arrivals=self.arrivals,
            count=100 if self.count is None and self.trace is None else self.count,
            slo_scale=DEFAULT_SCALE if self.slo_scale is None else self.slo_scale,
            tenants=_tenants(self.tenants),
            warm_trace=warm_trace,
        )


def run(
    asked: Asked,
    *,
    policies: str,
    rates: str | None,
    seats: str | None,
    warm_trace: Path | None,
    warm: bool,
    jobs: int | None,
) -> None:
    """Simulate, show, write.

    Raises:
        HeadwayError: Something that was asked for does not exist or cannot be done.
    """
    _writable(asked.json)
    work = asked.work(warm_trace)
    one = fleet_named(asked.fleet, size=asked.size)
    some_seats = _integers("seats", seats or str(one.seats))
    comparison = Comparison(
        work=work,
        fleets=tuple(one.with_seats(each) for each in some_seats),
        policies=tuple(policies_named(policies)),
        rates_per_s=_rates(rates, work),
        seeds=_integers("seeds", asked.seeds),
        warm=warm,
    )
    if asked.out is not None:
        plots.require()
    _announce(work, one, some_seats, warm_up_told(work, warm=warm))
    settings = comparison.settings()
    began_s = time.monotonic()
    with shown.progress(_out, len(settings), "plays") as step:
        results = results_of(settings, jobs=jobs, on_result=step)
    taken_s = time.monotonic() - began_s
    _show(document(comparison, results), f"{work.name} on {one.name}", asked)
    _out.print(f"{len(settings)} plays in {taken_s:.1f} s", highlight=False)


def live(
    asked: Asked, options: live_run.LiveOptions, *, rate: float | None, seats: int | None
) -> None:
    """Play over HTTP, show, write.

    Raises:
        HeadwayError: Something that was asked for does not exist, or the target cannot be measured.
    """
    _writable(asked.json)
    work = asked.work()
    serving = fleet_named(asked.fleet, size=asked.size, seats=seats)
    seeds = _integers("seeds", asked.seeds)
    one_rate = _rates(None if rate is None else str(rate), work)[0]
    if asked.out is not None:
        plots.require()
    _announce(work, serving, (serving.seats,), live_run.warm_up_told(options.warm_up))
    with shown.progress(_out, live_run.steps(work, seeds), "workflows") as step:
        found, notes = live_run.run(work, serving, one_rate, seeds, options, on_workflow=step)
    _show(found, f"{work.name} against {options.label}", asked)
    for note in notes:
        _out.print(note, highlight=False, markup=False, soft_wrap=True)


def paper(
    name: str, *, seeds: str | None, jobs: int | None, json: Path | None, out: Path | None
) -> None:
    """Run the experiments of a paper, show, write.

    Raises:
        HeadwayError: No such paper, or what its experiments raise.
    """
    if name not in PAPERS:
        known = ", ".join(PAPERS)
        raise ConfigurationError(f"no such paper: {name!r}; expected one of: {known}")
    experiment = PAPERS[name]()
    some_seeds = experiment.seeds if seeds is None else _integers("seeds", seeds)
    _writable(json)
    if out is not None:
        plots.require()
    began_s = time.monotonic()
    with shown.steps(_out, "plays") as (on_steps, on_step):
        findings = experiment.run(claims.ExperimentOptions(some_seeds, jobs, on_steps, on_step))
    taken_s = time.monotonic() - began_s
    found = claims.paper_document(name, findings, seeds=some_seeds, seconds=taken_s)
    _out.print(f"[bold]{experiment.title}[/]")
    _out.print(shown.claims_table(found))
    for summary in findings.summaries:
        _out.print(shown.summary_of(summary))
    _out.print(f"{taken_s:.1f} s", highlight=False)
    _write(found, json)
    if out is not None:
        for path in experiment.draw(found, out):
            _out.print(f"drew {path}", highlight=False, soft_wrap=True)


# --- what options mean --------------------------------------------------------------------------


def _tenants(text: str | None) -> tuple[tuple[str, float], ...]:
    if text is None:
        return ()
    found: dict[str, float] = {}
    for part in text.split(","):
        name, equals, scale = part.strip().partition("=")
        try:
            found[name] = float(scale)
        except ValueError:
            equals = ""
        if not name or not equals:
            raise ConfigurationError(f"--tenants: expected NAME=SLO_SCALE, found {part.strip()!r}")
    return tuple(found.items())


def _integers(option: str, text: str) -> tuple[int, ...]:
    try:
        return _different(option, text, [int(part) for part in text.split(",")])
    except ValueError:
        return _different(option, text, [])


def _floats(option: str, text: str) -> tuple[float, ...]:
    try:
        return _different(option, text, [float(part) for part in text.split(",")])
    except ValueError:
        return _different(option, text, [])


def _different(option: str, text: str, numbers: list[_Number]) -> tuple[_Number, ...]:
    if not numbers or len(set(numbers)) < len(numbers):
        raise ConfigurationError(
            f"--{option}: expected different numbers separated by commas, found {text!r}"
        )
    return tuple(numbers)


def _rates(text: str | None, work: Work) -> tuple[float | None, ...]:
    if text is None:
        return (None,) if work.trace is not None else (0.5,)
    return _floats("rates", text)


# --- what is shown ------------------------------------------------------------------------------


def _announce(work: Work, fleet: Fleet, seats: Sequence[int], warm_up: str) -> None:
    engines = ", ".join(f"{count} x {kind}" for kind, count in fleet.counted().items())
    scales = ", ".join(f"{name} x {scale:g}" for name, scale in work.tenants)
    _out.print(
        f"{work.name} on {fleet.name}: {fleet.model} on {engines},"
        f" {', '.join(map(str, seats))} seats each."
        + (f"\nNote: {fleet.note}." if fleet.note else "")
        + f"\nSLO while scheduling: time alone on the fleet x {scales or f'{work.slo_scale:g}'};"
        f" other scales are scored afterwards.\nWarm-up: {warm_up}.",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _show(found: dict[str, Any], title: str, asked: Asked) -> None:
    _out.print(shown.summary_table(found["summary"], title))
    _write(found, asked.json)
    if asked.out is not None:
        for path in plots.draw_run(found, asked.out):
            _out.print(f"drew {path}", highlight=False, markup=False, soft_wrap=True)


def _writable(path: Path | None) -> None:
    """Said before minutes are spent, not after."""
    if path is not None and not path.parent.is_dir():
        raise ConfigurationError(f"--json: {path.parent}: no such directory")
    if path is not None and path.is_dir():
        raise ConfigurationError(f"--json: {path}: is a directory")


def _write(found: Mapping[str, Any], path: Path | None) -> None:
    if path is not None:
        path.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2) + b"\n")
        _out.print(f"wrote {path}", highlight=False, markup=False, soft_wrap=True)
