"""A coordinator under a policy of the catalog, with a tracker that says what it was told."""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import dataclass

from core_world import FlatTracker, World

from dispatcher import catalog
from dispatcher.core.workflow_types import Remaining, StageShape
from dispatcher.registry import PolicyServices


class ToldTracker(FlatTracker):
    """Answers as it was told; what it was not told of, as `FlatTracker`."""

    def __init__(self):
        super().__init__()
        self.rebudget_on_end = True
        self.left, self.tells, self.shapes, self.means_s = {}, {}, {}, {}

    def know(self, workflow, mean_s, low_s=None, high_s=None, work_s=None):
        low_s, high_s = mean_s if low_s is None else low_s, mean_s if high_s is None else high_s
        self.left[workflow] = Remaining(mean_s, low_s, high_s, work_s or mean_s, known=True)

    def remaining(self, workflow_id, work_s):
        return self.left.get(workflow_id) or super().remaining(workflow_id, work_s)

    def uncertainty(self, call_id):
        return self.tells.get(self.live.get(call_id), 0.0)

    def stage_shape(self, call_id):
        lone = StageShape(depth=0, height=0, children=0, tasks=1)
        return self.shapes.get(call_id, lone) if call_id in self.live else None

    def application_mean_s(self, application):
        return self.means_s.get(application)


def told_world(policy, seats=1, **params):
    """One instance `i`, and the policy."""
    services = PolicyServices(random.Random(0))
    built = catalog.build_policy(policy, params, services)
    world = World(built, tracker=ToldTracker(), observers=catalog.observers(services))
    world.up("i", seats=seats)
    return world


@dataclass
class Stage:
    """What a stage of a job really takes: calls of that long, then a pause at the client."""

    call_s: float
    calls: int = 1
    pause_s: float = 0.0
    tells_left: tuple[float, float, float] | None = None
    """What is left of the job once it has ended: mean, low, high."""


def play(world, jobs):
    """All jobs come at once, behind a call that keeps the only engine busy until then.

    Returns:
        Seconds from then until each job's last stage, its pause included, has ended.
    """
    todo = {name: list(stages) for name, stages in jobs.items()}
    number, moments, known, ended_s = itertools.count(), [], set(), {}
    going = {}

    def begin(name):
        stage = todo[name].pop(0)
        calls = {f"{name}/{next(number)}" for _ in range(stage.calls)}
        going[name] = (stage, calls)
        for call in sorted(calls):
            world.arrive(call, name, stage=f"{name}{len(todo[name])}")

    def watch():
        for attempt, (call, _) in world.out.items():
            if attempt not in known:
                known.add(attempt)
                stage, _ = going[call.partition("/")[0]]
                heapq.heappush(moments, (world.now_s + stage.call_s, next(number), call))

    world.arrive("blocker")
    known.update(world.out)
    began_s = world.now_s
    for name in jobs:
        begin(name)
    world.end("blocker")
    watch()
    while moments:
        world.now_s, _, what = heapq.heappop(moments)
        name, _, is_call = what.partition("/")
        if is_call:
            stage, calls = going[name]
            calls.discard(what)
            if not calls:
                if stage.tells_left is not None:
                    world.tracker.know(name, *stage.tells_left)
                    world.tracker.tells.pop(name, None)
                heapq.heappush(moments, (world.now_s + stage.pause_s, next(number), name))
            world.end(what)
        elif todo[name]:
            begin(name)
        else:
            ended_s[name] = world.now_s - began_s
        watch()
    return ended_s
