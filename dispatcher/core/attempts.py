"""Attempts: what is out at the engines, from `Dispatch` to `AttemptEnded`, and what they teach."""

from __future__ import annotations

from dataclasses import dataclass

from dispatcher.core.call import Attempt, Call, Place
from dispatcher.core.commands import Dispatch
from dispatcher.core.errors import InvariantError
from dispatcher.core.events import AttemptEnded
from dispatcher.core.fleet import Fleet
from dispatcher.core.instance import Instance, context_tokens
from dispatcher.core.ports import AttemptTiming, CostModel, LengthPredictor, Policy
from dispatcher.core.types import AttemptId, Outcome, SeatTag, Usage

#: What JSON carries exactly; engines take 64 bits.
_PRIORITY_BOUND = 2**53 - 1
#: Attempts that end together say the same of their instance: one in so long teaches its times.
_TIMES_INTERVAL_S = 0.02


@dataclass(frozen=True, slots=True)
class Prepared:
    """An attempt that is worked out and not yet booked."""

    attempt: Attempt
    compute_s: float
    engine_priority: int


class Attempts:
    """Books of what is in flight. Only the coordinator calls it."""

    def __init__(
        self, fleet: Fleet, lengths: LengthPredictor, costs: CostModel, epoch_s: float
    ) -> None:
        self.live: dict[AttemptId, Attempt] = {}
        self._fleet = fleet
        self._lengths = lengths
        self._costs = costs
        self._epoch_s = epoch_s
        self._made = 0

    def prepare(
        self, call: Call, instance: Instance, seat: SeatTag, policy: Policy, now_s: float
    ) -> Prepared:
        """Work out all that sending needs. Books nothing: whatever raises here does no harm."""
        start_s = policy.ordering.latest_start_s(call, instance, self._fleet, now_s)
        seats = call.spec.seats
        attempt = Attempt(
            attempt_id=AttemptId(self._made + 1),
            call=call,
            instance=instance,
            seat=seat,
            dispatched_s=now_s,
            resumed_tokens=call.generated_tokens,
            pending_prefill_s=self._fleet.prefill_s(call, instance) * call.spec.prompts,
            remaining_tokens=call.remaining_tokens * seats,
            context_tokens=context_tokens(call),
            left_tokens=self._fleet.sessions.left_tokens(call.spec, instance),
            expected_cached_tokens=self._fleet.cached_tokens(call, instance) * call.spec.prompts,
        )
        compute_s = self._fleet.compute_s(call, instance)
        return Prepared(attempt, compute_s, self._engine_priority(start_s))

    def send(self, prepared: Prepared, now_s: float) -> Dispatch:
        """Book a prepared attempt; the command that makes it real."""
        attempt = prepared.attempt
        call, instance = attempt.call, attempt.instance
        self._made += 1
        call.place = Place.IN_FLIGHT
        call.instance = instance
        call.attempt = attempt
        call.served_by = instance.instance_id
        call.attempts_made += 1
        call.predicted_compute_s = prepared.compute_s
        # HexGen-Flow, Eq. 7: positive is already late
        call.urgency_s = prepared.compute_s - (call.budget.stage_deadline_s - now_s)
        if call.first_dispatched_s is None:
            call.first_dispatched_s = now_s
        instance.add(attempt, now_s)
        self.live[attempt.attempt_id] = attempt
        return Dispatch(
            call.call_id,
            attempt.attempt_id,
            instance.instance_id,
            prepared.engine_priority,
            call.generated_tokens,
        )

    def _engine_priority(self, latest_start_s: float | None) -> int:
        if latest_start_s is None:
            return 0
        milliseconds = round(1000.0 * (latest_start_s - self._epoch_s))
        return max(-_PRIORITY_BOUND, min(_PRIORITY_BOUND, milliseconds))

    def first_token(self, attempt_id: AttemptId, now_s: float) -> None:
        """The first token has come; ignored when the attempt is over."""
        attempt = self.live.get(attempt_id)
        if attempt is not None and attempt.first_token_s is None:
            self._note_first_token(attempt, now_s)
            attempt.instance.progress(attempt, now_s)

    def progress(self, attempt_id: AttemptId, output_tokens: int, now_s: float) -> None:
        """So many tokens have come; ignored when the attempt is over."""
        attempt = self.live.get(attempt_id)
        if attempt is not None:
            _count_tokens(attempt, output_tokens)
            attempt.call.refine()
            attempt.instance.progress(attempt, now_s)

    def end(self, event: AttemptEnded, now_s: float) -> Attempt:
        """Take an attempt off the books, learn from it. Raises where it was not on them."""
        attempt = self.live.pop(event.attempt_id, None)
        if attempt is None:
            raise InvariantError(f"attempt {event.attempt_id} ended twice or was never sent")
        usage = event.usage
        if usage is None:
            _count_tokens(attempt, event.output_tokens)
        else:
            # the engine's word wins, also where we had counted more
            _correct_tokens(attempt, usage.output_tokens)
        if event.first_token_s is not None and attempt.first_token_s is None:
            self._note_first_token(attempt, event.first_token_s)
        attempt.instance.drop(attempt, now_s)
        attempt.call.attempt = None
        attempt.call.token_lag_s = event.token_lag_s
        if event.outcome is Outcome.OK and now_s > attempt.dispatched_s:
            load = _mean_load(attempt, now_s - attempt.dispatched_s)
            attempt.call.ran_tpot_s = self._costs.tpot_s(attempt.instance.instance_id, *load)
        if event.outcome is Outcome.OK and usage is not None:
            self._learn(attempt, usage, now_s)
        return attempt

    def _note_first_token(self, attempt: Attempt, at_s: float) -> None:
        attempt.first_token_s = at_s
        if attempt.call.first_token_s is None:
            attempt.call.first_token_s = at_s

    def _learn(self, attempt: Attempt, usage: Usage, now_s: float) -> None:
        call, instance = attempt.call, attempt.instance
        total_s = now_s - attempt.dispatched_s
        if total_s <= 0.0 or attempt.resumed_tokens:
            return
        instance.saw_cache(usage.prompt_tokens, usage.cached_tokens, cold=not attempt.left_tokens)
        instance.expected_cached_total += attempt.expected_cached_tokens
        if attempt.left_tokens:
            self._fleet.sessions.learn(call.spec, attempt.left_tokens, usage)
        if usage.output_tokens <= 0:
            return  # nothing was asked for, or the engine does not count
        output_tokens = max(1, round(usage.output_tokens / call.spec.seats))
        self._lengths.learn(call.spec, output_tokens)
        if call.spec.prompts > 1:
            return  # its times are those of many prefills, one after another
        if now_s - instance.timed_s < _TIMES_INTERVAL_S:
            return
        instance.timed_s = now_s
        first_s = attempt.first_token_s if call.spec.streaming else None
        running, resident = _mean_load(attempt, total_s)
        self._costs.learn(
            AttemptTiming(
                instance_id=instance.instance_id,
                prompt_tokens=usage.prompt_tokens,
                cached_tokens=usage.cached_tokens,
                output_tokens=output_tokens,
                ttft_s=None if first_s is None else first_s - attempt.dispatched_s,
                decode_s=None if first_s is None else now_s - first_s,
                total_s=total_s,
                mean_running=running,
                mean_resident_tokens=resident,
            )
        )


def _mean_load(attempt: Attempt, total_s: float) -> tuple[float, float]:
    """Calls, at least 1, and tokens in flight at its instance, averaged over its life."""
    instance = attempt.instance
    running = (instance.running_integral - attempt.running_integral) / total_s
    resident = (instance.resident_integral - attempt.resident_integral) / total_s
    return max(1.0, running), max(0.0, resident)


def _count_tokens(attempt: Attempt, output_tokens: int) -> None:
    """Take a running count; one that falls behind an earlier one says nothing new."""
    _correct_tokens(attempt, max(attempt.output_tokens, output_tokens))


def _correct_tokens(attempt: Attempt, output_tokens: int) -> None:
    new = output_tokens - attempt.output_tokens
    attempt.output_tokens += new
    attempt.call.generated_tokens += new
    attempt.instance.tokens_total += new
