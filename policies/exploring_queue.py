"""The queue under LLMSched: stages by what is left of their jobs, and by what they would tell.

Keeps Algorithm 1's two lists (`policies.llmsched`): S_t as a ranking of stages, S_u as intervals in
sets. A job is looked at when a call of it arrives, when it is refreshed, and in rounds on ticks;
all of its stages here move with it.
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

    left: Remaining
    """Of its job."""
    tells: float
    """R(X), bit x seconds."""
    gone: int = 0
    """Calls of it that have left since it waits here."""


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
        self._stages: dict[StageId, _Stage] = {}
        #: job -> its stages here, by when they began to wait
        self._jobs: dict[WorkflowId, dict[StageId, None]] = {}
        self._sets: IntervalSets[StageId] = IntervalSets()
        #: jobs of which something has become known, to be looked at before the next decision
        self._news: dict[WorkflowId, None] = {}
        #: `None`: the coin is to be tossed
        self._turn: _Turn | None = None
        #: the call that was selected last, where S_t alone would not have said so
        self.out_of_turn: CallId | None = None

    def push(self, call: CallView, now_s: float) -> None:
        """Add a call; its job is looked at anew."""
        super().push(call, now_s)
        self._overdue.add(call)

    def remove(self, call_id: CallId) -> None:
        """Take a call out. Raises `KeyError` when it is not here."""
        call = self._calls[call_id]
        super().remove(call_id)
        self._overdue.discard(call)
        if self.out_of_turn == call_id:
            self.out_of_turn = None

    def refresh(self, call: CallView, now_s: float) -> None:
        """Something is known of the call's job. Raises `KeyError` when the call is not here."""
        self._news[self._calls[call.spec.call_id].spec.workflow_id] = None
        self._turn = None

    def select(self, seat: SeatTag, now_s: float) -> CallView | None:
        """The oldest at a turn of the overdue; else the next of what the coin has chosen."""
        if not self._calls:
            return None
        for job in tuple(self._news):
            self._keyed(next(iter(self._jobs[job])), now_s)
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
            if stage is not None:
                return _Turn(stage, explores=True)
        return _Turn(next(iter(self._ranking)), explores=False)

    # --- the two lists ---

    def _keyed(self, group: StageId, now_s: float) -> None:
        """Look at the stage's job anew: all of its stages move."""
        job = group[0]
        stages = dict.fromkeys((*self._jobs.get(job, ()), group))
        firsts = [self._first(stage) for stage in stages]
        left = self._left_of(self._first(group))
        tells = [self._tells(first) for first in firsts]
        # from here on nothing is asked, so that nothing raises half way
        self._jobs[job] = stages
        self._news.pop(job, None)
        self._turn = None
        for stage, first, telling in zip(stages, firsts, tells, strict=True):
            gone = self._stages[stage].gone if stage in self._stages else 0
            self._stages[stage] = _Stage(left, telling, gone)
            self._ranking.put(stage, self._key_of(first, left), first.sequence)
            self._enter(stage)

    def _shortened(self, group: StageId) -> None:
        super()._shortened(group)
        self._stages[group].gone += 1
        self._enter(group)
        turn = self._turn
        if turn is not None and turn.stage == group and turn.explores and not self._room(group):
            self._turn = None

    def _emptied(self, group: StageId) -> None:
        super()._emptied(group)
        self._sets.discard(group)
        del self._stages[group]
        job = group[0]
        del self._jobs[job][group]
        if not self._jobs[job]:
            del self._jobs[job]
            self._news.pop(job, None)
        if self._turn is not None and self._turn.stage == group:
            self._turn = None

    def _enter(self, stage: StageId) -> None:
        """Put the stage into S_u; where its sample is full, only the interval of its job counts."""
        known = self._stages[stage]
        worth = known.tells if self._room(stage) else None
        low_s, high_s = known.left.low_s, known.left.high_s
        self._sets.put(stage, low_s, high_s, worth, self._first(stage).sequence)

    def _room(self, stage: StageId) -> int:
        """Calls that its sample still takes: of all that wait or have left, ceil(r n) may."""
        gone = self._stages[stage].gone
        tasks = gone + len(self._lines[stage])
        return max(0, math.ceil(self._sample_ratio * tasks - _ROUNDING) - gone)
