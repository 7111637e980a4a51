"""The laws of `CallQueue`, for the queues that a policy's ordering builds.

One law carries the others: whatever has happened to a queue, it offers what a fresh one would that
was given the same calls as they are now. So re-keying, removal and rescoring cannot drift.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from conformance_error import ConformanceError, ensure
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_fakes import (
    FakeCall,
    FakeFleet,
    copy_figures,
    fake_instance,
    random_call,
    random_fleet,
)

from dispatcher.core.ports import CallQueue, Policy
from dispatcher.core.types import CallId, SeatTag
from dispatcher.core.views import CallView, InstanceView

MakePolicy = Callable[[], Policy]

NOW_S = 20.0
LATER_S = 45.0
_SIZES = (0, 1, 2, 30)
_MANY = 30

_PROPERTY = settings(
    max_examples=40, deadline=None, database=None, derandomize=True, report_multiple_bugs=False
)


def queue_starts_empty(make: MakePolicy) -> None:
    """A new queue holds nothing and offers nothing."""
    for queue, tags in _queues(make, _fleet()):
        ensure(len(queue) == 0 and list(queue) == [], "a new queue is not empty")
        ensure(_offer(queue, tags) is None, "an empty queue offers a call")
        ensure(queue.rescore(NOW_S, 10) is False, "an empty queue has more to rescore")


def queue_counts_its_calls(make: MakePolicy) -> None:
    """Length and iteration follow pushes, removals and refreshes, in any order."""

    @_PROPERTY
    @given(st.lists(st.tuples(st.sampled_from(["push", "remove", "refresh"]), st.integers(0, 7))))
    def follow(steps: list[tuple[str, int]]) -> None:
        fleet = _fleet()
        queue, tags = _queues(make, fleet)[0]
        here: dict[CallId, FakeCall] = {}
        calls = _calls(8)
        for action, number in steps:
            call = calls[number]
            call_id = call.spec.call_id
            if action == "push" and call_id not in here:
                queue.push(call, NOW_S)
                here[call_id] = call
            elif action == "remove" and call_id in here:
                queue.remove(call_id)
                del here[call_id]
            elif action == "refresh" and call_id in here:
                copy_figures(_calls(8, seed=number)[number], call)
                queue.refresh(call, NOW_S)
            ensure(len(queue) == len(here), f"{len(queue)} counted, {len(here)} queued")
            ids = sorted(waiting.spec.call_id for waiting in queue)
            ensure(ids == sorted(here), f"iterates over {ids}, {sorted(here)} queued")
            offered = _offer(queue, tags)
            ensure(offered is None or offered.spec.call_id in here, "offers a call that is gone")

    follow()


def select_leaves_the_call(make: MakePolicy) -> None:
    """Selecting is asking: asked again, the queue answers the same and is as long."""
    for size in _SIZES:
        for queue, tags in _filled(make, _calls(size)):
            for tag in tags:
                first, second = queue.select(tag, NOW_S), queue.select(tag, NOW_S)
                ensure(first is second, f"asked twice for a seat {tag!r}, answered twice")
                ensure(len(queue) == size, "selecting changed the queue")


def queue_always_offers(make: MakePolicy) -> None:
    """Where an instance is idle and calls wait, one of its open seats gets a call."""
    for size in _SIZES[1:]:
        for queue, tags in _filled(make, _calls(size)):
            ensure(_offer(queue, tags) is not None, f"{size} calls wait and none may go")


def removed_calls_stay_away(make: MakePolicy) -> None:
    """Taken out one after the other, every call comes up once; who is gone cannot be removed."""
    for size in _SIZES:
        calls = _calls(size)
        for queue, tags in _filled(make, calls):
            drained = _drain(queue, tags)
            ensure(sorted(drained) == sorted(c.spec.call_id for c in calls), f"drained {drained}")
            ensure(len(queue) == 0, "something is left after the last call")
            for absent in (CallId("never came"), *drained[:1]):
                try:
                    queue.remove(absent)
                except KeyError:
                    continue
                raise ConformanceError(f"removing {absent!r}, which is not here, raised nothing")


def order_repeats_itself(make: MakePolicy) -> None:
    """The same calls come out in the same order from another policy of the same make."""
    for size in _SIZES:
        one = [_drain(queue, tags) for queue, tags in _filled(make, _calls(size))]
        two = [_drain(queue, tags) for queue, tags in _filled(make, _calls(size))]
        ensure(one == two, "two queues with the same history went different ways")


def refresh_orders_anew(make: MakePolicy) -> None:
    """After calls have changed and been refreshed, the order is that of a fresh queue."""

    @_PROPERTY
    @given(st.lists(st.integers(0, _MANY - 1), max_size=40), st.integers(0, 5))
    def change(changed: list[int], seed: int) -> None:
        fleet = _fleet()
        calls, others = _calls(_MANY), _calls(_MANY, seed=100 + seed)
        queues = _queues(make, fleet)
        for queue, _ in queues:
            _push_all(queue, calls)
        for number in changed:
            copy_figures(others[number], calls[number])
            for queue, _ in queues:
                queue.refresh(calls[number], NOW_S)
        _ensure_fresh(make, fleet, queues, calls, NOW_S, "after a refresh")

    change()


def rescoring_catches_up(make: MakePolicy) -> None:
    """Bounded pieces of rescoring come to an end, at the order of a queue that starts now."""
    fleet, calls = _fleet(), _calls(_MANY)
    queues = _queues(make, fleet)
    for queue, _ in queues:
        _push_all(queue, calls)
        pieces = 0
        while queue.rescore(LATER_S, 7):
            pieces += 1
            ensure(pieces <= 10 * _MANY, "rescoring never ends")
    _ensure_fresh(make, fleet, queues, calls, LATER_S, "after rescoring")


QUEUE_CHECKS = (
    queue_starts_empty,
    queue_counts_its_calls,
    select_leaves_the_call,
    queue_always_offers,
    removed_calls_stay_away,
    order_repeats_itself,
    refresh_orders_anew,
    rescoring_catches_up,
)


# --- helpers ------------------------------------------------------------------------------------

_Queues = Sequence[tuple[CallQueue, Sequence[SeatTag]]]


def _fleet() -> FakeFleet:
    return random_fleet(random.Random(11), 3)


def _calls(size: int, seed: int = 12) -> list[FakeCall]:
    rng = random.Random(seed)
    return [random_call(rng, sequence) for sequence in range(size)]


def _queues(make: MakePolicy, fleet: FakeFleet) -> _Queues:
    """One at an instance and one for held calls, with the seats of an idle instance.

    Each of a policy of its own: queues of one policy may share counters, so that what leaves one
    rightly changes the order of the other.
    """
    places: tuple[InstanceView | None, ...] = (next(iter(fleet.instances.values())), None)
    queues = []
    for place in places:
        policy = make()
        tags = policy.admission.open_seats(fake_instance("idle"), NOW_S)
        queues.append((policy.ordering.queue(place, fleet), tags))
    return queues


def _filled(make: MakePolicy, calls: Sequence[FakeCall]) -> _Queues:
    queues = _queues(make, _fleet())
    for queue, _ in queues:
        _push_all(queue, calls)
    return queues


def _push_all(queue: CallQueue, calls: Sequence[FakeCall], now_s: float = NOW_S) -> None:
    for call in calls:
        queue.push(call, now_s)


def _offer(queue: CallQueue, tags: Sequence[SeatTag], now_s: float = NOW_S) -> CallView | None:
    offers = (queue.select(tag, now_s) for tag in tags)
    return next((offer for offer in offers if offer is not None), None)


def _drain(queue: CallQueue, tags: Sequence[SeatTag], now_s: float = NOW_S) -> list[CallId]:
    drained: list[CallId] = []
    for _ in range(len(queue)):
        offer = _offer(queue, tags, now_s)
        if offer is None:
            break
        drained.append(offer.spec.call_id)
        queue.remove(offer.spec.call_id)
    return drained


def _ensure_fresh(
    make: MakePolicy,
    fleet: FakeFleet,
    queues: _Queues,
    calls: Sequence[FakeCall],
    now_s: float,
    when: str,
) -> None:
    for (queue, tags), (fresh, _) in zip(queues, _queues(make, fleet), strict=True):
        _push_all(fresh, calls, now_s)
        old, new = _drain(queue, tags, now_s), _drain(fresh, tags, now_s)
        ensure(old == new, f"{when} the order is {old}, of a fresh queue {new}")
