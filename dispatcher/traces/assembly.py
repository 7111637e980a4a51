"""Puts ended calls together to the workflows of a trace: lengths, times and names, no text.

Fed with what the coordinator says of calls and workflows when they end, so that whoever drives
one (a gateway that records, a tuner that replays) gets the same trace of the same work.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dispatcher.core.types import CallClass, CallSpec, Outcome, WorkflowId
from dispatcher.core.workflow_types import CallRecord, WorkflowRecord
from dispatcher.traces.types import TraceCall, TraceWorkflow

CALLS_PER_WORKFLOW = 2_000
"""A workflow with more is left out: one that long is most often a client that never ends any.
The sequences of a call count one by one, as they are written."""
CALLS_PENDING = 100_000
"""Ended calls of workflows that go on; beyond, the workflow that began to be seen first is left
out."""
PARENTS_MAX = 256
"""Of one call; where more had ended, those that ended last count."""
SEQUENCES_MAX = 64
"""Of one call with several answers or prompts that are written as calls of their own."""
_DIGITS = 6
"""Times are kept to the microsecond."""


class _Ended(NamedTuple):
    """What is kept of a call until its workflow ends."""

    arrived_s: float
    ended_s: float
    stage: str
    application: str
    tenant: str
    model: str
    prompt_tokens: int
    """Of one prompt."""
    output_tokens: int
    """Of one sequence; 0: it put out nothing."""
    sequences: int
    streaming: bool
    tool: str | None
    """What its client says ran before it."""
    asks_for: str | None
    """What its answer asks for, by name."""
    call_class: CallClass
    slo_ttft_s: float | None
    slo_tpot_s: float | None
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Assembled:
    """A workflow that has ended, as a trace tells it."""

    trace: TraceWorkflow
    latency_s: float | None
    """From its first call's arrival to its last call's end, as it was; `None` where it did not
    end well or was not seen whole."""


class Assembler:
    """Collects calls until their workflow ends.

    Calls that put out nothing (turned away, failed before a token) are left out; calls that were
    cut off count with what they put out. Workflows and calls get numbers for names: what clients
    call them may say more than a trace should.

    Example:
        >>> Assembler(epoch_s=0.0).flush()
        []
    """

    def __init__(
        self,
        *,
        epoch_s: float,
        calls_per_workflow: int = CALLS_PER_WORKFLOW,
        calls_pending: int = CALLS_PENDING,
    ) -> None:
        """`epoch_s` is the moment from which arrivals count."""
        self._epoch_s = epoch_s
        self._per_workflow = calls_per_workflow
        self._most_pending = calls_pending
        #: oldest first; empty where the workflow is left out
        self._pending: dict[WorkflowId, list[_Ended]] = {}
        self._calls = 0
        self._number = 0
        #: workflows left out for their size, or for want of room
        self.left_out = 0

    @property
    def pending_calls(self) -> int:
        """Ended calls of workflows that go on."""
        return self._calls

    def call_ended(self, spec: CallSpec, record: CallRecord) -> None:
        """A call is over, well or not.

        Args:
            spec: As the call arrived.
            record: What the coordinator wrote down of it.
        """
        workflow_id = record.placement.workflow_id
        calls = self._pending.get(workflow_id)
        if calls is None:
            calls = self._pending[workflow_id] = []
        elif not calls:
            return
        calls.append(_ended(spec, record))
        self._calls += 1
        if len(calls) > self._per_workflow:
            self._leave_out(workflow_id)
        elif self._calls > self._most_pending:
            self._leave_out(next(name for name, kept in self._pending.items() if kept))

    def _leave_out(self, workflow_id: WorkflowId) -> None:
        """It stays known, so that what is still to come of it is not taken for a whole one."""
        calls = self._pending[workflow_id]
        self._calls -= len(calls)
        calls.clear()
        self.left_out += 1

    def workflow_ended(self, record: WorkflowRecord) -> Assembled | None:
        """A workflow is over; `None` where nothing of it can be told."""
        calls = self._pending.pop(record.workflow_id, None)
        if not calls:
            return None
        self._calls -= len(calls)
        trace = self._workflow(calls)
        if trace is None:
            return None
        whole = record.started_s == min(call.arrived_s for call in calls)
        told = whole and record.outcome is Outcome.OK
        return Assembled(trace, record.duration_s if told else None)

    def flush(self) -> list[TraceWorkflow]:
        """What has been seen of the workflows that go on, as if they ended now."""
        pending, self._pending, self._calls = self._pending, {}, 0
        whole = (self._workflow(calls) for calls in pending.values() if calls)
        return [trace for trace in whole if trace is not None]

    def _workflow(self, calls: list[_Ended]) -> TraceWorkflow | None:
        # in order of ending so far, so that of calls that arrived together the first to end leads
        calls.sort(key=lambda call: call.arrived_s)
        first = calls[0]
        kept = [call for call in calls if call.output_tokens]
        if not kept:
            return None
        if sum(call.sequences for call in kept) > self._per_workflow:
            self.left_out += 1
            return None
        self._number += 1
        slo_s = max(call.deadline_s for call in calls) - first.arrived_s
        return TraceWorkflow(
            workflow_id=f"w{self._number}",
            application=first.application,
            arrival_s=_rounded(first.arrived_s - self._epoch_s),
            calls=tuple(_trace_calls(kept, first.arrived_s)),
            slo_s=round(slo_s, _DIGITS) if slo_s > 10.0**-_DIGITS else None,
            tenant=first.tenant,
            model=first.model,
        )


def _ended(spec: CallSpec, record: CallRecord) -> _Ended:
    sequences = max(1, spec.seats)
    output_tokens = record.output_tokens
    return _Ended(
        arrived_s=record.arrived_s,
        ended_s=record.ended_s,
        stage=record.placement.stage,
        application=record.placement.application,
        tenant=record.tenant,
        model=record.model,
        prompt_tokens=max(1, round(record.prompt_tokens / max(1, spec.prompts))),
        output_tokens=max(1, round(output_tokens / sequences)) if output_tokens > 0 else 0,
        sequences=min(sequences, SEQUENCES_MAX),
        streaming=spec.streaming,
        tool=spec.tool,
        asks_for=record.tool or None,
        call_class=spec.call_class,
        slo_ttft_s=spec.slo.ttft_s,
        slo_tpot_s=spec.slo.tpot_s,
        deadline_s=record.placement.deadline_s,
    )


def _rounded(seconds: float) -> float:
    return max(0.0, round(seconds, _DIGITS))


def _trace_calls(calls: Sequence[_Ended], began_s: float) -> Iterator[TraceCall]:
    """In order of arrival. A call of several sequences becomes as many calls side by side."""
    names: list[tuple[str, ...]] = []
    for number, (call, parents) in enumerate(zip(calls, _parents(calls), strict=True), 1):
        alone = call.sequences == 1
        own = (
            (f"c{number}",)
            if alone
            else tuple(f"c{number}.{one}" for one in range(1, call.sequences + 1))
        )
        names.append(own)
        since_s = calls[parents[-1]].ended_s if parents else began_s
        asked = (calls[parent].asks_for for parent in reversed(parents))
        # who comes back knows better what ran than the answer that asked for it
        tool = call.tool or next((name for name in asked if name is not None), None)
        of_parents = [name for parent in parents for name in names[parent]][-PARENTS_MAX:]
        for name in own:
            yield TraceCall(
                call_id=name,
                stage=call.stage,
                prompt_tokens=call.prompt_tokens,
                output_tokens=call.output_tokens,
                parents=tuple(of_parents),
                gap_s=_rounded(call.arrived_s - since_s),
                tool=tool,
                streaming=call.streaming,
                call_class=call.call_class,
                slo_ttft_s=call.slo_ttft_s,
                slo_tpot_s=call.slo_tpot_s,
            )


def _parents(calls: Sequence[_Ended]) -> Iterator[tuple[int, ...]]:
    """Of each call, by arrival: the frontier of calls that had ended when it arrived.

    That is, those that had ended and are no parent of another one that had; the last one to end
    comes last.
    """
    ends: list[tuple[float, int]] = []
    frontier: dict[int, None] = {}
    parents: list[tuple[int, ...]] = []
    for index, call in enumerate(calls):
        while ends and ends[0][0] <= call.arrived_s:
            _, done = heapq.heappop(ends)
            for parent in parents[done]:
                frontier.pop(parent, None)
            frontier[done] = None
            if len(frontier) > PARENTS_MAX:
                del frontier[next(iter(frontier))]
        parents.append(tuple(frontier))
        heapq.heappush(ends, (call.ended_s, index))
        yield parents[-1]
