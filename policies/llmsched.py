"""LLMSched: the shortest remaining job first, and now and then the stage that would tell most.

Zhang et al., "LLMSched: Uncertainty-Aware Workload Scheduling for Compound LLM Applications",
section IV-D, Algorithm 1. Of the stages that wait there are two lists:

S_t   by the mean of what is left of their job, given what of it has ended (SRTF)
S_u   jobs in non-overlapping sets by [5 %, 95 %] of what is left (`policies.interval_sets`), sets
      by lower bound; inside, stages by uncertainty reduction R(X), bit x seconds, largest first

With probability epsilon the head of S_u goes next, but only a fraction r of its tasks; else the
head of S_t with all of them. Mean, interval and R come from the application's model
(`FleetView.remaining`, `FleetView.uncertainty`); where none speaks, the interval has no width and
the sets are in the order of S_t. Calls wait centrally and go to where least runs
(`policies.fewest_running`).

Settled, and deviations:

1. Algorithm 1 pops the heads of both lists and uses one, so that the other is lost to the tail and
   stages come up twice. Here both are peeked at and the winner is taken; what is not sampled stays
   where it was in S_t.
2. The lists are kept, not made anew at every arrival and end: a stage moves when something has
   become known of its job. The coin is tossed when a call can go; it holds for the stage, or the
   sample, that it chose, until a call arrives or something becomes known.
3. A stage is sampled once: while fewer than ceil(r n) of its n tasks have left, whoever sent them.
   Planned anew after every event, a stage would else be sampled again until nothing is left of it.
4. Only stages with waiting calls are in the lists. Regular stages run at clients.
5. Where nothing in the first set would tell anything, S_t has the turn: to go out of order would be
   for nothing.
6. Ties: less total work, the earlier workflow, the earlier call; in S_u the lower bound.
7. epsilon and r have no stated values: 0.2 and 0.3.
8. Nobody starves: every one in `1 / overdue_share` of the calls that leave is the oldest that has
   waited longer than `overdue_s` (`policies.overdue_turns`). 0 is the paper's form: a long job
   waits as long as shorter ones keep coming.
9. What is left of a job is looked at anew when one of its stages ends, and in rounds on ticks,
   since it depends on how loaded the engines are.

Options:

`uncertainty=False` is the paper's ablation without S_u, SRTF alone; `profile="mean"` the one
    without a network (`policies.job_estimates`): jobs by the mean of their application.
`measure="work"` measures what is left of a job in work instead of time along its critical path. The
    paper means time. But a job that is wide keeps as many seats from others as it has tasks, and
    time that passes at the client keeps none: under load, jobs end sooner on average so.
`order="gittins"` orders S_t by the Gittins index of what is left instead of its mean
    (`policies.gittins`): jobs that will probably end soon pass surely middling ones.
"""

from __future__ import annotations

import random
from typing import Literal
from weakref import WeakSet

from dispatcher.core.ports import CallQueue
from dispatcher.core.types import Key, SeatTag
from dispatcher.core.views import CallView, FleetView, InstanceView
from dispatcher.core.workflow_types import Remaining
from policies.exploring_queue import ExploringQueue
from policies.gittins import gittins_s
from policies.job_estimates import Measure, Profile, by_work, estimate
from policies.overdue_turns import OverdueTurns

Order = Literal["srtf", "gittins"]

_OUT_OF_TURN, _IN_TURN = 0.0, 1.0


class Llmsched:
    """Key: (time left, work left, start of the workflow); O(log n + sqrt n) per decision.

    Args:
        rng: Tosses the coins; seeded.
        epsilon: Probability of taking what would tell most, in [0, 1].
        sample_ratio: r, part of such a stage's tasks that is taken, above 0, at most 1.
        uncertainty: False: never; as epsilon = 0.
        profile: What is known of jobs.
        measure: What counts of it.
        order: How S_t orders them.
        overdue_s: Wait from which a call may have a turn of the overdue, seconds.
        overdue_share: Part of what leaves that such turns are, in [0, 1); 0: none.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> def call(name, sequence):
        ...     spec = Fake(call_id=name, workflow_id=name, client_priority=0)
        ...     placement = Fake(stage="s", application="a", workflow_started_s=0.0)
        ...     return Fake(spec=spec, sequence=sequence, arrived_s=0.0, placement=placement)
        >>> left = {
        ...     "task automation": Remaining(15.0, 3.0, 30.0, 15.0, True),
        ...     "code generation": Remaining(9.0, 5.0, 13.0, 9.0, True),
        ... }
        >>> tells = {"task automation": 20.0, "code generation": 4.0}
        >>> fleet = Fake(remaining=left.get, uncertainty=lambda call: tells[call.spec.call_id])
        >>> def first(epsilon):
        ...     waiting = Llmsched(random.Random(0), epsilon=epsilon).queue(None, fleet)
        ...     waiting.push(call("task automation", 1), 0.0)
        ...     waiting.push(call("code generation", 2), 0.0)
        ...     return waiting.select("", 0.0).spec.call_id
        >>> first(epsilon=0.0), first(epsilon=1.0)
        ('code generation', 'task automation')
    """

    def __init__(
        self,
        rng: random.Random,
        *,
        epsilon: float = 0.2,
        sample_ratio: float = 0.3,
        uncertainty: bool = True,
        profile: Profile = "network",
        measure: Measure = "path",
        order: Order = "srtf",
        overdue_s: float = 60.0,
        overdue_share: float = 0.02,
    ) -> None:
        self._rng = rng
        self.epsilon = epsilon if uncertainty else 0.0
        self.sample_ratio = sample_ratio
        self.profile: Profile = profile
        self.measure: Measure = measure
        self.order: Order = order
        self.overdue_s = overdue_s
        self.overdue_share = overdue_share
        #: those for held calls
        self._queues: WeakSet[ExploringQueue] = WeakSet()

    def queue(self, instance: InstanceView | None, fleet: FleetView) -> CallQueue:
        """Both lists of what waits here."""
        queue = ExploringQueue(
            lambda call: self._left(call, fleet),
            self._key,
            fleet.uncertainty if self.epsilon else _tells_nothing,
            rng=self._rng,
            epsilon=self.epsilon,
            sample_ratio=self.sample_ratio,
            overdue=OverdueTurns(self.overdue_s, self.overdue_share),
        )
        if instance is None:
            self._queues.add(queue)
        return queue

    def key(
        self, call: CallView, instance: InstanceView | None, fleet: FleetView, now_s: float
    ) -> Key:
        """(time left of its job, or 1 / Gittins index; work left; start of the workflow)."""
        return self._key(call, self._left(call, fleet))

    def held_key(self, call: CallView, seat: SeatTag, fleet: FleetView, now_s: float) -> Key:
        """(0, key) for a call that its queue sends out of turn, (1, key) for others."""
        early = any(queue.out_of_turn == call.spec.call_id for queue in self._queues)
        return (_OUT_OF_TURN if early else _IN_TURN, *self.key(call, None, fleet, now_s))

    def latest_start_s(
        self, call: CallView, instance: InstanceView, fleet: FleetView, now_s: float
    ) -> float | None:
        """None: the engine keeps the order in which calls reach it."""
        return None

    def _left(self, call: CallView, fleet: FleetView) -> Remaining:
        left = estimate(call, fleet, self.profile)
        return by_work(left) if self.measure == "work" else left

    def _key(self, call: CallView, left: Remaining) -> Key:
        left_s = gittins_s(left) if self.order == "gittins" else left.mean_s
        return (left_s, left.work_s, call.placement.workflow_started_s)


def _tells_nothing(call: CallView) -> float:
    return 0.0
