"""The instances: what is queued and in flight at each, and what the cost model says of it.

Loads are kept as running sums, so that a backlog costs O(1) however much waits:
W = (sum of queued t_comp + sum of in-flight rem) / m, where decode time is tokens x TPOT and TPOT
is one figure for the whole instance at its present load. A call of several sequences counts once
per sequence, since it takes as many of the m seats.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType

from dispatcher.core.call import Attempt, Call
from dispatcher.core.errors import UnknownInstanceError
from dispatcher.core.ports import CallQueue, CostModel, WorkflowTracker, WorkSeconds
from dispatcher.core.seats import SeatController
from dispatcher.core.types import (
    AttemptId,
    CallId,
    CallSpec,
    EngineGauges,
    InstanceId,
    InstanceSpec,
    WorkflowId,
)
from dispatcher.core.views import AttemptView, CallView, InstanceView

_MEANS_MAX_AGE_S = 1.0
_MEANS_BOUND = 256
_PROBE_TOKENS = 1000.0
_CACHED_SHARE_WEIGHT = 0.05


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
        self.queued_seats = 0
        self.queued_prefill_s = 0.0
        self.queued_output_tokens = 0.0
        self.pending_prefill_s = 0.0
        self.remaining_tokens = 0.0
        self.running_integral = 0.0
        self.resident_integral = 0.0
        self._integrated_s = 0.0
        #: when an attempt last taught its times
        self.timed_s = float("-inf")
        #: TPOT at the present load; `None` when that has changed
        self.tpot_s: float | None = None
        self._attempts: dict[AttemptId, Attempt] = {}
        self.in_flight: Mapping[AttemptId, AttemptView] = MappingProxyType(self._attempts)
        self.respec(spec)

    def respec(self, spec: InstanceSpec) -> None:
        """Take what the instance now says of itself; learned seats are kept."""
        self.spec = spec
        self.tpot_s = None
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
    def queued(self) -> int:
        """Calls in its queue."""
        return 0 if self.queue is None else len(self.queue)

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

    def integrate(self, now_s: float) -> None:
        """Bring the time integrals of the load up to now; before every change of it."""
        self.tpot_s = None
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
        self.remaining_tokens += attempt.remaining_tokens

    def drop(self, attempt: Attempt, now_s: float) -> None:
        """An attempt is over."""
        self.integrate(now_s)
        del self._attempts[attempt.attempt_id]
        self.seats_in_use -= attempt.call.spec.seats
        self.in_flight_tokens -= attempt.context_tokens
        self.pending_prefill_s -= attempt.pending_prefill_s
        self.remaining_tokens -= attempt.remaining_tokens
        if not self._attempts:
            # sums of floats drift; an empty instance is exactly empty
            self.pending_prefill_s = self.remaining_tokens = 0.0

    def progress(self, attempt: Attempt, now_s: float) -> None:
        """An attempt has a first token, or more tokens, or a new estimate."""
        self.integrate(now_s)
        call = attempt.call
        started = attempt.first_token_s is not None or attempt.assumed_tokens > 0.0
        if started and attempt.pending_prefill_s:
            self.pending_prefill_s -= attempt.pending_prefill_s
            attempt.pending_prefill_s = 0.0
        remaining = max(1.0, call.remaining_tokens - attempt.assumed_tokens) * call.spec.seats
        self.remaining_tokens += remaining - attempt.remaining_tokens
        attempt.remaining_tokens = remaining
        context = context_tokens(call)
        self.in_flight_tokens += context - attempt.context_tokens
        attempt.context_tokens = context

    def saw_cache(self, prompt_tokens: int, cached_tokens: int) -> None:
        """An engine said how much of a prompt it found in its prefix cache."""
        if prompt_tokens > 0:
            share = min(1.0, cached_tokens / prompt_tokens)
            self.cached_share += _CACHED_SHARE_WEIGHT * (share - self.cached_share)


def context_tokens(call: Call) -> int:
    """Tokens a call keeps resident: prompts, and output so far or (unseen) half of what is due."""
    seats = call.spec.seats
    seen = max(call.generated_tokens / seats, call.length.expected_tokens / 2)
    return call.spec.prompt_tokens * call.spec.prompts + int(seen) * seats


class Fleet:
    """All instances; the `FleetView` that policies see."""

    def __init__(
        self, costs: CostModel, tracker: WorkflowTracker, calls: Mapping[CallId, Call]
    ) -> None:
        self._costs = costs
        self._tracker = tracker
        self._calls = calls
        self._joined = 0
        self._all: dict[InstanceId, Instance] = {}
        self.instances: Mapping[InstanceId, InstanceView] = MappingProxyType(self._all)
        #: candidate set -> when worked out, and the mean work over it
        self._means: dict[frozenset[InstanceId], tuple[float, WorkSeconds]] = {}
        #: what a call asks for -> (longest prompt that all of them take, instances)
        self._fits: dict[tuple[object, ...], tuple[int, frozenset[InstanceId]]] = {}
        #: candidate set -> the longest context among them
        self._longest: dict[frozenset[InstanceId], int] = {}
        self.now_s = 0.0

    # --- membership ---

    def __iter__(self) -> Iterator[Instance]:
        return iter(self._all.values())

    def get(self, instance_id: InstanceId) -> Instance:
        """Raises `UnknownInstanceError`."""
        try:
            return self._all[instance_id]
        except KeyError:
            raise UnknownInstanceError(f"no instance {instance_id!r} in the fleet") from None

    def join(self, spec: InstanceSpec) -> Instance:
        """A new instance, or a known one with what it now serves."""
        instance = self._all.get(spec.instance_id)
        if instance is None:
            instance = Instance(spec, self._joined)
            instance.integrate(self.now_s)
            self._joined += 1
            self._all[spec.instance_id] = instance
        else:
            instance.respec(spec)
        self._costs.add_instance(spec)
        self.changed()
        return instance

    def leave(self, instance: Instance) -> None:
        """It is gone for good."""
        del self._all[instance.instance_id]
        self._costs.remove_instance(instance.instance_id)
        self.changed()

    def changed(self) -> None:
        """An instance came, went or serves other things: what was worked out is stale."""
        self._means.clear()
        self._fits.clear()
        self._longest.clear()

    def candidates(self, spec: CallSpec) -> frozenset[InstanceId]:
        """Instances that can serve the call, up or not.

        A prompt thought too long for every instance goes to those with the longest context: the
        estimate may be wrong, and the engine's own refusal says what is right.
        """
        asked = (spec.model, spec.task, spec.modalities, spec.pinned_to)
        known = self._fits.get(asked)
        if known is not None and spec.prompt_tokens <= known[0]:
            return known[1]
        found = [i for i in self._all.values() if i.fits(spec)]
        fits = frozenset(i.instance_id for i in found)
        if fits:
            if len(self._fits) >= _MEANS_BOUND:
                self._fits.clear()
            # only what fits a short prompt answers for every shorter one
            if len(found) == sum(spec.model in i.spec.models for i in self._all.values()):
                self._fits[asked] = (min(i.spec.max_model_len for i in found), fits)
            return fits
        serving = [
            i
            for i in self._all.values()
            if spec.model in i.spec.models
            and spec.task in i.spec.tasks
            and spec.modalities <= i.spec.modalities
            and (spec.pinned_to is None or spec.pinned_to == i.instance_id)
        ]
        longest = max((i.spec.max_model_len for i in serving), default=0)
        return frozenset(i.instance_id for i in serving if i.spec.max_model_len == longest)

    def available(self, call: Call) -> list[Instance]:
        """Candidates that can take the call now; those where it failed only if no other can."""
        able = call.candidates
        up = [i for i in self._all.values() if i.up and not i.draining and i.instance_id in able]
        if not call.avoid:
            return up
        return [i for i in up if i.instance_id not in call.avoid] or up

    # --- FleetView ---

    def call(self, call_id: CallId) -> CallView | None:
        """A call that has not ended."""
        return self._calls.get(call_id)

    def fits(self, call: CallView, instance: InstanceView) -> bool:
        """Whether the instance can serve the call."""
        return self._all[instance.spec.instance_id].fits(call.spec)

    def live_calls(self, workflow_id: WorkflowId, most: int | None = None) -> Sequence[CallView]:
        """Calls of a workflow that have not ended, in order of arrival; at most so many."""
        live = self._tracker.live_calls(workflow_id)
        return [self._calls[c] for c in islice(live, most) if c in self._calls]

    def prefill_s(self, call: CallView, instance: InstanceView) -> float:
        """Predicted prefill of one prompt there, with the prefix cache's average help."""
        own, spec = self._all[instance.spec.instance_id], call.spec
        prompt = spec.prompt_tokens + call.generated_tokens / spec.seats
        return self._costs.prefill_s(own.instance_id, prompt * (1.0 - own.cached_share))

    def tpot_s(self, instance: InstanceView) -> float:
        """Time per output token at the load the instance is about to have."""
        own = self._all[instance.spec.instance_id]
        if own.tpot_s is None:
            in_use = own.seats_in_use
            running = max(1, min(own.seats, in_use + own.queued_seats + 1))
            per_sequence = own.in_flight_tokens / in_use if in_use else 0.0
            own.tpot_s = self._costs.tpot_s(own.instance_id, running, per_sequence * running)
        return own.tpot_s

    def longest_output_tokens(self, candidates: frozenset[InstanceId], prompt_tokens: int) -> int:
        """Most output that any of them has room for; at least 1."""
        longest = self._longest.get(candidates)
        if longest is None:
            found = (
                i.spec.max_model_len for i in self._all.values() if i.instance_id in candidates
            )
            longest = self._longest[candidates] = max(found, default=1)
            if len(self._longest) > _MEANS_BOUND:
                self._longest.clear()
        return max(1, longest - prompt_tokens)

    def compute_s(self, call: CallView, instance: InstanceView) -> float:
        """t_comp = t_pre + L_hat x TPOT (HexGen-Flow, Eq. 2)."""
        # asked for every candidate of every call: kept flat
        own = self._all[instance.spec.instance_id]
        spec = call.spec
        done = call.generated_tokens / spec.seats
        uncached = (spec.prompt_tokens + done) * (1.0 - own.cached_share)
        tokens = call.length.expected_tokens - done
        tpot_s = own.tpot_s
        if tpot_s is None:
            tpot_s = self.tpot_s(own)
        prefill_s = self._costs.prefill_s(own.instance_id, uncached)
        return prefill_s + (tokens if tokens > 1.0 else 1.0) * tpot_s

    def remaining_s(self, attempt: AttemptView, instance: InstanceView) -> float:
        """Remaining time: rem = t_pre [no first token] + TPOT x max(1, L_hat - g)."""
        own = self._all[instance.spec.instance_id].attempts[attempt.attempt_id]
        spec = own.call.spec
        tokens = own.remaining_tokens / spec.seats
        return own.pending_prefill_s / spec.prompts + tokens * self.tpot_s(instance)

    def assume_progress(self, instance: Instance) -> None:
        """Guess how far the calls are that show nothing before they end, from the time they took.

        Only the load learns of it: what a call has generated is counted, never guessed.
        """
        tpot_s = self.tpot_s(instance)
        for attempt in instance.attempts.values():
            if not attempt.call.spec.streaming and tpot_s > 0.0:
                prefill_s = self.prefill_s(attempt.call, instance) * attempt.call.spec.prompts
                decoding_s = self.now_s - attempt.dispatched_s - prefill_s
                attempt.assumed_tokens = max(0.0, decoding_s / tpot_s)
                instance.progress(attempt, self.now_s)

    def backlog_s(self, instance: InstanceView) -> float:
        """W = (queued t_comp + in-flight rem) / m, with m the seats."""
        own = self._all[instance.spec.instance_id]
        tokens = own.queued_output_tokens + own.remaining_tokens
        if tokens <= 0.0:
            return 0.0
        prefill_s = own.queued_prefill_s + own.pending_prefill_s
        return (prefill_s + tokens * self.tpot_s(own)) / own.seats

    def mean_compute_s(self, call: CallView) -> float:
        """t_comp averaged over the instances that fit (Eq. 6)."""
        known = self._calls.get(call.spec.call_id)
        candidates = known.candidates if known is not None else self.candidates(call.spec)
        done = call.generated_tokens / call.spec.seats
        tokens = max(1.0, call.length.expected_tokens - done)
        return self.work_s(candidates)(call.spec.prompt_tokens + done, tokens)

    def work_s(self, candidates: frozenset[InstanceId]) -> WorkSeconds:
        """Seconds for (prompt tokens, output tokens), averaged over the candidates.

        The cost model is linear in both, so that three averages, refreshed once a second, answer
        for every stage of a workflow.
        """
        known = self._means.get(candidates)
        if known is not None and self.now_s - known[0] <= _MEANS_MAX_AGE_S:
            return known[1]
        work = self._mean_work(candidates)
        if len(self._means) >= _MEANS_BOUND:
            self._means.clear()
        self._means[candidates] = (self.now_s, work)
        return work

    def _mean_work(self, candidates: frozenset[InstanceId]) -> WorkSeconds:
        among = [i for i in self._all.values() if i.instance_id in candidates]
        among = [i for i in among if i.up] or among
        count = max(1, len(among))
        fixed_s = sum(self._costs.prefill_s(i.instance_id, 0.0) for i in among) / count
        probe_s = (
            sum(
                self._costs.prefill_s(i.instance_id, _PROBE_TOKENS * (1.0 - i.cached_share))
                for i in among
            )
            / count
        )
        tpot_s = sum(self.tpot_s(i) for i in among) / count
        per_token_s = max(0.0, (probe_s - fixed_s) / _PROBE_TOKENS)

        def work(prompt_tokens: float, output_tokens: float) -> float:
            return fixed_s + per_token_s * prompt_tokens + tpot_s * output_tokens

        return work
