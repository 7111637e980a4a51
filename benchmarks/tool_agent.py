"""Tool agents with and without affinity: where their calls land, and what prefix caches spare them.

    python benchmarks/tool_agent.py                                       # two emulated engines
    python benchmarks/tool_agent.py --engine URL --engine URL --tools --pause-s 0.1

Each agent sends a growing chat: what it has seen so far, the tool's result last; between two calls
its tool runs. The same trace is played with `affinity: 0` and with `--affinity`, in mirrored order
(off, on, on, off), through one gateway that switches its policy. The text of every play begins with
words of its own, so that it finds nothing in a cache that an earlier one has left. `hit rate` is
the part of the prompts of second and later calls that engines say they found cached. Exit status 1
where it is no higher with affinity.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import httpx
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

WORDS = ("the", "table", "row", "name", "value", "self", "return", "import", "list", "read", "file")
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look a topic up.",
        "parameters": {
            "type": "object",
            "properties": {"topic": {"type": "string", "enum": ["rows", "names", "joins"]}},
            "required": ["topic"],
        },
    },
}
NAMED = {"type": "function", "function": {"name": "look_up"}}


@dataclass(frozen=True)
class Agent:
    """What one agent will say and do; the same in every play."""

    question: str
    results: tuple[str, ...]
    """Of its tool, one after every call but the last."""
    pauses_s: tuple[float, ...]


@dataclass(frozen=True)
class Call:
    """One call of an agent, as it was served."""

    agent: int
    turn: int
    """0 for the first."""
    at_home: bool
    """Where the call before it was served; of a first call, false."""
    served: Served


def make_agents(options: argparse.Namespace, seed: int, count: int) -> list[Agent]:
    """Drawn from the seed."""
    rng = random.Random(seed)

    def words(count: int) -> str:
        return " ".join(rng.choice(WORDS) for _ in range(count))

    gaps = options.turns - 1
    return [
        Agent(
            words(options.first_words),
            tuple(words(options.result_words) for _ in range(gaps)),
            tuple(rng.expovariate(1.0) * options.pause_s for _ in range(gaps)),
        )
        for _ in range(count)
    ]


async def run_agent(
    http: httpx.AsyncClient,
    under: Bench,
    options: argparse.Namespace,
    agent: Agent,
    *,
    name: str,
    all_began: asyncio.Barrier,
) -> list[Served]:
    """All calls of one agent, one after another."""
    headers = {"x-headway-workflow-id": name, "x-headway-workflow": "tool-agent"}
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"{name}: {agent.question}"}]
    body: dict[str, Any] = {"model": under.model, "max_tokens": options.output, "temperature": 0}
    if options.tools:
        body |= {"tools": [TOOL], "tool_choice": NAMED}
    else:
        body["ignore_eos"] = True
    calls: list[Served] = []
    for turn in range(options.turns):
        if turn == options.turns - 1:
            headers["x-headway-final"] = "1"
        served = await stream_chat(http, under.url, {**body, "messages": messages}, headers)
        calls.append(served)
        if not turn:
            await all_began.wait()
        if turn < len(agent.results):
            call = {"id": f"call-{turn}", "type": "function"}
            call["function"] = {"name": "look_up", "arguments": served.text}  # type: ignore[assignment]
            messages += (
                [
                    {"role": "assistant", "content": "", "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": call["id"], "content": agent.results[turn]},
                ]
                if options.tools
                else [
                    {"role": "assistant", "content": served.text},
                    {"role": "user", "content": agent.results[turn]},
                ]
            )
            await asyncio.sleep(agent.pauses_s[turn])
    return calls


async def play(
    under: Bench, options: argparse.Namespace, agents: Sequence[Agent], name: str
) -> list[Call]:
    """All agents at once; none has its second call before each has had its first.

    So round robin gives every engine as many of them, whatever else is weighed later on.
    """
    all_began = asyncio.Barrier(len(agents))

    async def one(number: int, agent: Agent) -> list[Served]:
        await asyncio.sleep(number * options.apart_s)
        return await run_agent(
            http, under, options, agent, name=f"{name}-{number}", all_began=all_began
        )

    async with client() as http:
        served = await asyncio.gather(*(one(n, agent) for n, agent in enumerate(agents)))
    return [
        Call(number, turn, turn > 0 and own[turn - 1].instance == call.instance, call)
        for number, own in enumerate(served)
        for turn, call in enumerate(own)
    ]


def summary(calls: Sequence[Call]) -> dict[str, float]:
    """Of second and later calls, but for `first_ttft_s`."""
    later = [call for call in calls if call.turn]
    ttft_s = [call.served.ttft_s for call in later]
    prompts = sum(call.served.prompt_tokens for call in later)
    return {
        "calls": len(later),
        "hit_rate": sum(call.served.cached_tokens for call in later) / max(1, prompts),
        "at_home": sum(call.at_home for call in later) / max(1, len(later)),
        "tools_asked_for": sum(call.served.tool is not None for call in calls),
        "prompt_tokens": prompts,
        "ttft_p50_s": quantile(ttft_s, 0.5),
        "ttft_p95_s": quantile(ttft_s, 0.95),
        "ttft_mean_s": sum(ttft_s) / max(1, len(later)),
        "first_ttft_s": quantile([c.served.ttft_s for c in calls if not c.turn], 0.5),
    }


async def warm_up(under: Bench, options: argparse.Namespace) -> None:
    """Let the gateway learn what prompts cost, and how much of a session is found again."""
    under.switch(options.policy, {"affinity": 0})
    for number, agent in enumerate(make_agents(options, options.seed + 1_000_003, 2)):
        await play(under, options, [agent], f"warm-{number}")


async def measure(under: Bench, options: argparse.Namespace) -> list[dict[str, Any]]:
    """All plays, in order."""
    agents = make_agents(options, options.seed, options.agents)
    await warm_up(under, options)
    plays: list[dict[str, Any]] = []
    for affinity in mirrored(0.0, options.affinity, options.rounds):
        under.switch(options.policy, {"affinity": affinity})
        calls = await play(under, options, agents, f"play-{len(plays)}")
        plays.append(
            {
                "affinity": affinity,
                **summary(calls),
                "each": [{**asdict(one), "served": asdict(one.served)} for one in calls],
            }
        )
        print(f"affinity {affinity:g}: {told(plays[-1])}", flush=True)
    return plays


def told(one: dict[str, Any]) -> str:
    """A play in a line."""
    return (
        f"hit rate {one['hit_rate']:.1%}, at home {one['at_home']:.1%},"
        f" TTFT {1000 * one['ttft_p50_s']:.0f} ms (P95 {1000 * one['ttft_p95_s']:.0f} ms),"
        f" first calls {1000 * one['first_ttft_s']:.0f} ms"
    )


def table(plays: Sequence[dict[str, Any]]) -> str:
    """Both sides, every play a number; in Markdown."""
    columns: Sequence[tuple[str, Callable[[Mapping[str, Any]], str]]] = (
        ("hit rate", lambda one: f"{one['hit_rate']:.1%}"),
        ("at home", lambda one: f"{one['at_home']:.1%}"),
        ("TTFT P50, ms", lambda one: f"{1000 * one['ttft_p50_s']:.0f}"),
        ("TTFT P95, ms", lambda one: f"{1000 * one['ttft_p95_s']:.0f}"),
        ("of first calls, ms", lambda one: f"{1000 * one['first_ttft_s']:.0f}"),
    )
    return by_side(
        plays, "affinity", columns, title="affinity", name=lambda affinity: f"{affinity:g}"
    )


def main() -> int:
    """Play, show, keep."""
    parser = options_parser(__doc__, parameter="affinity", seats=8, kv_blocks=3000)
    parser.add_argument("--affinity", type=float, default=4.0)
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--turns", type=int, default=6, help="calls of each agent")
    parser.add_argument("--first-words", type=int, default=1500)
    parser.add_argument("--result-words", type=int, default=1500, help="of the tool")
    parser.add_argument("--output", type=int, default=24, help="tokens of an answer")
    parser.add_argument("--pause-s", type=float, default=1.0, help="mean time of the tool")
    parser.add_argument("--apart-s", type=float, default=0.05, help="between two first calls")
    parser.add_argument("--tools", action="store_true", help="have answers be calls of a tool")
    options = parser.parse_args()
    with bench(options, emulated=2, time_scale=2) as under:
        plays = asyncio.run(measure(under, options))
        gateway = under.state()
    about = origin(options)
    print(f"\n{table(plays)}\n\n{json.dumps(about)}")
    keep(options, {**about, "gateway": gateway, "plays": plays})
    off = [one["hit_rate"] for one in plays if not one["affinity"]]
    on = [one["hit_rate"] for one in plays if one["affinity"]]
    return 0 if min(on) > max(off) else 1


if __name__ == "__main__":
    sys.exit(main())
