"""`headway bench run | live | paper | predictors`: what the command line says and shows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from dispatcher.bench.papers import PAPERS
from dispatcher.core.errors import HeadwayError

app = typer.Typer(
    help="Compare policies: simulated, live over HTTP, or beside a paper's claims.",
    no_args_is_help=True,
)
_err = Console(stderr=True)

Scenario = Annotated[str | None, typer.Option("--scenario", help="workload, such as chess-1")]
TraceFile = Annotated[
    Path | None, typer.Option("--trace", help="recorded trace (JSON lines) instead of a scenario")
]
Arrivals = Annotated[str, typer.Option("--arrivals", help="process of arrivals")]
FleetText = Annotated[
    str,
    typer.Option(
        "--fleet",
        help="embedded, hetero-1, hetero-2, homogeneous, mac-sql; or A100x2,L40,A6000x1:tp4",
    ),
]
Size = Annotated[str | None, typer.Option("--size", help="model of the fleet: 8b, 13b or 70b")]
Seeds = Annotated[str, typer.Option("--seeds", help="separated by commas")]
Count = Annotated[
    int | None,
    typer.Option("--count", min=1, help="workflows of a play", show_default="100, a trace's all"),
]
SloScale = Annotated[
    float | None,
    typer.Option(
        "--slo-scale", help="SLO: times the workflow's time alone on the fleet", show_default="5"
    ),
]
Tenants = Annotated[
    str | None,
    typer.Option(
        "--tenants", help="NAME=SLO_SCALE,...: workflows are dealt to them in turn, or are theirs"
    ),
]
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
    slo_scale: SloScale = None,
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
        from dispatcher.bench import actions  # noqa: PLC0415 - it brings a simulator

        actions.run(
            actions.Asked(
                scenario=scenario,
                trace=trace,
                fleet=fleet,
                size=size,
                seeds=seeds,
                count=count,
                slo_scale=slo_scale,
                tenants=tenants,
                arrivals=arrivals,
                json=json,
                out=out,
            ),
            policies=policies,
            rates=rates,
            seats=seats,
            warm_trace=warm_trace,
            warm=not cold,
            jobs=jobs,
        )


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
    slo_scale: SloScale = None,
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
    with _failing():
        from dispatcher.bench import actions, live_run  # noqa: PLC0415 - as above

        actions.live(
            actions.Asked(
                scenario=scenario,
                trace=trace,
                fleet=fleet,
                size=size,
                seeds=seeds,
                count=count,
                slo_scale=slo_scale,
                tenants=tenants,
                arrivals=arrivals,
                json=json,
                out=out,
            ),
            live_run.LiveOptions(
                target=target,
                label=label or target,
                model=model,
                api_key=api_key,
                time_scale=time_scale,
                concurrency_limit=concurrency_limit,
                limit_s=limit_s,
                metrics=tuple(metrics or ()),
                warm_up=warm_up,
            ),
            rate=rate,
            seats=seats,
        )


@app.command()
def paper(
    name: Annotated[str, typer.Argument(help=f"which paper: {', '.join(PAPERS)}")],
    json: JsonFile = None,
    seeds: Annotated[
        str | None,
        typer.Option("--seeds", help="separated by commas", show_default="the experiment's own"),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="worker processes", show_default="one a core")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="folder to draw pictures into")] = None,
) -> None:
    """Run the experiments of one paper: what it claims beside what is measured."""
    with _failing():
        from dispatcher.bench import actions  # noqa: PLC0415 - as above

        actions.paper(name, seeds=seeds, jobs=jobs, json=json, out=out)


@app.command()
def predictors(
    json: JsonFile = None,
    corpus: Annotated[
        Path | None,
        typer.Option(help="other lengths, JSON lines", show_default="those that ship"),
    ] = None,
    seed: Annotated[int, typer.Option(help="of splits and forests")] = 0,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="worker processes", show_default="one a core")
    ] = None,
) -> None:
    """Judge predictors of output length on real answers: loss, coverage, width, time."""
    with _failing():
        from dispatcher.bench.predictors import command  # noqa: PLC0415 - it brings scikit-learn

        command.run(file=corpus, seed=seed, jobs=jobs, json=json)


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
