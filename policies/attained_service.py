"""What each program has been served, and how long it has waited: the state of `policies.plas`.

An observer, so that a switch to PLAS starts with what everybody has had so far. Exact between
calls: the service of calls that have ended is kept, and tokens of those that run count as they are
reported. A program is a workflow.

Settled: service of an attempt that is lost (its engine failed, it was stopped and begins again) is
taken back, as under VTC: the program has nothing of it. The programs touched latest are kept, as
many as `KEPT`; forgotten, a program begins at nothing. A call waits from when it entered the place
where it waits now: time in other queues before is not counted.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from dispatcher.core.events import AttemptEnded, Dispatched, Event, Progress
from dispatcher.core.types import AttemptId, CallId, WorkflowId
from dispatcher.core.views import FleetView

KEPT = 20_000
"""Programs remembered."""


@dataclass(slots=True)
class Program:
    """What one program has had."""

    tokens: float = 0.0
    """Output tokens of all its calls."""
    served_s: float = 0.0
    """Time that its attempts were out, those that have ended; side by side counts twice."""
    waited_s: float = 0.0
    """Time that its calls waited before they went out."""
    out: int = 0
    """Attempts that are out."""
    out_since_s: float = 0.0
    """Moments at which those went out, added up."""

    def served_by_s(self, now_s: float) -> float:
        """`served_s`, and how long those that are out have been."""
        return self.served_s + max(0.0, self.out * now_s - self.out_since_s)


@dataclass(slots=True, eq=False)
class _Out:
    program: Program
    workflow_id: WorkflowId
    call_id: CallId
    dispatched_s: float
    output_tokens: int = 0


class AttainedService:
    """Service and waits by program: an `Observer`; O(1) per event.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> call = Fake(spec=Fake(call_id="c", workflow_id="w"), enqueued_s=0.0)
        >>> fleet = Fake(call=lambda call_id: call)
        >>> attained = AttainedService()
        >>> attained.observe(Dispatched(call, AttemptId(1), "engine"), fleet, 4.0)
        >>> attained.observe(Progress(AttemptId(1), 30), fleet, 5.0)
        >>> attained.of("w").tokens, attained.of("w").waited_s
        (30.0, 4.0)
    """

    def __init__(self) -> None:
        #: least recently touched first
        self._programs: OrderedDict[WorkflowId, Program] = OrderedDict()
        self._out: dict[AttemptId, _Out] = {}

    def __len__(self) -> int:
        """Programs remembered."""
        return len(self._programs)

    def of(self, workflow_id: WorkflowId) -> Program:
        """What a program has had; nothing where it is not known."""
        return self._programs.get(workflow_id) or Program()

    def observe(self, event: Event | Dispatched, fleet: FleetView, now_s: float) -> None:
        """Follow dispatches, tokens and ends."""
        match event:
            case Progress():
                out = self._out.get(event.attempt_id)
                if out is not None:
                    _count(out, event.output_tokens)
            case Dispatched():
                spec = event.call.spec
                program = self._touch(spec.workflow_id)
                program.waited_s += max(0.0, now_s - event.call.enqueued_s)
                program.out += 1
                program.out_since_s += now_s
                self._out[event.attempt_id] = _Out(
                    program, spec.workflow_id, spec.call_id, dispatched_s=now_s
                )
            case AttemptEnded():
                self._ended(event, fleet, now_s)
            case _:
                pass

    def _ended(self, event: AttemptEnded, fleet: FleetView, now_s: float) -> None:
        out = self._out.pop(event.attempt_id, None)
        if out is None:
            return
        program = out.program
        program.served_s += now_s - out.dispatched_s
        program.out -= 1
        # sums of floats drift; where nothing is out they are nothing
        program.out_since_s = program.out_since_s - out.dispatched_s if program.out else 0.0
        again = fleet.call(out.call_id) is not None
        if again and not event.resumable:
            program.tokens -= out.output_tokens
        elif event.usage is not None:
            program.tokens += event.usage.output_tokens - out.output_tokens
        else:
            _count(out, event.output_tokens)
        if self._programs.get(out.workflow_id) is program:
            self._programs.move_to_end(out.workflow_id)

    def _touch(self, workflow_id: WorkflowId) -> Program:
        program = self._programs.get(workflow_id)
        if program is None:
            program = self._programs[workflow_id] = Program()
            if len(self._programs) > KEPT:
                self._programs.popitem(last=False)
        else:
            self._programs.move_to_end(workflow_id)
        return program


def _count(out: _Out, output_tokens: int) -> None:
    """A running count; one that falls behind an earlier one says nothing new."""
    new_tokens = output_tokens - out.output_tokens
    if new_tokens > 0:
        out.output_tokens = output_tokens
        out.program.tokens += new_tokens
