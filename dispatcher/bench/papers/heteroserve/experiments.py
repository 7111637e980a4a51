"""The experiments of HeteroServe's section 4: which contenders meet in which cases.

The main table is of the paper's 10,000 requests; the others are of fewer, and from fewer seeds:
whoever is overrun is so in proportion to the time that it lasts.
"""

from __future__ import annotations

from dispatcher.bench.papers.heteroserve.cases import Case, Contender

FEWER = 2_000
"""Requests of a play beside the main table."""
FEWER_SEEDS = 2
"""The first ones, beside the main table."""
PER_DEVICE = 200
"""Requests per device where fleets grow, so that all are busy for as long."""


def paper_form(label: str, **params: str | float | bool) -> Contender:
    """HeteroServe as it is printed, or so but for some parameters."""
    return Contender(label, "heteroserve", (("form", "paper"), *params.items()))


def settled(label: str, **params: str | float | bool) -> Contender:
    """HeteroServe as it was settled, but for some parameters."""
    return Contender(label, "heteroserve", tuple(params.items()))


HETEROSERVE = settled("heteroserve")
PAPER = paper_form("heteroserve, paper's form")
LATENCY_AWARE = Contender("latency-aware", "latency-aware")
ORACLE = Contender("length-oracle", "length-oracle", lengths="oracle")
CAPACITY = Contender("capacity-proportional", "capacity-proportional")
UNIFORM = Contender("uniform", "uniform")

COMPARED = (HETEROSERVE, PAPER, LATENCY_AWARE, ORACLE, CAPACITY, UNIFORM)
"""Table 1, and the settled form."""
FEW = (HETEROSERVE, PAPER, LATENCY_AWARE, UNIFORM)

MAIN = Case()
ABLATION = Case(load=0.9, count=FEWER)
LOADS = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
LOAD_CASES = tuple(Case(load=load, count=FEWER) for load in LOADS)
MIX_LOAD = 0.9
MIX_CASES = (
    Case(load=MIX_LOAD, count=FEWER, median_prompt_tokens=128.0),
    Case(load=MIX_LOAD, count=FEWER, median_prompt_tokens=1024.0),
    Case(load=MIX_LOAD, count=FEWER, mean_output_tokens=64.0),
    Case(load=MIX_LOAD, count=FEWER, mean_output_tokens=512.0),
)
BIMODAL = Case(count=FEWER, law="bimodal")
BIMODAL_CASES = (Case(load=0.8, count=FEWER, law="bimodal"), BIMODAL)
SATURATED = Case(count=FEWER)
"""As the main table, of fewer requests."""
SCALING_CASES = tuple(Case(devices=n, count=n * PER_DEVICE) for n in (4, 8, 16, 32))
PAPER_RATES = Case(count=FEWER, rates="paper")
DECISION_DEVICES = (8, 32)

NO_FEEDBACK = settled("no feedback", feedback="none", memory=0.0)
NO_BINS = settled("no bins", bins="")
NO_MEMORY = settled("no memory limit", batch="none")
PAPER_NO_FEEDBACK = paper_form("paper's form, no feedback", feedback="none")
PAPER_NO_BINS = paper_form("paper's form, no bins", bins="")
PAPER_NO_MEMORY = paper_form("paper's form, no memory limit", batch="none")
ABLATIONS = (NO_FEEDBACK, NO_BINS, NO_MEMORY)
PAPER_ABLATIONS = (PAPER_NO_FEEDBACK, PAPER_NO_BINS, PAPER_NO_MEMORY)

BINS = {2: "1024", 3: "512,2048", 4: "512,1024,2048"}
"""Edges of length bins by their number (Table 2)."""
BY_BINS = {k: paper_form(f"K = {k}", bins=edges) for k, edges in BINS.items()}
BY_MODE = {mode: settled(mode, mode=mode) for mode in ("sample", "wrr")}
"""Beside argmax."""

VARIANTS = (
    settled("memory not counted", memory=0.0),
    settled("lambda 2, memory not counted", dampening=2.0, memory=0.0),
    settled("in time by the bin", latency_test="bin"),
    settled("not asked whether in time", latency_test="none"),
    settled("first come, first served", order="fcfs"),
    settled("counted in requests", feedback="requests"),
    settled("queues as of the last epoch", counters="snapshot"),
)
"""The settled form but for one thing."""
VARIANT_CASES = (ABLATION, MIX_CASES[0], BIMODAL_CASES[0])


def every_pair() -> list[tuple[Case, Contender]]:
    """Every play apart from its seed, each once."""
    pairs = [
        *((MAIN, one) for one in COMPARED),
        *((ABLATION, one) for one in (*FEW, *ABLATIONS, *PAPER_ABLATIONS)),
        *((case, one) for case in LOAD_CASES for one in FEW),
        *((case, one) for case in MIX_CASES for one in FEW),
        *((case, one) for case in BIMODAL_CASES for one in FEW),
        *((SATURATED, one) for one in (HETEROSERVE, *BY_BINS.values(), *BY_MODE.values())),
        *((case, one) for case in VARIANT_CASES for one in VARIANTS),
        *((case, one) for case in SCALING_CASES for one in (HETEROSERVE, UNIFORM)),
        *((PAPER_RATES, one) for one in FEW),
    ]
    return list(dict.fromkeys(pairs))
