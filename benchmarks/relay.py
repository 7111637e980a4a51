"""CPU time per relayed event: the whole gateway beside vllm-router, same engine, same load.

    benchmarks/relay.sh [--rounds 3] [--seconds 10] [--events 64]

CPU time of a proxy's whole process family while wrk holds 200 streams open, by requests and by
events. Orders are mirrored (A B B A A B ...), so that a machine that gets slower or faster
meanwhile treats both alike.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from processes import HEADWAY, cpu_s, free_port, rss_mb, running, wait_for

HERE = Path(__file__).resolve().parent
RATIO_MAX = 1.5
GATEWAY_CONFIG = """\
server: {{port: {port}}}
policy: {{name: hexgen-flow, params: {{alpha: auto}}}}
engines:
  - {{id: scripted, url: "http://127.0.0.1:{engine_port}", gpu: A100-80G, seats: 256}}
store: {{path: null}}
"""
LOAD = """\
wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
wrk.body = '{"model":"m","stream":true,"max_tokens":64,"messages":[{"role":"user","content":"' ..
  string.rep("hello ", 100) .. '"}]}'
"""


def build_engine(folder: Path) -> Path:
    """Compile the scripted engine."""
    program = folder / "scripted_engine"
    source = HERE / "scripted_engine.c"
    subprocess.run(["gcc", "-O2", "-o", str(program), str(source)], check=True)
    return program


def commands(router: str, folder: Path, engine_port: int, port: int) -> dict[str, list[str]]:
    """How each proxy is started."""
    config = folder / "gateway.yaml"
    config.write_text(GATEWAY_CONFIG.format(port=port, engine_port=engine_port))
    return {
        "vllm-router": [
            *(router, "--host", "127.0.0.1", "--port", str(port)),
            *("--worker-urls", f"http://127.0.0.1:{engine_port}", "--policy", "round_robin"),
            *("--prometheus-port", str(free_port()), "--log-level", "error"),
        ],
        "gateway": [HEADWAY, "serve", "--config", str(config)],
    }


def wrk(port: int, options: argparse.Namespace, seconds: float, script: Path) -> str:
    """Load for a while; wrk's report."""
    return subprocess.run(
        [
            *("wrk", "-t1", f"-c{options.streams}", f"-d{seconds:g}s", "--timeout", "30s"),
            *("--latency", "-s", str(script), f"http://127.0.0.1:{port}/v1/chat/completions"),
        ],
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def measure(name: str, options: argparse.Namespace, folder: Path, engine_port: int) -> float:
    """One proxy, once; microseconds of CPU per event."""
    port = free_port()
    script, log = folder / "load.lua", folder / f"{name}.log"
    script.write_text(LOAD)
    command = commands(options.router, folder, engine_port, port)[name]
    with running(command, log=log) as pid:
        wait_for(f"http://127.0.0.1:{port}/health", log)
        if name == "gateway":
            wait_for(f"http://127.0.0.1:{port}/ready", log)
        else:
            time.sleep(2)
        wrk(port, options, 2, script)
        before_s = cpu_s(pid)
        report = wrk(port, options, options.seconds, script)
        used_s, memory_mb = cpu_s(pid) - before_s, rss_mb(pid)
    requests = int(re.search(r"(\d+) requests in", report)[1])  # type: ignore[index]
    trouble = " ".join(re.findall(r"(?:Socket errors|Non-2xx).*", report))
    per_event_us = used_s / (requests * options.events) * 1e6
    print(
        f"{name:12} {requests:6} requests"
        f" {requests * options.events / options.seconds:7.0f} events/s"
        f" {per_event_us:6.1f} us/event {used_s / requests * 1e3:6.2f} ms/request"
        f" {memory_mb:5.0f} MB {trouble}",
        flush=True,
    )
    return per_event_us


def main() -> int:
    """Measure, compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--router", default=shutil.which("vllm-router") or "vllm-router")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--events", type=int, default=64, help="of a request")
    parser.add_argument("--interval-ms", type=float, default=20)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="headway-relay-"))
    engine_port = free_port()
    engine = [str(build_engine(folder)), str(engine_port), str(options.events)]
    engine.append(str(int(options.interval_ms * 1000)))
    found: dict[str, list[float]] = {"vllm-router": [], "gateway": []}
    with contextlib.ExitStack() as stack:
        stack.enter_context(running(engine, log=folder / "engine.log"))
        for turn in range(options.rounds):
            for name in list(found) if turn % 2 == 0 else reversed(list(found)):
                found[name].append(measure(name, options, folder, engine_port))
    middle = {name: statistics.median(values) for name, values in found.items()}
    ratio = middle["gateway"] / middle["vllm-router"]
    print(
        f"median: gateway {middle['gateway']:.1f}, vllm-router {middle['vllm-router']:.1f}"
        f" us/event; ratio {ratio:.2f} (at most {RATIO_MAX})"
    )
    return 0 if ratio <= RATIO_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
