"""The queue under Tempo: calls by density, the oldest at hand for the reserve.

Holds the order that `policies.lsdf` computes, re-keyed in rounds (`policies.rescored_queue`), and
answers per kind of seat (`policies.reserve`): one of the reserve serves the oldest best-effort
call, one of the overdue the oldest that has waited too long, any other (and these, where there is
no such call) the densest. Options change who is taken for the densest: the best of a window
of similar lengths (`policies.similar_lengths`), of a blend with fairness (`policies.fair_blend`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from itertools import islice, takewhile

from dispatcher.core.types import CallClass, CallId, Key, SeatTag
from dispatcher.core.views import CallView
from policies.fair_blend import FairBlend
from policies.rescored_queue import Entry, RescoredQueue
from policies.reserve import OVERDUE_SEAT, RESERVE_SEAT
from policies.similar_lengths import best_window

StageId = tuple[str, str]
"""Workflow and stage: whose calls share one density."""

_KEY_COST = 32
"""A density looks at siblings and the cost model; a tick re-keys so many times fewer calls."""

SIBLINGS_AT_ONCE = 32
"""Calls of a stage that are re-keyed with one that has changed; the rest have their round."""

HEADS_AT_ONCE = 4
"""Calls, or stages, that are looked at anew as they come up, before the best of them is taken: a
decision must not take as long as a round."""

_Age = tuple[float, int, CallId]
"""Arrival, arrival sequence, call id."""


class DensityQueue(RescoredQueue):
    """Calls by density, siblings of a stage together.

    Args:
        key: Where a call stands: (band, minus its density, ...).
        stage_of: The stage whose density a call shares; `None`: it has one of its own.
        overdue_s: Wait from which a call may have a turn of the overdue.
        window: B and k of the window of similar lengths: how many calls it holds, and out of how
            many times as many it is chosen; `None`: no window.
        blend: Weighs in fairness.
        changed: Told before a call is scored that is new here, or has changed.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> def call(name, sequence, arrived_s, density, call_class=CallClass.THROUGHPUT):
        ...     spec = Fake(call_id=name, call_class=call_class, seats=1)
        ...     return Fake(spec=spec, sequence=sequence, arrived_s=arrived_s, density=density)
        >>> waiting = DensityQueue(lambda call, now_s: (0.0, -call.density), lambda call: None)
        >>> waiting.push(call("thin", 1, 0.0, density=1.0), 0.0)
        >>> waiting.push(call("dense", 2, 5.0, density=9.0), 5.0)
        >>> [waiting.select(seat, 10.0).spec.call_id for seat in ("", OVERDUE_SEAT)]
        ['dense', 'dense']
        >>> [waiting.select(seat, 40.0).spec.call_id for seat in ("", OVERDUE_SEAT)]
        ['dense', 'thin']
    """

    def __init__(
        self,
        key: Callable[[CallView, float], Key],
        stage_of: Callable[[CallView], StageId | None],
        *,
        overdue_s: float = 30.0,
        window: tuple[Callable[[], int], int] | None = None,
        blend: FairBlend | None = None,
        changed: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(key, cost=_KEY_COST)
        self._stage_of = stage_of
        self._overdue_s = overdue_s
        self._window = window
        self._blend = blend
        self._changed = changed
        #: by arrival: all calls, and those without an SLO
        self._ages: list[_Age] = []
        self._best_effort: list[_Age] = []
        #: calls of each stage that wait here
        self._stages: dict[StageId, dict[CallId, None]] = {}

    def push(self, call: CallView, now_s: float) -> None:
        """Add a call; its siblings' density changes with it."""
        if self._changed is not None:
            self._changed()
        super().push(call, now_s)
        age = _age(call)
        insort(self._ages, age)
        if call.spec.call_class is CallClass.BEST_EFFORT:
            insort(self._best_effort, age)
        self._note(call)
        stage = self._stage_of(call)
        if stage is not None:
            self._stages.setdefault(stage, {})[call.spec.call_id] = None
            self._rekey_siblings(call, stage, now_s)

    def remove(self, call_id: CallId) -> None:
        """Take a call out. Raises `KeyError` when it is not here."""
        call = self._live[call_id][1]
        super().remove(call_id)
        age = _age(call)
        del self._ages[bisect_left(self._ages, age)]
        if call.spec.call_class is CallClass.BEST_EFFORT:
            del self._best_effort[bisect_left(self._best_effort, age)]
        if self._blend is not None:
            self._blend.forget(call_id)
        stage = self._stage_of(call)
        if stage is not None:
            members = self._stages[stage]
            del members[call_id]
            if not members:
                del self._stages[stage]

    def refresh(self, call: CallView, now_s: float) -> None:
        """Order the call and its siblings anew. Raises `KeyError` when it is not here."""
        if self._changed is not None:
            self._changed()
        super().refresh(call, now_s)
        stage = self._stage_of(call)
        if stage is not None:
            self._rekey_siblings(call, stage, now_s)

    def rekey(self, call_id: CallId, now_s: float) -> None:
        """Put a call where it stands now. Raises `KeyError` when it is not here."""
        super().rekey(call_id, now_s)
        self._note(self._live[call_id][1])

    def select(self, seat: SeatTag, now_s: float) -> CallView | None:
        """The oldest that a seat of the reserve or of the overdue is for, else the densest."""
        if not self._sorted:
            return None
        oldest: _Age | None = None
        if seat == OVERDUE_SEAT and now_s - self._ages[0][0] > self._overdue_s:
            oldest = self._ages[0]
        elif seat == RESERVE_SEAT and self._best_effort:
            oldest = self._best_effort[0]
        if oldest is not None:
            return self._live[oldest[2]][1]
        plain = self._window is None and self._blend is None
        return self._live[self._first(now_s) if plain else self._densest()[2]][1]

    def _first(self, now_s: float) -> CallId:
        """The densest, looked at anew as it comes up: it may have become late since its round.

        Where none of those that come up stays first, the best of them is taken: the next one is
        ahead of them by what was true of it some time ago.
        """
        looked: set[CallId] = set()
        while len(looked) < HEADS_AT_ONCE:
            head = self._sorted[0]
            if head[2] in looked:
                return head[2]
            looked.add(head[2])
            self.rekey(head[2], now_s)
            if self._sorted[0] <= head:
                return self._sorted[0][2]
            call = self._live[head[2]][1]
            stage = self._stage_of(call)
            if stage is not None:
                self._rekey_siblings(call, stage, now_s)
        return min(self._live[call_id][0] for call_id in looked)[2]

    def _densest(self) -> Entry:
        among = None if self._window is None else self._similar(*self._window)
        if self._blend is not None:
            return self._blend.best(self._sorted, lambda call_id: self._live[call_id][0], among)
        return self._sorted[0] if among is None else among[0]

    def _similar(self, width_of: Callable[[], int], factor: int) -> list[Entry]:
        """The best window, densest first: of those in the first band that there is."""
        width = max(1, width_of())
        band = self._sorted[0][0][0]
        top = list(takewhile(lambda entry: entry[0][0] == band, self._sorted[: factor * width]))
        calls = [self._live[entry[2]][1] for entry in top]
        lengths = [c.spec.prompt_tokens * c.spec.prompts + c.generated_tokens for c in calls]
        chosen = best_window(lengths, [-entry[0][1] for entry in top], width)
        return [entry for position, entry in enumerate(top) if position in chosen]

    def _note(self, call: CallView) -> None:
        if self._blend is not None:
            self._blend.note(call.spec.call_id, call.spec.workflow_id)

    def _rekey_siblings(self, call: CallView, stage: StageId, now_s: float) -> None:
        for call_id in list(islice(self._stages[stage], SIBLINGS_AT_ONCE)):
            if call_id != call.spec.call_id:
                self.rekey(call_id, now_s)


def _age(call: CallView) -> _Age:
    return (call.arrived_s, call.sequence, call.spec.call_id)
