"""The clients of a trace: they send each call once its parents have ended and its gap is over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dispatcher.core.types import CallId, CallSpec, Outcome, Slo, WorkflowId
from dispatcher.core.workflow_types import CallRecord
from dispatcher.simulator.kernel import Kernel
from dispatcher.traces import PlayedCall, PlayedWorkflow, Trace, TraceCall, TraceWorkflow


@dataclass(frozen=True, slots=True)
class Hints:
    """What clients tell the scheduler of their calls, beside lengths of prompts."""

    stages: bool = True
    widths: bool = True
    slo: bool = True
    final: bool = True
    tools: bool = True


def call_id_of(workflow: TraceWorkflow, call: TraceCall) -> CallId:
    """By which the scheduler knows a call of a trace."""
    return CallId(f"{workflow.workflow_id}/{call.call_id}")


class _Job:
    """A workflow under way."""

    __slots__ = (
        "children",
        "ended_s",
        "failed",
        "left",
        "missing",
        "out",
        "over",
        "widths",
        "workflow",
    )

    def __init__(self, workflow: TraceWorkflow) -> None:
        self.workflow = workflow
        self.left = len(workflow.calls)
        #: calls sent or due to be sent, not ended
        self.out = 0
        self.failed = False
        self.over = False
        self.ended_s = workflow.arrival_s
        self.missing = {call.call_id: len(call.parents) for call in workflow.calls}
        self.children: dict[str, list[TraceCall]] = {}
        #: (stage, parents) -> calls that run side by side
        self.widths: dict[tuple[str, tuple[str, ...]], int] = {}
        for call in workflow.calls:
            side = (call.stage, call.parents)
            self.widths[side] = self.widths.get(side, 0) + 1
            for parent in call.parents:
                self.children.setdefault(parent, []).append(call)


class Clients:
    """Plays all workflows of a trace against whoever takes calls."""

    def __init__(
        self,
        trace: Trace,
        kernel: Kernel,
        send: Callable[[CallSpec, TraceCall], None],
        *,
        model: str,
        hints: Hints,
    ) -> None:
        self.calls: list[PlayedCall] = []
        self._workflows: dict[str, PlayedWorkflow] = {}
        self._trace = trace
        self._kernel = kernel
        self._send_on = send
        self._model = model
        self._hints = hints
        self._sent: dict[CallId, tuple[_Job, TraceCall, float]] = {}
        self._under_way = len(trace)
        for workflow in trace:
            kernel.at(workflow.arrival_s, self._begin, workflow)

    @property
    def done(self) -> bool:
        """Whether every workflow is over."""
        return self._under_way == 0

    def leave(self) -> None:
        """Wait for nothing that is not over yet."""
        self._under_way = 0

    @property
    def workflows(self) -> list[PlayedWorkflow]:
        """Those that are over, in the trace's order."""
        of = self._workflows
        return [of[w.workflow_id] for w in self._trace if w.workflow_id in of]

    def ended(self, record: CallRecord) -> None:
        """A call is over, well or not; its children follow where it went well."""
        job, call, sent_s = self._sent.pop(record.call_id)
        ok = record.outcome is Outcome.OK
        waited_until_s = record.dispatched_s
        self.calls.append(
            PlayedCall(
                workflow_id=job.workflow.workflow_id,
                call_id=call.call_id,
                stage=call.stage,
                instance=record.instance_id,
                outcome=record.outcome,
                sent_s=sent_s,
                ended_s=record.ended_s,
                prompt_tokens=record.prompt_tokens,
                output_tokens=record.output_tokens,
                cached_tokens=record.cached_tokens,
                first_token_s=record.first_token_s if call.streaming else None,
                queue_s=None if waited_until_s is None else waited_until_s - sent_s,
                attempts=record.attempts,
                token_lag_s=record.token_lag_s,
            )
        )
        job.out -= 1
        job.left -= 1
        job.ended_s = record.ended_s
        if not ok:
            job.failed = True
        else:
            for child in job.children.get(call.call_id, ()):
                job.missing[child.call_id] -= 1
                if not job.missing[child.call_id] and not job.failed:
                    self._due(job, child)
        if job.out == 0 and (job.failed or job.left == 0):
            self._finish(job)

    def tool_after(self, call_id: CallId) -> str | None:
        """What the answer of a call under way asks for; `None`: no tool, or nobody says."""
        job, call, _ = self._sent[call_id]
        children = job.children.get(call.call_id, ()) if self._hints.tools else ()
        return next((child.tool for child in children if child.tool is not None), None)

    def _begin(self, workflow: TraceWorkflow) -> None:
        job = _Job(workflow)
        for call in workflow.calls:
            # one turned away at once fails the workflow before its other calls are sent
            if not call.parents and not job.failed:
                self._due(job, call)

    def _due(self, job: _Job, call: TraceCall) -> None:
        job.out += 1
        if call.gap_s > 0.0:
            self._kernel.at(self._kernel.now_s + call.gap_s, self._send, job, call)
        else:
            self._send(job, call)

    def _send(self, job: _Job, call: TraceCall) -> None:
        if job.failed:
            job.out -= 1
            if job.out == 0:
                self._finish(job)
            return
        spec = self._spec(job, call)
        self._sent[spec.call_id] = (job, call, self._kernel.now_s)
        self._send_on(spec, call)

    def _spec(self, job: _Job, call: TraceCall) -> CallSpec:
        workflow, hints = job.workflow, self._hints
        return CallSpec(
            call_id=call_id_of(workflow, call),
            workflow_id=WorkflowId(workflow.workflow_id),
            model=workflow.model or self._model,
            prompt_tokens=call.prompt_tokens,
            application=workflow.application,
            stage=call.stage if hints.stages else None,
            stage_width=job.widths[call.stage, call.parents] if hints.widths else None,
            tenant=workflow.tenant,
            call_class=call.call_class,
            slo=Slo(workflow.slo_s if hints.slo else None, call.slo_ttft_s, call.slo_tpot_s),
            tool=call.tool if hints.tools else None,
            final=hints.final and job.left == 1,
            streaming=call.streaming,
        )

    def _finish(self, job: _Job) -> None:
        """Once: where a child is turned away at once, both it and its parent find nothing left."""
        if job.over:
            return
        job.over = True
        workflow = job.workflow
        self._under_way -= 1
        self._workflows[workflow.workflow_id] = PlayedWorkflow(
            workflow_id=workflow.workflow_id,
            application=workflow.application,
            tenant=workflow.tenant,
            arrival_s=workflow.arrival_s,
            ended_s=job.ended_s,
            slo_s=workflow.slo_s,
            ok=not job.failed,
        )
