"""Service gain: how much a finished call was worth, and whether it was in time (Tempo).

Tempo ("Application-aware LLM Serving with Mixed SLO Requirements"), section 3.1. A token is worth
its weight, and less the later it comes:

    gain = w_i L_i + w_o L_o                                                               (Eq. 1)
    f(SLO, metric) = min{1, (SLO / metric)^a}, a = 1
    throughput, collective: (w_i L_i + w_o L_o) f(SLO_TTLT, TTLT)                          (Eq. 2)
    latency: w_i L_i f(SLO_TTFT, TTFT) + sum over tokens k of w_o f(due_k, came_k)         (Eq. 3)

Settled:

1. Eq. 3 is read against a timeline, as its text says, and not by raw gaps: token k, from 0, is due
   at SLO_TTFT + k SLO_TPOT after the call's arrival. A token that comes early makes no later one
   late, and one pause makes late only those that follow before the stream has caught up.
2. What is known of a finished stream is its first token, its end and its worst delay, not each
   token's moment. In between tokens are taken to have come evenly, none later than the worst delay
   says. A stream that was never late (`token_lag_s` <= 0) therefore loses nothing.
3. f lies in [1e-6, 1], as in the authors' code; with a -> infinity gain becomes goodput.
4. A call without an SLO of its class, and a best-effort call, is worth all its tokens whenever it
   ends. A call that failed is worth nothing: do not ask.
5. Weights are 1:2, the paper's; its code counts an output token eight times (`CODE_WEIGHTS`).

Plain numbers in, plain numbers out: seconds from the call's (or its workflow's) arrival, tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from dispatcher.core.types import CallClass, Slo

LEAST_DEGRADATION = 1e-6
_STREAM_POINTS = 32
"""Tokens of one stream that are looked at; each stands for those around it."""


@dataclass(frozen=True, slots=True)
class GainWeights:
    """What a token is worth (Eq. 1)."""

    prompt: float = 1.0
    output: float = 2.0

    def of(self, prompt_tokens: float, output_tokens: float) -> float:
        """w_i L_i + w_o L_o."""
        return self.prompt * prompt_tokens + self.output * output_tokens


PAPER_WEIGHTS = GainWeights()
CODE_WEIGHTS = GainWeights(prompt=1.0, output=8.0)
"""Those of the authors' published code."""


def degradation(slo_s: float, took_s: float, penalty: float = 1.0) -> float:
    """f(SLO, metric) = min{1, (SLO / metric)^a}, in [1e-6, 1] (section 3.1).

    Args:
        slo_s: What was asked for; 0 or less counts as missed by far.
        took_s: What it took; 0 or less counts as in time.
        penalty: a, above 0; the larger, the nearer to all or nothing.

    Example:
        >>> degradation(20.0, 10.0), degradation(20.0, 40.0), degradation(20.0, 40.0, penalty=2.0)
        (1.0, 0.5, 0.25)
    """
    if took_s <= slo_s or took_s <= 0.0:
        return 1.0
    share: float = (max(0.0, slo_s) / took_s) ** penalty
    return max(LEAST_DEGRADATION, share)


def stream_degradation(
    slo: Slo,
    *,
    output_tokens: float,
    ttft_s: float,
    latency_s: float,
    token_lag_s: float | None = None,
    penalty: float = 1.0,
    sequences: int = 1,
) -> float:
    """Mean of f over the tokens of a finished stream: the second sum of Eq. 3 over w_o L_o.

    Args:
        slo: Its `tpot_s` is needed, else 1. Without a `ttft_s` the timeline begins at the first
            token.
        output_tokens: L_o; one or less has only a first token.
        ttft_s: Arrival to first token.
        latency_s: Arrival to last token; an answer that comes whole has `ttft_s == latency_s`.
        token_lag_s: Worst delay against the timeline, where it was measured.
        penalty: a.
        sequences: That the tokens are of, side by side, each on a timeline of its own.
    """
    if slo.tpot_s is None or (token_lag_s is not None and token_lag_s <= 0.0):
        return 1.0
    first_due_s = ttft_s if slo.ttft_s is None else slo.ttft_s
    gaps = max(0.0, output_tokens / sequences - 1.0)
    last_due_s = first_due_s + gaps * slo.tpot_s
    if ttft_s <= first_due_s and latency_s <= last_due_s:
        return 1.0  # due and came are straight lines: in time at both ends is in time throughout
    points = min(_STREAM_POINTS, max(1, round(output_tokens)))
    total = 0.0
    for point in range(points):
        share = (point + 0.5) / points
        due_s = first_due_s + share * (last_due_s - first_due_s)
        came_s = ttft_s + share * (latency_s - ttft_s)
        if token_lag_s is not None:
            came_s = min(came_s, due_s + token_lag_s)
        total += degradation(due_s, came_s, penalty)
    return total / points


