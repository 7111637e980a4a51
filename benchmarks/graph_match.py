"""What matching running workflows with finished ones costs, and how far off it is.

Time: one match with a full history, and per graph compared (the paper says 5 us a pair). Error:
workflows of each workload one after another, each budget held against what came then: the stage's
share of the remaining work, and the seconds of what followed. Templates and graphs (the most alike
one, or the mean of five) side by side, with stages named by the client and without.

    python benchmarks/graph_match.py [--graphs 200] [--workflows 500] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from dispatcher.bench.graph_cost import graph_match_cost
from dispatcher.bench.provenance import provenance
from dispatcher.core.types import CallId, CallSpec, InstanceId, Outcome, Slo, WorkflowId
from dispatcher.core.workflow_types import CallResult
from dispatcher.simulator.workloads import ARRIVALS, WORKLOADS, make_trace
from dispatcher.traces import TraceCall, TraceWorkflow
from workflows.settings import Structure, TrackerSettings
from workflows.tracker import Tracker

LIMIT_US = 5.0
STAGES = (4, 12, 30)
MULTI_STAGE = ("chess-3", "mac-sql", "tool-agent", "coding-agent", "tempo")
STRUCTURES = {
    "templates": TrackerSettings(),
    "graphs, best": TrackerSettings(structure=Structure.GRAPHS),
    "graphs, best 5": TrackerSettings(structure=Structure.GRAPHS, graph_matches=5),
}
_UNTAUGHT = 50
_SLO_S = 1e4


def work_s(prompt_tokens: float, output_tokens: float) -> float:
    """An engine of 5,000 prefill tokens and 50 decode steps a second."""
    return prompt_tokens / 5_000 + output_tokens / 50


@dataclass
class Errors:
    """Sums over budgets."""

    budgets: int = 0
    share: float = 0.0
    tail_s: float = 0.0
    true_tail_s: float = 0.0

    def rows(self) -> dict[str, float]:
        """Means: of the share's error, and of the tail's, relative to the mean tail."""
        return {
            "share_error": self.share / self.budgets,
            "tail_error": self.tail_s / self.true_tail_s,
        }


def levels_of(workflow: TraceWorkflow) -> list[list[TraceCall]]:
    """Its calls by the longest way to them."""
    level: dict[str, int] = {}
    for call in workflow.calls:
        level[call.call_id] = 1 + max((level[parent] for parent in call.parents), default=-1)
    ordered = sorted(workflow.calls, key=lambda call: level[call.call_id])
    return [list(calls) for _, calls in groupby(ordered, key=lambda call: level[call.call_id])]


def play(workflow: TraceWorkflow, tracker: Tracker, *, named: bool, errors: Errors | None) -> None:
    """Run it, a second a level; its budgets' errors are added where asked for."""
    levels = levels_of(workflow)
    true_s = [max(work_s(c.prompt_tokens, c.output_tokens) for c in calls) for calls in levels]
    for number, calls in enumerate(levels):
        now_s = float(number)
        ids = [CallId(f"{workflow.workflow_id}/{call.call_id}") for call in calls]
        for call_id, call in zip(ids, calls, strict=True):
            spec = CallSpec(
                call_id,
                WorkflowId(workflow.workflow_id),
                "m",
                call.prompt_tokens,
                application=workflow.application,
                stage=call.stage if named else None,
                final=number == len(levels) - 1,
                slo=Slo(end_to_end_s=_SLO_S),
            )
            tracker.call_arrived(spec, now_s)
        if errors is not None and len(levels) > 1:
            budget = tracker.budget(ids[-1], work_s, now_s)
            share = budget.stage_budget_s / (budget.deadline_s - now_s)
            true_tail_s = sum(true_s[number + 1 :])
            tail_s = budget.remaining_work_s - budget.stage_work_s
            errors.budgets += 1
            errors.share += abs(share - true_s[number] / sum(true_s[number:]))
            errors.tail_s += abs(tail_s - true_tail_s)
            errors.true_tail_s += true_tail_s
        for call_id, call in zip(ids, calls, strict=True):
            result = CallResult(Outcome.OK, InstanceId("a"), call.prompt_tokens, call.output_tokens)
            tracker.call_ended(call_id, result, now_s + 1)


def error_rows(workflows: int) -> list[dict[str, object]]:
    """One row per workload, naming of stages and structure."""
    rows: list[dict[str, object]] = []
    for name in MULTI_STAGE:
        trace = make_trace(
            WORKLOADS[name], ARRIVALS["poisson"], rate_per_s=1.0, seed=3, count=workflows
        )
        for named in (True, False):
            for structure, settings in STRUCTURES.items():
                tracker, errors = Tracker(settings), Errors()
                for number, workflow in enumerate(trace):
                    play(
                        workflow,
                        tracker,
                        named=named,
                        errors=errors if number >= _UNTAUGHT else None,
                    )
                row = {"workload": name, "named": named, "structure": structure}
                rows.append({**row, "budgets": errors.budgets, **errors.rows()})
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Print both tables; 1 where a pair takes longer than the paper's."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--graphs", type=int, default=200)
    parser.add_argument("--workflows", type=int, default=500)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    costs = [graph_match_cost(options.graphs, stages) for stages in STAGES]
    for cost in costs:
        print(
            f"{cost.graphs} graphs of {cost.stages:2} stages: {cost.pair_us:.2f} us per pair,"
            f" {cost.match_us:.0f} us per match, {cost.learn_us:.0f} us to learn one"
        )
    rows = error_rows(options.workflows) if options.workflows > _UNTAUGHT else []
    print(f"\n{'workload':13} {'stages':8} {'structure':15} {'share':>6} {'tail':>6}")
    for row in rows:
        named = "named" if row["named"] else "unnamed"
        print(
            f"{row['workload']:13} {named:8} {row['structure']:15}"
            f" {row['share_error']:6.3f} {row['tail_error']:6.2f}"
        )
    if options.json is not None:
        report = {
            "provenance": provenance(),
            "limit_us": LIMIT_US,
            "costs": [cost.described() for cost in costs],
            "errors": rows,
        }
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0 if all(cost.pair_us <= LIMIT_US for cost in costs) else 1


if __name__ == "__main__":
    sys.exit(main())
