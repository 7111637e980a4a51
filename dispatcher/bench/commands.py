"""`headway bench run | live | paper`: what the command line says, and what it shows."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import orjson
import typer
from rich.console import Console

from dispatcher.bench import claims, plots, shown
from dispatcher.bench.fleets import FLEETS, Fleet, fleet_named
from dispatcher.bench.papers import PAPERS
from dispatcher.bench.policies import policies_named
from dispatcher.bench.run import Comparison, document, results_of, warm_up_told
from dispatcher.bench.slo import DEFAULT_SCALE
from dispatcher.bench.work import Work
from dispatcher.core.errors import ConfigurationError, HeadwayError

app = typer.Typer(
    help="Compare policies: simulated, live over HTTP, or beside a paper's claims.",
    no_args_is_help=True,
)
_out = shown.console()
_err = Console(stderr=True)

Scenario = Annotated[str | None, typer.Option("--scenario", help="workload, such as chess-1")]
TraceFile = Annotated[
    Path | None, typer.Option("--trace", help="recorded trace (JSON lines) instead of a scenario")
]
Arrivals = Annotated[str, typer.Option("--arrivals", help="process of arrivals")]
FleetText = Annotated[
    str, typer.Option("--fleet", help=f"{', '.join(FLEETS)}; or A100x2,L40,A6000x1:tp4")
]
Size = Annotated[str | None, typer.Option("--size", help="model of the fleet: 8b, 13b or 70b")]
Seeds = Annotated[str, typer.Option("--seeds", help="separated by commas")]
Count = Annotated[
    int | None,
    typer.Option("--count", min=1, help="workflows of a play", show_default="100, a trace's all"),
]
SloScale = Annotated[
    float, typer.Option("--slo-scale", help="SLO: times the workflow's time alone on the fleet")
]
Tenants = Annotated[
    str | None,
    typer.Option("--tenants", help="NAME=SLO_SCALE,...: workflows are dealt to them in turn"),
]
_Number = TypeVar("_Number", int, float)

JsonFile = Annotated[Path | None, typer.Option("--json", help="write all results to this file")]
OutFolder = Annotated[
    Path | None, typer.Option("--out", help="draw pictures into this folder (needs matplotlib)")
]


@app.command()
def run(  # noqa: PLR0917 - these are options
    scenario: Scenario = None,
    trace: TraceFile = None,
    fleet: FleetText = "hetero-2",
    size: Size = None,
    policies: Annotated[
        str, typer.Option(help="NAME[:PARAMETER=VALUE...],...")
    ] = "vllm,hexgen-flow",
    rates: Annotated[
        str | None,
        typer.Option(help="workflows per second, separated by commas", show_default="0.5"),
    ] = None,
    seeds: Seeds = "0,1,2",
    count: Count = None,
    seats: Annotated[
        str | None, typer.Option(help="of each engine; several to compare", show_default="8")
    ] = None,
    slo_scale: SloScale = DEFAULT_SCALE,
    tenants: Tenants = None,
    arrivals: Arrivals = "poisson",
    warm_trace: Annotated[
        Path | None, typer.Option("--warm-trace", help="trace to learn from before --trace")
    ] = None,
    cold: Annotated[bool, typer.Option("--cold", help="learn nothing beforehand")] = False,
    json: JsonFile = None,
    out: OutFolder = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="worker processes", show_default="one a core")
    ] = None,
) -> None:
    """Simulate a workload under each policy."""
    with _failing():
        work = Work(
            scenario=scenario,
            trace=trace,
            arrivals=arrivals,
            count=_count(count, trace),
            slo_scale=slo_scale,
            tenants=_tenants(tenants),
            warm_trace=warm_trace,
        )
        one = fleet_named(fleet, size=size)
        some_seats = _integers("seats", seats or str(one.seats))
        comparison = Comparison(
            work=work,
            fleets=tuple(fleet_named(fleet, size=size, seats=each) for each in some_seats),
            policies=tuple(policies_named(policies)),
            rates_per_s=_rates(rates, work),
            seeds=_integers("seeds", seeds),
            warm=not cold,
        )
        _announce(work, one, warm_up_told(work, warm=not cold))
        if out is not None:
            plots.require()
        settings = comparison.settings()
        began_s = time.monotonic()
        with shown.progress(_out, len(settings), "plays") as step:
            results = results_of(settings, jobs=jobs, on_result=step)
        taken_s = time.monotonic() - began_s
        found = document(comparison, results)
        _show(found, f"{work.name} on {one.name}", json, out)
        _out.print(f"{len(settings)} plays in {taken_s:.1f} s", highlight=False)


@app.command()
def live(  # noqa: PLR0917 - these are options
    target: Annotated[str, typer.Option(help="URL of an OpenAI endpoint")],
    scenario: Scenario = None,
    trace: TraceFile = None,
    fleet: Annotated[
        str, typer.Option("--fleet", help="what serves there: SLOs are times alone on it")
    ] = "embedded",
    size: Size = None,
    seats: Annotated[int | None, typer.Option(min=1, help="of each engine of the fleet")] = None,
    rate: Annotated[
        float | None, typer.Option(help="workflows per second", show_default="0.5")
    ] = None,
    seeds: Seeds = "0,1,2",
    count: Count = None,
    slo_scale: SloScale = DEFAULT_SCALE,
    tenants: Tenants = None,
    arrivals: Arrivals = "poisson",
    time_scale: Annotated[
        float, typer.Option(help="times faster than real time, as the emulated engines run")
    ] = 1.0,
    model: Annotated[str | None, typer.Option(help="default: the first it serves")] = None,
    api_key: Annotated[str | None, typer.Option(help="bearer key that it asks for")] = None,
    label: Annotated[
        str | None, typer.Option(help="what to call it in the report", show_default="the URL")
    ] = None,
    concurrency_limit: Annotated[int, typer.Option(min=1, help="most calls at once")] = 1024,
    metrics: Annotated[
        list[str] | None,
        typer.Option("--metrics", help="URL of an engine's metrics, for utilisation; repeatable"),
    ] = None,
    warm_up: Annotated[
        int, typer.Option(min=0, help="workflows of another seed that are played before")
    ] = 10,
    limit_s: Annotated[float, typer.Option(help="longest time of one play, real seconds")] = 1800.0,
    json: JsonFile = None,
    out: OutFolder = None,
) -> None:
    """Play a workload over HTTP against any OpenAI endpoint, ours or a peer's."""
    from dispatcher.bench import live_run  # noqa: PLC0415 - an HTTP client that nobody else needs

    with _failing():
        work = Work(
            scenario=scenario,
            trace=trace,
            arrivals=arrivals,
            count=_count(count, trace),
            slo_scale=slo_scale,
            tenants=_tenants(tenants),
        )
        serving = fleet_named(fleet, size=size, seats=seats)
        options = live_run.LiveOptions(
            target=target,
            label=label or target,
            model=model,
            api_key=api_key,
            time_scale=time_scale,
            concurrency_limit=concurrency_limit,
            limit_s=limit_s,
            metrics=tuple(metrics or ()),
            warm_up=warm_up,
        )
        some_seeds = _integers("seeds", seeds)
        one_rate = _rates(None if rate is None else str(rate), work)[0]
        if out is not None:
            plots.require()
        _announce(work, serving, live_run.warm_up_told(warm_up))
        with shown.progress(_out, live_run.steps(work, some_seeds), "workflows") as step:
            found, notes = live_run.run(
                work, serving, one_rate, some_seeds, options, on_workflow=step
            )
        _show(found, f"{work.name} against {options.label}", json, out)
        for note in notes:
            _out.print(note, highlight=False, markup=False, soft_wrap=True)


