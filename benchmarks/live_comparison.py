"""The same text-to-SQL work through Headway and through vllm-router, on the same emulated engines.

    .venv/bin/python benchmarks/live_comparison.py --json FILE
    python benchmarks/live_comparison.py --draw FILE PICTURE.svg        (needs matplotlib)

Four engines (an 8B model on 2 x A100, L40, A6000; 8 seats each, twice real time), one trace per
seed, played by `headway bench live` through each of: Headway with hexgen-flow, Headway with the
`vllm` policy, vllm-router with round robin and with power of two. All stay up the whole time; one
is driven at a time, in mirrored order (A B C D D C B A A B C D), so that a machine that slows down
treats all alike. vllm-router comes into a virtual environment of its own; --router uses one that is
there. Everything listens on loopback, and ends with this program.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

from processes import HEADWAY, free_port, running, wait_for

ROOT = Path(__file__).resolve().parents[1]
ROUTER_VERSION = "0.1.17"
GPUS = ("A100", "A100", "L40", "A6000")
SEATS, TIME_SCALE = 8, 2
OURS = {"Headway, hexgen-flow": "hexgen-flow", "Headway, vllm policy": "vllm"}
THEIRS = {
    "vllm-router, round robin": "round_robin",
    "vllm-router, power of two": "power_of_two",
}
COLOURS = ("#d93025", "#9aa0a6", "#5b8ff9", "#f6a21e")
FIGURES = (
    ("latency_p50_s", "P50, s", "{:.1f}"),
    ("latency_p95_s", "P95, s", "{:.1f}"),
    ("slo_scale_at_95", "scale at 95 %", "{:.2f}"),
    ("slo_met", "SLO met", "{:.1%}"),
    ("throughput_per_s", "done/s", "{:.3f}"),
    ("utilisation", "utilisation", "{:.1%}"),
    ("prefix_hit_rate", "prefix hits", "{:.1%}"),
    ("failed", "failed", "{:.0f}"),
)


def router_program(given: str | None) -> str:
    """vllm-router, installed apart where it was not given."""
    if given is not None:
        return given
    home = ROOT / ".cache" / "vllm-router"
    program = home / "bin" / "vllm-router"
    if not program.exists():
        venv.create(home, with_pip=True)
        pip = str(home / "bin" / "pip")
        subprocess.run([pip, "install", "--quiet", f"vllm-router=={ROUTER_VERSION}"], check=True)
    return str(program)


def start(
    stack: contextlib.ExitStack, folder: Path, name: str, command: list[str], ready: str
) -> None:
    """Run a program until the stack ends; return once it answers."""
    log = folder / f"{name.replace(' ', '-').replace(',', '')}.log"
    stack.enter_context(running(command, log=log))
    wait_for(ready, log)


def start_engines(stack: contextlib.ExitStack, folder: Path) -> list[str]:
    """The emulated engines; their URLs."""
    urls = []
    for number, gpu in enumerate(GPUS):
        port = free_port()
        command = [
            *(HEADWAY, "emulate", "--gpu", gpu, "--size", "8b", "--port", str(port)),
            *("--max-num-seqs", str(SEATS), "--time-scale", str(TIME_SCALE)),
        ]
        urls.append(f"http://127.0.0.1:{port}")
        start(stack, folder, f"engine-{number}", command, urls[-1] + "/health")
    return urls


def start_gateway(
    stack: contextlib.ExitStack, folder: Path, name: str, policy: str, engines: list[str]
) -> str:
    """Headway before the engines; its URL."""
    port = free_port()
    config = {
        "server": {"port": port},
        "policy": {"name": policy},
        "engines": [
            {"id": f"engine-{n}", "url": url, "gpu": gpu, "size": "8b", "seats": SEATS}
            for n, (url, gpu) in enumerate(zip(engines, GPUS, strict=True))
        ],
        "store": {"path": None},
    }
    file = folder / f"{policy}.yaml"
    file.write_text(json.dumps(config))  # JSON is YAML
    url = f"http://127.0.0.1:{port}"
    start(stack, folder, name, [HEADWAY, "serve", "--config", str(file)], url + "/ready")
    return url


def start_router(
    stack: contextlib.ExitStack, folder: Path, name: str, command: list[str], engines: list[str]
) -> str:
    """vllm-router before the engines; its URL."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    full = [
        *(*command, "--host", "127.0.0.1", "--port", str(port)),
        *("--worker-urls", *engines, "--prometheus-port", str(free_port())),
        *("--log-level", "error"),
    ]
    start(stack, folder, name, full, url + "/v1/models")
    return url


def play(
    label: str,
    url: str,
    seed: int,
    *,
    engines: list[str],
    options: argparse.Namespace,
    folder: Path,
) -> dict[str, Any]:
    """One play of one seed; its document."""
    file = folder / "play.json"
    command = [
        *(HEADWAY, "bench", "live", "--target", url, "--label", label, "--json", str(file)),
        *("--scenario", options.scenario, "--fleet", "embedded", "--seats", str(SEATS)),
        *("--rate", str(options.rate), "--seeds", str(seed), "--count", str(options.count)),
        *("--time-scale", str(TIME_SCALE), "--slo-scale", str(options.slo_scale)),
        *("--warm-up", str(options.warm_up if seed == options.seeds[0] else 0)),
        *("--limit-s", str(options.limit_s)),
        *(part for engine in engines for part in ("--metrics", engine)),
    ]
    before = machine_ticks()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{label}, seed {seed}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    busy, whole = (late - early for late, early in zip(machine_ticks(), before, strict=True))
    document = json.loads(file.read_text())
    result = document["results"][0]
    result["machine_busy"] = round(busy / whole, 3)
    print(
        f"seed {seed}  {label:28} P95 {result['latency_s']['p95']:6.1f} s"
        f"  in time {result['slo_met']:6.1%}  failed {result['failed']}"
        f"  machine busy {result['machine_busy']:.0%}",
        flush=True,
    )
    notes = [line for line in done.stdout.splitlines() if line.startswith(("seed", "warm-up:"))]
    print("".join(f"    {note}\n" for note in notes), end="", flush=True)
    return document


