"""Draw SLO attainment against SLO scale from runs of the text-to-SQL agent (needs matplotlib).

    python benchmarks/text2sql_plot.py OUT.svg POLICY=RUN.json[,RUN.json...] ...

The runs are what `examples/text2sql/agent.py --json FILE` writes. Runs of one policy are pooled.
A workflow attains scale s when its latency is at most s times its own SLO.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt

SCALES = [step / 100 for step in range(40, 261)]
COLOURS = {
    "vllm": "#9aa0a6",
    "wb-fcfs": "#5b8ff9",
    "least-backlog": "#f6a21e",
    "hexgen-flow": "#d93025",
}


def ratios(paths: list[str]) -> list[float]:
    """Latency over SLO of every workflow; a failed one never attains."""
    found = []
    for path in paths:
        for workflow in json.loads(Path(path).read_text())["workflows"]:
            failed = workflow["error"] is not None
            found.append(float("inf") if failed else workflow["latency_s"] / workflow["slo_s"])
    return found


def main() -> None:
    """Draw what the command line names."""
    out, *series = sys.argv[1:]
    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "headway"  # the same runs give the same file
    figure, axes = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
    for entry in series:
        name, _, files = entry.partition("=")
        found = ratios(files.split(","))
        attained = [100 * sum(ratio <= scale for ratio in found) / len(found) for scale in SCALES]
        axes.plot(SCALES, attained, label=name, color=COLOURS.get(name), linewidth=2)
    axes.axhline(95, color="#dadce0", linewidth=1, zorder=0)
    axes.axvline(1, color="#dadce0", linewidth=1, zorder=0)
    axes.set(xlabel="SLO scale", ylabel="workflows in time, %", xlim=(0.4, 2.6), ylim=(0, 101))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    main()
