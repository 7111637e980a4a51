"""What ended calls were worth, and whether their SLOs were kept: Tempo's measures, live.

A call is judged by its class when it ends, a workflow's collective calls together when the workflow
does. Definitions are `dispatcher.core.service_gain`'s. Who was not promised anything has neither
kept nor missed it; nor has who gave up himself, or asked for what no engine would take.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

from dispatcher.core.call import Call
from dispatcher.core.service_gain import service_gain, slo_met
from dispatcher.core.types import CallClass, Outcome, Slo, WorkflowId
from dispatcher.core.workflow_types import CallRecord, Placement, WorkflowRecord

_CLIENTS_DOING = frozenset({Outcome.CANCELLED, Outcome.CLIENT_ERROR})
_WORKFLOWS_MAX = 100_000
"""Live workflows whose tokens are summed up; as many as the tracker holds."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """On one call, or on the collective calls of one workflow."""

    call_class: CallClass
    met: bool | None
    """`None`: nothing was promised."""
    gain: float = 0.0
    """Service gain in tokens, weighted (Tempo, Eqs. 2 and 3); 0 where it failed."""
    output_tokens: int = 0

    @property
    def good_tokens(self) -> int:
        """Output tokens that came as promised, or that nothing was promised of."""
        return 0 if self.met is False else self.output_tokens


def promised(slo: Slo, placement: Placement) -> Slo:
    """What a call's SLO came to, the workflow's deadline included that holds by default."""
    return replace(slo, end_to_end_s=placement.deadline_s - placement.workflow_started_s)


def ttft_s(call: Call | CallRecord) -> float | None:
    """Arrival to first token; `None` where none was seen by itself."""
    return None if call.first_token_s is None else call.first_token_s - call.arrived_s


def call_met(record: CallRecord) -> bool | None:
    """Whether an ended call kept its SLO; of a collective one, only its workflow's end says."""
    if record.call_class is CallClass.COLLECTIVE or record.outcome in _CLIENTS_DOING:
        return None
    met = slo_met(
        record.call_class,
        promised(record.slo, record.placement),
        latency_s=record.ended_s - record.arrived_s,
        output_tokens=record.output_tokens,
        ttft_s=ttft_s(record),
        token_lag_s=record.token_lag_s,
        workflow_s=record.ended_s - record.placement.workflow_started_s,
        sequences=record.sequences,
    )
    return met if met is None or record.outcome is Outcome.OK else False


def call_gain(record: CallRecord) -> float:
    """Service gain of an ended call by itself; 0 where it failed."""
    if record.outcome is not Outcome.OK:
        return 0.0
    return service_gain(
        record.call_class,
        promised(record.slo, record.placement),
        prompt_tokens=record.prompt_tokens,
        output_tokens=record.output_tokens,
        latency_s=record.ended_s - record.arrived_s,
        ttft_s=ttft_s(record),
        token_lag_s=record.token_lag_s,
        workflow_s=record.ended_s - record.placement.workflow_started_s,
        sequences=record.sequences,
    )


class _Collected:
    """Tokens of the collective calls of one workflow that went well."""

    __slots__ = ("output_tokens", "prompt_tokens")

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.output_tokens = 0


class Attainment:
    """Judges what ends. Its memory is bounded by the workflows that live."""

    def __init__(self) -> None:
        self._open: OrderedDict[WorkflowId, _Collected] = OrderedDict()

    def call_ended(self, record: CallRecord) -> Verdict | None:
        """A verdict on one call; `None` where its workflow's end is waited for, or nobody judges.

        Of a workflow that ends with a call, the call is told first.
        """
        if record.call_class is CallClass.COLLECTIVE:
            self._collect(record)
            return None
        if record.outcome in _CLIENTS_DOING:
            return None
        tokens = record.output_tokens if record.outcome is Outcome.OK else 0
        return Verdict(record.call_class, call_met(record), call_gain(record), tokens)

    def workflow_ended(self, record: WorkflowRecord) -> Verdict | None:
        """A verdict on its collective calls; `None` where it had none, or nobody judges."""
        collected = self._open.pop(record.workflow_id, None)
        if collected is None or record.outcome in _CLIENTS_DOING:
            return None
        if record.outcome is not Outcome.OK:
            return Verdict(CallClass.COLLECTIVE, met=False)
        gain = service_gain(
            CallClass.COLLECTIVE,
            Slo(end_to_end_s=record.deadline_s - record.started_s),
            prompt_tokens=collected.prompt_tokens,
            output_tokens=collected.output_tokens,
            latency_s=record.duration_s,
        )
        return Verdict(CallClass.COLLECTIVE, record.met_slo, gain, collected.output_tokens)

    def _collect(self, record: CallRecord) -> None:
        workflow_id = record.placement.workflow_id
        collected = self._open.get(workflow_id)
        if collected is None:
            collected = self._open[workflow_id] = _Collected()
            if len(self._open) > _WORKFLOWS_MAX:
                self._open.popitem(last=False)
        if record.outcome is Outcome.OK:
            collected.prompt_tokens += record.prompt_tokens
            collected.output_tokens += record.output_tokens
