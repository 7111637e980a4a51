"""A text-to-SQL agent on any OpenAI endpoint, with Headway's headers: see README.md beside it."""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import database as db
import openai
import questions as qs
import report
from llm import CALL_ERRORS, Endpoint
from rich.console import Console
from workflow import SLO_FACTORS, Outcome, Settings, answer

#: Seconds for a moderate question: about twice what it takes alone on the embedded fleet at time
#: scale 2. SLO_FACTORS scales it for the others.
DEFAULT_SLO_S = 45.0
EXIT_FAILED_WORKFLOWS, EXIT_NO_MODEL, EXIT_INTERRUPTED = 1, 2, 130


def positive(text: str) -> int:
    """A whole number of at least 1, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {text}")
    return number


def not_negative(text: str) -> int:
    """A whole number of at least 0, for argparse."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"expected at least 0, got {text}")
    return number


def seconds(text: str) -> float:
    """A number above 0, for argparse."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected seconds above 0, got {text}")
    return number


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Ask questions about a railway's database: a CHESS-style text-to-SQL agent.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--base-url", default="http://127.0.0.1:8080/v1", help="any OpenAI endpoint")
    add("--api-key", default=os.environ.get("OPENAI_API_KEY", "none"), help="its key, if any")
    add("--model", help="model name; by default the first that the endpoint lists")
    add("--questions", type=positive, default=42, help="workflows to run")
    add("--concurrency", type=positive, default=8, help="workflows at the same time")
    add("--candidates", type=positive, default=4, help="candidate queries per question")
    add("--corrections", type=not_negative, default=4, help="rounds of correction at most")
    add("--unit-tests", type=positive, default=3, help="unit tests per question")
    add("--slo-s", type=seconds, default=DEFAULT_SLO_S, help="SLO of a moderate question")
    add("--slo-flat", action="store_true", help="the same SLO whatever the difficulty")
    add("--seed", type=int, default=0, help="order and wording of questions, sampling seeds")
    add("--temperature", type=float, default=0.7, help="sampling temperature")
    add("--stream", action="store_true", help="streaming calls")
    add("--timeout-s", type=seconds, default=900.0, help="longest wait for one call")
    add("--max-retries", type=not_negative, default=2, help="the client's retries per call")
    add("--run-id", help="prefix of the workflow ids; by default made up")
    add("--json", type=Path, metavar="FILE", help="write results per workflow")
    arguments = parser.parse_args(argv)
    arguments.run_id = arguments.run_id or f"text2sql-{uuid.uuid4().hex[:8]}"
    # No key may end up in the report.
    hidden = {"api_key", "json"}
    arguments.config = {key: value for key, value in vars(arguments).items() if key not in hidden}
    return arguments


async def run(arguments: argparse.Namespace, console: Console, outcomes: list[Outcome]) -> None:
    """Run all workflows, `concurrency` at a time; each is added to `outcomes` as it ends."""
    async with openai.AsyncOpenAI(
        base_url=arguments.base_url,
        api_key=arguments.api_key,
        timeout=arguments.timeout_s,
        max_retries=arguments.max_retries,
    ) as client:
        model = arguments.model or await first_model(client)
        arguments.config["model"] = model
        endpoint = Endpoint(client, model, arguments.stream, arguments.temperature)
        settings = Settings(arguments.candidates, arguments.corrections, arguments.unit_tests)
        drawn = qs.draw(qs.load(), arguments.questions, arguments.seed)
        waiting = collections.deque(enumerate(drawn))
        with (
            tempfile.TemporaryDirectory(prefix="text2sql-") as folder,
            report.ProgressShown(console, len(drawn)) as progress,
        ):
            database = db.build(Path(folder) / "railway.sqlite")

            async def work() -> None:
                while waiting:
                    index, question = waiting.popleft()
                    factor = 1.0 if arguments.slo_flat else SLO_FACTORS[question.difficulty]
                    outcome = await answer(
                        endpoint,
                        database,
                        question,
                        settings,
                        workflow_id=f"{arguments.run_id}-{index:04d}",
                        slo_s=arguments.slo_s * factor,
                        seed=arguments.seed * 1_000_003 + index,
                    )
                    outcomes.append(outcome)
                    progress.step(outcome)

            async with asyncio.TaskGroup() as group:
                for _ in range(min(arguments.concurrency, len(drawn))):
                    group.create_task(work())


async def first_model(client: openai.AsyncOpenAI) -> str:
    """The first model that the endpoint lists.

    Raises:
        openai.OpenAIError: it lists none, or cannot be asked.
    """
    async for model in client.models.list():
        return model.id
    raise openai.OpenAIError("the endpoint lists no model; name one with --model")


def finish(
    arguments: argparse.Namespace, console: Console, outcomes: list[Outcome], wall_s: float
) -> int:
    """Print and write what came out; returns the exit status."""
    summary = report.summarise(outcomes, wall_s)
    if arguments.json is not None:
        document: Any = report.as_json(outcomes, summary, arguments.config)
        arguments.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    console.print(report.table(summary, f"text2sql, {arguments.config['model']}"))
    if not summary["failed"]:
        return 0
    console.print(f"{summary['failed']} of {summary['workflows']} workflows failed:")
    for line in report.failures(outcomes):
        console.print(f"  {line}", markup=False)
    return EXIT_FAILED_WORKFLOWS


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    arguments = parse_arguments(argv)
    console = Console(highlight=False)
    outcomes: list[Outcome] = []
    start_s = time.monotonic()
    try:
        asyncio.run(run(arguments, console, outcomes))
    except CALL_ERRORS as error:
        console.print(f"cannot ask {arguments.base_url} for its models: {error}", markup=False)
        return EXIT_NO_MODEL
    except KeyboardInterrupt:
        console.print(f"interrupted after {len(outcomes)} of {arguments.questions} workflows")
        if outcomes:
            finish(arguments, console, outcomes, time.monotonic() - start_s)
        return EXIT_INTERRUPTED
    return finish(arguments, console, outcomes, time.monotonic() - start_s)


if __name__ == "__main__":
    sys.exit(main())
