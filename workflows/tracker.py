"""The workflow tracker: every live workflow, its stages, deadlines, budgets and history.

Implements `dispatcher.core.ports.WorkflowTracker`. Each event costs O(stages of its workflow).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dispatcher.core.errors import InvariantError
from dispatcher.core.ports import TrackerUpdate, WorkSeconds
from dispatcher.core.types import CallId, CallSpec, InstanceId, Outcome, WorkflowId
from dispatcher.core.workflow_types import (
    CallResult,
    Placement,
    StageBudget,
    StageKind,
    StagePlan,
    WorkflowDeclaration,
    WorkflowRecord,
)
from workflows import planning, stages
from workflows import snapshot as snapshots
from workflows.beginning import new_workflow
from workflows.bounds import MAX_S, MAX_WORK_S, cut, tokens
from workflows.ending import close_books, closing_of
from workflows.idle import IdleQueue
from workflows.model import Call, State, Workflow
from workflows.plan import Plan, check_slo_s
from workflows.questions import Questions
from workflows.settings import TrackerSettings
from workflows.templates import Templates

_NOTHING = TrackerUpdate()


class Tracker(Questions):
    """Puts calls into workflows.

    Example:
        >>> tracker = Tracker()
        >>> spec = CallSpec(CallId("c"), WorkflowId("w"), "m", 100, final=True)
        >>> tracker.call_arrived(spec, 5.0).deadline_s
        65.0
        >>> tracker.budget(CallId("c"), lambda prompt, output: 2.0, 5.0).stage_budget_s
        60.0
        >>> ok = CallResult(Outcome.OK, InstanceId("a"), 100, 50)
        >>> tracker.call_ended(CallId("c"), ok, 8.0).ended[0].duration_s
        3.0
    """

    def __init__(
        self, settings: TrackerSettings | None = None, templates: Templates | None = None
    ) -> None:
        super().__init__(settings, templates)
        #: live workflows without live calls
        self._idle = IdleQueue()
        #: records of workflows that were pushed out by newer ones, to be told with the next update
        self._pushed_out: list[WorkflowRecord] = []

    # --- calls ---

    def call_arrived(self, spec: CallSpec, now_s: float) -> Placement:
        """Put a call into its workflow, made on first sight.

        Raises:
            InvariantError: A call of that id is live.
        """
        self._now_s = now_s
        if spec.call_id in self._calls:
            raise InvariantError(f"call {spec.call_id} arrived twice")
        workflow = self._live.get(spec.workflow_id)
        if workflow is None:
            workflow = self._begin(spec.workflow_id, spec.application, spec.tenant, now_s)
        if workflow.calls_total == 0:
            workflow.started_s = now_s
        before = (workflow.slo_s, workflow.version)
        if (slo_s := spec.slo.end_to_end_s) is not None and slo_s > 0:
            workflow.slo_s = min(slo_s, MAX_S)
        earlier = stages.resent(workflow, spec)
        tool = stages.tool_named(workflow, spec)
        gap_s = None
        if not workflow.live:
            self._idle.discard(workflow.workflow_id, workflow.idle_s)
            # Between a call and the same call sent again no tool ran.
            gap_s = stages.tool_ran(workflow, now_s) if earlier is None else None
            # Nor while we were down.
            if gap_s is not None and (workflow.calls or not workflow.restored):
                self.tools.learn(tool, gap_s)
        visit = stages.enter(workflow, spec, earlier, now_s, self.settings.max_stages)
        if gap_s is not None:
            visit.gap_s, visit.tool = gap_s, tool
        rebudget = tuple(workflow.live) if before != (workflow.slo_s, workflow.version) else ()
        prompt = tokens(spec.prompt_tokens)
        call = Call(spec.call_id, visit, prompt, spec.final, spec.dedupe_key, now_s, prompt)
        workflow.remember(call)
        workflow.live[spec.call_id] = call
        self._calls[spec.call_id] = (call, workflow)
        return Placement(
            workflow_id=workflow.workflow_id,
            application=workflow.application,
            stage=visit.stage.name,
            depth=visit.stage.depth,
            workflow_started_s=workflow.started_s,
            deadline_s=workflow.deadline_s,
            rebudget=rebudget,
        )

    def budget(self, call_id: CallId, work_s: WorkSeconds, now_s: float) -> StageBudget:
        """The call's stage's share of the remaining time; siblings share it.

        Raises:
            InvariantError: The call is not live.
        """
        self._now_s = now_s
        self._profiles.pace(work_s(0.0, 1.0) - work_s(0.0, 0.0))
        call, workflow = self._call(call_id)
        return self._budgets.grant(workflow, call.visit, work_s, now_s)

    def call_dispatched(
        self, call_id: CallId, instance_id: InstanceId, urgency_s: float, now_s: float
    ) -> None:
        """An attempt went out; `explain` shows the first one's wait, the last one's place.

        Raises:
            InvariantError: The call is not live.
        """
        self._now_s = now_s
        call, _ = self._call(call_id)
        call.attempts += 1
        call.instance_id = instance_id
        call.urgency_s = cut(urgency_s, -MAX_WORK_S, MAX_WORK_S)
        if call.dispatched_s is None:
            call.dispatched_s = now_s

    def call_ended(self, call_id: CallId, result: CallResult, now_s: float) -> TrackerUpdate:
        """A call is over, well or not.

        Raises:
            InvariantError: The call is not live.
        """
        self._now_s = now_s
        call, workflow = self._call(call_id)
        del self._calls[call_id]
        del workflow.live[call_id]
        call.ended_s, call.outcome = now_s, result.outcome
        call.prompt_tokens = tokens(result.prompt_tokens) or call.prompt_tokens
        call.output_tokens = tokens(result.output_tokens)
        workflow.ran = workflow.ran or result.outcome is not Outcome.REJECTED
        stage_ended = False
        if not call.superseded:
            stage_ended = stages.leave(workflow, call, result, now_s)
            workflow.closing = closing_of(workflow, call)
        if not workflow.live:
            if workflow.closing is not None:
                return self._update(workflow, stage_ended, self._end(workflow, workflow.closing))
            self._idle.add(workflow.workflow_id, workflow.idle_s, now_s)
            self._make_room()
        return self._update(workflow, stage_ended)

    # --- what clients say of whole workflows ---

    def declare(self, declaration: WorkflowDeclaration, now_s: float) -> TrackerUpdate:
        """A workflow announced before its first call; a second time updates it.

        Raises:
            PlanError: The stages are no graph, or a number is out of bounds; nothing has changed
                then.
        """
        self._now_s = now_s
        check_slo_s(declaration.slo_s)
        workflow = self._live.get(declaration.workflow_id)
        seen = () if workflow is None else workflow.stages
        plan = Plan(declaration.stages, seen) if declaration.stages else None
        if any(stage.kind is not StageKind.LLM for stage in declaration.stages):
            self._profiles.declare(declaration.application, declaration.stages)
        if workflow is None:
            workflow = self._begin(
                declaration.workflow_id, declaration.application, declaration.tenant, now_s
            )
        workflow.declared = True
        self._touch(workflow, now_s)
        changed = plan is not None
        if declaration.slo_s is not None and declaration.slo_s != workflow.slo_s:
            workflow.slo_s = declaration.slo_s
            changed = True
        if plan is not None:
            planning.declared(workflow, plan)
        return self._update(workflow, rebudget=changed)

    def plan_posted(
        self, workflow_id: WorkflowId, stages: Sequence[StagePlan], now_s: float
    ) -> TrackerUpdate:
        """What a planner has decided; unknown workflows are ignored.

        It takes the place of a declared dynamic stage; where there is none, of all that follows.

        Raises:
            PlanError: The stages are no graph, or one is no candidate of the dynamic stage; nothing
                has changed then.
        """
        self._now_s = now_s
        workflow = self._live.get(workflow_id)
        if workflow is None:
            return self._pending()
        known = self._profiles.declared(workflow.application)
        resolution = planning.posted(workflow, known, stages)
        if resolution is not None:
            self._profiles.planned(workflow.application, resolution)
        workflow.declared = True
        self._touch(workflow, now_s)
        return self._update(workflow, rebudget=True)

    def stage_reported(
        self, workflow_id: WorkflowId, stage: str, duration_s: float, now_s: float
    ) -> TrackerUpdate:
        """A stage that ran at the client has ended; unknown workflows are ignored.

        A duration that is no time counts as 0.

        Raises:
            PlanError: Its application's stages are declared, and none is called so; nothing has
                changed then.
        """
        self._now_s = now_s
        workflow = self._live.get(workflow_id)
        if workflow is None:
            return self._pending()
        application = self._profiles.declared(workflow.application)
        planning.check_reported(workflow, application, stage)
        self.tools.learn(stage, duration_s)
        workflow.ran = True
        visit = stages.visit_named(workflow, stage, now_s, self.settings.max_stages)
        self._touch(workflow, now_s)
        if visit.live:  # Calls of that name still run here: they end the stage.
            return self._pending()
        visit.at_client = visit.members == 0
        visit.started_s = min(visit.started_s, now_s - cut(duration_s, 0.0, MAX_S))
        visit.ended_s = now_s
        workflow.deepest_depth = max(workflow.deepest_depth, visit.stage.depth)
        workflow.deepest_level = max(workflow.deepest_level, visit.level)
        stages.close(workflow, visit)
        return self._update(workflow, stage_ended=True)

    def finish(self, workflow_id: WorkflowId, now_s: float, *, cancelled: bool) -> TrackerUpdate:
        """Nothing more will come; a workflow with live calls ends with the last of them."""
        self._now_s = now_s
        workflow = self._live.get(workflow_id)
        if workflow is None:
            return self._pending()
        if cancelled or workflow.closing is None:
            workflow.closing = State.CANCELLED if cancelled else State.FINISHED
        if workflow.live:
            return self._pending()
        return self._update(workflow, ended=self._end(workflow, workflow.closing))

    # --- time ---

    def expire(self, now_s: float) -> TrackerUpdate:
        """End workflows that have been silent too long, a bounded number at a time."""
        self._now_s = now_s
        self._archive.expire(now_s)
        ended = list(self._pending().ended)
        while len(ended) < self.settings.max_expired_at_once:
            workflow_id = self._idle.due(now_s)
            if workflow_id is None:
                break
            ended.append(self._end(self._live[workflow_id], State.EXPIRED))
        return TrackerUpdate(ended=tuple(ended))

    def next_expiry_s(self) -> float | None:
        """When `expire` has something to do; `None`: no workflow is silent."""
        return self._now_s if self._pushed_out else self._idle.next_due_s()

    # --- across restarts ---

    def snapshot(self, now_s: float) -> dict[str, object]:
        """What a restart must not lose, as plain JSON values; times relative to now.

        What was learned, and of each live workflow its identity, deadline and depth, not its
        live calls: their connections end with the process.
        """
        return snapshots.take(self._live.values(), self._learned, now_s)

    def restore(self, snapshot: Mapping[str, object], now_s: float, down_s: float = 0.0) -> None:
        """Take over a snapshot; for a tracker that has seen nothing yet.

        Args:
            snapshot: What `snapshot` gave.
            now_s: The clock now.
            down_s: How long nothing ran; deadlines went on meanwhile, silence did not.

        Raises:
            KeyError, ValueError: The snapshot does not have the shape that `snapshot` gives;
                nothing has changed then.
        """
        for workflow in snapshots.take_over(snapshot, self._learned, self.settings, now_s, down_s):
            self._live[workflow.workflow_id] = workflow
            self._idle.add(workflow.workflow_id, workflow.idle_s, now_s)
        self._now_s = now_s

    # --- inside ---

    def _begin(
        self, workflow_id: WorkflowId, application: str, tenant: str, now_s: float
    ) -> Workflow:
        self._make_room(1)
        workflow = self._live[workflow_id] = new_workflow(
            workflow_id, application, tenant, started_s=now_s, settings=self.settings
        )
        return workflow

    def _make_room(self, new: int = 0) -> None:
        """End those silent for longest beyond the bound; those with live calls may exceed it."""
        while len(self._live) + new > self.settings.max_live:
            longest = self._idle.longest()
            if longest is None:
                return
            self._pushed_out.append(self._end(self._live[longest], State.EXPIRED))

    def _end(self, workflow: Workflow, state: State) -> WorkflowRecord:
        """The one way out for a workflow."""
        del self._live[workflow.workflow_id]
        self._idle.discard(workflow.workflow_id, workflow.idle_s)
        record = close_books(workflow, state)
        self._learned.learn(workflow, record, self._now_s)
        self._archive.keep(workflow, self._now_s)
        return record

    def _update(
        self,
        workflow: Workflow,
        stage_ended: bool = False,
        ended: WorkflowRecord | None = None,
        *,
        rebudget: bool = False,
    ) -> TrackerUpdate:
        records = self._pending().ended
        if ended is not None:
            records = (*records, ended)
        # What is being cancelled has no order to find: its calls are about to end.
        wanted = (stage_ended or rebudget) and workflow.closing is not State.CANCELLED
        live = tuple(workflow.live) if wanted else ()
        return TrackerUpdate(rebudget=live, ended=records, stage_ended=stage_ended)

    def _pending(self) -> TrackerUpdate:
        """What was left to be told."""
        if not self._pushed_out:
            return _NOTHING
        ended, self._pushed_out = tuple(self._pushed_out), []
        return TrackerUpdate(ended=ended)

    def _touch(self, workflow: Workflow, now_s: float) -> None:
        """A sign of life other than a call."""
        if not workflow.live:
            self._idle.add(workflow.workflow_id, workflow.idle_s, now_s)

    def _call(self, call_id: CallId) -> tuple[Call, Workflow]:
        try:
            return self._calls[call_id]
        except KeyError:
            raise InvariantError(f"call {call_id} is not live in any workflow") from None
