"""Budgets: how much of a workflow's remaining time a stage gets (HexGen-Flow, Eq. 5 as settled).

What follows a stage is what its client declared; else, where graphs are the structure, what
followed in the finished workflow most like this one, whose stage's share of the remaining time is
then the share (Tempo, section 4.1); else what the application's template expects.

`t_SLO = (T_SLO - elapsed) * stage work / remaining work`, where the work of a stage is that of
its longest member (critical path; the paper adds parallel calls as if they ran one by one) and
what remains is the stage and the expectation of what follows. All calls of a visit to a stage
share one budget, granted once and again only when what remains has changed. The budget of an
overdue workflow is negative.

Lengths of the present stage: the prompt is the longest that has arrived, since the gateway has
measured it. The output is, in this order: exact where the call fixes it; as declared; the
template's mean of the longest member; the application's mean; a prior. It is capped by the
largest `max_tokens` of the visit, and never below what a member has already put out.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from dispatcher.core.ports import WorkSeconds
from dispatcher.core.workflow_types import StageBudget, StagePlan
from workflows.bounds import MAX_S, MAX_WORK_S, cut
from workflows.model import Visit, Workflow, dispatched_s, new_budget
from workflows.structure import GraphStructure, mean_over, share_over
from workflows.templates import ApplicationTemplate, Templates


def share_s(slo_s: float, elapsed_s: float, stage_work_s: float, remaining_work_s: float) -> float:
    """Eq. 5; all of the remaining time where no work is predicted.

    Example:
        >>> share_s(60, 10, 2, 5), share_s(60, 70, 2, 5), share_s(60, 10, 0, 0)
        (20.0, -4.0, 50)
    """
    if remaining_work_s <= 0:
        return slo_s - elapsed_s
    return (slo_s - elapsed_s) * stage_work_s / remaining_work_s


def _bounded(work_s: WorkSeconds) -> WorkSeconds:
    """What a cost model says, finite and in [0, `MAX_S`]."""

    def bounded_s(prompt_tokens: float, output_tokens: float) -> float:
        return cut(work_s(prompt_tokens, output_tokens), 0.0, MAX_S)

    return bounded_s


def _left_s(work_s: float, began_s: float | None, now_s: float) -> float:
    """Of a stage's work, what has not run yet; what waits has run for no time."""
    return work_s if began_s is None else max(0.0, work_s - max(0.0, now_s - began_s))


class _Answer(NamedTuple):
    """What budgets are made of."""

    stage_s: float
    """Work of the visit itself."""
    tail_s: float
    """Work of what follows it."""
    share: float | None
    """The visit's part of the remaining time; `None`: as its work is to all of it."""


