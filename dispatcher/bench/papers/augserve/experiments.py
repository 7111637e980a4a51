"""The experiments of AugServe's section 5 and appendix B: which contenders meet in which cases.

Rates on Merge are the paper's. A question of ToolBench is about twice as much work here as there:
vLLM, which there is overrun between 4 and 5 requests a second, is between 1.5 and 2 here; so rates
are half of the paper's.
"""

from __future__ import annotations

from dataclasses import replace

from dispatcher.bench.papers.augserve.cases import RTX4090, Abilities, Case, Contender

TICK_S = 0.5
"""Of AugServe here: less work than with the gateway's 0.1 s, and the same figures."""

_HOST = Abilities(host_memory=True)
_FOR_TOOLS = Abilities(host_memory=True, for_tools=True)
_FOR_TOOLS_LIMITED = replace(_FOR_TOOLS, token_limit=True)


def variant(label: str, abilities: Abilities = _HOST, **params: str | float | bool) -> Contender:
    """AugServe otherwise."""
    every = {"tick_s": TICK_S} | params
    return Contender(label, "augserve", tuple(every.items()), abilities)


VLLM = Contender("vllm", "vllm", abilities=Abilities(prefix_cache=False))
"""The paper's: first come, first served; a call for a tool ends a request, its context is gone."""
VLLM_TODAY = Contender("vllm, prefix cache", "vllm")
"""What it does by default now: the context stays until its room is needed."""
INFERCEPT = Contender("infercept", "infercept", abilities=_HOST)
"""First come, first served by the request's arrival; contexts are kept as wastes least."""
AUGSERVE = variant("augserve")
BATCHING = variant("augserve, batching alone", two_stage=False)
"""The first step of the paper's ablation: a dynamic token budget, first come, first served."""
NO_BATCHING = variant("augserve, order alone", token_budget=False)
NO_HOST = variant("augserve, no host memory", Abilities())
"""On an engine as it is launched by default today."""
INFERCEPT_ENGINE = Contender(
    "infercept, engine for tools", "infercept", (("most_reserved", 0.0),), abilities=_FOR_TOOLS
)
AUGSERVE_ENGINE = variant(
    "augserve, engine for tools", _FOR_TOOLS_LIMITED, strict=True, most_reserved=0.0
)
"""As in the paper: inside of an engine that preserves, discards, swaps and changes its limit. What
it preserves is in its gauges: kept free once more in the budget, it would count twice."""
STRICT = variant("augserve, kept contexts first", strict=True)
AGING = variant("augserve, aging fast", tau_s=5.0)
PROMOTING = variant("augserve, promoting all", promote_share=1.0)
READINGS = (STRICT, AGING, PROMOTING)

MAIN = (VLLM, VLLM_TODAY, INFERCEPT, AUGSERVE)
PAPERS = (VLLM, INFERCEPT, AUGSERVE)
PARTS = (BATCHING, NO_BATCHING, INFERCEPT_ENGINE, AUGSERVE_ENGINE, *READINGS)

MERGE_CASES = tuple(Case("merge", rate) for rate in (1.0, 2.0, 3.0, 4.0))
TOOLBENCH_CASES = tuple(Case("toolbench", rate) for rate in (1.5, 2.0, 2.5, 3.0))
W1_CASES = (*MERGE_CASES, *TOOLBENCH_CASES)

ABLATION = Case("merge", 2.0)
MERGE_MATCH = Case("merge", 3.0)
"""Of the paper's breakdown of time."""
TOOLBENCH_MATCH = Case("toolbench", 2.5)
"""For the paper's 5 requests a second."""
PART_CASES = (ABLATION, TOOLBENCH_MATCH)
NO_HOST_CASES = PART_CASES

W2_COUNT = 600
W2_CASES = (
    *(Case("merge", rate, count=W2_COUNT) for rate in (2.0, 3.0)),
    *(Case("toolbench", rate, count=W2_COUNT) for rate in (2.5, 3.0)),
)

W3_CVS = (2.0,)
W3_CASES = tuple(replace(case, cv=cv) for case in (ABLATION, TOOLBENCH_MATCH) for cv in W3_CVS)

SMALL_CASES = (
    Case("merge", 1.0, hardware=RTX4090),
    Case("toolbench", 1.0, hardware=RTX4090),
)


def every_pair() -> list[tuple[Case, Contender]]:
    """Every play apart from its seed, each once."""
    pairs = [
        *((case, one) for case in W1_CASES for one in MAIN),
        *((case, NO_HOST) for case in NO_HOST_CASES),
        *((case, one) for case in PART_CASES for one in PARTS),
        *((case, one) for case in (*W2_CASES, *W3_CASES, *SMALL_CASES) for one in PAPERS),
    ]
    return list(dict.fromkeys(pairs))
