"""A flood of long prompts, with and without an in-flight token budget: preemptions and throughput.

    python benchmarks/token_budget.py                   # one emulated engine with a small KV cache
    python benchmarks/token_budget.py --simulated       # in virtual time: the same on any machine
    python benchmarks/token_budget.py --engine URL --pid PID --kv-share 0.9

An engine admits what its KV cache has room for now; answers grow, and where it is full the engine
throws out a request that it has begun and computes it again later. The gateway knows what answers
will need and may send no more than a share of the cache. The same calls, all at once, are played
without a budget and with one, in mirrored order; preemptions are the engine's own count
(`vllm:num_preemptions_total`). Throughput is output tokens per second; where the machine has other
work, those per second of the CPU time of a CPU engine (`--pid`) say more. Exit status 1 where there
are no fewer preemptions with the budget.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from before_engines import (
    Bench,
    Served,
    bench,
    by_side,
    client,
    keep,
    mirrored,
    options_parser,
    origin,
    quantile,
    stream_chat,
)
from processes import cpu_s

WORDS = ("where", "select", "table", "value", "join", "order", "group", "limit", "count", "row")


@dataclass(frozen=True)
class Asked:
    """One call; the same in every play."""

    prompt: str
    output_tokens: int


def make_calls(options: argparse.Namespace, seed: int, count: int) -> list[Asked]:
    """Drawn from the seed: prompts and answers of half to one and a half times the mean."""
    rng = random.Random(seed)
    return [
        Asked(
            " ".join(rng.choice(WORDS) for _ in range(drawn(rng, options.prompt_words))),
            drawn(rng, options.output),
        )
        for _ in range(count)
    ]


def drawn(rng: random.Random, mean: int) -> int:
    """Around the mean, at least 1."""
    return max(1, round(mean * rng.uniform(0.5, 1.5)))


async def play(under: Bench, calls: Sequence[Asked], name: str) -> tuple[float, list[Served]]:
    """All calls at once; how long it took, and what became of each."""
    headers = {"x-headway-workflow": "flood"}
    async with client() as http:

        async def one(number: int, asked: Asked) -> Served:
            body = {
                "model": under.model,
                "messages": [{"role": "user", "content": f"{name}-{number}: {asked.prompt}"}],
                "max_tokens": asked.output_tokens,
                "ignore_eos": True,
                "temperature": 0,
            }
            return await stream_chat(http, under.url, body, headers)

        began_s = time.monotonic()
        served = await asyncio.gather(*(one(n, asked) for n, asked in enumerate(calls)))
        return time.monotonic() - began_s, served


def summary(
    served: Sequence[Served], took_s: float, counted: Mapping[str, float]
) -> dict[str, float]:
    """One play in figures; `counted` is what the engine has, see `count`."""
    prompts = sum(one.prompt_tokens for one in served)
    outputs = sum(one.output_tokens for one in served)
    return {
        **counted,
        "took_s": took_s,
        "prompt_tokens": prompts,
        "output_tokens": outputs,
        "output_tokens_per_s": outputs / took_s,
        "latency_p50_s": quantile([one.total_s for one in served], 0.5),
        "latency_p95_s": quantile([one.total_s for one in served], 0.95),
    }


async def measure(under: Bench, options: argparse.Namespace) -> list[dict[str, Any]]:
    """All plays, in order."""
    calls = make_calls(options, options.seed, options.calls)
    under.switch(options.policy, {})
    # what lengths are like and prompts cost is learned beforehand, once for both sides
    await play(under, make_calls(options, options.seed + 1_000_003, options.warm), "warm")
    plays: list[dict[str, Any]] = []
    for share in mirrored(None, options.kv_share, options.rounds):
        under.switch(options.policy, {"kv_share": share})
        before = count(under, options)
        took_s, served = await play(under, calls, f"play-{len(plays)}")
        after = count(under, options)
        figures = summary(served, took_s, {key: after[key] - before[key] for key in after})
        plays.append({"kv_share": share, **figures, "each": [asdict(one) for one in served]})
        print(
            f"kv_share {share}: {figures['preemptions']:.0f} preemptions,"
            f" {figures['output_tokens_per_s']:.0f} tokens/s, {took_s:.1f} s,"
            f" {figures['engine_cpu_s']:.1f} s of CPU, {figures['iterations']:.0f} iterations",
            flush=True,
        )
    return plays


def simulated(options: argparse.Namespace, share: float | None, seed: int) -> dict[str, Any]:
    """The same flood in virtual time, words as tokens; throughput by virtual seconds."""
    from dispatcher.simulator import simulate, simulated_engine  # noqa: PLC0415 - slow to load
    from dispatcher.traces import TraceCall, TraceWorkflow  # noqa: PLC0415

    def trace(seed: int, count: int) -> list[TraceWorkflow]:
        rng = random.Random(seed)
        calls = [
            TraceCall(
                "call",
                "flood",
                drawn(rng, options.prompt_words),
                drawn(rng, options.output),
                (),
                streaming=True,
            )
            for _ in range(count)
        ]
        return [TraceWorkflow(f"{seed}-{n}", "flood", 0.0, (call,)) for n, call in enumerate(calls)]

    launch = {"num_blocks": options.kv_blocks, "block_size": 16}
    engines = [simulated_engine("engine-0", "A100", seats=options.seats, **launch)]
    warm = trace(seed + 1_000_003, options.warm)
    learned = simulate(warm, engines, policy=options.policy).learned
    played = simulate(
        trace(seed, options.calls),
        engines,
        policy=options.policy,
        params={"kv_share": share},
        learned=learned,
    ).played
    outputs = sum(call.output_tokens for call in played.calls)
    latency_s = [call.ended_s for call in played.calls]
    return {
        "kv_share": share,
        "seed": seed,
        "preemptions": played.instances["engine-0"].preemptions,
        "took_s": played.makespan_s,
        "engine_cpu_s": 0.0,
        "output_tokens": outputs,
        "output_tokens_per_s": outputs / played.makespan_s,
        "latency_p50_s": quantile(latency_s, 0.5),
        "latency_p95_s": quantile(latency_s, 0.95),
    }


def count(under: Bench, options: argparse.Namespace) -> dict[str, float]:
    """What the engine has done so far; CPU time is 0 where its process is not known."""
    return {
        "preemptions": under.engine_total("num_preemptions_total"),
        "iterations": under.engine_total("iteration_tokens_total_count"),
        "engine_cpu_s": 0.0 if options.pid is None else cpu_s(options.pid),
    }


def lost(plays: Sequence[dict[str, Any]], time: str) -> float | None:
    """Part of the throughput that the budget costs; the median over pairs of plays.

    A play is held against the one beside it, so that a machine whose speed moves does little harm.

    Args:
        plays: Of both sides, in the order in which they were made.
        time: What output tokens are divided by: `took_s` or `engine_cpu_s`.

    Returns:
        `None` where that time is not known.
    """
    parts = []
    for pair in zip(plays[::2], plays[1::2], strict=True):
        without, with_budget = sorted(pair, key=lambda one: one["kv_share"] is not None)
        if not without[time]:
            return None
        rates = [one["output_tokens"] / one[time] for one in (without, with_budget)]
        parts.append(1.0 - rates[1] / rates[0])
    return quantile(parts, 0.5)


def table(plays: Sequence[dict[str, Any]]) -> str:
    """Both sides, every play a number; in Markdown."""
    columns: Sequence[tuple[str, Callable[[Mapping[str, Any]], str]]] = (
        ("preemptions", lambda one: f"{one['preemptions']:.0f}"),
        ("output tokens/s", lambda one: f"{one['output_tokens_per_s']:.0f}"),
        ("P50, s", lambda one: f"{one['latency_p50_s']:.1f}"),
        ("P95, s", lambda one: f"{one['latency_p95_s']:.1f}"),
    )
    return by_side(
        plays,
        "kv_share",
        columns,
        title="share of the KV cache",
        name=lambda share: str(share or "no budget"),
    )


def main() -> int:
    """Play, show, keep."""
    parser = options_parser(__doc__, parameter="kv_share", seats=96, kv_blocks=2048)
    parser.add_argument(
        "--kv-share", type=float, default=0.95, help="on one side; none on the other"
    )
    parser.add_argument("--pid", type=int, help="of the engine's process, to count its CPU time")
    parser.add_argument("--simulated", action="store_true", help="one seed after another")
    parser.add_argument("--calls", type=int, default=320)
    parser.add_argument("--warm", type=int, default=64, help="calls before the first play")
    parser.add_argument("--prompt-words", type=int, default=600, help="mean")
    parser.add_argument("--output", type=int, default=200, help="mean tokens of an answer")
    options = parser.parse_args()
    if options.simulated:
        plays = [
            simulated(options, share, options.seed + number)
            for number in range(options.rounds)
            for share in (None, options.kv_share)
        ]
    else:
        with bench(options, emulated=1, time_scale=5) as under:
            plays = asyncio.run(measure(under, options))
    about = origin(options)
    losses = {key: lost(plays, key) for key in ("took_s", "engine_cpu_s")}
    shown = ", ".join(f"{part:.1%} by {by}" for by, part in losses.items() if part is not None)
    print(f"\n{table(plays)}\n\nthroughput lost to the budget: {shown}\n{json.dumps(about)}")
    keep(options, {**about, "throughput_lost": losses, "plays": plays})
    off = [one["preemptions"] for one in plays if one["kv_share"] is None]
    on = [one["preemptions"] for one in plays if one["kv_share"] is not None]
    return 0 if min(off) > max(on) else 1


if __name__ == "__main__":
    sys.exit(main())