class Budgets:
    """Grants budgets and predicts what remains, from declared plans and what was learned.

    Args:
        templates: Means over finished workflows.
        prior_output_tokens: Of a stage of which nothing is known.
        graphs: Finished workflows to match with; `None`: templates alone.
        foresee: False: nothing follows a stage but what was declared.
    """

    def __init__(
        self,
        templates: Templates,
        prior_output_tokens: float,
        graphs: GraphStructure | None = None,
        *,
        foresee: bool = True,
    ) -> None:
        self._templates = templates
        self._prior_output_tokens = prior_output_tokens
        self._graphs = graphs
        self._foresee = foresee
        #: what was worked out last, and of what: siblings ask one after another
        self._visit: Visit | None = None
        self._work: WorkSeconds | None = None
        self._asked: tuple[object, ...] = ()
        self._answer = _Answer(0.0, 0.0, None)

    def grant(
        self, workflow: Workflow, visit: Visit, work_s: WorkSeconds, now_s: float
    ) -> StageBudget:
        """The visit's budget: from now where what remains has changed, else from when it did."""
        if visit.budget_version != workflow.version:
            visit.budget_version = workflow.version
            visit.granted_s = now_s
        output_tokens = self._output_tokens(workflow, visit)
        asked = (workflow.version, visit.members, visit.prompt_tokens, output_tokens, now_s)
        if self._visit is not visit or self._work is not work_s or self._asked != asked:
            answer = self._work_s(workflow, visit, _bounded(work_s))
            self._answer = _Answer(
                cut(answer.stage_s, 0.0, MAX_WORK_S),
                cut(answer.tail_s, 0.0, MAX_WORK_S),
                answer.share,
            )
            self._visit, self._work, self._asked = visit, work_s, asked
        stage_work_s, tail_s, share = self._answer
        remaining_s = stage_work_s + tail_s
        elapsed_s = visit.granted_s - workflow.started_s
        if share is None:
            budget_s = share_s(workflow.slo_s, elapsed_s, stage_work_s, remaining_s)
        else:
            budget_s = share_s(workflow.slo_s, elapsed_s, share, 1.0)
        visit.time_share = share
        return new_budget(workflow, visit, stage_work_s, remaining_s, budget_s)

    def remaining_work_s(self, workflow: Workflow, work_s: WorkSeconds, now_s: float) -> float:
        """Critical path from now on: the longest of what runs, else what follows the last.

        Of a stage that runs, what has run of it is over.
        """
        return cut(self._remaining_work_s(workflow, _bounded(work_s), now_s), 0.0, MAX_WORK_S)

    def planned_work_s(
        self, workflow: Workflow, names: Collection[str], work_s: WorkSeconds, now_s: float
    ) -> float:
        """Critical path over some stages of its plan, the others taken to need no time."""
        bounded_s, began_s, plan = _bounded(work_s), dispatched_s(workflow), workflow.plan
        if plan is None:
            return 0.0
        open_ = {plan.due(s.name): s.open for s in workflow.stages.values() if s.open is not None}

        def left_s(stage: StagePlan) -> float:
            visit = open_.get(stage.name)
            if stage.name not in names:
                return 0.0
            if visit is None:
                return self._planned_s(workflow, stage, None, None, bounded_s)
            own_s = bounded_s(visit.prompt_tokens, self._output_tokens(workflow, visit))
            return _left_s(own_s, began_s.get(id(visit)), now_s)

        return cut(plan.work_after(None, left_s), 0.0, MAX_WORK_S)

    def _remaining_work_s(self, workflow: Workflow, work_s: WorkSeconds, now_s: float) -> float:
        running = [s.open for s in workflow.stages.values() if s.open is not None and s.open.live]
        if running:
            began_s = dispatched_s(workflow)
            found = []
            for visit in running:
                answer = self._work_s(workflow, visit, work_s)
                left_s = _left_s(answer.stage_s, began_s.get(id(visit)), now_s)
                found.append(left_s + answer.tail_s)
            return max(found)
        if workflow.plan is not None:
            return self._plan_work_s(workflow, None, None, work_s)
        if self._graphs is not None and (matches := self._graphs.next(workflow)):
            return mean_over(matches, lambda m: m.present_s(work_s) + m.tail_s(work_s))
        template = self._templates.get(workflow.application)
        if template is None or not self._foresee:
            return 0.0
        if not workflow.visits:
            levels = template.whole.levels.value - workflow.deepest_level - 1
            return template.whole.work_s(work_s, max(0.0, levels))
        last = max(workflow.visits, key=lambda visit: visit.level)
        return template.tail_work_s(last.stage.name, last.number, last.level, work_s)

    def _work_s(self, workflow: Workflow, visit: Visit, work_s: WorkSeconds) -> _Answer:
        output_tokens = self._output_tokens(workflow, visit)
        stage_s = work_s(visit.prompt_tokens, output_tokens)
        if workflow.plan is not None:
            return _Answer(stage_s, self._plan_work_s(workflow, visit, output_tokens, work_s), None)
        if self._graphs is not None and (matches := self._graphs.at(workflow, visit)):
            tail_s = mean_over(matches, lambda match: match.tail_s(work_s))
            return _Answer(stage_s, tail_s, share_over(matches, work_s))
        template = self._templates.get(workflow.application)
        if template is None or not self._foresee:
            return _Answer(stage_s, 0.0, None)
        name = visit.stage.name
        tail_s = template.tail_work_s(name, visit.number, visit.level, work_s)
        return _Answer(stage_s, tail_s, None)

    def _plan_work_s(
        self,
        workflow: Workflow,
        visit: Visit | None,
        output_tokens: float | None,
        work_s: WorkSeconds,
    ) -> float:
        if workflow.plan is None:
            return 0.0

        def of_stage(stage: StagePlan) -> float:
            return self._planned_s(workflow, stage, visit, output_tokens, work_s)

        return workflow.plan.work_after(None if visit is None else visit.stage.name, of_stage)

    def _planned_s(
        self,
        workflow: Workflow,
        stage: StagePlan,
        visit: Visit | None,
        output_tokens: float | None,
        work_s: WorkSeconds,
    ) -> float:
        """One stage that is to come, beside the present visit."""
        template = self._templates.get(workflow.application)
        # A declared stage of which nothing else is known is taken to be like the present one.
        prompt = 0.0 if visit is None else float(visit.prompt_tokens)
        output = self._prior_output_tokens if output_tokens is None else output_tokens
        known = None if template is None else template.stage(stage.name)
        p, o = stage.prompt_tokens, stage.output_tokens
        return work_s(
            p if p is not None else known.prompt_tokens.value if known else prompt,
            o if o is not None else known.output_tokens.value if known else output,
        )

    def _output_tokens(self, workflow: Workflow, visit: Visit) -> float:
        if visit.exact_output_tokens and visit.all_exact:
            return float(visit.exact_output_tokens)
        declared = None if workflow.plan is None else workflow.plan.get(visit.stage.name)
        template = self._templates.get(workflow.application)
        if declared is not None and declared.output_tokens is not None:
            expected = float(declared.output_tokens)
        else:
            expected = self._expected_output_tokens(template, visit.stage.name)
        if visit.max_tokens is not None:
            expected = min(expected, float(visit.max_tokens))
        return max(1.0, expected, float(visit.output_tokens), float(visit.exact_output_tokens))

    def _expected_output_tokens(self, template: ApplicationTemplate | None, stage: str) -> float:
        if template is None:
            return self._prior_output_tokens
        known = template.stage(stage)
        if known is not None:
            return known.output_tokens.value
        whole = template.whole
        return whole.output_tokens.value / max(1.0, whole.levels.value)
