"""Program-level least attained service: who has been served least goes first (Autellix).

Luo et al., "Autellix: An Efficient Serving Engine for LLM Agents as General Programs", PLAS; a
baseline of Tempo (section 6.1). A call inherits the service that its program has attained, in
levels of a multi-level feedback queue, so that programs that have had little pass those that have
had much; a program that has waited long for what it was served is promoted to the first level.

    level = floor(tokens of the program / tokens per level)
    promoted: waited / served >= ratio

Settled, and deviations:

1. Service is output tokens, in levels of 400, without a last level: so Tempo's authors re-implement
   it (UIUC-MLSys/JITServe). They count the tokens of calls that are alive; here those of ended
   calls are kept, as the paper has it (`policies.attained_service`).
2. The paper's constants are not known to us. A program is promoted when it has waited 10 times as
   long as it was served; None: never, and programs that have had much may starve.
3. A gateway decides between calls: it does not stop a call whose program has used up its level.
   Exact between calls, therefore, and not within them.
4. In a level first come, first served; the client's own priority goes before arrival.
5. A program's level is looked at anew when its call comes up, since service only grows; promotions
   are found on ticks. Only the first call of a program is ranked among those of others: where it is
   not promoted, none behind it is.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator

from dispatcher.core.ports import CallQueue
from dispatcher.core.types import CallId, Key, SeatTag, WorkflowId
from dispatcher.core.views import CallView, FleetView, InstanceView
from policies.attained_service import AttainedService
from policies.rescored_queue import RescoredQueue

_KEY_COST = 4

_Turn = tuple[int, int, CallId]
"""Client priority, arrival sequence, call id."""


class Plas:
    """Key: (level of the program, client priority). O(log n) per call.

    Args:
        attained: What each program has had; must observe the coordinator.
        level_tokens: Width of a level, above 0.
        promote_ratio: Waited over served from which a program is promoted; `None`: never.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> def call(name, sequence):
        ...     spec = Fake(call_id=name, workflow_id=name[0], client_priority=0)
        ...     return Fake(spec=spec, sequence=sequence, enqueued_s=0.0)
        >>> had = {
        ...     "a": Fake(tokens=900.0, served_by_s=lambda now_s: 9.0, waited_s=0.0),
        ...     "b": Fake(tokens=300.0, served_by_s=lambda now_s: 3.0, waited_s=0.0),
        ... }
        >>> waiting = Plas(Fake(of=had.__getitem__)).queue(None, Fake())
        >>> waiting.push(call("a1", 1), 0.0)
        >>> waiting.push(call("b1", 2), 0.0)
        >>> waiting.select("", 0.0).spec.call_id
        'b1'
    """

    def __init__(
        self,
        attained: AttainedService,
        *,
        level_tokens: float = 400.0,
        promote_ratio: float | None = 10.0,
    ) -> None:
        self.attained = attained
        self.level_tokens = level_tokens
        self.promote_ratio = promote_ratio

    def queue(self, instance: InstanceView | None, fleet: FleetView) -> CallQueue:
        """Calls by level, which is looked at anew as they come up."""
        return LevelQueue(lambda call, now_s: self.key(call, instance, fleet, now_s))

    def key(
        self, call: CallView, instance: InstanceView | None, fleet: FleetView, now_s: float
    ) -> Key:
        """(level, client priority)."""
        program = self.attained.of(call.spec.workflow_id)
        level = program.tokens // self.level_tokens
        ratio = self.promote_ratio
        if ratio is not None and level > 0.0:
            waited_s = program.waited_s + max(0.0, now_s - call.enqueued_s)
            level = 0.0 if waited_s >= ratio * program.served_by_s(now_s) else level
        return (level, float(call.spec.client_priority))

    def latest_start_s(
        self, call: CallView, instance: InstanceView, fleet: FleetView, now_s: float
    ) -> float | None:
        """None: levels are no deadlines; the engine keeps the order in which calls reach it."""
        return None


class LevelQueue:
    """Programs by level, and the calls of each by priority and arrival.

    However many calls a program has here, a change of its level moves one of them: O(log n) per
    call, and per program that was served since.

    Args:
        key: Where a call stands now: (level of its program, client priority).
    """

    def __init__(self, key: Callable[[CallView, float], Key]) -> None:
        self._firsts = _Firsts(key, cost=_KEY_COST)
        self._live: dict[CallId, CallView] = {}
        #: calls of each program, first to go first
        self._programs: dict[WorkflowId, list[_Turn]] = {}
        #: latest moment that was told
        self._now_s = float("-inf")

    def push(self, call: CallView, now_s: float) -> None:
        """Add a call; it must not be here yet."""
        self._now_s = now_s
        call_id = call.spec.call_id
        if call_id in self._live:
            raise KeyError(f"call {call_id} is queued here already")
        turns, turn = self._programs.get(call.spec.workflow_id, []), _turn(call)
        if not turns or turn < turns[0]:
            self._firsts.push(call, now_s)  # first: where it raises, nothing has changed
            if turns:
                self._firsts.remove(turns[0][2])
        self._live[call_id] = call
        insort(turns, turn)
        self._programs[call.spec.workflow_id] = turns

    def remove(self, call_id: CallId) -> None:
        """Take a call out. Raises `KeyError` when it is not here."""
        call = self._live[call_id]
        program = call.spec.workflow_id
        turns = self._programs[program]
        at = bisect_left(turns, _turn(call))
        if at == 0 and len(turns) > 1:
            self._firsts.push(self._live[turns[1][2]], self._now_s)
        if at == 0:
            self._firsts.remove(call_id)
        del turns[at], self._live[call_id]
        if not turns:
            del self._programs[program]

    def refresh(self, call: CallView, now_s: float) -> None:
        """Look at the call's program anew. Raises `KeyError` when the call is not here."""
        self._now_s = now_s
        program = self._live[call.spec.call_id].spec.workflow_id
        self._firsts.rekey(self._programs[program][0][2], now_s)

    def select(self, seat: SeatTag, now_s: float) -> CallView | None:
        """The first call of the program on the lowest level; ties: priority, then arrival."""
        self._now_s = now_s
        return self._firsts.select(seat, now_s)

    def rescore(self, now_s: float, limit: int) -> bool:
        """Look at the next programs of the round, or begin one; True when some are left."""
        self._now_s = now_s
        return self._firsts.rescore(now_s, limit)

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[CallView]:
        return iter(self._live.values())


class _Firsts(RescoredQueue):
    """Looks again at a call that comes up: its program may have been served since."""

    def select(self, seat: SeatTag, now_s: float) -> CallView | None:
        """The earliest call of the lowest level."""
        while self._sorted:
            first = self._sorted[0]
            self.rekey(first[2], now_s)
            if self._sorted[0] <= first:
                return super().select(seat, now_s)
        return None


def _turn(call: CallView) -> _Turn:
    return (call.spec.client_priority, call.sequence, call.spec.call_id)
