"""What a play of the mix was worth: service gain, SLO goodput, throughput; by class and in all.

Gains and verdicts are those of `dispatcher.core.service_gain`. A play is looked at over a span of
time from its beginning on, in the middle of which nothing stops: what ends after it counts for
nothing, and attainment is over the requests whose deadlines lie within it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dispatcher.bench.report import Figures, percentile, plain
from dispatcher.core.service_gain import PAPER_WEIGHTS, service_gain, slo_met
from dispatcher.core.types import CallClass, Slo
from dispatcher.traces import Played, PlayedCall, PlayedWorkflow, Trace, TraceWorkflow

WINDOW_S = 60.0
"""Of gain over time."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request of the mix, whole: a single call, or all calls of a collective one."""

    call_class: CallClass
    arrival_s: float
    deadline_s: float
    """Moment by which it should be over, its last token come; infinite where none was promised."""
    ended_s: float
    """Infinite: not over when the play was stopped, or failed."""
    met: bool | None = None
    """`None`: nothing was promised."""
    gain: float = 0.0
    worth: float = 0.0
    """Its gain, had it been in time."""
    ttft_s: float | None = None
    tpot_s: float | None = None

    @property
    def latency_s(self) -> float:
        """From arrival to end."""
        return self.ended_s - self.arrival_s


def requests_of(trace: Trace, played: Played, *, penalty: float = 1.0) -> list[Request]:
    """Every request of a trace, and what became of it.

    Args:
        trace: With SLOs.
        played: What became of it, perhaps stopped before all was over.
        penalty: Exponent of the degradation function (section 3.1).
    """
    calls: dict[str, list[PlayedCall]] = {}
    for call in played.calls:
        calls.setdefault(call.workflow_id, []).append(call)
    ended = {workflow.workflow_id: workflow for workflow in played.workflows if workflow.ok}
    return [
        _request(
            workflow, ended.get(workflow.workflow_id), calls.get(workflow.workflow_id, ()), penalty
        )
        for workflow in trace
    ]


def deadline_s(workflow: TraceWorkflow) -> float:
    """Moment at which a request should be over, as it was promised; infinite where nothing was."""
    call = workflow.calls[0]
    if workflow.slo_s is not None:
        return workflow.arrival_s + workflow.slo_s
    if call.slo_ttft_s is None or call.slo_tpot_s is None:
        return math.inf
    return workflow.arrival_s + call.slo_ttft_s + call.slo_tpot_s * (call.output_tokens - 1)


def _request(
    workflow: TraceWorkflow,
    over: PlayedWorkflow | None,
    calls: Sequence[PlayedCall],
    penalty: float,
) -> Request:
    first = workflow.calls[0]
    due_s = deadline_s(workflow)
    slo = Slo(workflow.slo_s, first.slo_ttft_s, first.slo_tpot_s)
    if over is None:
        promised = None if math.isinf(due_s) else False
        return Request(first.call_class, workflow.arrival_s, due_s, math.inf, promised)
    prompt_tokens = sum(call.prompt_tokens for call in calls)
    output_tokens = sum(call.output_tokens for call in calls)
    (call, *others) = calls
    ttft_s = None if call.first_token_s is None else call.first_token_s - call.sent_s
    decoded = call.output_tokens - 1
    streamed = not others and call.first_token_s is not None and decoded > 0
    return Request(
        first.call_class,
        workflow.arrival_s,
        due_s,
        over.ended_s,
        slo_met(
            first.call_class,
            slo,
            latency_s=over.latency_s,
            output_tokens=output_tokens,
            ttft_s=ttft_s,
            token_lag_s=call.token_lag_s,
            workflow_s=over.latency_s,
        ),
        service_gain(
            first.call_class,
            slo,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            latency_s=over.latency_s,
            ttft_s=ttft_s,
            token_lag_s=call.token_lag_s,
            workflow_s=over.latency_s,
            penalty=penalty,
        ),
        worth=PAPER_WEIGHTS.of(prompt_tokens, output_tokens),
        ttft_s=ttft_s,
        tpot_s=(call.ended_s - (call.first_token_s or 0.0)) / decoded if streamed else None,
    )


def score(requests: Sequence[Request], calls: Sequence[PlayedCall], span_s: float) -> Figures:
    """Figures of a play over its first `span_s` seconds, as plain JSON values.

    Rates are per second of the span, of what ended within it.
    """
    found = _of(requests, span_s)
    done = [call for call in calls if call.ended_s <= span_s]
    found["calls_per_s"] = len(done) / span_s
    found["output_tokens_per_s"] = sum(call.output_tokens for call in done) / span_s
    found["gain_over_time"] = _over_time(requests, span_s)
    found["classes"] = {
        str(call_class): _of([r for r in requests if r.call_class is call_class], span_s)
        for call_class in CallClass
        if any(request.call_class is call_class for request in requests)
    }
    found = {key: plain(value) for key, value in found.items()}
    return found


def _of(requests: Sequence[Request], span_s: float) -> Figures:
    done = [request for request in requests if request.ended_s <= span_s]
    judged = [request for request in requests if request.deadline_s <= span_s]
    streams = [request for request in done if request.ttft_s is not None]
    return {
        "arrived": sum(request.arrival_s <= span_s for request in requests),
        "done": len(done),
        "attainment": _share(request.met is True for request in judged),
        "goodput_per_s": sum(request.met is True for request in done) / span_s,
        "requests_per_s": len(done) / span_s,
        "gain_per_s": sum(request.gain for request in done) / span_s,
        "worth_per_s": sum(request.worth for request in done) / span_s,
        "latency_s": _ends([request.latency_s for request in done]),
        "ttft_s": _ends([request.ttft_s for request in streams if request.ttft_s is not None]),
        "tpot_s": _ends([request.tpot_s for request in streams if request.tpot_s is not None]),
    }


def _share(verdicts: Iterable[bool]) -> float:
    found = list(verdicts)
    return sum(found) / len(found) if found else math.nan


def _ends(values: Sequence[float]) -> dict[str, float]:
    return {"p50": percentile(values, 0.50), "p95": percentile(values, 0.95)}


def _over_time(requests: Sequence[Request], span_s: float) -> list[float]:
    """Gain per second, window by window; the last one may be shorter."""
    windows = [0.0] * math.ceil(span_s / WINDOW_S)
    for request in requests:
        if request.ended_s < span_s:
            windows[int(request.ended_s // WINDOW_S)] += request.gain
    return [gain / min(WINDOW_S, span_s - WINDOW_S * number) for number, gain in enumerate(windows)]
