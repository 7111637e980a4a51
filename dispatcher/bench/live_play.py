"""Plays a trace over HTTP, in real time or faster, and writes down what became of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from time import monotonic
from urllib.parse import quote

from dispatcher.bench.live_client import Answer, LiveClient, Problems
from dispatcher.bench.live_text import Texts
from dispatcher.core.types import Outcome
from dispatcher.traces import Played, PlayedCall, PlayedWorkflow, Trace, TraceCall, TraceWorkflow

LENGTH_OFF = 0.05
"""Share of its length (or 4 tokens) by which a prompt may miss it before that is told."""
_HEADER_SAFE = " !#$&'()*+,/:;=?@[]~|"


class _Job:
    """A workflow under way."""

    def __init__(self, workflow: TraceWorkflow) -> None:
        self.workflow = workflow
        self.left = len(workflow.calls)
        self.failed = False
        self.ended_s = workflow.arrival_s
        self.over = {call.call_id: asyncio.Event() for call in workflow.calls}
        #: (stage, parents) -> calls that run side by side
        self.widths = Counter((call.stage, call.parents) for call in workflow.calls)


class LivePlayer:
    """Plays one trace once.

    Moments that it writes down are the trace's own: real ones times the time scale, from the
    trace's beginning. A workflow's latency counts from when it should have arrived, so a client
    that falls behind does not flatter the target; `lag_s` says by how much it did.
    """

    def __init__(
        self,
        client: LiveClient,
        texts: Texts,
        *,
        run: str,
        time_scale: float,
        concurrency_limit: int,
        limit_s: float,
        on_workflow: Callable[[], None] = lambda: None,
    ) -> None:
        """`run` makes workflow ids unique; `limit_s` is real seconds for the whole play."""
        self.problems = Problems()
        self.lag_s = 0.0
        """The longest that a workflow began after its time, real seconds."""
        self.other_lengths = 0
        """Calls whose answer had another length than asked for, or whose prompt was off by more
        than `LENGTH_OFF`, as the target counts."""
        self.cut_short = False
        """Whether the play was stopped by its limit."""
        self._client = client
        self._texts = texts
        self._run = run
        self._time_scale = time_scale
        self._free = asyncio.Semaphore(concurrency_limit)
        self._limit_s = limit_s
        self._on_workflow = on_workflow
        self._began_at_s = 0.0
        self._calls: list[PlayedCall] = []
        self._workflows: dict[str, PlayedWorkflow] = {}

    async def play(self, trace: Trace) -> Played:
        """Play it to its end, or until the limit; what is not over then has failed."""
        first_s = trace[0].arrival_s
        self._began_at_s = monotonic() - first_s / self._time_scale
        try:
            async with asyncio.timeout(self._limit_s), asyncio.TaskGroup() as group:
                for workflow in trace:
                    at_s = self._began_at_s + workflow.arrival_s / self._time_scale
                    await asyncio.sleep(at_s - monotonic())
                    self.lag_s = max(self.lag_s, monotonic() - at_s)
                    group.create_task(self._workflow(_Job(workflow)))
        except TimeoutError:
            self.cut_short = True
            self.problems.note(f"not over after {self._limit_s:g} s")
        for workflow in trace:
            if workflow.workflow_id not in self._workflows:
                self._over(workflow, max(self._now_s(), workflow.arrival_s), ok=False)
        workflows = [self._workflows[workflow.workflow_id] for workflow in trace]
        last_s = max(workflow.ended_s for workflow in workflows)
        return Played(workflows, self._calls, last_s - first_s)

    def _now_s(self) -> float:
        return self._trace_s(monotonic())

    def _trace_s(self, at_s: float) -> float:
        return (at_s - self._began_at_s) * self._time_scale

    async def _workflow(self, job: _Job) -> None:
        async with asyncio.TaskGroup() as group:
            for call in job.workflow.calls:
                group.create_task(self._call(job, call))
        self._over(job.workflow, job.ended_s, ok=not job.failed)

    def _over(self, workflow: TraceWorkflow, ended_s: float, *, ok: bool) -> None:
        self._workflows[workflow.workflow_id] = PlayedWorkflow(
            workflow_id=workflow.workflow_id,
            application=workflow.application,
            tenant=workflow.tenant,
            arrival_s=workflow.arrival_s,
            ended_s=ended_s,
            slo_s=workflow.slo_s,
            ok=ok,
        )
        self._on_workflow()

    async def _call(self, job: _Job, call: TraceCall) -> None:
        for parent in call.parents:
            await job.over[parent].wait()
        if call.gap_s > 0.0 and not job.failed:
            await asyncio.sleep(call.gap_s / self._time_scale)
        if not job.failed:
            await self._send(job, call)
        job.over[call.call_id].set()

    async def _send(self, job: _Job, call: TraceCall) -> None:
        sent_s = self._now_s()
        prompt = self._texts.prompt(job.workflow.workflow_id, call)
        async with self._free:
            answer = await self._client.chat(
                prompt,
                output_tokens=call.output_tokens,
                stream=call.streaming,
                headers=self._headers(job, call),
            )
        job.left -= 1
        played = self._played(job, call, sent_s, answer)
        self._calls.append(played)
        job.ended_s = max(job.ended_s, played.ended_s)
        self.other_lengths += _other_length(call, answer)
        if answer.problem is not None:
            job.failed = True
            self.problems.note(answer.problem)

    def _headers(self, job: _Job, call: TraceCall) -> dict[str, str]:
        """What Headway is told; anybody else passes over it."""
        workflow = job.workflow
        headers = {
            "x-headway-workflow-id": f"{self._run}-{workflow.workflow_id}",
            "x-headway-workflow": workflow.application,
            "x-headway-stage": call.stage,
            "x-headway-stage-width": str(job.widths[call.stage, call.parents]),
            "x-headway-class": call.call_class.value,
        }
        for name, seconds in (
            ("x-headway-slo-ms", workflow.slo_s),
            ("x-headway-slo-ttft-ms", call.slo_ttft_s),
            ("x-headway-slo-tpot-ms", call.slo_tpot_s),
        ):
            if seconds is not None:
                headers[name] = f"{max(1, round(1000 * seconds / self._time_scale))}"
        if call.tool is not None:
            headers["x-headway-tool"] = call.tool
        if workflow.tenant != "default":
            headers["x-headway-tenant"] = workflow.tenant
        if job.left == 1:
            headers["x-headway-final"] = "1"
        return {name: quote(value, safe=_HEADER_SAFE) for name, value in headers.items()}

    def _played(self, job: _Job, call: TraceCall, sent_s: float, answer: Answer) -> PlayedCall:
        first_s = answer.first_token_at_s
        ok = answer.problem is None
        told = answer.output_tokens if answer.output_tokens is not None else call.output_tokens
        return PlayedCall(
            workflow_id=job.workflow.workflow_id,
            call_id=call.call_id,
            stage=call.stage,
            instance=answer.instance,
            outcome=Outcome.OK if ok else Outcome.ENGINE_ERROR,
            sent_s=sent_s,
            ended_s=self._trace_s(answer.ended_at_s),
            prompt_tokens=answer.prompt_tokens or call.prompt_tokens,
            output_tokens=told if ok else 0,
            cached_tokens=answer.cached_tokens,
            first_token_s=None if first_s is None else self._trace_s(first_s),
            queue_s=None if answer.queue_s is None else answer.queue_s * self._time_scale,
        )


def _other_length(call: TraceCall, answer: Answer) -> bool:
    if answer.problem is not None:
        return False
    off = abs((answer.prompt_tokens or call.prompt_tokens) - call.prompt_tokens)
    told = answer.output_tokens
    return off > max(4.0, LENGTH_OFF * call.prompt_tokens) or told not in (None, call.output_tokens)
