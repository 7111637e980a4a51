"""MAC-SQL text-to-SQL on Spider: trace 4 of HexGen-Flow.

Sources: HexGen-Flow (arXiv:2505.05286), sections 5.1 and 5.2 (Spider, Qwen3-30B); its authors'
trace 4, of which figures alone are kept here; MAC-SQL (arXiv:2312.11242) and its public code for
agents, prompts and rounds (at most three).

A selector prunes a large schema, a decomposer writes the SQL, a refiner repairs what does not run.

Fitted on the trace (some 320 of its queries read, seven of its nine databases): lengths of
selector and decomposer prompts by database (small ones need no selector), outputs of both. From
the size of its parts: 46 % of queries have a selector; 26 % have a refiner, with a selector more
often (37 %) than without (16 %). Refined queries are few in it and repeated, so lengths of
refiner calls rest on three.

Assumed: that one refinement in ten needs another (the trace has at most one, the code allows
three); which share of a prompt is template; 50 ms at the median to run the SQL. Schemas are as
the database has them, so selector prompts, and decomposer prompts that follow none, are shared by
all queries on a database up to the question.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from dispatcher.simulator.workloads.draws import Quantiles, clipped, lognormal
from dispatcher.traces import PrefixPart, TraceCall, TraceWorkflow

MOST_REFINEMENTS = 3

_SELECTOR_SHARE = 0.46
_REFINED_WITH_SELECTOR = 0.37
_REFINED_WITHOUT = 0.16
_REFINED_AGAIN = 0.1

_SELECTOR_TEMPLATE = 1050
_DECOMPOSER_TEMPLATE = 1050
_REFINER_TEMPLATE = 230


@dataclass(frozen=True, slots=True)
class _Large:
    """A database whose schema is pruned first; prompts are without the question."""

    name: str
    weight: float
    selector_prompt: int
    selector_output: tuple[float, float, float, float]
    """Median, deviation of the logarithm, least, most."""
    decomposer_prompt: Quantiles


@dataclass(frozen=True, slots=True)
class _Small:
    """A database whose schema is used as it is; the prompt is without the question."""

    name: str
    weight: float
    decomposer_prompt: int


_LARGE = (
    _Large(
        name="large-1",
        weight=0.41,
        selector_prompt=2946,
        selector_output=(92, 0.42, 34, 156),
        decomposer_prompt=Quantiles.parse("0:2285 0.4:2295 0.6:2380 0.68:2500 0.7:2690 1:2702"),
    ),
    _Large(
        name="large-2",
        weight=0.2,
        selector_prompt=2323,
        selector_output=(52, 0.2, 39, 85),
        decomposer_prompt=Quantiles.parse("0:1215 0.1:1225 0.25:1440 0.6:1460 0.75:1525 1:1605"),
    ),
    _Large(
        name="large-3",
        weight=0.39,
        selector_prompt=3296,
        selector_output=(94, 0.25, 35, 135),
        decomposer_prompt=Quantiles.parse(
            "0:1935 0.1:1980 0.2:2090 0.5:2110 0.65:2190 0.75:2470 0.85:2710 0.95:2910 1:3052"
        ),
    ),
)
_SMALL = (
    _Small(name="small-1", weight=0.25, decomposer_prompt=1704),
    _Small(name="small-2", weight=0.25, decomposer_prompt=1527),
    _Small(name="small-3", weight=0.35, decomposer_prompt=1308),
    _Small(name="small-4", weight=0.15, decomposer_prompt=1629),
)
_DECOMPOSER_OUTPUT = Quantiles.parse(
    "0:7 0.05:15 0.1:30 0.2:90 0.3:113 0.4:136 0.5:153 0.6:176 0.7:202 0.8:222 0.9:257 "
    "0.95:306 0.98:450 0.995:668 1:2247"
)


@dataclass(frozen=True, slots=True)
class MacSql:
    """Queries as in trace 4."""

    name: str = "mac-sql"
    summary: str = "Text-to-SQL by MAC-SQL on Spider (HexGen-Flow, trace 4)"

    def workflow(self, number: int, arrival_s: float, random: Random) -> TraceWorkflow:
        """See `Workload`."""
        workflow_id = f"{self.name}-{number}"
        question = clipped(lognormal(random, 13, 0.35), 5, 60)
        calls: list[TraceCall] = []
        if random.random() < _SELECTOR_SHARE:
            (large,) = random.choices(_LARGE, [database.weight for database in _LARGE])
            calls.append(_selector(large, question, random))
            prompt_tokens = question + large.decomposer_prompt.tokens(random)
            shared = PrefixPart("mac-sql/decomposer", _DECOMPOSER_TEMPLATE)
            refined = _REFINED_WITH_SELECTOR
        else:
            (small,) = random.choices(_SMALL, [database.weight for database in _SMALL])
            prompt_tokens = question + small.decomposer_prompt
            shared = PrefixPart(f"mac-sql/decomposer/{small.name}", small.decomposer_prompt)
            refined = _REFINED_WITHOUT
        calls.append(
            TraceCall(
                call_id=f"c{len(calls)}",
                stage="decomposer",
                prompt_tokens=prompt_tokens,
                output_tokens=_DECOMPOSER_OUTPUT.tokens(random),
                parents=tuple(call.call_id for call in calls),
                prefix=(shared,),
            )
        )
        rounds = 0
        while rounds < MOST_REFINEMENTS and random.random() < refined:
            calls.append(_refiner(workflow_id, calls, prompt_tokens, random))
            rounds, refined = rounds + 1, _REFINED_AGAIN
        return TraceWorkflow(workflow_id, self.name, arrival_s, tuple(calls))


def _selector(database: _Large, question: int, random: Random) -> TraceCall:
    median, sigma, least, most = database.selector_output
    return TraceCall(
        call_id="c0",
        stage="selector",
        prompt_tokens=database.selector_prompt + question,
        output_tokens=clipped(lognormal(random, median, sigma), least, most),
        prefix=(
            PrefixPart("mac-sql/selector", _SELECTOR_TEMPLATE),
            PrefixPart(f"mac-sql/selector/{database.name}", database.selector_prompt),
        ),
    )


def _refiner(
    workflow_id: str, calls: list[TraceCall], decomposer_prompt: int, random: Random
) -> TraceCall:
    """The refiner's prompt has the decomposer's schema, but neither its examples nor its rules."""
    with_sql = clipped(decomposer_prompt - 640 + random.gauss(0.0, 35.0), 500, 4000)
    return TraceCall(
        call_id=f"c{len(calls)}",
        stage="refiner",
        prompt_tokens=with_sql,
        output_tokens=clipped(lognormal(random, 475, 0.25), 150, 1200),
        parents=(calls[-1].call_id,),
        gap_s=min(lognormal(random, 0.05, 0.8), 5.0),
        tool="execute-sql",
        prefix=(
            PrefixPart("mac-sql/refiner", _REFINER_TEMPLATE),
            PrefixPart(f"{workflow_id}/refiner", max(with_sql - 150, _REFINER_TEMPLATE + 1)),
        ),
    )


MAC_SQL = MacSql()
