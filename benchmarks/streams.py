"""Concurrent streams straight from the scripted engine and through the gateway, compared.

    python benchmarks/streams.py                # same bytes? how much later?

Two questions. Is what reaches the client, event for event, what the engine sent? And how much
later does an event come: one-way delay (the engine writes the time into each event; both ends read
CLOCK_MONOTONIC of one host) and gaps between events against the engine's interval.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import itertools
import json
import re
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from processes import HEADWAY, cpu_s, free_port, running, wait_for
from relay import GATEWAY_CONFIG, build_engine

EVENTS = 64
ADDED_P99_MAX_MS = 10.0
_STAMP = re.compile(rb'"content":"(\d+)"')


@dataclass
class Stream:
    """One client connection and the reads of its one response."""

    reads: list[tuple[int, bytes]] = field(default_factory=list)
    """When (nanoseconds), and what."""

    def body(self) -> bytes:
        """The response's body, its chunks taken apart."""
        rest = b"".join(data for _, data in self.reads).partition(b"\r\n\r\n")[2]
        parts = []
        while True:
            size_text, _, rest = rest.partition(b"\r\n")
            size = int(size_text, 16)
            if not size:
                return b"".join(parts)
            parts.append(rest[:size])
            rest = rest[size + 2 :]


class _Client(asyncio.Protocol):
    """As light as can be: notes the time of each read."""

    def __init__(self, stream: Stream, done: asyncio.Future[None]) -> None:
        self._reads = stream.reads
        self._done = done

    def data_received(self, data: bytes) -> None:
        self._reads.append((time.monotonic_ns(), data))
        if data.endswith(b"0\r\n\r\n") and not self._done.done():
            self._done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(ConnectionError(f"cut short: {exc}"))


async def one(port: int, seed: int, *, stamp: bool, usage: bool, pause_s: float) -> Stream:
    """One stream, begun after a pause so that streams do not tick in step."""
    await asyncio.sleep(pause_s)
    asked: dict[str, object] = {
        "model": "m",
        "stream": True,
        "max_tokens": EVENTS,
        "seed": seed,
        "messages": [{"role": "user", "content": "hello " * 100}],
    }
    if usage:
        asked["stream_options"] = {"include_usage": True}
    if stamp:
        asked["user"] = "stamp"
    body = json.dumps(asked, separators=(",", ":")).encode()
    loop = asyncio.get_running_loop()
    stream, done = Stream(), loop.create_future()
    transport, _ = await loop.create_connection(lambda: _Client(stream, done), "127.0.0.1", port)
    transport.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n" % len(body) + body
    )
    try:
        await asyncio.wait_for(done, 60)
    finally:
        transport.abort()
    return stream


async def many(port: int, count: int, *, stamp: bool = False, spread_s: float) -> list[Stream]:
    """Streams at once; every other one asks for usage."""
    return await asyncio.gather(
        *(
            one(port, seed, stamp=stamp, usage=seed % 2 == 1, pause_s=spread_s * seed / count)
            for seed in range(count)
        )
    )


def compare(direct: list[Stream], through: list[Stream]) -> int:
    """Print how the two differ; the number of streams that do."""
    differing = events = 0
    digest = hashlib.sha256()
    for seed, (one_, other) in enumerate(zip(direct, through, strict=True)):
        expected, got = one_.body().split(b"\n\n"), other.body().split(b"\n\n")
        events += len(expected) - 1
        digest.update(one_.body())
        if expected != got:
            differing += 1
            where = next(
                (i for i, (a, b) in enumerate(zip(expected, got, strict=False)) if a != b), -1
            )
            print(f"  stream {seed}: {len(expected)} events, {len(got)} came; first at {where}")
    print(
        f"{len(direct)} streams, {events} events, sha256 {digest.hexdigest()[:16]}:"
        f" {differing} streams differ"
    )
    return differing