def service_gain(
    call_class: CallClass,
    slo: Slo,
    *,
    prompt_tokens: float,
    output_tokens: float,
    latency_s: float,
    ttft_s: float | None = None,
    token_lag_s: float | None = None,
    workflow_s: float | None = None,
    weights: GainWeights = PAPER_WEIGHTS,
    penalty: float = 1.0,
    sequences: int = 1,
) -> float:
    """What a call (or, with summed tokens, a workflow) that ended well was worth, in tokens.

    Args:
        call_class: Decides which of `slo` counts.
        slo: What was promised. `end_to_end_s` is from the workflow's first call; where the tracker
            gave a default deadline, put it there.
        prompt_tokens: L_i, of all prompts of the call.
        output_tokens: L_o, of all its sequences.
        latency_s: Arrival to end of the call.
        ttft_s: Arrival to first token; `None`: the answer came whole, at its end.
        token_lag_s: As `CallRecord.token_lag_s`.
        workflow_s: Arrival of the workflow's first call to the end of its last. `None`: the call
            was all of its workflow, and `latency_s` says it.
        weights: Worth of a token.
        penalty: a.
        sequences: That L_o is of: a stream's tokens are due in each of them.

    Example:
        >>> slo = Slo(end_to_end_s=20.0)
        >>> done = {"prompt_tokens": 200, "output_tokens": 50}
        >>> service_gain(CallClass.THROUGHPUT, slo, latency_s=10.0, **done)
        300.0
        >>> service_gain(CallClass.COLLECTIVE, slo, latency_s=10.0, workflow_s=40.0, **done)
        150.0
    """
    full = weights.of(prompt_tokens, output_tokens)
    if call_class is CallClass.BEST_EFFORT:
        return full
    if call_class is CallClass.LATENCY and _streams(slo):
        first_s = latency_s if ttft_s is None else ttft_s
        prompt_share = 1.0 if slo.ttft_s is None else degradation(slo.ttft_s, first_s, penalty)
        output_share = stream_degradation(
            slo,
            output_tokens=output_tokens,
            ttft_s=first_s,
            latency_s=latency_s,
            token_lag_s=token_lag_s,
            penalty=penalty,
            sequences=sequences,
        )
        return weights.of(prompt_tokens * prompt_share, output_tokens * output_share)
    if slo.end_to_end_s is None:
        return full
    took_s = latency_s if workflow_s is None else workflow_s
    return full * degradation(slo.end_to_end_s, took_s, penalty)


def slo_met(
    call_class: CallClass,
    slo: Slo,
    *,
    latency_s: float,
    output_tokens: float,
    ttft_s: float | None = None,
    token_lag_s: float | None = None,
    workflow_s: float | None = None,
    sequences: int = 1,
) -> bool | None:
    """Whether a call that ended well kept its SLO; `None` where its class was promised nothing.

    A latency call keeps it when its first token came in time and no token fell behind the timeline;
    where the worst delay was not measured, its last token decides. Arguments as `service_gain`.

    Example:
        >>> slo = Slo(ttft_s=2.0, tpot_s=0.1)
        >>> slo_met(CallClass.LATENCY, slo, latency_s=9.0, output_tokens=101, ttft_s=1.0)
        True
        >>> slo_met(CallClass.LATENCY, slo, latency_s=9.0, output_tokens=101, ttft_s=2.5)
        False
    """
    if call_class is CallClass.BEST_EFFORT:
        return None
    if call_class is CallClass.LATENCY and _streams(slo):
        first_s = latency_s if ttft_s is None else ttft_s
        return _stream_in_time(slo, output_tokens / sequences, first_s, latency_s, token_lag_s)
    if slo.end_to_end_s is None:
        return None
    return (latency_s if workflow_s is None else workflow_s) <= slo.end_to_end_s


def _stream_in_time(
    slo: Slo, output_tokens: float, ttft_s: float, latency_s: float, token_lag_s: float | None
) -> bool:
    if slo.ttft_s is not None and ttft_s > slo.ttft_s:
        return False
    if slo.tpot_s is None:
        return True
    if token_lag_s is not None:
        return token_lag_s <= 0.0
    first_due_s = ttft_s if slo.ttft_s is None else slo.ttft_s
    return latency_s <= first_due_s + max(0.0, output_tokens - 1.0) * slo.tpot_s


def _streams(slo: Slo) -> bool:
    """Whether there is anything that a latency call is measured by; else its end decides."""
    return slo.ttft_s is not None or slo.tpot_s is not None
