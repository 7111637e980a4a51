"""One engine as the coordinator keeps it: what is queued there, what is in flight, what it adds."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dispatcher.core.call import Attempt, Call
from dispatcher.core.ports import CallQueue
from dispatcher.core.seats import SeatController
from dispatcher.core.types import AttemptId, CallSpec, EngineGauges, InstanceSpec
from dispatcher.core.views import AttemptView

_CACHED_SHARE_WEIGHT = 0.05
"""Of the latest call in the shares of prompts that caches spare."""


class Instance:
    """One engine, with its queue and its attempts."""

    def __init__(self, spec: InstanceSpec, order: int) -> None:
        self.spec = spec
        #: short for `spec.instance_id`, which never changes
        self.instance_id = spec.instance_id
        #: position in the fleet; decides ties
        self.order = order
        self.up = True
        self.draining = False
        self.removing = False
        self.queue: CallQueue | None = None
        self.gauges = EngineGauges()
        self.controller: SeatController | None = None
        self.seats_in_use = 0
        self.in_flight_tokens = 0
        #: output tokens from here since it joined
        self.tokens_total = 0
        #: share of prompt tokens found in its prefix cache, moving average
        self.cached_share = 0.0
        #: the same of calls whose session had left nothing here
        self.cold_share = 0.0
        #: of calls that ended well here: prompts, what of them was found cached, and how much of
        #: them was expected to be
        self.prompt_tokens_total = self.cached_tokens_total = 0
        self.expected_cached_total = 0.0
        #: calls in its queue
        self.queued = 0
        self.queued_seats = 0
        self.queued_prefill_s = 0.0
        self.queued_output_tokens = 0.0
        #: of attempts without a first token
        self.pending_prefill_s = 0.0
        #: of those among them that stream, and how many these are
        self.watched_prefill_s = 0.0
        self.watched_prefills = 0
        #: when the prefills of the others would be done, one after another: nothing tells of it
        self.unwatched_until_s = 0.0
        self.remaining_tokens = 0.0
        self.running_integral = 0.0
        self.resident_integral = 0.0
        self._integrated_s = 0.0
        #: when an attempt last taught its times
        self.timed_s = float("-inf")
        #: TPOT and backlog at the present load; `None` when that has changed
        self.tpot_s: float | None = None
        self.backlog_s: float | None = None
        self._attempts: dict[AttemptId, Attempt] = {}
        self.in_flight: Mapping[AttemptId, AttemptView] = MappingProxyType(self._attempts)
        self.respec(spec)

    def respec(self, spec: InstanceSpec) -> None:
        """Take what the instance now says of itself; learned seats are kept."""
        self.spec = spec
        self.load_changed()
        if spec.seats is not None:
            self.controller = None
        elif self.controller is None:
            self.controller = SeatController()

    @property
    def available(self) -> bool:
        """Up and not draining."""
        return self.up and not self.draining

    @property
    def seats(self) -> int:
        """Fixed by its specification, or found by the controller; at least 1."""
        if self.spec.seats is not None:
            return self.spec.seats
        assert self.controller is not None
        return self.controller.seats

    @property
    def attempts(self) -> Mapping[AttemptId, Attempt]:
        """The coordinator's own records of what is out."""
        return self._attempts

    def fits(self, spec: CallSpec) -> bool:
        """Whether it can serve the call, up or not."""
        own = self.spec
        return (
            spec.model in own.models
            and spec.task in own.tasks
            and spec.prompt_tokens <= own.max_model_len
            and spec.modalities <= own.modalities
            and (spec.pinned_to is None or spec.pinned_to == own.instance_id)
        )

    def load_changed(self) -> None:
        """What was worked out of its load is stale."""
        self.tpot_s = self.backlog_s = None

    def integrate(self, now_s: float) -> None:
        """Bring the time integrals of the load up to now; before every change of it."""
        self.load_changed()
        span_s = now_s - self._integrated_s
        self.running_integral += span_s * self.seats_in_use
        self.resident_integral += span_s * self.in_flight_tokens
        self._integrated_s = now_s

    def add(self, attempt: Attempt, now_s: float) -> None:
        """An attempt goes out."""
        self.integrate(now_s)
        attempt.running_integral = self.running_integral
        attempt.resident_integral = self.resident_integral
        self._attempts[attempt.attempt_id] = attempt
        self.seats_in_use += attempt.call.spec.seats
        self.in_flight_tokens += attempt.context_tokens
        self.pending_prefill_s += attempt.pending_prefill_s
        if attempt.call.spec.streaming:
            self.watched_prefill_s += attempt.pending_prefill_s
            self.watched_prefills += attempt.pending_prefill_s > 0.0
        else:
            until_s = max(self.unwatched_until_s, now_s)
            self.unwatched_until_s = until_s + attempt.pending_prefill_s
        self.remaining_tokens += attempt.remaining_tokens

    def drop(self, attempt: Attempt, now_s: float) -> None:
        """An attempt is over."""
        self.integrate(now_s)
        del self._attempts[attempt.attempt_id]
        self.seats_in_use -= attempt.call.spec.seats
        self.in_flight_tokens -= attempt.context_tokens
        self._prefilled(attempt, now_s)
        self.remaining_tokens -= attempt.remaining_tokens
        if not self._attempts:
            # sums of floats drift; an empty instance is exactly empty
            self.pending_prefill_s = self.watched_prefill_s = self.remaining_tokens = 0.0
            self.unwatched_until_s = 0.0

    def _prefilled(self, attempt: Attempt, now_s: float) -> None:
        """Its prefill is done, or over."""
        if attempt.pending_prefill_s:
            self.pending_prefill_s -= attempt.pending_prefill_s
            if attempt.call.spec.streaming:
                self.watched_prefill_s -= attempt.pending_prefill_s
                self.watched_prefills -= 1
            else:
                # no more is ahead than what is out has left: this one was quicker, or stopped
                left_s = max(0.0, self.pending_prefill_s - self.watched_prefill_s)
                self.unwatched_until_s = min(self.unwatched_until_s, now_s + left_s)
            attempt.pending_prefill_s = 0.0

    def progress(self, attempt: Attempt, now_s: float) -> None:
        """An attempt has a first token, or more tokens, or a new estimate."""
        self.integrate(now_s)
        call = attempt.call
        started = attempt.first_token_s is not None or attempt.assumed_tokens > 0.0
        if started:
            self._prefilled(attempt, now_s)
        remaining = max(1.0, call.remaining_tokens - attempt.assumed_tokens) * call.spec.seats
        self.remaining_tokens += remaining - attempt.remaining_tokens
        attempt.remaining_tokens = remaining
        context = context_tokens(call)
        self.in_flight_tokens += context - attempt.context_tokens
        attempt.context_tokens = context

    def saw_cache(self, prompt_tokens: int, cached_tokens: int, *, cold: bool) -> None:
        """The engine said how much of a prompt it found in its prefix cache.

        Args:
            prompt_tokens: Of all prompts of the call.
            cached_tokens: Those of them that were found.
            cold: Nothing of the call's session was thought to be here.
        """
        if prompt_tokens > 0:
            self.prompt_tokens_total += prompt_tokens
            self.cached_tokens_total += cached_tokens
            share = min(1.0, cached_tokens / prompt_tokens)
            self.cached_share += _CACHED_SHARE_WEIGHT * (share - self.cached_share)
            if cold:
                self.cold_share += _CACHED_SHARE_WEIGHT * (share - self.cold_share)


def context_tokens(call: Call) -> int:
    """Tokens a call keeps resident: prompts, and output so far or (unseen) half of what is due."""
    seats = call.spec.seats
    seen = max(call.generated_tokens / seats, call.length.expected_tokens / 2)
    return call.spec.prompt_tokens * call.spec.prompts + int(seen) * seats
