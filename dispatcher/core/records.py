"""What is written down of a call when it ends, and kept a while for whoever asks."""

from __future__ import annotations

from collections import OrderedDict

from dispatcher.core.call import Call
from dispatcher.core.types import CallId, Outcome, Usage
from dispatcher.core.workflow_types import CallRecord, CallResult

ARCHIVE_MAX = 4096
"""Ended calls that can still be explained one by one."""


def call_record(
    call: Call, outcome: Outcome, usage: Usage | None, tool: str | None, now_s: float
) -> CallRecord:
    """The record of a call that ends now, and whose answer asks for that tool."""
    return CallRecord(
        call_id=call.call_id,
        placement=call.placement,
        tenant=call.spec.tenant,
        model=call.spec.model,
        outcome=outcome,
        instance_id=call.served_by,
        arrived_s=call.arrived_s,
        dispatched_s=call.first_dispatched_s,
        first_token_s=call.first_token_s,
        ended_s=now_s,
        prompt_tokens=(
            call.spec.prompt_tokens * call.spec.prompts if usage is None else usage.prompt_tokens
        ),
        cached_tokens=0 if usage is None else usage.cached_tokens,
        output_tokens=call.generated_tokens,
        attempts=call.attempts_made,
        predicted_output_tokens=call.first_length.expected_tokens,
        predicted_compute_s=call.predicted_compute_s,
        urgency_s=call.urgency_s,
        budget=call.budget,
        call_class=call.spec.call_class,
        slo=call.spec.slo,
        streaming=call.spec.streaming,
        token_lag_s=call.token_lag_s,
        sequences=call.spec.seats,
        tool=tool,
    )


def call_result(call: Call, record: CallRecord) -> CallResult:
    """What the tracker learns of it: lengths of one prompt and of one sequence."""
    return CallResult(
        record.outcome,
        record.instance_id,
        round(record.prompt_tokens / call.spec.prompts),
        round(record.output_tokens / call.spec.seats),
        record.cached_tokens,
        record.tool,
        call.ran_tpot_s if record.outcome is Outcome.OK else None,
    )


class Archive:
    """The last ended calls, oldest forgotten first."""

    def __init__(self, size: int = ARCHIVE_MAX) -> None:
        self._size = size
        self._records: OrderedDict[CallId, CallRecord] = OrderedDict()

    def keep(self, record: CallRecord) -> None:
        """Add a record; one with the same id is replaced."""
        self._records[record.call_id] = record
        self._records.move_to_end(record.call_id)
        if len(self._records) > self._size:
            self._records.popitem(last=False)

    def get(self, call_id: CallId) -> CallRecord | None:
        """The record, while it is kept."""
        return self._records.get(call_id)

    def __len__(self) -> int:
        return len(self._records)