def machine_ticks() -> tuple[int, int]:
    """CPU ticks of the whole machine so far: busy, and all."""
    ticks = [int(text) for text in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All plays; one document, which is kept after each play, so that none is lost."""
    document: dict[str, Any] = {}
    results: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="headway-live-"))
        engines = start_engines(stack, folder)
        router = router_program(options.router)
        targets = {
            name: start_gateway(stack, folder, name, policy, engines)
            for name, policy in OURS.items()
        }
        targets |= {
            name: start_router(stack, folder, name, [router, "--policy", policy], engines)
            for name, policy in THEIRS.items()
        }
        for turn, seed in enumerate(options.seeds):
            for name in list(targets) if turn % 2 == 0 else reversed(list(targets)):
                played = play(
                    name, targets[name], seed, engines=engines, options=options, folder=folder
                )
                results += played["results"]
                document = together(played, results, list(targets), options.warm_up)
                if options.json is not None:
                    options.json.write_text(json.dumps(document, indent=2) + "\n")
    return document


def together(
    played: dict[str, Any], results: list[dict[str, Any]], order: list[str], warm_up: int
) -> dict[str, Any]:
    """One document of all plays so far; `warm_up` workflows came before the first seed's."""
    from dispatcher.bench.live_run import warm_up_told  # noqa: PLC0415 - as below
    from dispatcher.bench.run import summaries  # noqa: PLC0415 - drawing needs none of it

    known = sorted(results, key=lambda one: (order.index(one["policy"]), one["seed"]))
    configuration = played["configuration"] | {
        "target": "several",
        "label": "several",
        "warm_up": warm_up_told(warm_up),
    }
    return played | {
        "seeds": sorted({one["seed"] for one in known}),
        "configuration": configuration,
        "results": known,
        "summary": summaries(known),
    }


def show(document: dict[str, Any]) -> None:
    """A table, in Markdown: means over seeds ± the standard deviation."""
    names = [title for _, title, _ in FIGURES]
    print("\n| through | " + " | ".join(names) + " |\n|" + "---|" * (len(names) + 1))
    for row in document["summary"]:
        cells = [row["policy"]]
        for key, _, how in FIGURES:
            found = row[key]
            cells.append(
                "-" if found is None else f"{how.format(found['mean'])} ± {how.format(found['sd'])}"
            )
        print("| " + " | ".join(cells) + " |")


def draw(document: dict[str, Any], picture: Path) -> None:
    """SLO attainment against SLO scale, and P95 of the workflows' latency."""
    import matplotlib as mpl  # noqa: PLC0415 - measuring does without
    from matplotlib import pyplot as plt  # noqa: PLC0415

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "headway"  # the same results give the same file
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(9.0, 3.6), layout="constrained", width_ratios=(3, 2)
    )
    rows = document["summary"]
    for row, colour in zip(rows, COLOURS, strict=True):
        scales = [float(scale) for scale in row["slo_attainment"]]
        shares = [100 * share for share in row["slo_attainment"].values()]
        left.plot(scales, shares, label=row["policy"], color=colour, linewidth=2)
    left.axhline(95, color="#dadce0", linewidth=1, zorder=0)
    left.set(xlabel="SLO scale", ylabel="workflows in time, %", xlim=(1, 20), ylim=(0, 101))
    left.legend(frameon=False, fontsize=8, loc="lower right")
    found = [row["latency_p95_s"] for row in rows]
    right.barh(
        range(len(rows)),
        [one["mean"] for one in found],
        xerr=[one["sd"] for one in found],
        color=COLOURS,
        error_kw={"linewidth": 1},
    )
    right.set_yticks(range(len(rows)), [row["policy"] for row in rows], fontsize=8)
    right.invert_yaxis()
    right.set(xlabel="P95 of workflow latency, s")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(picture, metadata={"Date": None})


def main() -> int:
    """Measure, show, keep; or draw what was kept."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--router", help="a vllm-router that is there")
    parser.add_argument("--scenario", default="chess-3")
    parser.add_argument("--rate", type=float, default=0.4, help="workflows per virtual second")
    parser.add_argument("--count", type=int, default=60, help="workflows of a play")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--slo-scale", type=float, default=4.0)
    parser.add_argument("--warm-up", type=int, default=10, help="workflows before the first seed")
    parser.add_argument("--limit-s", type=float, default=600.0, help="of a play, real seconds")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--draw", type=Path, nargs=2, metavar=("FILE", "PICTURE"))
    options = parser.parse_args()
    if options.draw is not None:
        draw(json.loads(options.draw[0].read_text()), options.draw[1])
        return 0
    document = measure(options)
    show(document)
    return 0


if __name__ == "__main__":
    sys.exit(main())
