"""The `headway` command."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer
import uvloop
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from rich.console import Console
from rich.table import Table

from dispatcher.bench.commands import app as bench
from dispatcher.catalog import parameters, policy_entries
from dispatcher.config import Settings, load_settings
from dispatcher.core.errors import ConfigurationError, HeadwayError
from dispatcher.emulator.fleet import run_fleet
from dispatcher.emulator.settings import EmulatorSettings
from dispatcher.gateway.about import VERSION, counted
from dispatcher.gateway.server import serve as serve_gateway
from dispatcher.simulator.replay import replay
from dispatcher.wording import plain

app = typer.Typer(
    help="Deadline-aware scheduling of LLM workflows over mixed vLLM fleets.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(bench, name="bench")
_out = Console()
_err = Console(stderr=True)

ConfigOption = Annotated[Path | None, typer.Option("--config", help="YAML file")]


def _show_version(asked: bool) -> None:
    if asked:
        _out.print(VERSION)
        raise typer.Exit


@app.callback()
def headway(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Take what holds for no command in particular."""


@app.command()
def serve(
    config: ConfigOption = None,
    engine: Annotated[
        list[str] | None, typer.Option("--engine", help="URL of an engine; may be given often")
    ] = None,
    policy: Annotated[str | None, typer.Option("--policy", help="as in `headway policies`")] = None,
    host: Annotated[str | None, typer.Option("--host", help="default 127.0.0.1")] = None,
    port: Annotated[int | None, typer.Option("--port", help="default 8080")] = None,
) -> None:
    """Run the gateway; without engines, on an embedded emulated fleet."""
    overrides: dict[str, object] = {}
    if engine:
        overrides["engines"] = [
            {"id": f"engine-{number}", "url": url} for number, url in enumerate(engine)
        ]
    if policy is not None:
        overrides["policy"] = {"name": policy, "params": {}}
    own = {"host": host, "port": port}
    if any(value is not None for value in own.values()):
        overrides["server"] = {k: v for k, v in own.items() if v is not None}
    settings = _load(config, overrides)
    _log_to_terminal()
    if not settings.engines:
        own_fleet = settings.embedded
        _out.print(
            f"[bold yellow]No engine is configured: starting an embedded emulated fleet"
            f" ({own_fleet.size} on {', '.join(own_fleet.gpus)}, {own_fleet.time_scale:g} times"
            " real time).\nNo real model is running: the texts are made up.[/]",
            soft_wrap=True,
        )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(
                serve_gateway(
                    settings,
                    config_path=config,
                    overrides=overrides,
                    on_ready=_announce,
                    replay=replay,
                )
            )
        except HeadwayError as error:
            _fail(str(error))
    _out.print("Headway has ended.")


@app.command()
def emulate(  # noqa: PLR0917 - these are options
    gpu: Annotated[str, typer.Option(help="GPU type whose speed and memory are played")] = "A100",
    tp: Annotated[int, typer.Option(min=1, help="GPUs that share the model")] = 1,
    model: Annotated[
        str | None,
        typer.Option(help="served model name", show_default="of the size, such as llama-3.1-8b"),
    ] = None,
    size: Annotated[str, typer.Option(help="8b, 13b or 70b")] = "8b",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 picks a free one")] = 8000,
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    time_scale: Annotated[float, typer.Option(help="times faster than real time")] = 1.0,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="seats")] = 256,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(min=1, help="tokens per iteration", show_default="as vLLM's")
    ] = None,
    kv_blocks: Annotated[int | None, typer.Option(min=1, help="default: what fits")] = None,
    offload_blocks: Annotated[
        int, typer.Option(min=0, help="KV blocks in host memory that evicted ones come back from")
    ] = 0,
    stream_interval: Annotated[int, typer.Option(min=1, help="tokens per event")] = 1,
    replies: Annotated[
        Path | None, typer.Option(help="scripts texts and tool calls by pattern")
    ] = None,
    seed: Annotated[int, typer.Option(help="of lengths and texts")] = 0,
) -> None:
    """Run one emulated engine that speaks vLLM's API and metrics."""
    try:
        settings = EmulatorSettings.model_validate(
            {
                "gpu": gpu,
                "tp": tp,
                "model": model,
                "size": size,
                "port": port,
                "host": host,
                "time_scale": time_scale,
                "max_num_seqs": max_num_seqs,
                "max_num_batched_tokens": max_num_batched_tokens,
                "kv_blocks": kv_blocks,
                "offload_blocks": offload_blocks,
                "stream_interval": stream_interval,
                "replies": replies,
                "seed": seed,
            }
        )
    except ValidationError as error:
        _fail("\n".join(_of_option(mistake) for mistake in error.errors()))
    _log_to_terminal()
    name = settings.served_names[0]

    def ready(ports: list[int]) -> None:
        _out.print(
            f"Emulating {name} on {settings.tp} x {settings.gpu} at"
            f" http://{settings.host}:{ports[0]} (no real model is running)",
            soft_wrap=True,
        )

    try:
        run_fleet([settings], on_ready=ready)
    except (OSError, ValueError) as error:
        _fail(str(error))


