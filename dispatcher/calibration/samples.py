"""What a probe measures, as plain numbers; what is fitted to them takes nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field

_LEAST_OCCASIONS = 6


@dataclass(frozen=True, slots=True)
class StreamTrace:
    """One streamed call, as its client saw it.

    Attributes:
        sent_s: When it was sent, on the client's clock.
        prompt_tokens: Prompt length, as the engine counted it.
        cached_tokens: Those of them that its prefix cache held; 0 where it does not tell.
        points: (time, output tokens so far), whenever some arrived; times and tokens rise.
    """

    sent_s: float
    prompt_tokens: int
    cached_tokens: int
    points: tuple[tuple[float, int], ...]

    @property
    def first_s(self) -> float:
        """When the first token arrived."""
        return self.points[0][0]

    @property
    def last_s(self) -> float:
        """When the last token arrived."""
        return self.points[-1][0]

    @property
    def uncached_tokens(self) -> int:
        """Prompt tokens that had to be computed."""
        return max(0, self.prompt_tokens - self.cached_tokens)


@dataclass(frozen=True, slots=True)
class PrefillSample:
    """A call that met an idle engine: `ttft_s` for `uncached_tokens` prompt tokens."""

    uncached_tokens: int
    ttft_s: float


@dataclass(frozen=True, slots=True)
class DecodeSample:
    """A while in which `running` calls decoded and kept `kv_tokens` on average."""

    running: int
    kv_tokens: float
    tpot_s: float


@dataclass(frozen=True, slots=True)
class AdmissionSample:
    """A call that met `running` decoding calls.

    Attributes:
        running: Decoding calls.
        uncached_tokens: Its prompt tokens that had to be computed.
        stall_s: How much later the decoding calls' tokens came for it.
    """

    running: int
    uncached_tokens: int
    stall_s: float


@dataclass(slots=True)
class Samples:
    """All that was measured of one engine under one load."""

    prefill: list[PrefillSample] = field(default_factory=list)
    decode: list[DecodeSample] = field(default_factory=list)
    admission: list[AdmissionSample] = field(default_factory=list)


def decode_sample(traces: list[StreamTrace]) -> DecodeSample | None:
    """What calls that ran side by side tell: of the while in which all of them decoded.

    That begins with the last first token and ends with the first last one. Calls whose first token
    came later than that waited for a seat and are left out. None where the tokens of any of them
    arrived on fewer than six occasions: a machine that is busy holds back whole answers, which
    then look as if they had taken no time.
    """
    together = overlapping(traces)
    begin_s = max(trace.first_s for trace in together)
    end_s = min(trace.last_s for trace in together)
    seconds, tokens, kv_tokens = 0.0, 0, 0.0
    for trace in together:
        inside = [point for point in trace.points if begin_s <= point[0] <= end_s]
        if len(inside) < _LEAST_OCCASIONS:
            return None
        (start_s, before), (stop_s, after) = inside[0], inside[-1]
        seconds += stop_s - start_s
        tokens += after - before
        kv_tokens += trace.prompt_tokens + 0.5 * (before + after)
    return DecodeSample(len(together), kv_tokens, seconds / tokens)


def overlapping(traces: list[StreamTrace]) -> list[StreamTrace]:
    """The calls that had their first token before any had its last: all had a seat at once."""
    end_s = min(trace.last_s for trace in traces)
    return [trace for trace in traces if trace.first_s <= end_s]


def admission_sample(
    background: list[list[tuple[float, int]]],
    visitor: StreamTrace,
    gap_s: float,
) -> AdmissionSample | None:
    """How much a call held up those that decoded meanwhile.

    Args:
        background: Per decoding call its (time, tokens so far), from before the visitor was sent
            until a few tokens after it was answered.
        visitor: The call that came in between.
        gap_s: Usual time between two tokens of the decoding calls.
    """
    stalls = []
    for points in background:
        before = [point for point in points if point[0] <= visitor.sent_s]
        after = [point for point in points if point[0] > visitor.last_s]
        if not before or len(after) < 2:
            return None
        (start_s, first), (stop_s, last) = before[-1], after[1]
        stalls.append(stop_s - start_s - (last - first) * gap_s)
    if not stalls:
        return None
    stall_s = sum(stalls) / len(stalls)
    # what is below 0 is noise about a stall too short to be seen
    return AdmissionSample(len(stalls), visitor.uncached_tokens, max(0.0, stall_s))
