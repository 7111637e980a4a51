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

from dispatcher.core.call import Call
from dispatcher.core.errors import UnknownInstanceError
from dispatcher.core.instance import Instance
from dispatcher.core.ports import CostModel, WorkflowTracker, WorkSeconds
from dispatcher.core.sessions import Session, Sessions
from dispatcher.core.types import CallId, CallSpec, InstanceId, InstanceSpec, WorkflowId
from dispatcher.core.views import AttemptView, CallView, InstanceView
from dispatcher.core.workflow_types import Remaining, StageShape

_MEANS_MAX_AGE_S = 1.0
_MEANS_BOUND = 256
_PROBE_TOKENS = 1000.0


class Fleet:
    """All instances; the `FleetView` that policies see."""

    def __init__(
        self, costs: CostModel, tracker: WorkflowTracker, calls: Mapping[CallId, Call]
    ) -> None:
        self._costs = costs
        self._tracker = tracker
        self._calls = calls
        self.sessions = Sessions(tracker.gap_s)
        self._joined = 0
        self._all: dict[InstanceId, Instance] = {}
        self.instances: Mapping[InstanceId, InstanceView] = MappingProxyType(self._all)
        #: candidate set -> when worked out, and the mean work over it
        self._means: dict[frozenset[InstanceId], tuple[float, WorkSeconds]] = {}
        #: what a call asks for -> (longest prompt that all of them take, instances)
        self._fits: dict[tuple[object, ...], tuple[int, frozenset[InstanceId]]] = {}
        #: candidate set -> the longest context among them
        self._longest: dict[frozenset[InstanceId], int] = {}
        #: candidate set -> those of them that are up and not draining
        self._up: dict[frozenset[InstanceId], tuple[Instance, ...]] = {}
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
        self.sessions.lost(instance.instance_id)
        self.changed()

    def changed(self) -> None:
        """An instance came, went, takes no more or serves other things: all worked out is stale."""
        self._means.clear()
        self._fits.clear()
        self._longest.clear()
        self._up.clear()

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

    def available(self, call: Call) -> tuple[Instance, ...]:
        """Candidates that can take the call now; those where it failed only if no other can."""
        able = call.candidates
        up = self._up.get(able)
        if up is None:
            if len(self._up) >= _MEANS_BOUND:
                self._up.clear()
            up = tuple(i for i in self._all.values() if i.available and i.instance_id in able)
            self._up[able] = up
        if not call.avoid:
            return up
        return tuple(i for i in up if i.instance_id not in call.avoid) or up

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
        """Predicted prefill of one prompt there, less what its prefix cache should hold."""
        own, spec = self._all[instance.spec.instance_id], call.spec
        prompt = spec.prompt_tokens + call.generated_tokens / spec.seats
        uncached = prompt - self.sessions.cached_tokens(spec, own)
        return self._costs.prefill_s(own.instance_id, uncached)

    def mean_prefill_s(self, call: CallView) -> float:
        """t_pre averaged over the instances that fit."""
        known = self._calls.get(call.spec.call_id)
        candidates = known.candidates if known is not None else self.candidates(call.spec)
        done = call.generated_tokens / call.spec.seats
        return self.work_s(candidates)(call.spec.prompt_tokens + done, 0.0)

    def prefill_ahead_s(self, instance: InstanceView) -> float:
        """What is queued or out there without a first token, in seconds of prefill.

        Of attempts that do not stream, what would be left by now if they had begun when they went
        out, one after another.
        """
        # asked for every candidate of every call: kept flat
        own = self._all[instance.spec.instance_id]
        ahead_s = own.queued_prefill_s + own.watched_prefill_s
        prefills = own.watched_prefills + own.queued
        if prefills == 0:
            ahead_s = 0.0
        elif prefills > 1:
            fixed_s = self._costs.prefill_s(own.instance_id, 0.0)
            # what was booked at other times may have counted less
            ahead_s = max(ahead_s - (prefills - 1) * fixed_s, fixed_s)
        unwatched_s = own.unwatched_until_s - self.now_s
        return ahead_s + unwatched_s if unwatched_s > 0.0 else ahead_s

    def prompt_s(self, tokens: float, instance: InstanceView) -> float:
        """t_pre of so many tokens there."""
        return self._costs.prefill_s(instance.spec.instance_id, tokens)

    def cached_tokens(self, call: CallView, instance: InstanceView) -> float:
        """Tokens of one prompt of the call that the instance's prefix cache should hold."""
        return self.sessions.cached_tokens(call.spec, self._all[instance.spec.instance_id])

    def spared_s(self, call: CallView, instance: InstanceView) -> float:
        """Prefill of one prompt that the instance's prefix cache should spare."""
        own, prompt = self._all[instance.spec.instance_id], float(call.spec.prompt_tokens)
        cached = self.sessions.cached_tokens(call.spec, own)
        if not cached:
            return 0.0
        prefill_s = self._costs.prefill_s
        return prefill_s(own.instance_id, prompt) - prefill_s(own.instance_id, prompt - cached)

    def session(self, workflow_id: WorkflowId) -> Session | None:
        """What the workflow did last; `None`: none of its calls has ended well, or forgotten."""
        return self.sessions.get(workflow_id)

    def paused(self, instance: InstanceView) -> Sequence[Session]:
        """Sessions that wait for a tool and will soon go on from what they left there."""
        return self.sessions.paused(instance.spec.instance_id, self.now_s)

    def paused_tokens(self, instance: InstanceView) -> float:
        """Context of all `paused` there together; O(1)."""
        return self.sessions.paused_tokens(instance.spec.instance_id, self.now_s)

    def gap_s(self, tool: str | None, p: float) -> float | None:
        """Seconds that the tool stays within with probability `p`; `None`: none was seen."""
        return self._tracker.gap_s(tool, p)

    def remaining(self, workflow_id: WorkflowId) -> Remaining | None:
        """How long a workflow still takes; over the instances that its calls fit."""
        live = next(iter(self._tracker.live_calls(workflow_id)), None)
        call = None if live is None else self._calls.get(live)
        among = frozenset(self._all) if call is None else call.candidates
        return self._tracker.remaining(workflow_id, self.work_s(among))

    def uncertainty(self, call: CallView) -> float:
        """R(X) of the call's stage, bit x seconds."""
        return self._tracker.uncertainty(call.spec.call_id)

    def stage_shape(self, call: CallView) -> StageShape | None:
        """Where the call's stage stands in its workflow's graph."""
        return self._tracker.stage_shape(call.spec.call_id)

    def application_mean_s(self, application: str) -> float | None:
        """Mean duration of the application's workflows that finished well."""
        return self._tracker.application_mean_s(application)

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
        uncached = spec.prompt_tokens + done - self.sessions.cached_tokens(spec, own)
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
        if own.backlog_s is None:
            tokens = own.queued_output_tokens + own.remaining_tokens
            prefill_s = own.queued_prefill_s + own.pending_prefill_s
            working_s = prefill_s + tokens * self.tpot_s(own) if tokens > 0.0 else 0.0
            own.backlog_s = working_s / own.seats
        return own.backlog_s

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
