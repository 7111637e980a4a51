"""Cost-aware preemption: stop the least dense call that runs for a denser one that waits.

Tempo, section 4.2: preemption only at fixed quanta (20 decode steps), and only where what is gained
is more than what the stall loses. The paper swaps KV blocks inside the engine; a gateway can only
stop a call and send it again later. With u the densest call that waits and v the least dense that
runs, T_q the quantum and stall the time that the batch stands still when v comes back,

    (density_u - density_v) T_q > stall * sum of the batch's densities + what v has to do again

stall = prefill of v's prompt and what it has generated, less what is cached, plus a round trip.

Settled:

1. Asked at every tick; an instance is looked at once per quantum, 20 times its present time per
   token, and only while it is full. At most one call per instance and quantum is stopped.
2. Only where it is safe: a call of one sequence whose client has seen nothing of it, since the
   drivers let run what was seen: one that does not stream. Its tokens are not seen here either, and
   are guessed from the time it has run. Within `NEARLY_TOKENS` of its predicted end it stays.
3. The drivers begin a stopped call again, so that the tokens it had are lost: each costs a seat for
   one time per token, at the batch's mean density.
4. Best-effort calls and those on seats of the reserve are not stopped: the reserve is what they
   have. u is the densest with an SLO.
5. Off by default. Per-token slicing is impossible outside of an engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dispatcher.core.types import PLAIN_SEAT, AttemptId, CallClass, InstanceId, Task
from dispatcher.core.views import AttemptView, CallView, FleetView, InstanceView
from policies.lsdf import Lsdf

QUANTUM_TOKENS = 20
NEARLY_TOKENS = 50
ROUND_TRIP_S = 0.005
SCORED_PER_TICK = 16
"""Calls in flight after which the other instances wait for the next tick."""


class _Running(NamedTuple):
    """A call that runs and may be stopped; the younger of equals goes first."""

    density: float
    seniority: int
    attempt: AttemptView
    tokens: float


class LeastDensePreemption:
    """At most one attempt per instance and quantum; O(calls in flight) per instance and quantum.

    A tick scores about `SCORED_PER_TICK` calls: with many instances each of them is looked at less
    often than once per quantum.

    Args:
        ordering: Scores calls, and knows what waits.
        quantum_tokens: Decode steps of a quantum, at least 1.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> LeastDensePreemption(Lsdf()).preempt(Fake(instances={}), 0.0)
        []
    """

    def __init__(self, ordering: Lsdf, *, quantum_tokens: int = QUANTUM_TOKENS) -> None:
        self._ordering = ordering
        self._quantum_tokens = quantum_tokens
        #: when each instance was last looked at
        self._looked_s: dict[InstanceId, float] = {}

    def preempt(self, fleet: FleetView, now_s: float) -> Sequence[AttemptId]:
        """Attempts to stop now, of the instances that were not looked at for longest."""
        never_s = float("-inf")
        self._looked_s = {i: self._looked_s.get(i, never_s) for i in fleet.instances}
        stopped = []
        scored = 0
        for instance_id, looked_s in sorted(self._looked_s.items(), key=lambda item: item[1]):
            instance = fleet.instances[instance_id]
            quantum_s = self._quantum_tokens * fleet.tpot_s(instance)
            if now_s - looked_s < quantum_s:
                continue
            if scored >= SCORED_PER_TICK:
                break
            self._looked_s[instance_id] = now_s
            if instance.available and instance.seats_in_use >= instance.seats:
                scored += len(instance.in_flight)
                victim = self._victim(instance, fleet, quantum_s, now_s)
                if victim is not None:
                    stopped.append(victim)
        return stopped

    def _victim(
        self, instance: InstanceView, fleet: FleetView, quantum_s: float, now_s: float
    ) -> AttemptId | None:
        waiting = self._densest_waiting(instance, fleet, now_s)
        if waiting is None:
            return None
        ordering = self._ordering
        gained, _ = ordering.score(waiting, instance, fleet, now_s)
        if gained.doomed:
            return None
        batch = 0.0
        least: _Running | None = None
        for attempt in instance.in_flight.values():
            call = attempt.call
            if call.spec.call_class is CallClass.BEST_EFFORT:
                continue
            tokens = _tokens_by_now(attempt, instance, fleet, now_s)
            scored, _ = ordering.score(call, instance, fleet, now_s, running_tokens=tokens)
            batch += scored.value
            nearly_done = ordering.output_tokens(call) - tokens <= NEARLY_TOKENS
            if _may_stop(attempt) and not nearly_done:
                candidate = _Running(scored.value, -call.sequence, attempt, tokens)
                least = candidate if least is None or candidate[:2] < least[:2] else least
        if least is None:
            return None
        gain = (gained.value - least.density) * quantum_s
        loss = self._loss(least, instance, fleet, batch)
        return least.attempt.attempt_id if gain > loss else None

    def _loss(
        self, least: _Running, instance: InstanceView, fleet: FleetView, batch: float
    ) -> float:
        """What stopping an attempt costs, in gain."""
        stall_s = fleet.prefill_s(least.attempt.call, instance) + ROUND_TRIP_S
        again_s = least.tokens * fleet.tpot_s(instance)
        return stall_s * batch + again_s * batch / len(instance.in_flight)

    def _densest_waiting(
        self, instance: InstanceView, fleet: FleetView, now_s: float
    ) -> CallView | None:
        """Of the instance's own queue, else of those that are held and fit."""
        own = self._ordering.queues.get(instance.spec.instance_id)
        queues = [*([] if own is None else [own]), *self._ordering.held.values()]
        heads = (queue.select(PLAIN_SEAT, now_s) for queue in queues)
        for head in heads:
            if (
                head is not None
                and head.spec.call_class is not CallClass.BEST_EFFORT
                and head.spec.seats == 1
                and fleet.fits(head, instance)
            ):
                return head
        return None


def _tokens_by_now(
    attempt: AttemptView, instance: InstanceView, fleet: FleetView, now_s: float
) -> float:
    """Per sequence: counted where it streams, else guessed from the time it has run."""
    spec = attempt.call.spec
    if spec.streaming:
        return attempt.call.generated_tokens / spec.seats
    decoding_s = now_s - attempt.dispatched_s - fleet.prefill_s(attempt.call, instance)
    return max(0.0, decoding_s / fleet.tpot_s(instance))


def _may_stop(attempt: AttemptView) -> bool:
    """Whether the drivers would stop it now without anybody noticing more than its time."""
    spec = attempt.call.spec
    return (
        attempt.seat == PLAIN_SEAT
        and not attempt.stopping
        and spec.seats == 1
        and spec.task is Task.GENERATE
        and not spec.streaming
    )
