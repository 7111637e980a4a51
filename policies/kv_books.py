"""How full engines' KV caches are, told from our own count and from what their gauges say.

What `policies.token_budget` needs to know, kept warm whatever policy is active: an observer.

Our own count (`InstanceView.in_flight_tokens`) is exact about what is out and immediate. It does
not know that prompts share their beginning, nor that blocks are filled in part. An engine's gauge
knows both, but comes seconds late. So the gauge corrects the count: whenever it is read, the share
of the count that it confirms is learned, and the count of any later moment is multiplied by it.
Calls without a first token are being read in and hold something between nothing and their prompt;
where they are more than half of what is out, a reading says nothing.

Prompts that go out fill a leaky bucket per instance; who asks says how fast it leaks.
"""

from __future__ import annotations

from dataclasses import dataclass

from dispatcher.core.events import Dispatched, Event, InstanceObserved
from dispatcher.core.types import EngineGauges, InstanceId
from dispatcher.core.views import AttemptView, FleetView, InstanceView

_WEIGHT = 0.2
"""Of the latest reading."""
_BOUNDS = (0.1, 2.0)
_FORGET_S = 10.0
"""A bucket that nobody has asked about for so long is empty."""


@dataclass(slots=True)
class _Book:
    confirmed: float = 1.0
    """Part of our count that the engine's gauge sees."""
    level_tokens: float = 0.0
    """Prompt tokens in the bucket."""
    leaked_s: float = 0.0
    """When it last leaked."""


class KvBooks:
    """Corrections and buckets by instance: an `Observer`; O(1), O(calls in flight) per reading.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> out = {1: Fake(first_token_s=1.0, dispatched_s=0.0, output_tokens=0, call=Fake(
        ...     spec=Fake(prompt_tokens=6_000, prompts=1, seats=1, streaming=True),
        ...     generated_tokens=0, length=Fake(expected_tokens=0.0)))}
        >>> gauges = EngineGauges(running=1, kv_usage=0.3)
        >>> there = Fake(spec=Fake(instance_id="i", kv_capacity_tokens=10_000), gauges=gauges,
        ...              in_flight=out, in_flight_tokens=6_000)
        >>> books = KvBooks()
        >>> observed = InstanceObserved(InstanceId("i"), gauges)
        >>> books.observe(observed, Fake(instances={"i": there}), 2.0)
        >>> round(books.used_tokens(there))
        5400
    """

    def __init__(self) -> None:
        #: as of the latest event
        self.fleet: FleetView | None = None
        self._books: dict[InstanceId, _Book] = {}

    def used_tokens(self, instance: InstanceView) -> float:
        """KV tokens that calls in flight keep there."""
        book = self._books.get(instance.spec.instance_id)
        tokens = float(instance.in_flight_tokens)
        return tokens if book is None else tokens * book.confirmed

    def level(self, instance_id: InstanceId, rate: float, now_s: float) -> float:
        """Prompt tokens in the bucket, which has leaked `rate` per second since it was asked."""
        book = self._books.get(instance_id)
        if book is None:
            return 0.0
        book.level_tokens = max(0.0, book.level_tokens - rate * (now_s - book.leaked_s))
        book.leaked_s = now_s
        return book.level_tokens

    def observe(self, event: Event | Dispatched, fleet: FleetView, now_s: float) -> None:
        """Follow what goes out, and what engines say of themselves."""
        self.fleet = fleet
        match event:
            case Dispatched():
                self._pour(event, fleet, now_s)
            case InstanceObserved():
                self._read(event.instance_id, event.gauges, fleet, now_s)
            case _:
                pass

    def _pour(self, event: Dispatched, fleet: FleetView, now_s: float) -> None:
        instance, spec = fleet.instances[event.instance_id], event.call.spec
        book = self._book(event.instance_id, fleet)
        if now_s - book.leaked_s > _FORGET_S:
            book.level_tokens, book.leaked_s = 0.0, now_s
        done = event.call.generated_tokens / spec.seats
        prompt = spec.prompt_tokens + done - fleet.cached_tokens(event.call, instance)
        book.level_tokens += max(0.0, prompt) * spec.prompts

    def _read(
        self, instance_id: InstanceId, gauges: EngineGauges, fleet: FleetView, now_s: float
    ) -> None:
        instance = fleet.instances[instance_id]
        capacity = instance.spec.kv_capacity_tokens
        if capacity is None or not instance.in_flight:
            return
        begun = under_way = 0.0
        for attempt in instance.in_flight.values():
            tokens = _context_tokens(attempt)
            if _has_begun(attempt, instance, fleet, now_s):
                begun += tokens
            else:
                under_way += tokens
        if begun <= under_way:
            return
        seen = gauges.kv_usage * capacity / (begun + under_way / 2.0)
        book = self._book(instance_id, fleet)
        low, high = _BOUNDS
        book.confirmed += _WEIGHT * (min(max(seen, low), high) - book.confirmed)

    def _book(self, instance_id: InstanceId, fleet: FleetView) -> _Book:
        book = self._books.get(instance_id)
        if book is None:
            book = self._books[instance_id] = _Book()
            if len(self._books) > len(fleet.instances):
                self._books = {i: b for i, b in self._books.items() if i in fleet.instances}
        return book


def _context_tokens(attempt: AttemptView) -> float:
    """As the coordinator counts it: output so far, or half of what is expected."""
    call = attempt.call
    spec = call.spec
    output_tokens = max(call.generated_tokens / spec.seats, call.length.expected_tokens / 2.0)
    return spec.prompt_tokens * spec.prompts + output_tokens * spec.seats


def _has_begun(
    attempt: AttemptView, instance: InstanceView, fleet: FleetView, now_s: float
) -> bool:
    """Whether its prompt is in the cache: it streams, or has been out for twice its prefill."""
    if attempt.first_token_s is not None:
        return True
    if attempt.call.spec.streaming:
        return False
    prefill_s = fleet.prefill_s(attempt.call, instance) * attempt.call.spec.prompts
    return now_s - attempt.dispatched_s > 2.0 * prefill_s
