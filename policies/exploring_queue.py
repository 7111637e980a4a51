"""The queue under LLMSched: stages by what is left of their jobs, and by what they would tell.

Keeps Algorithm 1's two lists (`policies.llmsched`): S_t as a ranking of stages, S_u as intervals in
sets. Where one of its stages is looked at, all stages of a job move with it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from dispatcher.core.types import CallId, Key, SeatTag, WorkflowId
from dispatcher.core.views import CallView
from dispatcher.core.workflow_types import Remaining
from policies.grouped_queue import GroupedQueue, StageId, stage_of
from policies.interval_sets import IntervalSets
from policies.overdue_turns import OverdueTurns

_ROUNDING = 1e-9
"""ceil(0.3 x 10) is 3."""


@dataclass(slots=True)
class _Stage:
    """A stage with waiting calls."""

    tells: float
    """R(X), bit x seconds."""
    gone: int = 0
    """Calls of it that have left since it waits here."""


@dataclass(slots=True)
class _Job:
    """A job with waiting calls."""

    left: Remaining
    stages: dict[StageId, _Stage]
    """By when they began to wait."""


@dataclass(slots=True)
class _Turn:
    """What the coin has chosen."""

    stage: StageId
    explores: bool
    """Only until its sample is full."""


class ExploringQueue(GroupedQueue[StageId]):
    """Stages by key, or (a coin says so) the one that would tell most, in samples.

    Args:
        left_of: What is left of a call's job.
        key_of: Where its stages stand in S_t, given that.
        tells: R(X) of a call's stage, at least 0.
        rng: Tosses the coins; seeded.
        epsilon: Probability of S_u, in [0, 1].
        sample_ratio: Part of a stage's tasks that S_u takes, above 0, at most 1.
        overdue: Whose turn it is beside both.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> def call(name, sequence):
        ...     spec = Fake(call_id=name, workflow_id=name[0], client_priority=0)
        ...     return Fake(spec=spec, sequence=sequence, arrived_s=0.0, placement=Fake(stage="s"))
        >>> left = {"a": Remaining(9.0, 2.0, 30.0, 9.0, True)}
        >>> left["b"] = Remaining(8.0, 7.0, 9.0, 8.0, True)
        >>> waiting = ExploringQueue(
        ...     lambda call: left[call.spec.workflow_id],
        ...     lambda call, left: (left.mean_s,),
        ...     lambda call: {"a": 40.0, "b": 0.0}[call.spec.workflow_id],
        ...     rng=random.Random(0),
        ...     epsilon=1.0,
        ...     sample_ratio=0.5,
        ...     overdue=OverdueTurns(60.0, 0.0),
        ... )
        >>> for number, name in enumerate(("a1", "a2", "b1")):
        ...     waiting.push(call(name, number), 0.0)
        >>> gone = []
        >>> while waiting:
        ...     gone.append(waiting.select("", 0.0).spec.call_id)
        ...     waiting.remove(gone[-1])
        >>> gone
        ['a1', 'b1', 'a2']
    """

    def __init__(
        self,
        left_of: Callable[[CallView], Remaining],
        key_of: Callable[[CallView, Remaining], Key],
        tells: Callable[[CallView], float],
        *,
        rng: random.Random,
        epsilon: float,
        sample_ratio: float,
        overdue: OverdueTurns,
    ) -> None:
        super().__init__(stage_of, lambda call, now_s: key_of(call, left_of(call)))
        self._left_of = left_of
        self._key_of = key_of
        self._tells = tells
        self._rng = rng
        self._epsilon = epsilon
        self._sample_ratio = sample_ratio
        self._overdue = overdue
        self._jobs: dict[WorkflowId, _Job] = {}
        self._sets: IntervalSets[StageId] = IntervalSets()
        #: `None`: the coin is to be tossed
        self._turn: _Turn | None = None
        #: the call that was selected last, where S_t alone would not have said so
        self.out_of_turn: CallId | None = None

    def push(self, call: CallView, now_s: float) -> None:
        """Add a call; it must not be here yet."""
        super().push(call, now_s)
        self._overdue.add(call)

    def remove(self, call_id: CallId) -> None:
        """Take a call out. Raises `KeyError` when it is not here."""
        call = self._calls[call_id]
        group = self._group_of(call)
        self._jobs[group[0]].stages[group].gone += 1
        super().remove(call_id)
        self._overdue.discard(call)
        if self.out_of_turn == call_id:
            self.out_of_turn = None

    def select(self, seat: SeatTag, now_s: float) -> CallView | None:
        """The oldest at a turn of the overdue; else the next of what the coin has chosen."""
        if not self._calls:
            return None
        self._catch_up(now_s)
        late = self._overdue.whose(now_s)
        if late is not None:
            self.out_of_turn = late
            return self._calls[late]
        if self._turn is None:
            self._turn = self._toss()
        call = self._first(self._turn.stage)
        self.out_of_turn = call.spec.call_id if self._turn.explores else None
        return call

    def _toss(self) -> _Turn:
        if self._epsilon and self._rng.random() < self._epsilon:
            stage = self._sets.head()
            if stage is not None and self._jobs[stage[0]].stages[stage].tells > 0.0:
                return _Turn(stage, explores=True)
        return _Turn(next(iter(self._ranking)), explores=False)

    # --- the two lists ---

    def _look(self, group: StageId, now_s: float) -> None:
        job = self._jobs.get(group[0])
        stages = dict.fromkeys((*(job.stages if job else ()), group))
        firsts = [self._first(stage) for stage in stages]
        left = self._left_of(firsts[0])
        tells = [self._tells(first) for first in firsts]
        # from here on nothing is asked, so that nothing raises half way
        self._turn = None
        if job is None:
            job = self._jobs[group[0]] = _Job(left, {})
        job.left = left
        for stage, telling in zip(stages, tells, strict=True):
            self._news.pop(stage, None)
            job.stages.setdefault(stage, _Stage(telling)).tells = telling
            self._enter(stage, job)

    def _hear_of(self, group: StageId, now_s: float) -> None:
        self._turn = None  # the lists are no longer what the coin was tossed for
        super()._hear_of(group, now_s)

    def _joined(self, group: StageId, now_s: float) -> None:
        if self._jobs[group[0]].left.known:
            self._turn = None  # its model goes by stages, not by how many calls they have
        else:
            super()._joined(group, now_s)

    def _moved(self, group: StageId) -> None:
        self._enter(group, self._jobs[group[0]])
        turn = self._turn
        if turn is not None and turn.stage == group and turn.explores and not self._room(group):
            self._turn = None

    def _emptied(self, group: StageId) -> None:
        super()._emptied(group)
        self._sets.discard(group)
        stages = self._jobs[group[0]].stages
        del stages[group]
        if not stages:
            del self._jobs[group[0]]
        if self._turn is not None and self._turn.stage == group:
            self._turn = None

    def _enter(self, stage: StageId, job: _Job) -> None:
        """Put the stage where it stands in both lists.

        Where its sample is full, S_u has only the interval of its job.
        """
        first, left = self._first(stage), job.left
        worth = job.stages[stage].tells if self._room(stage) else None
        self._ranking.put(stage, self._key_of(first, left), first.sequence)
        self._sets.put(stage, left.low_s, left.high_s, worth, first.sequence)

    def _room(self, stage: StageId) -> int:
        """Calls that its sample still takes: of all that wait or have left, ceil(r n) may."""
        gone = self._jobs[stage[0]].stages[stage].gone
        tasks = gone + len(self._lines[stage])
        return max(0, math.ceil(self._sample_ratio * tasks - _ROUNDING) - gone)
