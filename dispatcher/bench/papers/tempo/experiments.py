"""The experiments of Tempo's section 6: which contenders meet in which cases.

Load 1 is as many output tokens as the engine makes with every seat busy. Batch sizes are those of
the authors' published scripts.
"""

from __future__ import annotations

from dataclasses import replace

from dispatcher.bench.papers.tempo.cases import Case, Contender, Lengths
from workflows.settings import Structure

TICK_S = 0.5
"""Of Tempo here: half the work of the gateway's 0.1 s, and figures that differ by less than seeds
do."""


def variant(
    label: str,
    *,
    lengths: Lengths = "rolling",
    structure: Structure = Structure.GRAPHS,
    **params: str | float | bool,
) -> Contender:
    """Tempo otherwise."""
    every = {"tick_s": TICK_S} | params
    return Contender(label, "tempo", tuple(every.items()), lengths, structure)


TEMPO = variant("tempo")
VLLM = Contender("vllm", "vllm")
SARATHI = Contender("sarathi-fcfs", "sarathi-fcfs")
"""Does what vLLM does by default now: on one engine its plays are vLLM's, to the bit."""
AUTELLIX = Contender("plas", "plas")
SJF = Contender("sjf", "sjf")
VTC = Contender("vtc", "vtc")
PRECISE = variant("tempo, true lengths", lengths="oracle")
NO_GRAPHS = variant("tempo, no structure", structure=Structure.NONE)
TEMPLATES = variant("tempo, templates", structure=Structure.TEMPLATES)
NO_LENGTHS = variant("tempo, no lengths", lengths="none")
PRINTED = variant("tempo, printed", reading="printed")
SLACK = variant("tempo, slack", reading="slack")
WORKFLOW_SLACK = variant("tempo, slack, workflow", reading="slack", scope="workflow")
PREEMPTING = variant("tempo, preempting", preemption=True)

BASELINES = (VLLM, AUTELLIX, SJF)
"""The paper's, but Sarathi-FCFS."""
COMPARED = (TEMPO, *BASELINES)
VARIANTS = (
    PRECISE,
    NO_GRAPHS,
    TEMPLATES,
    NO_LENGTHS,
    PRINTED,
    SLACK,
    WORKFLOW_SLACK,
    PREEMPTING,
)

HOUR_S = 3600.0
LOADS = (0.6, 0.9, 1.0, 1.3, 1.6)
"""Beside `MAIN_LOAD`."""
BATCHES = (8, 16, 32)
MODELS = ("13b", "70b")
"""At batch 16, beside 8b."""
PENALTIES = (0.5, 2.0, 4.0, 100.0)
"""Beside 1; 100 is the authors' scripts'."""
SCALES = (0.5, 2.0)
MIXES = (
    (1.0, 0.0, 0.0, 0.0),
    (0.0, 1.0, 0.0, 0.0),
    (0.0, 0.0, 1.0, 0.0),
    (1.0, 1.0, 1.0, 0.0),
    (1.0, 3.0, 1.0, 0.0),
    (3.0, 1.0, 1.0, 1.0),
)
"""Beside 3 : 1 : 1; the last has best effort."""
BURSTS = ("gamma-4", "azure-code")

MAIN = Case()
HOUR = Case(span_s=HOUR_S)
HOUR_LONG = Case(span_s=HOUR_S, lengths="tempo-long")
HOUR_CASES = (HOUR, HOUR_LONG)
LOAD_CASES = tuple(sorted((MAIN, *(Case(load=load) for load in LOADS)), key=lambda c: c.load))
BATCH_CASES = (
    *(replace(HOUR, seats=seats) for seats in BATCHES),
    *(replace(HOUR, model=model) for model in MODELS),
)
SCALE_CASES = tuple(Case(slo_scale=scale) for scale in SCALES)
MIX_CASES = tuple(Case(weights=weights) for weights in MIXES)
BURST_CASES = tuple(replace(MAIN, arrivals=name) for name in BURSTS)


def every_pair() -> list[tuple[Case, Contender]]:
    """Every play apart from its seed, each once."""
    pairs = [
        *((HOUR, one) for one in (*COMPARED, VTC, SLACK, PRECISE)),
        *((HOUR_LONG, one) for one in (TEMPO, VLLM, PRECISE)),
        *((case, one) for case in BATCH_CASES for one in (TEMPO, VLLM)),
        *((case, one) for case in LOAD_CASES for one in (*COMPARED, SLACK)),
        *((MAIN, one) for one in VARIANTS),
        *((case, one) for case in (*SCALE_CASES, *BURST_CASES) for one in COMPARED),
        *((case, one) for case in MIX_CASES for one in (TEMPO, VLLM)),
    ]
    return list(dict.fromkeys(pairs))