@app.command()
def calibrate(  # noqa: PLR0917 - these are options
    engine: Annotated[
        list[str], typer.Option("--engine", help="URL of an engine; several are loaded together")
    ],
    out: Annotated[Path, typer.Option(help="file to write")] = Path("engine-profile.yaml"),
    model: Annotated[str | None, typer.Option(help="default: the first it serves")] = None,
    api_key: Annotated[str | None, typer.Option(help="key that the engines ask for")] = None,
    seats: Annotated[int | None, typer.Option(min=1, help="default: found out")] = None,
    most_running: Annotated[int, typer.Option(min=1, max=1024, help="most calls at once")] = 64,
    longest_prompt: Annotated[int, typer.Option(min=32, help="tokens, if they fit")] = 8192,
    budget_s: Annotated[float, typer.Option(min=1, max=3600, help="longest time in all")] = 100.0,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="how often all is measured")] = 3,
    apart: Annotated[bool, typer.Option("--apart", help="never load engines together")] = False,
) -> None:
    """Measure real engines over HTTP and write what the cost model starts from."""
    from dispatcher.calibration import CalibrationOptions, command  # noqa: PLC0415 - its own need

    options = CalibrationOptions(
        urls=tuple(engine),
        model=model,
        api_key=api_key,
        seats=seats,
        most_running=most_running,
        longest_prompt=longest_prompt,
        budget_s=budget_s,
        rounds=rounds,
        apart=apart,
    )
    try:
        command.run(options, out, _out)
    except HeadwayError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        _err.print("Interrupted: nothing was written, and no call of it goes on.")
        sys.exit(130)


@app.command()
def tune(  # noqa: PLR0917 - these are options
    trace: Annotated[Path, typer.Option(help="recorded trace, JSON lines")],
    fleet: Annotated[str, typer.Option(help="as in `headway bench run`")] = "embedded",
    size: Annotated[str | None, typer.Option(help="model: 8b, 13b or 70b")] = None,
    seats: Annotated[int | None, typer.Option(min=1, help="of each engine")] = None,
    policy: Annotated[str, typer.Option(help="one that has an alpha")] = "hexgen-flow",
    alpha: Annotated[float, typer.Option(help="the one in use")] = 0.0,
    max_calls: Annotated[int, typer.Option(min=1, help="of the trace's end")] = 2000,
    seed: Annotated[int, typer.Option(help="of the replay")] = 0,
    json: Annotated[Path | None, typer.Option("--json", help="file to write")] = None,
) -> None:
    """Find the alpha that a recorded trace would have been served best with."""
    from dispatcher.bench import tune as tuning  # noqa: PLC0415 - its own need
    from dispatcher.bench.fleets import fleet_named  # noqa: PLC0415

    try:
        engines = fleet_named(fleet, size=size, seats=seats)
        choice = tuning.tune_file(
            trace, engines, policy=policy, alpha=alpha, max_calls=max_calls, seed=seed
        )
        asked = {"trace": str(trace), "policy": policy, "max_calls": max_calls, "seed": seed}
        tuning.show(choice, engines, _out, json, asked)
    except (HeadwayError, OSError) as error:
        _fail(str(error))


@app.command()
def policies() -> None:
    """List the policies with their parameters and papers."""
    table = Table("policy", "does", "from", "parameters", show_lines=True)
    for entry in policy_entries().values():
        params = "\n".join(parameters(entry))
        table.add_row(entry.name, entry.summary, entry.paper or "-", params or "-")
    _out.print(table)


@app.command("check-config")
def check_config(file: Annotated[Path, typer.Argument(help="YAML file")]) -> None:
    """Validate a configuration; says which key is wrong and what was expected."""
    settings = _load(file, {})
    engines = counted(len(settings.engines), "engine")
    if not settings.engines:
        engines = "no engines (the embedded fleet would run)"
    _out.print(
        f"{file} is valid: policy {settings.policy.name}, {engines}",
        soft_wrap=True,
        markup=False,
    )


@app.command()
def version() -> None:
    """Print the version."""
    _out.print(VERSION)


def _of_option(mistake: ErrorDetails) -> str:
    """What is wrong with which option; nothing is named where several do not go together."""
    message = plain(mistake["msg"])
    return "".join(f"--{part}: ".replace("_", "-") for part in mistake["loc"][:1]) + message


def _load(path: Path | None, overrides: dict[str, object]) -> Settings:
    """Settings; ends the program where they are wrong."""
    try:
        return load_settings(path, overrides)
    except ConfigurationError as error:
        _fail(str(error))


def _announce(settings: Settings, url: str) -> None:
    _out.print(f"Headway {VERSION} listens on [bold]{url}[/] (docs: {url}/docs)", soft_wrap=True)
    _out.print(f"Policy {settings.policy.name}, {counted(len(settings.engines), 'engine')}")


def _log_to_terminal() -> None:
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        force=True,
    )
    for chatty in ("httpx", "httpcore", "uvicorn.error"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def _fail(message: str) -> NoReturn:
    _err.print(message, style="bold red", highlight=False, markup=False, soft_wrap=True)
    sys.exit(2)


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
