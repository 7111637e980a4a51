"""Which workflows are silent, since when, and which of them is due."""

from __future__ import annotations

from collections import OrderedDict

from dispatcher.core.types import WorkflowId


class IdleQueue:
    """Silent workflows by when their silence ends them. Every operation is O(idle times).

    Time does not go back, so among workflows that are allowed the same silence the first to fall
    silent is the first due: one queue per distinct silence (applications are configured with a
    few) does without a heap and its tombstones.
    """

    def __init__(self) -> None:
        self._queues: dict[float, OrderedDict[WorkflowId, float]] = {}

    def add(self, workflow_id: WorkflowId, idle_s: float, now_s: float) -> None:
        """It is silent from now on; again from now where it was already."""
        queue = self._queues.setdefault(idle_s, OrderedDict())
        queue[workflow_id] = now_s
        queue.move_to_end(workflow_id)

    def discard(self, workflow_id: WorkflowId, idle_s: float) -> None:
        """It is not silent any more, or gone."""
        queue = self._queues.get(idle_s)
        if queue is not None:
            queue.pop(workflow_id, None)
            if not queue:
                del self._queues[idle_s]

    def next_due_s(self) -> float | None:
        """When the first is due; `None`: nobody is silent."""
        earliest_s = None
        for idle_s, queue in self._queues.items():
            due_s = next(iter(queue.values())) + idle_s
            if earliest_s is None or due_s < earliest_s:
                earliest_s = due_s
        return earliest_s

    def due(self, now_s: float) -> WorkflowId | None:
        """One whose silence has lasted long enough."""
        for idle_s, queue in self._queues.items():
            workflow_id, since_s = next(iter(queue.items()))
            if since_s + idle_s <= now_s:
                return workflow_id
        return None

    def longest(self) -> WorkflowId | None:
        """The one that has been silent for longest."""
        heads = [next(iter(queue.items())) for queue in self._queues.values()]
        return min(heads, key=lambda head: head[1])[0] if heads else None

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._queues.values())