@app.command()
def paper(
    name: Annotated[str, typer.Argument(help="which paper")],
    json: JsonFile = None,
    seeds: Seeds = "0,1,2",
    jobs: Annotated[
        int | None, typer.Option(min=1, help="worker processes", show_default="one a core")
    ] = None,
) -> None:
    """Run the experiments of one paper: what it claims beside what is measured."""
    with _failing():
        experiment = PAPERS.get(name)
        if experiment is None:
            known = ", ".join(PAPERS) or "none yet"
            raise ConfigurationError(f"no such paper: {name!r}; expected one of: {known}")
        some_seeds = _integers("seeds", seeds)
        began_s = time.monotonic()
        with shown.steps(_out, "plays") as (on_steps, on_step):
            options = claims.ExperimentOptions(some_seeds, jobs, on_steps, on_step)
            findings = experiment.run(options)
        taken_s = time.monotonic() - began_s
        found = claims.paper_document(name, findings, seeds=some_seeds, seconds=taken_s)
        _out.print(f"[bold]{experiment.title}[/]")
        _out.print(shown.claims_table(found))
        _out.print(f"{taken_s:.1f} s", highlight=False)
        _write(found, json)


# --- what options mean --------------------------------------------------------------------------


def _count(asked: int | None, trace: Path | None) -> int | None:
    return 100 if asked is None and trace is None else asked


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


def _announce(work: Work, fleet: Fleet, warm_up: str) -> None:
    engines = ", ".join(f"{count} x {kind}" for kind, count in fleet.counted().items())
    scales = ", ".join(f"{name} x {scale:g}" for name, scale in work.tenants)
    _out.print(
        f"{work.name} on {fleet.name}: {fleet.model} on {engines},"
        f" {fleet.seats} seats each."
        + (f"\nNote: {fleet.note}." if fleet.note else "")
        + f"\nSLO while scheduling: time alone on the fleet x {scales or f'{work.slo_scale:g}'};"
        f" other scales are scored afterwards.\nWarm-up: {warm_up}.",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _show(found: dict[str, Any], title: str, json: Path | None, out: Path | None) -> None:
    _out.print(shown.summary_table(found["summary"], title))
    _write(found, json)
    if out is not None:
        for path in plots.draw_run(found, out):
            _out.print(f"drew {path}", highlight=False, markup=False, soft_wrap=True)


def _write(found: Mapping[str, Any], path: Path | None) -> None:
    if path is not None:
        path.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2) + b"\n")
        _out.print(f"wrote {path}", highlight=False, markup=False, soft_wrap=True)


@contextmanager
def _failing() -> Iterator[None]:
    """End the program with status 2 and one message where something cannot be done."""
    try:
        yield
    except (HeadwayError, OSError) as error:
        _fail(str(error))
    except KeyboardInterrupt:
        _err.print("Interrupted: nothing was written.")
        sys.exit(130)


def _fail(message: str) -> NoReturn:
    _err.print(message, style="bold red", highlight=False, markup=False, soft_wrap=True)
    sys.exit(2)
