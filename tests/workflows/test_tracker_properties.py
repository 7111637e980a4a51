"""Whatever happens, in whatever order: books that add up, and nothing left at the end."""

from __future__ import annotations

import json
import math
from dataclasses import replace

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from workflow_world import work_s

from dispatcher.core.ports import TrackerUpdate
from dispatcher.core.types import CallId, CallSpec, InstanceId, Outcome, Slo, WorkflowId
from dispatcher.core.workflow_types import (
    CallResult,
    StageKind,
    StagePlan,
    WorkflowDeclaration,
)
from dispatcher.stage_models import stage_fitter
from workflows.graph_history import GraphBounds
from workflows.plan import PlanError
from workflows.settings import Structure, TrackerSettings, WorkflowDefaults
from workflows.stage_profiles import StageModelSettings
from workflows.tracker import Tracker

SETTINGS = TrackerSettings(
    applications={"quick": WorkflowDefaults(slo_s=5, idle_s=3)},
    max_live=6,
    max_calls=8,
    max_stages=5,
    max_finished=4,
    max_finished_calls=20,
    finished_s=50,
    max_tools=3,
)
WORKFLOWS = st.sampled_from([WorkflowId(f"w{n}") for n in range(9)])
STAGES = st.one_of(st.none(), st.sampled_from(["draft", "draft#2", "fix", "vote"]))
DYNAMIC = StageKind.DYNAMIC
PLANS = st.sampled_from(
    [
        (),
        (StagePlan("draft", width=2), StagePlan("vote")),
        (StagePlan("a"), StagePlan("b"), StagePlan("c", 1, 10, 20, after=("a", "b"))),
        (StagePlan("draft"), StagePlan("some", kind=DYNAMIC), StagePlan("vote")),
        (
            StagePlan("draft", kind=DYNAMIC, candidates=("fix", "vote")),
            StagePlan("more", kind=DYNAMIC, candidates=("tool", "draft#2")),
            StagePlan("end", after=("more",)),
        ),
        (StagePlan("fix"), StagePlan("fix#2"), StagePlan("draft#3", after=("fix",))),
        (StagePlan("vote"), StagePlan("fix", after=("draft",)), StagePlan("tool")),
    ]
)
NUMBERS = st.sampled_from([0.5, -1.0, 0.0, 1e300, math.inf, -math.inf, math.nan])
OUTCOMES = st.sampled_from([o for o in Outcome if o is not Outcome.PREEMPTED])


