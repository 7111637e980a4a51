"""How full engines' KV caches are, told from our own count and from what their gauges say.

What `policies.token_budget` needs to know, kept warm whatever policy is active: an observer.

Our own count (`InstanceView.in_flight_tokens`) is exact about what is out and immediate. It does
not know that prompts share their beginning, nor that blocks are filled in part. An engine's gauge
knows both, but comes seconds late. So the gauge corrects the count: whenever it is read, the share
of the count that it confirms is learned, and the count of any later moment is multiplied by it.
Calls without a first token are being read in and hold something between nothing and their prompt;
where they are more than half of what is out, a reading says nothing. Nor does one of 0.

What no count foresees, such as answers that all become longer than predicted, shows as preemptions.
An engine that has preempted since the last reading is given a twentieth less from then on, at least
four fifths of what it has, and gets it back at a thousandth per second: additive increase,
multiplicative decrease. One cut has `_SETTLE_S` to show, since what is in flight stays there.

Prompts that go out fill a leaky bucket per instance; who asks says how fast it leaks. It holds no
more than the prompts of calls that have no first token, and nothing when the engine says that no
call of it waits: the speed at which it reads prompts is an estimate.
"""

from __future__ import annotations

from dataclasses import dataclass

from dispatcher.core.events import (
    AttemptEnded,
    Dispatched,
    Event,
    FirstToken,
    InstanceObserved,
)
from dispatcher.core.types import AttemptId, EngineGauges, InstanceId
from dispatcher.core.views import AttemptView, FleetView, InstanceView

_WEIGHT = 0.2
"""Of the latest reading."""
_BOUNDS = (0.1, 2.0)
_CUT = 0.95
_LEAST_MARGIN = 0.8
_SETTLE_S = 10.0
_REGAINED_PER_S = 0.001


@dataclass(slots=True)
class _Book:
    confirmed: float = 1.0
    """Part of our count that the engine's gauge sees."""
    margin: float = 1.0
    """Part of its KV cache that it takes without preempting."""
    preemptions_total: int | None = None
    cut_s: float = float("-inf")
    """When its margin was last cut."""
    read_s: float = 0.0
    """When its gauges were last read."""
    level_tokens: float = 0.0
    """Prompt tokens in the bucket."""
    rate: float = 0.0
    """Tokens per second that leak, as was last said."""
    leaked_s: float = 0.0
    """When it last leaked."""
    unread_tokens: float = 0.0
    """Prompt tokens of calls that are out and have no first token."""


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
        #: attempts without a first token -> where, and how many prompt tokens
        self._unread: dict[AttemptId, tuple[InstanceId, float]] = {}

    def used_tokens(self, instance: InstanceView) -> float:
        """KV tokens that calls in flight keep there."""
        book = self._books.get(instance.spec.instance_id)
        tokens = float(instance.in_flight_tokens)
        return tokens if book is None else tokens * book.confirmed

    def margin(self, instance: InstanceView) -> float:
        """Part of its KV cache that it has been taking without preempting, 0.8 to 1."""
        book = self._books.get(instance.spec.instance_id)
        return 1.0 if book is None else book.margin

    def level(self, instance_id: InstanceId, rate: float, now_s: float) -> float:
        """Prompt tokens in the bucket, which leaks `rate` per second from its last change on."""
        book = self._books.get(instance_id)
        if book is None:
            return 0.0
        book.rate = rate
        _leak(book, now_s)
        return book.level_tokens

    def observe(self, event: Event | Dispatched, fleet: FleetView, now_s: float) -> None:
        """Follow what goes out, and what engines say of themselves."""
        self.fleet = fleet
        match event:
            case Dispatched():
                self._pour(event, fleet, now_s)
            case FirstToken() | AttemptEnded():
                self._has_been_read(event.attempt_id)
            case InstanceObserved():
                self._read(event.instance_id, event.gauges, fleet, now_s)
            case _:
                pass

    def _pour(self, event: Dispatched, fleet: FleetView, now_s: float) -> None:
        instance, spec = fleet.instances[event.instance_id], event.call.spec
        book = self._book(event.instance_id, fleet)
        _leak(book, now_s)
        done = event.call.generated_tokens / spec.seats
        prompt = spec.prompt_tokens + done - fleet.cached_tokens(event.call, instance)
        tokens = max(0.0, prompt) * spec.prompts
        book.level_tokens += tokens
        book.unread_tokens += tokens
        self._unread[event.attempt_id] = (event.instance_id, tokens)

    def _has_been_read(self, attempt_id: AttemptId) -> None:
        instance_id, tokens = self._unread.pop(attempt_id, (None, 0.0))
        book = None if instance_id is None else self._books.get(instance_id)
        if book is not None:
            # sums of floats drift
            book.unread_tokens = max(0.0, book.unread_tokens - tokens)

    def _read(
        self, instance_id: InstanceId, gauges: EngineGauges, fleet: FleetView, now_s: float
    ) -> None:
        book = self._book(instance_id, fleet)
        before, book.preemptions_total = book.preemptions_total, gauges.preemptions_total
        since_s, book.read_s = now_s - book.read_s, now_s
        if not gauges.waiting:
            book.level_tokens = 0.0
        # an engine that begins anew counts from nothing
        if before is not None and gauges.preemptions_total > before:
            if now_s - book.cut_s >= _SETTLE_S:
                book.margin, book.cut_s = max(_LEAST_MARGIN, _CUT * book.margin), now_s
        else:
            book.margin = min(1.0, book.margin + _REGAINED_PER_S * since_s)
        self._confirm(book, fleet.instances[instance_id], gauges, fleet, now_s)

    def _confirm(
        self,
        book: _Book,
        instance: InstanceView,
        gauges: EngineGauges,
        fleet: FleetView,
        now_s: float,
    ) -> None:
        """Learn which part of our count the gauge sees."""
        capacity = instance.spec.kv_capacity_tokens
        # some engines do not say: none has nothing in its cache while calls decode
        if capacity is None or not instance.in_flight or gauges.kv_usage <= 0.0:
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
        low, high = _BOUNDS
        book.confirmed += _WEIGHT * (min(max(seen, low), high) - book.confirmed)

    def _book(self, instance_id: InstanceId, fleet: FleetView) -> _Book:
        book = self._books.get(instance_id)
        if book is None:
            book = self._books[instance_id] = _Book()
            if len(self._books) > len(fleet.instances):
                self._books = {i: b for i, b in self._books.items() if i in fleet.instances}
        return book


def _leak(book: _Book, now_s: float) -> None:
    leaked = max(0.0, book.level_tokens - book.rate * (now_s - book.leaked_s))
    book.level_tokens = min(leaked, book.unread_tokens)
    book.leaked_s = now_s


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
