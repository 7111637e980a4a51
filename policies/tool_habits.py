"""How often applications ask for a tool, and how long they are away then.

What AugServe predicts of a call before it has run (section 4.2): the paper asks a language model;
here the latest calls of the same application say it. A call that asks for no tool has no pause to
pay for, so the share of calls that do ask is kept beside the usual gap.

The application of a call is the template of its workflow; the gap is from the end of the answer
that asked for the tool to the session's next call. Applications heard of latest are kept, as many
as `KEPT`.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from statistics import median

from dispatcher.core.events import AttemptEnded, CallArrived, Dispatched, Event
from dispatcher.core.types import AttemptId, CallSpec, Outcome, Task
from dispatcher.core.views import FleetView

KEPT = 1_000
"""Applications remembered."""
GAPS = 32
"""Latest gaps of an application whose median is taken."""
_WEIGHT = 0.05
"""Of the latest call in the share."""


@dataclass(slots=True)
class Habit:
    """What calls of one application do."""

    asks: float = 0.0
    """Share of its answers that ask for a tool, 0 to 1; moving average."""
    gap_s: float | None = None
    """Median time until the session goes on; `None`: never seen."""
    calls: int = 0
    gaps_s: deque[float] = field(default_factory=lambda: deque(maxlen=GAPS))


_UNKNOWN = Habit()


class ToolHabits:
    """Shares and gaps by application: an `Observer`; O(1) per event.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> spec = Fake(application="agent", workflow_id="w", task=Task.GENERATE)
        >>> call = Fake(spec=spec)
        >>> session = Fake(tool="search", ended_s=3.0, live=1)
        >>> fleet = Fake(call=lambda call_id: call, session=lambda workflow_id: session)
        >>> habits = ToolHabits()
        >>> habits.observe(Dispatched(call, AttemptId(1), "engine"), fleet, 1.0)
        >>> ended = AttemptEnded(AttemptId(1), Outcome.OK, tool="search")
        >>> habits.observe(ended, fleet, 3.0)
        >>> following = Fake(call_id="next", workflow_id="w", task=Task.GENERATE)
        >>> habits.observe(CallArrived(following), fleet, 5.5)
        >>> habits.of("agent").asks, habits.of("agent").gap_s
        (1.0, 2.5)
    """

    def __init__(self) -> None:
        #: heard of least recently first
        self._habits: OrderedDict[str, Habit] = OrderedDict()
        #: whose the attempts are that are out
        self._out: dict[AttemptId, str] = {}

    def __len__(self) -> int:
        """Applications remembered."""
        return len(self._habits)

    def of(self, application: str) -> Habit:
        """What is known of it; of one never seen, that it asks for nothing."""
        return self._habits.get(application, _UNKNOWN)

    def observe(self, event: Event | Dispatched, fleet: FleetView, now_s: float) -> None:
        """Follow answers, and the calls that come after them."""
        match event:
            case Dispatched() if event.call.spec.task is Task.GENERATE:
                self._out[event.attempt_id] = event.call.spec.application
            case AttemptEnded():
                application = self._out.pop(event.attempt_id, None)
                if application is not None and event.outcome is Outcome.OK:
                    self._answered(self._touch(application), event.tool is not None)
            case CallArrived() if event.spec.task is Task.GENERATE:
                self._arrived(event.spec, fleet, now_s)
            case _:
                pass

    def _answered(self, habit: Habit, asked: bool) -> None:
        habit.calls += 1
        # a plain mean until the moving one has as many samples
        weight = max(_WEIGHT, 1.0 / habit.calls)
        habit.asks += weight * (asked - habit.asks)

    def _arrived(self, spec: CallSpec, fleet: FleetView, now_s: float) -> None:
        call = fleet.call(spec.call_id)
        session = fleet.session(spec.workflow_id)
        # with others of the workflow under way it is no return, and a gap of nothing
        if call is None or session is None or session.tool is None or session.live != 1:
            return
        habit = self._touch(call.spec.application)
        habit.gaps_s.append(max(0.0, now_s - session.ended_s))
        habit.gap_s = median(habit.gaps_s)

    def _touch(self, application: str) -> Habit:
        habit = self._habits.get(application)
        if habit is None:
            habit = self._habits[application] = Habit()
            if len(self._habits) > KEPT:
                self._habits.popitem(last=False)
        else:
            self._habits.move_to_end(application)
        return habit
