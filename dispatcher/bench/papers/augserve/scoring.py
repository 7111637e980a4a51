"""What a play of augmented requests was worth: goodput, TTFT, normalised latency (section 5.1).

A request is a whole workflow: its first token is that of its first call, and it ends with its last
call. While a tool runs nobody waits for an engine: tools' time counts for nothing, as in the
measurements of InferCept's authors (`final_tput_bench_real.py`), after which the paper measures.
Normalised latency is what is left of its latency per token generated; what tools returned is not
generated.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dispatcher.bench.report import Figures, percentile, plain
from dispatcher.traces import Played, PlayedCall, Trace, TraceWorkflow

TTFT_S = 1.0
"""SLO of the first token."""
LOOSE_SCALE = 5.0
"""The paper also counts what keeps five times the SLOs (Fig. 12)."""


@dataclass(frozen=True, slots=True)
class Request:
    """One augmented request, and what became of it."""

    application: str
    arrival_s: float
    ttft_s: float | None = None
    """`None`: no call of it has ended."""
    ended_s: float = math.inf
    """Infinite: not over when the play was stopped."""
    normalised_s: float = math.inf
    """Latency without tools' time per generated token; infinite where it is not over."""
    served_s: float = math.inf
    """Latency without tools' time."""
    queue_s: float = 0.0
    """Of that: time before its calls were sent to an engine."""
    decoding_s: float = 0.0
    """Of that: from each call's first token to its last."""
    decoded: int = 0
    """Tokens that came in that time."""

    def met(self, token_s: float, scale: float = 1.0) -> bool:
        """Whether it is over and kept both SLOs.

        Args:
            token_s: SLO of the normalised latency.
            scale: Times both SLOs.
        """
        return (
            self.ttft_s is not None
            and self.ttft_s <= TTFT_S * scale
            and self.normalised_s <= token_s * scale
        )


def requests_of(trace: Trace, played: Played) -> list[Request]:
    """Every request of a trace.

    Args:
        trace: Of streamed calls, one after another in each workflow.
        played: What became of it, perhaps stopped before all was over.
    """
    calls: dict[str, dict[str, PlayedCall]] = {}
    for call in played.calls:
        calls.setdefault(call.workflow_id, {})[call.call_id] = call
    ended = {w.workflow_id: w.ended_s for w in played.workflows if w.ok}
    return [
        _request(
            workflow, calls.get(workflow.workflow_id, {}), ended.get(workflow.workflow_id, math.inf)
        )
        for workflow in trace
    ]


def _request(workflow: TraceWorkflow, calls: dict[str, PlayedCall], ended_s: float) -> Request:
    first = calls.get(workflow.calls[0].call_id)
    seen = None if first is None else first.first_token_s
    ttft_s = None if seen is None else seen - workflow.arrival_s
    if math.isinf(ended_s):
        return Request(workflow.application, workflow.arrival_s, ttft_s)
    tools_s = sum(call.gap_s for call in workflow.calls)
    served_s = ended_s - workflow.arrival_s - tools_s
    tokens = sum(call.output_tokens for call in calls.values())
    streams = [call for call in calls.values() if call.first_token_s is not None]
    return Request(
        workflow.application,
        workflow.arrival_s,
        ttft_s,
        ended_s,
        served_s / tokens,
        served_s,
        sum(call.queue_s or 0.0 for call in calls.values()),
        sum(call.ended_s - (call.first_token_s or 0.0) for call in streams),
        sum(call.output_tokens - 1 for call in streams),
    )


def score(
    requests: Sequence[Request], token_s: float, span_s: float, *, strict_token_s: float
) -> Figures:
    """Figures of a play over its first `span_s` seconds, as plain JSON values.

    Attainment is the paper's, over what is over; `of_all` is over all that came. The TTFT of who
    has seen nothing by the end counts as what it has waited so far, so that who is never served is
    not left out of the mean.

    Args:
        requests: All that came.
        token_s: SLO of the normalised latency.
        span_s: Above 0.
        strict_token_s: Another one, under which goodput is told beside.
    """
    found = _of(requests, token_s, span_s)
    in_time = sum(r.met(strict_token_s) for r in requests if r.ended_s <= span_s)
    found["goodput_strict_per_s"] = in_time / span_s
    found["tasks"] = {
        task: _of([r for r in requests if r.application == task], token_s, span_s)
        for task in sorted({request.application for request in requests})
    }
    return {key: plain(value) for key, value in found.items()}


def _of(requests: Sequence[Request], token_s: float, span_s: float) -> Figures:
    done = [request for request in requests if request.ended_s <= span_s]
    met = sum(request.met(token_s) for request in done)
    loosely = sum(request.met(token_s, LOOSE_SCALE) for request in done)
    first = [_waited(request, span_s) for request in requests if request.arrival_s < span_s]
    normalised = [request.normalised_s for request in done]
    served = sum(request.served_s for request in done)
    decoded = sum(request.decoded for request in done)
    return {
        "arrived": len(requests),
        "done": len(done),
        "goodput_per_s": met / span_s,
        "goodput_loose_per_s": loosely / span_s,
        "requests_per_s": len(done) / span_s,
        "attainment": met / len(done) if done else math.nan,
        "of_all": met / len(requests) if requests else math.nan,
        "ttft_s": _spread(first),
        "ttft_met": _share(waited <= TTFT_S for waited in first),
        "normalised_s": _spread(normalised),
        "normalised_met": _share(value <= token_s for value in normalised),
        "tpot_s": sum(request.decoding_s for request in done) / decoded if decoded else math.nan,
        "served_s": served / len(done) if done else math.nan,
        "queue_share": sum(request.queue_s for request in done) / served if served else math.nan,
    }


def _waited(request: Request, span_s: float) -> float:
    still = span_s - request.arrival_s
    return still if request.ttft_s is None else min(request.ttft_s, still)


def _share(verdicts: Iterable[bool]) -> float:
    found = list(verdicts)
    return sum(found) / len(found) if found else math.nan


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {
        "mean": statistics.fmean(values) if values else math.nan,
        "p50": percentile(values, 0.50),
        "p95": percentile(values, 0.95),
    }