def delays_ms(streams: list[Stream]) -> list[float]:
    """One-way delay of every stamped event."""
    delays = []
    for stream in streams:
        for at_ns, data in stream.reads:
            delays += [at_ns / 1e6 - int(sent) / 1e3 for sent in _STAMP.findall(data)]
    return sorted(delays)


def gaps_ms(streams: list[Stream]) -> list[float]:
    """Times between events that follow each other in a stream."""
    gaps = []
    for stream in streams:
        times = [at_ns / 1e6 for at_ns, data in stream.reads for _ in _STAMP.findall(data)]
        gaps += [later - earlier for earlier, later in itertools.pairwise(times)]
    return sorted(gaps)


def quantile(values: list[float], share: float) -> float:
    """Of sorted values."""
    return values[min(len(values) - 1, int(share * len(values)))]


def show(name: str, values: list[float]) -> None:
    """One line of a table."""
    shown = "".join(f"{quantile(values, q):9.2f}" for q in (0.5, 0.9, 0.99, 0.999))
    print(f"{name:34}{len(values):8}{shown}{values[-1]:9.2f}")


async def measure(options: argparse.Namespace, engine: int, gateway: int, gateway_pid: int) -> bool:
    """Both questions."""
    count, spread_s = options.streams, EVENTS * options.interval_ms / 1000
    for port in (engine, gateway):  # connections and caches warm
        await many(port, count, spread_s=0.2)
    print("bytes, against a client at the engine itself:")
    differing = compare(
        await many(engine, count, spread_s=spread_s), await many(gateway, count, spread_s=spread_s)
    )
    print(f"\nmilliseconds, {count} streams, {options.interval_ms:g} ms apart")
    print(f"{'':34}{'events':>8}{'p50':>9}{'p90':>9}{'p99':>9}{'p99.9':>9}{'max':>9}")
    found: dict[str, tuple[list[float], list[float]]] = {"direct": ([], []), "gateway": ([], [])}
    cpu_before_s, started_s = cpu_s(gateway_pid), time.monotonic()
    for turn in range(options.rounds):
        order = [("direct", engine), ("gateway", gateway)]
        for name, port in order if turn % 2 == 0 else reversed(order):
            streams = await many(port, count, stamp=True, spread_s=spread_s)
            found[name][0].extend(delays_ms(streams))
            found[name][1].extend(gaps_ms(streams))
    for delays, gaps in found.values():
        delays.sort()
        gaps.sort()
    for name, (delays, gaps) in found.items():
        show(f"one-way delay, {name}", delays)
        show(f"gap between events, {name}", gaps)
    added = [
        quantile(found["gateway"][i], 0.99) - quantile(found["direct"][i], 0.99) for i in (0, 1)
    ]
    print(
        f"added at P99: {added[0]:.2f} ms of delay, {added[1]:.2f} ms of gap"
        f" (below {ADDED_P99_MAX_MS:g})"
    )
    busy = (cpu_s(gateway_pid) - cpu_before_s) / (time.monotonic() - started_s)
    print(f"gateway: {busy:.0%} of a core on average")
    return not differing and max(added) < ADDED_P99_MAX_MS


def main() -> int:
    """Start engine and gateway, measure, end them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--interval-ms", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="headway-streams-"))
    engine_port, gateway_port = free_port(), free_port()
    config = folder / "gateway.yaml"
    config.write_text(GATEWAY_CONFIG.format(port=gateway_port, engine_port=engine_port))
    engine = [str(build_engine(folder)), str(engine_port), str(EVENTS)]
    engine.append(str(int(options.interval_ms * 1000)))
    with contextlib.ExitStack() as stack:
        stack.enter_context(running(engine, log=folder / "engine.log"))
        log = folder / "gateway.log"
        command = [HEADWAY, "serve", "--config", str(config)]
        gateway_pid = stack.enter_context(running(command, log=log))
        wait_for(f"http://127.0.0.1:{gateway_port}/ready", log)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            fine = runner.run(measure(options, engine_port, gateway_port, gateway_pid))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
