"""A tracker and a few words to tell it a story; time is a number, work is `output / 10` seconds."""

from __future__ import annotations

from typing import Any

from dispatcher.core.ports import TrackerUpdate
from dispatcher.core.types import CallId, CallSpec, InstanceId, Outcome, Slo, WorkflowId
from dispatcher.core.workflow_types import CallResult, Placement, StageBudget
from workflows.settings import TrackerSettings
from workflows.tracker import Tracker


def work_s(prompt_tokens: float, output_tokens: float) -> float:
    return prompt_tokens / 1000 + output_tokens / 10


class World:
    def __init__(self, settings: TrackerSettings | None = None) -> None:
        self.tracker = Tracker(settings)
        self.now_s = 0.0

    def at(self, now_s: float) -> World:
        assert now_s >= self.now_s
        self.now_s = now_s
        return self

    def arrive(self, call: str, workflow: str = "w", **spec: Any) -> Placement:
        slo_s = spec.pop("slo_s", None)
        spec.setdefault("prompt_tokens", 0)
        spec.setdefault("application", "app")
        return self.tracker.call_arrived(
            CallSpec(CallId(call), WorkflowId(workflow), "m", slo=Slo(end_to_end_s=slo_s), **spec),
            self.now_s,
        )

    def end(
        self,
        call: str,
        outcome: Outcome = Outcome.OK,
        output: int = 100,
        tool: str | None = None,
    ) -> TrackerUpdate:
        result = CallResult(outcome, InstanceId("a"), 0, output, tool=tool)
        return self.tracker.call_ended(CallId(call), result, self.now_s)

    def budget(self, call: str) -> StageBudget:
        return self.tracker.budget(CallId(call), work_s, self.now_s)

    def run(self, workflow: str, *stages: tuple[str, int], width: int = 1) -> TrackerUpdate:
        """A whole workflow, one second a stage: (name, output tokens) each."""
        for number, (name, output) in enumerate(stages):
            calls = [f"{workflow}-{number}-{member}" for member in range(width)]
            last = number == len(stages) - 1
            for call in calls:
                self.arrive(call, workflow, stage=name, final=last)
            self.at(self.now_s + 1)
            for call in calls:
                update = self.end(call, output=output)
        return update

    def explain(self, workflow: str = "w") -> dict[str, Any]:
        explained = self.tracker.explain(WorkflowId(workflow))
        assert explained is not None
        return dict(explained)
