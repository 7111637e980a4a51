"""Largest service density first: the ordering of Tempo.

Tempo, sections 3.1, 4.1 and 4.2, Algorithm 1, Eqs. 1-4. The call with the largest projected gain
per second of remaining time goes first; what counts as gain, and by when, depends on its class.
`policies.service_density` has the readings of Eq. 4. With L_in, L_hat and g the prompt, the upper
bound of the output and what of it has been generated (tokens, of all sequences), w_i:w_o = 1:2,
t_pre the prefill, TPOT the time per output token at the instance now, elapsed the time since
arrival, and

    rem = t_pre [no first token yet] + TPOT max(1, L_hat - g)      (per sequence)

latency, without a first token, D = SLO_TTFT + SLO_TPOT L_hat the end of its timeline:
    w_i L_in f(SLO_TTFT, elapsed + t_pre) + w_o L_hat f(D, elapsed + rem)
latency, after it:
    w_o (L_hat - g) f(D, elapsed + rem)
throughput and collective, by the end of the whole answer:
    (w_i L_in + w_o L_hat) f(SLO, elapsed + rem)
collective: gains are summed over the unfinished calls of the stage, rem is that of the longest of
    them; all of them share the density, and among them the longest goes first
best-effort: after all others, in order of arrival, and on the reserve's seats (`policies.reserve`)

Settled, and deviations:

1. L_hat is the 0.95 quantile of the length estimate (the code's; the paper says "upper bound"),
   conditional on g while tokens come. `quantile=None` takes the mean: no length model to speak of.
2. SLO and elapsed of whole answers count from the workflow's start, where the deadline comes from:
   for a call that is a workflow by itself that is its arrival. A collective call is due by its
   stage's deadline (`scope="workflow"`: its workflow's, which leaves the stages' shares out).
3. A latency call without a TTFT SLO has its timeline begin at its first token; without a TPOT SLO
   its output is gained whenever it ends; without either it is measured by its deadline.
4. The authors' final code sums the times of siblings where the paper takes the longest; the longest
   it is. A sibling's remaining time is that at the instance where the asking call waits: one that
   waits elsewhere is not worth another look at each engine. At most `SIBLINGS` are looked at.
5. A held call has no instance: the mean over those that fit, split into prefill and decode as at
   the first instance of the fleet.
6. Densities are computed on arrival, on new estimates and budgets, and on ticks, in bounded pieces.
   A sibling that arrives changes the density of those beside it at once, of others on their tick.
7. A client's own priority decides between equal densities.
8. `accrued` adds what a stream has gained already (prompt and tokens so far), as the code does:
   finish what was started. Off. It matters to preemption only, and to calls that were preempted.
9. The engine's priority is the latest start (the deadline less the remaining time; before a first
   token the TTFT's), one unit for all policies. Best-effort calls get one an hour ahead, so that an
   engine that runs out of KV blocks evicts them first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple
from weakref import WeakValueDictionary

from dispatcher.core.ports import CallQueue
from dispatcher.core.service_gain import PAPER_WEIGHTS, GainWeights
from dispatcher.core.types import CallClass, CallId, InstanceId, Key, SeatTag
from dispatcher.core.views import CallView, FleetView, InstanceView
from policies.density_queue import DensityQueue, StageId
from policies.fair_blend import FairBlend
from policies.reserve import OVERDUE_SEAT, RESERVE_SEAT
from policies.service_density import SHORTEST_S, Density, Part, Reading, density
from policies.token_counters import TokenCounters

SIBLINGS = 128
"""Live calls of a workflow that are looked at for those of one stage."""
_BEST_EFFORT_START_S = 3_600.0

_HAS_ITS_TURN = -1.0
_WITH_SLO = 0.0
_DOOMED = 1.0
_BEST_EFFORT = 2.0


class Times(NamedTuple):
    """What an instance would take for a call, seconds."""

    prefill_s: float
    tpot_s: float


@dataclass(frozen=True, slots=True)
class _Shared:
    """The density of a stage, and the remaining time of each of its calls, seconds."""

    density: Density
    remaining_s: Mapping[CallId, float]


class Lsdf:
    """Order by service density; O(1) per call and its siblings.

    Args:
        reading: Of Eq. 4.
        quantile: Of the length estimate that stands for L_hat; `None`: its mean.
        scope: Whose deadline a collective call has, its stage's or its workflow's.
        weights: Worth of a token.
        penalty: a of the degradation function.
        accrued: Count what a stream has gained already.
        overdue_s: Wait from which a call may have a turn of the overdue (`policies.reserve`).
        window: k of GMAX (`policies.similar_lengths`); `None`: no window.
        counters: VTC's, for fairness.
        fairness: f of the blend (`policies.fair_blend`), 0 to 1; above 0 only with `counters`.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> from dispatcher.core.types import CallSpec, LengthEstimate
        >>> def call(prompt_tokens, output_tokens, call_class=CallClass.THROUGHPUT):
        ...     spec = CallSpec("c", "w", "m", prompt_tokens, call_class=call_class)
        ...     where = Fake(workflow_started_s=0.0, stage="0")
        ...     return Fake(spec=spec, length=LengthEstimate(output_tokens), generated_tokens=0,
        ...                 placement=where, budget=Fake(deadline_s=20.0), arrived_s=0.0)
        >>> fleet = Fake(prefill_s=lambda call, instance: 0.0, tpot_s=lambda instance: 0.03)
        >>> here = Fake(spec=Fake(instance_id="i"))
        >>> [round(part) for part in Lsdf().key(call(200, 50.0), here, fleet, 0.0)]
        [0, -200, 0, -2]
        >>> [round(part) for part in Lsdf().key(call(200, 50.0), here, fleet, 38.5)]
        [0, -100, 0, -2]
    """

    def __init__(
        self,
        *,
        reading: Reading = "definition",
        quantile: float | None = 0.95,
        scope: Literal["stage", "workflow"] = "stage",
        weights: GainWeights = PAPER_WEIGHTS,
        penalty: float = 1.0,
        accrued: bool = False,
        overdue_s: float = 30.0,
        window: int | None = None,
        counters: TokenCounters | None = None,
        fairness: float = 0.0,
    ) -> None:
        self.reading = reading
        self.quantile = quantile
        self.scope = scope
        self.weights = weights
        self.penalty = penalty
        self.accrued = accrued
        self.overdue_s = overdue_s
        self.window = window
        self.counters = counters
        self.fairness = fairness
        #: for the part that weighs what waits against what runs (`policies.least_dense_preemption`)
        self.queues: dict[InstanceId, DensityQueue] = {}
        self.held: WeakValueDictionary[int, DensityQueue] = WeakValueDictionary()
        self._made = 0
        #: densities of stages at one moment: siblings are scored one after another
        self._shared_s = float("-inf")
        self._shared: dict[tuple[InstanceId | None, StageId], _Shared] = {}

    # --- the port ---

    def queue(self, instance: InstanceView | None, fleet: FleetView) -> CallQueue:
        """Calls by density, re-keyed as time goes on."""

        def key(call: CallView, now_s: float) -> Key:
            return self.key(call, instance, fleet, now_s)

        def batch() -> int:
            if instance is not None:
                return instance.seats
            return max((one.seats for one in fleet.instances.values()), default=1)

        blend = None
        if self.counters is not None and self.fairness > 0.0:
            blend = FairBlend(self.counters.of, self.fairness)
        queue = DensityQueue(
            key,
            stage_of,
            overdue_s=self.overdue_s,
            window=None if self.window is None else (batch, self.window),
            blend=blend,
            changed=self._shared.clear,
        )
        if instance is None:
            self._made += 1
            self.held[self._made] = queue
        else:
            self.queues = {i: q for i, q in self.queues.items() if i in fleet.instances}
            self.queues[instance.spec.instance_id] = queue
        return queue

    def key(
        self, call: CallView, instance: InstanceView | None, fleet: FleetView, now_s: float
    ) -> Key:
        """(band, minus density, client priority, minus remaining time); by arrival in the last.

        Bands: 0 with an SLO, 1 doomed (reading `slack`), 2 best-effort. Fairness and windows are
        the queue's, which knows what a call is compared with.
        """
        priority = float(call.spec.client_priority)
        if call.spec.call_class is CallClass.BEST_EFFORT:
            return (_BEST_EFFORT, call.arrived_s, priority, 0.0)
        scored, remaining_s = self.score(call, instance, fleet, now_s)
        band = _DOOMED if scored.doomed else _WITH_SLO
        return (band, -scored.value, priority, -remaining_s)

    def held_key(self, call: CallView, seat: SeatTag, fleet: FleetView, now_s: float) -> Key:
        """The same among held calls of different needs, by whom a seat of that kind is for."""
        if seat == OVERDUE_SEAT and now_s - call.arrived_s > self.overdue_s:
            return (_HAS_ITS_TURN, call.arrived_s)
        if seat == RESERVE_SEAT and call.spec.call_class is CallClass.BEST_EFFORT:
            return (_HAS_ITS_TURN, call.arrived_s)
        return self.key(call, None, fleet, now_s)

    def latest_start_s(
        self, call: CallView, instance: InstanceView, fleet: FleetView, now_s: float
    ) -> float | None:
        """The moment by which it must start here to be in time."""
        spec, slo = call.spec, call.spec.slo
        if spec.call_class is CallClass.BEST_EFFORT:
            return now_s + _BEST_EFFORT_START_S
        prefill_s, tpot_s = times(call, instance, fleet)
        if spec.call_class is CallClass.LATENCY:
            if slo.ttft_s is not None and not call.generated_tokens:
                return call.arrived_s + slo.ttft_s - prefill_s
            if slo.tpot_s is not None:
                first_due_s = (
                    now_s + prefill_s if slo.ttft_s is None else call.arrived_s + slo.ttft_s
                )
                end_due_s = first_due_s + slo.tpot_s * self.output_tokens(call)
                return end_due_s - prefill_s - tpot_s * self._left(call)
        return self._due_s(call) - prefill_s - tpot_s * self._left(call)

    # --- density ---

    def score(
        self,
        call: CallView,
        instance: InstanceView | None,
        fleet: FleetView,
        now_s: float,
        *,
        running_tokens: float | None = None,
    ) -> tuple[Density, float]:
        """A call's density, shared with its stage's, and its own remaining time, seconds.

        `running_tokens`: it runs there and is taken to have so many tokens; `None`: it waits.
        """
        stage = stage_of(call)
        if stage is not None:
            shared = self._stage(call, stage, instance, fleet, now_s)
            return shared.density, shared.remaining_s[call.spec.call_id]
        at = times(call, instance, fleet)
        left, begin_s = self._left(call), at.prefill_s
        if running_tokens is not None:
            left = max(1.0, min(left, self.output_tokens(call) - running_tokens))
            begin_s = 0.0 if running_tokens else begin_s
        remaining_s = begin_s + at.tpot_s * left
        parts = self._parts(call, at.prefill_s, remaining_s, now_s)
        return density(parts, remaining_s, self.reading, self.penalty), remaining_s

    def _parts(
        self, call: CallView, prefill_s: float, remaining_s: float, now_s: float
    ) -> list[Part]:
        """What a call by itself gains, and by when; see the module."""
        spec, slo, weights = call.spec, call.spec.slo, self.weights
        prompt_tokens = float(spec.prompt_tokens * spec.prompts)
        output_tokens = self.output_tokens(call)
        if spec.call_class is not CallClass.LATENCY or (slo.ttft_s is None and slo.tpot_s is None):
            worth = weights.of(prompt_tokens, output_tokens * spec.seats)
            started_s = call.placement.workflow_started_s
            return [Part(worth, self._due_s(call) - started_s, now_s - started_s + remaining_s)]
        elapsed_s = now_s - call.arrived_s
        timeline_s = None
        if slo.tpot_s is not None:
            first_due_s = elapsed_s + prefill_s if slo.ttft_s is None else slo.ttft_s
            timeline_s = first_due_s + slo.tpot_s * output_tokens
        left = self._left(call) * spec.seats
        parts = [Part(weights.of(0.0, left), timeline_s, elapsed_s + remaining_s)]
        if not call.generated_tokens:
            parts.append(Part(weights.of(prompt_tokens, 0.0), slo.ttft_s, elapsed_s + prefill_s))
        elif self.accrued:
            parts.append(Part(weights.of(prompt_tokens, call.generated_tokens), None, 0.0))
        return parts

    def _stage(
        self,
        call: CallView,
        stage: StageId,
        instance: InstanceView | None,
        fleet: FleetView,
        now_s: float,
    ) -> _Shared:
        """The density that the call shares with its siblings."""
        if self._shared_s != now_s:
            self._shared.clear()
            self._shared_s = now_s
        where = (None if instance is None else instance.spec.instance_id, stage)
        shared = self._shared.get(where)
        if shared is None or call.spec.call_id not in shared.remaining_s:
            shared = self._shared[where] = self._share(call, stage, instance, fleet, now_s)
        return shared

    def _share(
        self,
        call: CallView,
        stage: StageId,
        instance: InstanceView | None,
        fleet: FleetView,
        now_s: float,
    ) -> _Shared:
        name = call.placement.stage
        members = [
            one
            for one in fleet.live_calls(call.spec.workflow_id, SIBLINGS)
            if one.placement.stage == name and one.spec.call_class is CallClass.COLLECTIVE
        ]
        if call not in members:
            members.append(call)  # one of very many, or unknown to the fleet
        # several siblings are asked about at every tick: kept flat
        here = times(call, instance, fleet)
        remaining_s: dict[CallId, float] = {}
        worth = 0.0
        for one in members:
            spec, done = one.spec, one.generated_tokens
            output_tokens = self.output_tokens(one)
            worth += self.weights.of(spec.prompt_tokens * spec.prompts, output_tokens * spec.seats)
            begin_s = here.prefill_s
            if one is not call:
                begin_s = 0.0 if done else times(one, instance, fleet).prefill_s
            left = output_tokens - done / spec.seats
            remaining_s[spec.call_id] = begin_s + here.tpot_s * (left if left > 1.0 else 1.0)
        longest_s = max(remaining_s.values())
        started_s = call.placement.workflow_started_s
        part = Part(worth, self._due_s(call) - started_s, now_s - started_s + longest_s)
        return _Shared(density([part], longest_s, self.reading, self.penalty), remaining_s)

    def _due_s(self, call: CallView) -> float:
        """When the whole answer is due, absolute."""
        if call.spec.call_class is CallClass.COLLECTIVE and self.scope == "stage":
            return call.budget.stage_deadline_s
        # the placement's is that of its arrival: its client may have said another since
        return call.budget.deadline_s

    def output_tokens(self, call: CallView) -> float:
        """L_hat, per sequence; at least 1."""
        length, quantile = call.length, self.quantile
        if quantile is None:
            return max(1.0, length.expected_tokens)
        for known, tokens in length.quantiles:
            if known == quantile:
                return max(1.0, tokens)
        return max(1.0, length.quantile_tokens(quantile))

    def _left(self, call: CallView) -> float:
        """max(1, L_hat - g), per sequence."""
        return max(1.0, self.output_tokens(call) - call.generated_tokens / call.spec.seats)


def stage_of(call: CallView) -> StageId | None:
    """The stage whose density a call shares; `None` where it has one of its own."""
    if call.spec.call_class is not CallClass.COLLECTIVE:
        return None
    return (call.spec.workflow_id, call.placement.stage)


def times(call: CallView, instance: InstanceView | None, fleet: FleetView) -> Times:
    """Prefill and time per token of a call, at an instance or (`None`) where it may go."""
    prompts = call.spec.prompts
    if instance is not None:
        return Times(fleet.prefill_s(call, instance) * prompts, fleet.tpot_s(instance))
    mean_s = fleet.mean_compute_s(call)
    first = next(iter(fleet.instances.values()), None)
    tokens = max(1.0, call.length.expected_tokens - call.generated_tokens / call.spec.seats)
    if first is None:
        return Times(0.0, mean_s / tokens)
    prefill_s, tpot_s = fleet.prefill_s(call, first), fleet.tpot_s(first)
    scale = mean_s / max(prefill_s + tpot_s * tokens, SHORTEST_S)
    return Times(scale * prefill_s * prompts, scale * tpot_s)
