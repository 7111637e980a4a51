"""Many short requests, one in ten hung up on half way: what fails, what grows, what is left.

    python benchmarks/soak.py                     # the gateway with its embedded fleet
    python benchmarks/soak.py --engines separate  # the gateway alone, engines of their own

Memory is that of the gateway's whole process family. Policies are switched once, half way, while
calls are waiting. Exit status 1 where a promise is not kept.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from processes import HEADWAY, fetch, free_port, rss_mb, running, wait_for
from prometheus_client.parser import text_string_to_metric_families

GPUS = ("A100", "A100", "L40", "A6000")
GROWTH_MAX_MB = 20.0
#: Requests that may have come by when growth begins to count, as a share of all: caches are full.
WARM_SHARE = 0.25
_SETTLE_LIMIT_S = 30.0


@dataclass
class Counts:
    """What became of the requests."""

    outcomes: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    done: int = 0


class Worker:
    """One client connection: request after request."""

    def __init__(self, port: int, model: str, options: argparse.Namespace, counts: Counts) -> None:
        self._port = port
        self._model = model
        self._options = options
        self._counts = counts
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def run(self, numbers: asyncio.Queue[list[int]]) -> None:
        """Take workflow after workflow until none is left."""
        while True:
            try:
                workflow = numbers.get_nowait()
            except asyncio.QueueEmpty:
                self._close()
                return
            for place, number in enumerate(workflow):
                await self._one(number, workflow[0], final=place == len(workflow) - 1)

    async def _one(self, number: int, workflow: int, *, final: bool) -> None:
        hang_up = number % self._options.hang_up_every == 3
        streaming = hang_up or number % 2 == 0
        try:
            outcome = await self._exchange(
                self._request(number, workflow, streaming, final), hang_up
            )
        except (OSError, asyncio.IncompleteReadError) as error:
            self._close()
            outcome = f"connection: {type(error).__name__}"
        self._counts.outcomes[outcome] += 1
        self._counts.done += 1
        if outcome not in ("ok", "hung up") and len(self._counts.errors) < 20:
            self._counts.errors.append(f"request {number}: {outcome}")

    def _request(self, number: int, workflow: int, streaming: bool, final: bool) -> bytes:
        body = json.dumps(
            {
                "model": self._model,
                "messages": [{"role": "user", "content": f"Question {number}: how many?"}],
                "max_tokens": self._options.tokens,
                "ignore_eos": True,
                "stream": streaming,
            }
        ).encode()
        lines = [
            "POST /v1/chat/completions HTTP/1.1",
            "host: gateway",
            "content-type: application/json",
            f"content-length: {len(body)}",
        ]
        if self._options.calls > 1:
            lines += [
                f"x-headway-workflow-id: soak-{workflow}",
                "x-headway-workflow: soak",
                f"x-headway-stage: step-{number - workflow}",
            ]
            if final:
                lines.append("x-headway-final: 1")
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body

    async def _exchange(self, request: bytes, hang_up: bool) -> str:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        status = head.split(b" ", 2)[1].decode()
        if status != "200":
            body = await _body(reader, head)
            return f"status {status}: {body[:200].decode(errors='replace')}"
        if hang_up:
            events = 0
            while events < self._options.tokens // 2:
                part = await reader.read(65536)
                # an event more or less: one that two reads share is not counted
                events += part.count(b"\n\n")
                if not part:
                    return "cut short"
            self._close()
            return "hung up"
        body = await _body(reader, head)
        whole = b"data: [DONE]" in body if b"event-stream" in head else b'"usage"' in body
        return "ok" if whole else "cut short"

    def _close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


async def _body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    if b"transfer-encoding: chunked" not in head:
        length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
        return await reader.readexactly(int(length))
    parts = []
    while True:
        size = int(await reader.readuntil(b"\r\n"), 16)
        part = await reader.readexactly(size + 2)
        if not size:
            return b"".join(parts)
        parts.append(part[:-2])


def asked(port: int, path: str, body: object = None) -> bytes:
    """What the gateway on that port answers; see `fetch`."""
    return fetch(f"http://127.0.0.1:{port}{path}", body)


def left_over(port: int) -> dict[str, float]:
    """Gauges that must be 0 once nobody calls any more."""
    left = {"live_workflows": float(len(json.loads(asked(port, "/admin/workflows"))))}
    for metric in text_string_to_metric_families(asked(port, "/metrics").decode()):
        if metric.name in ("headway_queue_depth", "headway_in_flight"):
            left[metric.name] = sum(sample.value for sample in metric.samples)
    return left


async def watch(
    counts: Counts, total: int, gateway: int, port: int, switch: bool
) -> list[tuple[int, float]]:
    """Weigh the gateway every few requests, and switch its policies half way."""
    loop = asyncio.get_running_loop()
    samples: list[tuple[int, float]] = []
    step, at = max(1, total // 20), 0
    switched = not switch
    started_s = time.monotonic()
    while counts.done < total:
        await asyncio.sleep(0.05)
        if counts.done >= at:
            samples.append((counts.done, await loop.run_in_executor(None, rss_mb, gateway)))
            rate = counts.done / max(1e-9, time.monotonic() - started_s)
            print(f"{counts.done:7} requests {rate:6.0f}/s {samples[-1][1]:7.1f} MB", flush=True)
            at += step
        if not switched and counts.done >= total // 2:
            switched = True
            await loop.run_in_executor(None, switch_policies, port)
    samples.append((counts.done, rss_mb(gateway)))
    return samples


def switch_policies(port: int) -> None:
    """Each policy in turn, then the one that ran before."""
    before = json.loads(asked(port, "/admin/policy"))
    for entry in json.loads(asked(port, "/admin/policies")):
        asked(port, "/admin/policy", {"name": entry["name"], "params": {}})
        print(f"        policy: {entry['name']}", flush=True)
        time.sleep(0.3)
    asked(port, "/admin/policy", {"name": before["name"], "params": before["params"]})


async def load(options: argparse.Namespace, port: int, gateway: int) -> bool:
    """All requests, then the verdict."""
    model = json.loads(asked(port, "/v1/models"))["data"][0]["id"]
    counts = Counts()
    numbers: asyncio.Queue[list[int]] = asyncio.Queue()
    for first in range(0, options.requests, options.calls):
        numbers.put_nowait(list(range(first, min(first + options.calls, options.requests))))
    workers = [Worker(port, model, options, counts) for _ in range(options.concurrency)]
    watching = asyncio.create_task(
        watch(counts, options.requests, gateway, port, not options.no_switch)
    )
    await asyncio.gather(*(worker.run(numbers) for worker in workers))
    samples = await watching
    left = await _settled(port)
    warm_mb = next(mb for done, mb in samples if done >= WARM_SHARE * options.requests)
    grown_mb = samples[-1][1] - warm_mb
    print(f"outcomes: {dict(counts.outcomes)}")
    for error in counts.errors:
        print(f"  {error}")
    print(f"memory: {warm_mb:.1f} MB after a quarter, {samples[-1][1]:.1f} MB at the end,")
    peak_mb = max(mb for _, mb in samples)
    print(f"        {grown_mb:+.1f} MB (at most {GROWTH_MAX_MB:g}), peak {peak_mb:.1f} MB")
    print(f"left over: {left}")
    fine = not counts.errors and grown_mb < GROWTH_MAX_MB and not any(left.values())
    print("kept" if fine else "BROKEN")
    return fine


async def _settled(port: int) -> dict[str, float]:
    """What is left once it no longer falls: the last hang-ups take a moment to be noticed."""
    loop = asyncio.get_running_loop()
    left: dict[str, float] = {}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_SETTLE_LIMIT_S):
            while True:
                left = await loop.run_in_executor(None, left_over, port)
                if not any(left.values()):
                    break
                await asyncio.sleep(0.5)
    return left


def main() -> int:
    """Start what is needed, run, end it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument(
        "--calls", type=int, default=1, help="calls a workflow; 1: no workflow named"
    )
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--hang-up-every", type=int, default=10)
    parser.add_argument("--time-scale", type=float, default=10.0)
    parser.add_argument("--engines", choices=("embedded", "separate"), default="embedded")
    parser.add_argument("--no-switch", action="store_true", help="leave the policy as it is")
    parser.add_argument("--logs", type=Path, default=None, help="folder for logs")
    options = parser.parse_args()
    logs = options.logs or Path(tempfile.mkdtemp(prefix="headway-soak-"))
    logs.mkdir(parents=True, exist_ok=True)
    port = free_port()
    with contextlib.ExitStack() as stack:
        command = [HEADWAY, "serve", "--port", str(port)]
        environment = {"HEADWAY_STORE__PATH": str(logs / "soak.sqlite")}
        if options.engines == "embedded":
            environment["HEADWAY_EMBEDDED__TIME_SCALE"] = str(options.time_scale)
        for index, gpu in enumerate(GPUS if options.engines == "separate" else ()):
            engine_port, log = free_port(), logs / f"engine-{index}.log"
            emulate = [HEADWAY, "emulate", "--gpu", gpu, "--port", str(engine_port)]
            emulate += ["--time-scale", str(options.time_scale), "--max-num-seqs", "8"]
            stack.enter_context(running(emulate, log=log))
            wait_for(f"http://127.0.0.1:{engine_port}/health", log)
            command += ["--engine", f"http://127.0.0.1:{engine_port}"]
        log = logs / "gateway.log"
        gateway = stack.enter_context(running(command, log=log, environment=environment))
        wait_for(f"http://127.0.0.1:{port}/ready", log)
        print(f"gateway on port {port}, engines {options.engines}, logs in {logs}")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            fine = runner.run(load(options, port, gateway))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
