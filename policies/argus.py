"""Argus: stages by their place in the job's graph.

Wu et al., "Argus: Efficient Job Scheduling in RDMA-assisted Big Data Processing", IPDPS '21; a
baseline of LLMSched (section V): "ranks the stages based on their depth, number of children, and
number of tasks", all of them descending. Among jobs of one application it decides by arrival.

Settled: the three are compared in this order, since no weights are given. `depth` is the number of
stages before a stage, so that jobs which are nearly done go first; `height`, the longest path after
it, is the other meaning the word has in a graph, under which jobs with most ahead of them go first.
What is not declared of a graph is what the application's finished workflows looked like
(`FleetView.stage_shape`).
"""

from __future__ import annotations

from typing import Literal

from dispatcher.core.ports import CallQueue
from dispatcher.core.types import Key
from dispatcher.core.views import CallView, FleetView, InstanceView
from policies.grouped_queue import GroupedQueue, stage_of

Level = Literal["depth", "height"]


class Argus:
    """Key: (-depth, -children, -tasks, start of the workflow). O(log n) per call.

    Args:
        level: What is meant by a stage's depth.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> def call(name, sequence):
        ...     spec = Fake(call_id=name, workflow_id=name, client_priority=0)
        ...     placement = Fake(stage="s", workflow_started_s=0.0)
        ...     return Fake(spec=spec, sequence=sequence, placement=placement)
        >>> shapes = {
        ...     "split": Fake(depth=0, height=2, children=4, tasks=1),
        ...     "sort": Fake(depth=1, height=1, children=1, tasks=5),
        ... }
        >>> fleet = Fake(stage_shape=lambda call: shapes[call.spec.call_id])
        >>> def first(level):
        ...     waiting = Argus(level).queue(None, fleet)
        ...     for one in (call("split", 1), call("sort", 2)):
        ...         waiting.push(one, 0.0)
        ...     return waiting.select("", 0.0).spec.call_id
        >>> first("depth"), first("height")
        ('sort', 'split')
    """

    def __init__(self, level: Level = "depth") -> None:
        self.level = level

    def queue(self, instance: InstanceView | None, fleet: FleetView) -> CallQueue:
        """Stages by rank."""
        return GroupedQueue(stage_of, lambda call, now_s: self.key(call, instance, fleet, now_s))

    def key(
        self, call: CallView, instance: InstanceView | None, fleet: FleetView, now_s: float
    ) -> Key:
        """(-depth, -children, -tasks, start of the workflow); no graph: a lone stage."""
        shape = fleet.stage_shape(call)
        started_s = call.placement.workflow_started_s
        if shape is None:
            return (-float(call.placement.depth), 0.0, -1.0, started_s)
        level = shape.depth if self.level == "depth" else shape.height
        return (-float(level), -float(shape.children), -float(shape.tasks), started_s)

    def latest_start_s(
        self, call: CallView, instance: InstanceView, fleet: FleetView, now_s: float
    ) -> float | None:
        """None: the engine keeps the order in which calls reach it."""
        return None