class TrackerMachine(RuleBasedStateMachine):
    tracker_settings = SETTINGS

    @initialize()
    def begin(self) -> None:
        self.tracker = Tracker(self.tracker_settings)
        self.now_s = 0.0
        self.calls = 0
        self.live: dict[CallId, WorkflowId] = {}
        self.told_calls = 0

    def take(self, update: TrackerUpdate) -> None:
        assert set(update.rebudget) <= set(self.live)
        for call_id in update.rebudget:
            self.check_budget(call_id)
        for record in update.ended:
            # Not that none of its calls is live: one that was pushed out is told of later, and
            # may have begun again by then. Each call is told of once, which `teardown` adds up.
            self.told_calls += record.calls
            assert record.started_s <= record.ended_s <= self.now_s

    def check_budget(self, call_id: CallId) -> None:
        budget = self.tracker.budget(call_id, work_s, self.now_s)
        assert math.isfinite(budget.stage_budget_s)
        assert 0 <= budget.stage_work_s <= budget.remaining_work_s
        assert budget.granted_s <= self.now_s

    @rule(
        workflow=WORKFLOWS,
        stage=STAGES,
        width=st.one_of(st.none(), st.integers(1, 3), st.just(10**400)),
        application=st.sampled_from(["app", "quick"]),
        max_tokens=st.one_of(st.none(), st.integers(1, 500), st.just(10**400)),
        key=st.one_of(st.none(), st.sampled_from(["k1", "k2"])),
        tool=st.one_of(st.none(), st.text(max_size=2)),
        final=st.booleans(),
        slo_s=st.one_of(st.none(), st.floats(0.1, 100), NUMBERS),
    )
    def arrive(self, workflow, stage, width, application, max_tokens, key, tool, final, slo_s):  # type: ignore[no-untyped-def]
        self.calls += 1
        call_id = CallId(f"c{self.calls}")
        spec = CallSpec(
            call_id,
            workflow,
            "m",
            10,
            application=application,
            stage=stage,
            stage_width=width,
            max_tokens=max_tokens,
            tool=tool,
            final=final,
            dedupe_key=key,
            slo=Slo(end_to_end_s=slo_s),
        )
        placement = self.tracker.call_arrived(spec, self.now_s)
        self.live[call_id] = workflow
        assert placement.workflow_started_s <= self.now_s
        assert placement.depth >= 0
        self.check_budget(call_id)

    @rule(data=st.data(), outcome=OUTCOMES, output=st.integers(0, 500))
    def end(self, data, outcome, output):  # type: ignore[no-untyped-def]
        if self.live:
            call_id = data.draw(st.sampled_from(sorted(self.live)))
            if output % 2:
                self.tracker.call_dispatched(call_id, InstanceId("a"), 1.0, self.now_s)
            del self.live[call_id]
            result = CallResult(outcome, InstanceId("a"), 10, output)
            self.take(self.tracker.call_ended(call_id, result, self.now_s))

    @rule(workflow=WORKFLOWS, plan=PLANS)
    def declare(self, workflow, plan):  # type: ignore[no-untyped-def]
        before = self.tracker.explain(workflow, self.now_s)
        declaration = WorkflowDeclaration(workflow, "app", stages=plan)
        try:
            self.take(self.tracker.declare(declaration, self.now_s))
        except PlanError:
            assert self.tracker.explain(workflow, self.now_s) == before

    @rule(workflow=WORKFLOWS, plan=PLANS)
    def post(self, workflow, plan):  # type: ignore[no-untyped-def]
        before = self.tracker.explain(workflow, self.now_s)
        try:
            self.take(self.tracker.plan_posted(workflow, plan, self.now_s))
        except PlanError:
            assert self.tracker.explain(workflow, self.now_s) == before

    @rule(
        workflow=WORKFLOWS, stage=st.sampled_from(["draft", "tool", "tool#2"]), duration_s=NUMBERS
    )
    def report(self, workflow, stage, duration_s):  # type: ignore[no-untyped-def]
        before = self.tracker.explain(workflow, self.now_s)
        try:
            self.take(self.tracker.stage_reported(workflow, stage, duration_s, self.now_s))
        except PlanError:
            assert self.tracker.explain(workflow, self.now_s) == before

    @rule(workflow=WORKFLOWS, cancelled=st.booleans())
    def finish(self, workflow, cancelled):  # type: ignore[no-untyped-def]
        self.take(self.tracker.finish(workflow, self.now_s, cancelled=cancelled))

    @rule(seconds=st.floats(0, 400))
    def wait(self, seconds):  # type: ignore[no-untyped-def]
        self.now_s += seconds
        self.take(self.tracker.expire(self.now_s))

    @invariant()
    def books_add_up(self) -> None:
        if not hasattr(self, "tracker"):
            return
        by_workflow: dict[WorkflowId, list[CallId]] = {}
        for call_id, workflow in self.live.items():
            by_workflow.setdefault(workflow, []).append(call_id)
        lines = self.tracker.workflows()
        assert {line["id"] for line in lines} >= set(by_workflow)
        for workflow, calls in by_workflow.items():
            assert list(self.tracker.live_calls(workflow)) == calls
        assert len(lines) <= max(SETTINGS.max_live, len(by_workflow) + 1)
        assert self.tracker.explainable <= SETTINGS.max_finished
        assert len(self.tracker.tools) <= SETTINGS.max_tools
        for line in lines:
            workflow_id = WorkflowId(str(line["id"]))
            json.dumps(self.tracker.explain(workflow_id), allow_nan=False)
            assert self.tracker.remaining_work_s(workflow_id, work_s) >= 0
            for later_s in (None, self.now_s, self.now_s + 7.0):
                left = self.tracker.remaining(workflow_id, work_s, later_s)
                assert left is not None
                assert 0 <= left.low_s <= left.mean_s <= left.high_s < math.inf

    def teardown(self) -> None:
        if not hasattr(self, "tracker"):
            return
        restored = Tracker(self.tracker_settings)
        restored.restore(json.loads(json.dumps(self.tracker.snapshot(self.now_s))), self.now_s)
        for call_id in list(self.live):
            del self.live[call_id]
            result = CallResult(Outcome.OK, None, 10, 10)
            self.take(self.tracker.call_ended(call_id, result, self.now_s))
        self.now_s += 1_000
        self.take(self.tracker.expire(self.now_s))
        assert restored.expire(self.now_s).rebudget == ()
        assert self.told_calls == self.calls
        for tracker in (self.tracker, restored):
            assert tracker.live == 0
            assert tracker.next_expiry_s() is None


class GraphTrackerMachine(TrackerMachine):
    tracker_settings = replace(
        SETTINGS,
        structure=Structure.GRAPHS,
        graph_matches=2,
        graphs=GraphBounds(per_application=7, applications=2, super_nodes=20),
    )


class ModelTrackerMachine(TrackerMachine):
    """Models from two workflows on, of applications that clients declare."""

    tracker_settings = replace(
        SETTINGS,
        stage_models=StageModelSettings(
            min_workflows=2, refit_after=3, rows=6, applications=2, fitter=stage_fitter(None)
        ),
    )

    @rule(workflow=WORKFLOWS, seconds=st.floats(0.1, 20), plan=PLANS)
    def play(self, workflow, seconds, plan):  # type: ignore[no-untyped-def]
        """A whole workflow, so that there are models to ask."""
        if workflow in self.live.values():
            return
        self.declare(workflow, plan)
        for stage, final in (("draft", False), ("fix", False), ("vote", True)):
            self.arrive(workflow, stage, None, "app", None, None, None, final, None)
            call_id = CallId(f"c{self.calls}")
            self.tracker.call_dispatched(call_id, InstanceId("a"), 0.0, self.now_s)
            self.now_s += seconds
            del self.live[call_id]
            result = CallResult(Outcome.OK, InstanceId("a"), 10, 10, tpot_s=0.1)
            self.take(self.tracker.call_ended(call_id, result, self.now_s))


# Not shrunk: that takes minutes here, and the history that failed is printed whole anyway.
_SETTINGS = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
for machine in (TrackerMachine, GraphTrackerMachine, ModelTrackerMachine):
    machine.TestCase.settings = _SETTINGS
test_random_histories = TrackerMachine.TestCase
test_random_histories_with_graphs = GraphTrackerMachine.TestCase
test_random_histories_with_models = ModelTrackerMachine.TestCase
