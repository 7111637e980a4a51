"""Cheapest first, by what a call and its pauses hold of the memory: the ordering of AugServe.

AugServe, section 4.3, Eqs. 13-26, and Algorithm 1. The value of a call is that of stage I while
nothing of its session has run, and that of stage II, V_final, when it returns from a tool: its
returned length is known then, and what has become of its context is read off the prefix cache
(`policies.scheduling_value`). The least goes first, of

    V_sched = V_final / (1 + wait / tau)        `aging="ratio"`
    V_sched = V_final - alpha wait              `aging="linear"`                            (Eq. 26)

With `strict` it does so in classes, one after another, as in the paper:

    0  what returns to a context that is still there           (running)
    1  what returns to a context that was swapped out          (swapped)
    2  what returns to nothing, and what is new                (resume and new)

Settled, and deviations:

1. Eq. 26 and line 28 of the algorithm add alpha wait and sort upwards, so that who waits is served
   ever later. The linear form subtracts it. Its alpha is in tokens and nowhere given; the ratio
   needs none.
2. Neither keeps a costly call from waiting for ever. One in `1 / promote_share` of the calls that
   leave a queue is therefore its oldest, once that has waited `promote_s`: as many calls are older
   than a given one, so many such turns later it goes. With a share of 1 the oldest goes as soon as
   it has waited so long, whatever else waits.
3. Much weight on waiting makes first come, first served of any order: under overload everybody is
   promoted, and is late. With tau = 5 s, or a share of 1, goodput on the paper's workloads falls to
   that of the baselines. So tau is long, and the share small (docs/decisions/0009).
4. The classes of the paper are those of one engine, where what returns still runs. At a gateway
   they make new sessions wait for all those that are under way; by value alone more of both are in
   time. `strict=False` is the default for that reason.
5. Algorithm 1 sorts by the value of stage II; the text says V_final, which it is here.
6. The paper's model predicts length buckets and tool times; here the length comes from the call's
   estimate, and how often and how long its application is away from its latest calls
   (`policies.tool_habits`). A call marked as the last of its workflow asks for nothing.
7. Any earlier call of the workflow makes a session, also one that asked for no tool. Where its
   context was longer than the prompt, the prompt goes on from as much of it as it has. At least
   half of the context in the prefix cache: it was kept. Less, and it was to be swapped: swapped.
   Else discarded, and what is missing is computed.
8. T is the time per token at the instance now; held calls are valued at their session's instance,
   or the fleet's first. Values move with time and load, and are computed anew in rounds.
9. A call of several sequences costs as many times as much. A client's own priority decides between
   equal values only.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Literal

from dispatcher.core.ports import CallQueue
from dispatcher.core.types import CallId, Key, SeatTag
from dispatcher.core.views import CallView, FleetView, InstanceView, SessionView
from policies.context_handling import ContextHandling
from policies.context_waste import Handling
from policies.rescored_queue import RescoredQueue
from policies.scheduling_value import Pace, Pause, Return, SchedulingValue
from policies.tool_habits import ToolHabits

Aging = Literal["ratio", "linear"]

_KEY_COST = 16
"""Cheap keys that a value is worth: it asks the cost model and the books of sessions."""
_KEPT_SHARE = 0.5
"""Of a context, from which on it was kept."""

_PROMOTED = -1.0
_CLASSES = {Handling.PRESERVE: 0.0, Handling.SWAP: 1.0, Handling.DISCARD: 2.0}


class AugServe:
    """Order by scheduling value; O(1) per key, O(log n) per call.

    Args:
        habits: What applications do; must observe the coordinator.
        handling: What is done about contexts while tools run.
        value: The costs.
        batch_tokens: N, prompt tokens per iteration.
        strict: Classes go one after another; False: by value alone.
        quantile: Of the length estimate that stands for L_out; `None`: its mean.
        aging: How waiting counts.
        tau_s: Of the ratio form, above 0.
        alpha: Of the linear form, tokens; at least 0.
        promote_s: Wait after which a call may be promoted; `None`: never, and it may starve.
        promote_share: Part of what leaves a queue that is its oldest call where that is to be
            promoted, above 0, at most 1.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> from dispatcher.core.types import LengthEstimate
        >>> def call(prompt_tokens):
        ...     spec = Fake(workflow_id="w", application="chat", prompt_tokens=prompt_tokens,
        ...                 prompts=1, seats=1, final=False, client_priority=0)
        ...     return Fake(spec=spec, length=LengthEstimate(100.0), generated_tokens=0,
        ...                 arrived_s=0.0)
        >>> here = Fake(spec=Fake(instance_id="i", offload_tokens=None), in_flight_tokens=0)
        >>> fleet = Fake(tpot_s=lambda i: 0.02, session=lambda workflow_id: None)
        >>> ordering = AugServe(ToolHabits(), ContextHandling())
        >>> [round(part) for part in ordering.key(call(1_000), here, fleet, 0.0)]
        [0, 2120, 0]
        >>> [round(part) for part in ordering.key(call(1_000), here, fleet, 300.0)]
        [0, 1060, 0]
    """

    def __init__(
        self,
        habits: ToolHabits,
        handling: ContextHandling,
        *,
        value: SchedulingValue | None = None,
        batch_tokens: float = 2048.0,
        strict: bool = False,
        quantile: float | None = None,
        aging: Aging = "ratio",
        tau_s: float = 300.0,
        alpha: float = 100.0,
        promote_s: float | None = 30.0,
        promote_share: float = 0.02,
    ) -> None:
        self.habits = habits
        self.handling = handling
        self.value = value or SchedulingValue()
        self.batch_tokens = batch_tokens
        self.strict = strict
        self.quantile = quantile
        self.aging = aging
        self.tau_s = tau_s
        self.alpha = alpha
        self.promote_s = promote_s
        self.promote_share = promote_share

    def queue(self, instance: InstanceView | None, fleet: FleetView) -> CallQueue:
        """Calls by value, re-keyed as time goes on; those to be promoted are seen at once."""

        def key(call: CallView, now_s: float) -> Key:
            return self.key(call, instance, fleet, now_s)

        return PromotingQueue(key, self.promote_s, self.promote_share)

    def key(
        self, call: CallView, instance: InstanceView | None, fleet: FleetView, now_s: float
    ) -> Key:
        """(class, V_sched, client priority); (-1, arrival) for who goes before all others."""
        wait_s = max(0.0, now_s - call.arrived_s)
        promoted = self.promote_s is not None and wait_s >= self.promote_s
        if promoted and self.promote_share >= 1.0:
            return (_PROMOTED, call.arrived_s)
        value, handled = self.scored(call, instance, fleet)
        if self.aging == "ratio":
            value /= 1.0 + wait_s / self.tau_s
        else:
            value -= self.alpha * wait_s
        first = _CLASSES[handled] if self.strict else 0.0
        return (first, value, float(call.spec.client_priority))

    def latest_start_s(
        self, call: CallView, instance: InstanceView, fleet: FleetView, now_s: float
    ) -> float | None:
        """None: values are no deadlines; the engine keeps the order in which calls reach it."""
        return None

    def scored(
        self, call: CallView, instance: InstanceView | None, fleet: FleetView
    ) -> tuple[float, Handling]:
        """V_final (V1 of what is new), and what has become of the call's context."""
        spec = call.spec
        session = fleet.session(spec.workflow_id)
        where = _valued_at(session, instance, fleet)
        if where is None:
            return 0.0, Handling.DISCARD
        pace = Pace(fleet.tpot_s(where), self.batch_tokens, self.handling.swap_tokens)
        done = call.generated_tokens / spec.seats
        length = call.length
        output_tokens = length.expected_tokens
        if self.quantile is not None:
            output_tokens = length.quantile_tokens(self.quantile)
        output_tokens = max(1.0, output_tokens - done)
        prompt_tokens = spec.prompt_tokens + done
        pause = self._pause(call, prompt_tokens + output_tokens, where, fleet)
        if session is None:
            value = self.value.stage_one(pace, prompt_tokens, output_tokens, pause)
            return value * spec.seats, Handling.DISCARD
        back = self._back(call, session, where, fleet)
        return self.value.stage_two(pace, back, output_tokens, pause) * spec.seats, back.handled

    def _back(
        self, call: CallView, session: SessionView, where: InstanceView, fleet: FleetView
    ) -> Return:
        """What the call goes on from."""
        prompt_tokens = call.spec.prompt_tokens + call.generated_tokens / call.spec.seats
        total = min(float(session.context_tokens), prompt_tokens)
        found = min(fleet.cached_tokens(call, where), total)
        handled = Handling.DISCARD
        if found >= _KEPT_SHARE * total and found > 0.0:
            handled = Handling.PRESERVE
        elif (
            session.instance_id == where.spec.instance_id
            and self.handling.of(session, fleet) is Handling.SWAP
        ):
            handled = Handling.SWAP
        return Return(total, prompt_tokens - total, handled, found)

    def _pause(
        self, call: CallView, context_tokens: float, where: InstanceView, fleet: FleetView
    ) -> Pause:
        """What is to be expected after its answer."""
        habit = self.habits.of(call.spec.application)
        if call.spec.final or habit.gap_s is None or not habit.asks:
            return Pause(0.0, Handling.DISCARD, 0.0)
        planned = self.handling.choose(context_tokens, habit.gap_s, where, fleet)
        return Pause(habit.gap_s, planned, habit.asks)


