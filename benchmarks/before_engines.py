"""A gateway before engines, given or emulated, and streams through it, measured one by one."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
from processes import HEADWAY, fetch, free_port, running, wait_for

_LIMIT_S = 600.0
"""Of one call."""


@dataclass(frozen=True)
class Served:
    """One stream, from its request to its end."""

    instance: str
    ttft_s: float
    total_s: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    text: str
    tool: str | None
    """Name of the tool that it asks for."""


@dataclass(frozen=True)
class Bench:
    """What a play is run against."""

    url: str
    """The gateway's."""
    engines: tuple[str, ...]
    model: str

    def switch(self, policy: str, params: Mapping[str, object]) -> None:
        """Have another policy decide from now on."""
        fetch(f"{self.url}/admin/policy", {"name": policy, "params": dict(params)})

    def state(self) -> dict[str, Any]:
        """What the gateway says of its engines, and of the tools that it has seen."""
        predictors = json.loads(fetch(f"{self.url}/admin/predictors"))
        return {
            "engines": json.loads(fetch(f"{self.url}/admin/engines")),
            "tools": predictors["workflows"]["tools"],
        }

    def engine_total(self, name: str) -> float:
        """A vLLM metric, summed over engines and label sets."""
        sample = re.compile(rf"^vllm:{name}(?:\{{[^\n]*\}})?[ \t]+(\S+)", re.MULTILINE)
        pages = [fetch(f"{engine}/metrics").decode() for engine in self.engines]
        return sum(float(value) for page in pages for value in sample.findall(page))


def options_parser(
    doc: str | None, *, parameter: str, seats: int, kv_blocks: int
) -> argparse.ArgumentParser:
    """Options of a program that plays the same calls with and without something.

    Args:
        doc: The program's.
        parameter: What it switches, a parameter of the policy.
        seats: Of each engine, where it is not told.
        kv_blocks: Of each emulated engine, where it is not told.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--engine", action="append", default=[], help="URL of one that is there; several: again"
    )
    parser.add_argument("--profile", type=Path, help="what `headway calibrate` wrote of them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write everything to this file")
    parser.add_argument("--policy", default="vllm", help=f"with a parameter `{parameter}`")
    parser.add_argument("--rounds", type=int, default=2, help="plays of either side")
    parser.add_argument("--seats", type=int, default=seats)
    parser.add_argument("--kv-blocks", type=int, default=kv_blocks, help="of an emulated engine")
    return parser


@contextlib.contextmanager
def bench(options: argparse.Namespace, *, emulated: int, time_scale: int) -> Iterator[Bench]:
    """A gateway before `--engine`s, else before emulated ones; all of it ends with the block.

    Args:
        options: As of `options_parser`.
        emulated: Engines to emulate, where none are given.
        time_scale: Times faster than real time that these run.
    """
    folder = Path(tempfile.mkdtemp(prefix="headway-before-engines-"))
    with contextlib.ExitStack() as stack:
        urls = list(options.engine)
        if not urls:
            flags = ["--gpu", "A100", "--size", "8b", "--time-scale", str(time_scale)]
            flags += ["--kv-blocks", str(options.kv_blocks), "--max-num-seqs", str(options.seats)]
            for number in range(emulated):
                port = free_port()
                command = [HEADWAY, "emulate", "--port", str(port), "--seed", str(number), *flags]
                log = folder / f"engine-{number}.log"
                stack.enter_context(running(command, log=log))
                urls.append(f"http://127.0.0.1:{port}")
                wait_for(urls[-1] + "/health", log)
        known = {"profile": str(options.profile.resolve())} if options.profile else {}
        if not options.engine:
            known |= {"gpu": "A100-80G", "size": "8b"}
        port = free_port()
        config = {
            "server": {"port": port},
            "engines": [
                {"id": f"engine-{n}", "url": url, "seats": options.seats, **known}
                for n, url in enumerate(urls)
            ],
            "fleet": {"poll_interval_s": 0.2},
            "store": {"path": None},
        }
        file = folder / "gateway.yaml"
        file.write_text(json.dumps(config))  # JSON is YAML
        log = folder / "gateway.log"
        stack.enter_context(running([HEADWAY, "serve", "--config", str(file)], log=log))
        url = f"http://127.0.0.1:{port}"
        wait_for(url + "/ready", log)
        wait_until_up(url, len(urls))
        model = json.loads(fetch(urls[0] + "/v1/models"))["data"][0]["id"]
        yield Bench(url, tuple(urls), str(model))


def wait_until_up(url: str, engines: int) -> None:
    """Return once the gateway sees all its engines.

    Raises:
        TimeoutError: It does not within a minute.
    """
    until_s = time.monotonic() + 60.0
    while time.monotonic() < until_s:
        if sum(engine["up"] for engine in json.loads(fetch(url + "/admin/engines"))) >= engines:
            return
        time.sleep(0.1)
    raise TimeoutError(f"{url} does not see {engines} engines up")


def client() -> httpx.AsyncClient:
    """With room for every stream of a play."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    return httpx.AsyncClient(timeout=_LIMIT_S, limits=limits, trust_env=False)


