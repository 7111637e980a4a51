"""Stories of whole workflows for application models: stages with durations, told to a tracker."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Sequence

import pytest
from workflow_world import World

from dispatcher.core.types import CallId, InstanceId, Outcome, WorkflowId
from dispatcher.core.workflow_types import CallResult, Remaining, StageKind, StagePlan
from dispatcher.stage_models import stage_fitter
from workflows.settings import TrackerSettings
from workflows.stage_profiles import StageModelSettings

LEARNER = "predictors.bayesian_network:learn_network"
needs_library = pytest.mark.skipif(
    importlib.util.find_spec("pyagrum") is None, reason="pyAgrum is not installed"
)

TPOT_S = 0.1
"""Of `workflow_world.work_s`."""


def work_s(prompt_tokens: float, output_tokens: float) -> float:
    return prompt_tokens / 1000 + output_tokens * TPOT_S


def stage(name: str, kind: str = "llm", after: Sequence[str] = (), **more) -> StagePlan:
    return StagePlan(name, after=tuple(after), kind=StageKind(kind), **more)


class Story(World):
    """A world whose calls go out at once and run for a given time."""

    def __init__(self, *, learner: str | None = LEARNER, **stages) -> None:
        stages.setdefault("fitter", stage_fitter(learner))
        super().__init__(TrackerSettings(stage_models=StageModelSettings(**stages)))
        self.calls = 0

    @property
    def profiles(self):
        return self.tracker.profiles

    def begin(self, workflow: str, name: str, *, final: bool = False, application="app") -> CallId:
        self.calls += 1
        call = CallId(f"c{self.calls}")
        self.arrive(call, workflow, stage=name, final=final, application=application)
        self.tracker.budget(call, work_s, self.now_s)
        self.tracker.call_dispatched(call, InstanceId("a"), 0.0, self.now_s)
        return call

    def finish(self, call: CallId, *, tpot_s: float = TPOT_S) -> None:
        """Well."""
        result = CallResult(Outcome.OK, InstanceId("a"), 0, 10, tpot_s=tpot_s)
        self.tracker.call_ended(call, result, self.now_s)

    def play(
        self,
        workflow: str,
        stages: Sequence[tuple[str, float]],
        *,
        application: str = "app",
        gap_s: float = 0.0,
        tpot_s: float = TPOT_S,
        final: bool = True,
    ) -> None:
        """One stage after another, with how long each runs, seconds."""
        for number, (name, seconds) in enumerate(stages):
            last = final and number == len(stages) - 1
            call = self.begin(workflow, name, final=last, application=application)
            self.at(self.now_s + seconds).finish(call, tpot_s=tpot_s)
            if not last:
                self.at(self.now_s + gap_s)

    def remaining(self, workflow: str) -> Remaining:
        found = self.tracker.remaining(WorkflowId(workflow), work_s)
        assert found is not None
        return found


def sizes(count: int, seed: int = 0) -> list[float]:
    """Of jobs: small, middle or large, with some noise."""
    chance = random.Random(seed)
    return [chance.choice([1.0, 4.0, 16.0]) * chance.uniform(0.9, 1.1) for _ in range(count)]


def without_library(*_: object) -> None:
    """As `learn_network` where it is missing."""
    raise RuntimeError("no such library")