def _valued_at(
    session: SessionView | None, instance: InstanceView | None, fleet: FleetView
) -> InstanceView | None:
    """The instance at which to value a call: its own, its session's, or the first there is."""
    if instance is not None:
        return instance
    if session is not None and session.instance_id in fleet.instances:
        return fleet.instances[session.instance_id]
    return next(iter(fleet.instances.values()), None)


_Age = tuple[float, int, CallId]
"""Arrival, arrival sequence, call id."""


class PromotingQueue(RescoredQueue):
    """Calls by key; the oldest has its turn once it has waited long enough.

    Args:
        key: Where a call stands now.
        promote_s: Wait from which it may have one; `None`: never.
        share: Part of what leaves the queue that such turns are, above 0; 1: all, if need be.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> def call(name, sequence, arrived_s, cost):
        ...     spec = Fake(call_id=name)
        ...     return Fake(spec=spec, sequence=sequence, arrived_s=arrived_s, cost=cost)
        >>> waiting = PromotingQueue(lambda call, now_s: (call.cost,), 30.0, share=0.5)
        >>> waiting.push(call("dear", 1, 0.0, cost=9.0), 0.0)
        >>> for sequence in (2, 3):
        ...     waiting.push(call(f"cheap {sequence}", sequence, 20.0, cost=1.0), 20.0)
        >>> waiting.select("", 30.0).spec.call_id
        'cheap 2'
        >>> waiting.remove("cheap 2")
        >>> [waiting.select("", now_s).spec.call_id for now_s in (29.9, 30.0)]
        ['cheap 3', 'dear']
    """

    def __init__(
        self,
        key: Callable[[CallView, float], Key],
        promote_s: float | None,
        share: float = 1.0,
    ) -> None:
        super().__init__(key, cost=_KEY_COST)
        self._promote_s = promote_s
        self._share = share
        self._ages: list[_Age] = []
        #: calls that have left since the oldest of all did
        self._left = 0

    def push(self, call: CallView, now_s: float) -> None:
        """Add a call; it must not be here yet."""
        super().push(call, now_s)
        insort(self._ages, _age(call))

    def remove(self, call_id: CallId) -> None:
        """Take a call out. Raises `KeyError` when it is not here."""
        age = _age(self._live[call_id][1])
        super().remove(call_id)
        at = bisect_left(self._ages, age)
        del self._ages[at]
        self._left = self._left + 1 if at else 0

    def select(self, seat: SeatTag, now_s: float) -> CallView | None:
        """The oldest where it has waited long enough, else the call with the smallest key."""
        turn = (self._left + 1) * self._share >= 1.0
        if turn and self._ages and self._promote_s is not None:
            arrived_s, _, call_id = self._ages[0]
            if now_s - arrived_s >= self._promote_s:
                return self._live[call_id][1]
        return super().select(seat, now_s)


def _age(call: CallView) -> _Age:
    return (call.arrived_s, call.sequence, call.spec.call_id)