async def stream_chat(
    http: httpx.AsyncClient, url: str, body: Mapping[str, Any], headers: Mapping[str, str]
) -> Served:
    """One chat, streamed, with its usage.

    Raises:
        RuntimeError: It did not end as it should; says what came instead.
    """
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    sent_s = time.monotonic()
    ttft_s = math.nan
    text: list[str] = []
    tool: str | None = None
    usage: dict[str, Any] = {}
    last = ""
    async with http.stream(
        "POST", f"{url}/v1/chat/completions", json=asked, headers=dict(headers)
    ) as answer:
        if answer.status_code != 200:
            raise RuntimeError(f"{answer.status_code}: {(await answer.aread()).decode()[:500]}")
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                last = line or last
                continue
            event = json.loads(line.removeprefix("data: "))
            usage = event.get("usage") or usage
            delta = event["choices"][0]["delta"] if event.get("choices") else {}
            calls = delta.get("tool_calls") or ()
            if math.isnan(ttft_s) and (delta.get("content") or calls):
                ttft_s = time.monotonic() - sent_s
            text.append(delta.get("content") or "")
            for call in calls:
                tool = call["function"].get("name") or tool
                text.append(call["function"].get("arguments") or "")
        if last != "data: [DONE]" or not usage or math.isnan(ttft_s):
            raise RuntimeError(f"a stream without tokens, usage or end: {last!r}, {usage}")
    return Served(
        instance=answer.headers["x-headway-instance"],
        ttft_s=ttft_s,
        total_s=time.monotonic() - sent_s,
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        output_tokens=usage["completion_tokens"],
        text="".join(text),
        tool=tool,
    )


_Side = TypeVar("_Side")


def mirrored(off: _Side, on: _Side, rounds: int) -> Iterator[_Side]:
    """Sides in the order of their plays: off, on, on, off, and so on.

    So a machine that becomes faster or slower on the way favours neither.
    """
    for number in range(rounds):
        yield from (off, on) if number % 2 == 0 else (on, off)


def by_side(
    plays: Sequence[Mapping[str, Any]],
    side: str,
    columns: Sequence[tuple[str, Callable[[Mapping[str, Any]], str]]],
    *,
    title: str,
    name: Callable[[Any], str],
) -> str:
    """One row a side, its plays one beside the other, in Markdown.

    Args:
        plays: In the order in which they were made.
        side: Under which key they say what side they are of.
        columns: Titles, and how a play's figure is told.
        title: Of the first column.
        name: What a side is called there.
    """
    rows = [
        f"| {title} | " + " | ".join(head for head, _ in columns) + " |",
        "|---" * (1 + len(columns)) + "|",
    ]
    for value in dict.fromkeys(one[side] for one in plays):
        own = [one for one in plays if one[side] == value]
        cells = [", ".join(told(one) for one in own) for _, told in columns]
        rows.append(f"| {name(value)} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def keep(options: argparse.Namespace, document: Mapping[str, Any]) -> None:
    """Write what was measured where `--json` says, if it does."""
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=2) + "\n")


def quantile(values: Sequence[float], p: float) -> float:
    """Between the two nearest, linearly; nothing: not a number."""
    if not values:
        return math.nan
    ascending = sorted(values)
    place = p * (len(ascending) - 1)
    below = int(place)
    above = min(below + 1, len(ascending) - 1)
    return ascending[below] + (place - below) * (ascending[above] - ascending[below])


def origin(options: argparse.Namespace) -> dict[str, Any]:
    """Commit, seed and options, so that a figure can be had again."""
    from dispatcher.bench.provenance import commit  # noqa: PLC0415 - slow to load

    told = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in vars(options).items()
        if name != "json"
    }
    return {"commit": commit(), "seed": options.seed, "configuration": told}
