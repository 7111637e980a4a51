"""Windows of finished workflows, and the one that new windows are held against."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from dispatcher.traces.assembly import Assembled
from dispatcher.traces.types import TraceWorkflow
from dispatcher.tuning.replay import latest
from dispatcher.tuning.rules import TuningRules
from dispatcher.tuning.statistics import P95, percentile

LATENCIES_MAX = 10_000
"""Latencies of one window that count: the latest."""


@dataclass(frozen=True, slots=True)
class Window:
    """What ended between two moments."""

    number: int
    """From 1 on."""
    span_s: float
    """From its beginning to its end; longer than asked for where too little ended."""
    latencies_s: tuple[float, ...]
    """Of the workflows that ended well, in the order in which they ended."""
    trace: tuple[TraceWorkflow, ...]
    """All of them, in the order in which they ended; the latest, where there are too many calls."""

    @property
    def p95_s(self) -> float:
        """Of the latencies; there is at least one."""
        return percentile(self.latencies_s, P95)

    @property
    def calls(self) -> int:
        """Calls that a replay would play."""
        return sum(len(workflow.calls) for workflow in self.trace)


@dataclass(slots=True)
class _Sample:
    ended_s: float
    """When it was known to have ended: with silence, long after its last call."""
    latency_s: float | None
    trace: TraceWorkflow | None
    """`None`: so many calls have ended since that no replay would play it."""


class Monitor:
    """Collects workflows, closes windows, remembers the reference.

    The reference is the window of the last tune rather than the one before: against that, slow
    drift would never show.

    Example:
        >>> Monitor(TuningRules(), now_s=5.0).due_s
        105.0
    """

    def __init__(self, rules: TuningRules, now_s: float) -> None:
        self.rules = rules
        #: latencies of the window of the last tune; `None`: there was none since the beginning
        self.reference: Window | None = None
        self._samples: deque[_Sample] = deque()
        #: the latest of them, which still have their traces
        self._traced: deque[_Sample] = deque()
        self._calls = 0
        self._opened_s = now_s
        #: when to ask `close` next
        self.due_s = now_s + rules.window_s
        self._number = 0

    @property
    def collecting(self) -> bool:
        """No window has been tuned on as yet."""
        return self.reference is None

    @property
    def opened_s(self) -> float:
        """When the present window began."""
        return self._opened_s

    @property
    def kept_calls(self) -> int:
        """Calls of all traces that are kept."""
        return self._calls

    def open_workflows(self) -> int:
        """Workflows of the present window that ended well."""
        return sum(
            sample.latency_s is not None
            for sample in self._samples
            if sample.ended_s >= self._opened_s
        )

    def restart(self, now_s: float) -> None:
        """Another policy decides: what was seen says nothing of it. Collect anew."""
        self._samples.clear()
        self._traced.clear()
        self._calls = 0
        self.reference = None
        self._open(now_s)

    def add(self, ended: Assembled, now_s: float) -> None:
        """A workflow has ended."""
        sample = _Sample(now_s, ended.latency_s, ended.trace)
        self._samples.append(sample)
        self._traced.append(sample)
        self._calls += len(ended.trace.calls)
        self._forget(now_s)

    def _forget(self, now_s: float) -> None:
        """Bound what is kept: latencies by age and number, traces by twice what is ever used."""
        oldest_s = now_s - self.rules.max_window_s
        while self._samples and (
            self._samples[0].ended_s < oldest_s or len(self._samples) > LATENCIES_MAX
        ):
            if self._samples.popleft().trace is not None:
                self._forget_trace()
        while self._calls > 2 * self.rules.max_calls and len(self._traced) > 1:
            self._forget_trace()

    def _forget_trace(self) -> None:
        """The oldest one that is left."""
        sample = self._traced.popleft()
        self._calls -= 0 if sample.trace is None else len(sample.trace.calls)
        sample.trace = None

    def close(self, now_s: float) -> Window | None:
        """End the present window and begin the next; `None`: too little ended, so it goes on."""
        self._forget(now_s)
        window = self._window(self._opened_s, now_s)
        if len(window.latencies_s) < self.rules.min_workflows:
            self.due_s = now_s + self.rules.window_s
            # what is forgotten belongs to no window any more
            self._opened_s = max(self._opened_s, now_s - self.rules.max_window_s)
            return None
        self._number += 1
        self._open(now_s)
        return window

    def recent(self, now_s: float) -> Window:
        """What ended within the last window's length, or as far back as it takes to have enough.

        For a tune that is asked for; it may still hold too little. The present window goes on.
        """
        self._forget(now_s)
        since_s = now_s - self.rules.window_s
        well = [sample.ended_s for sample in self._samples if sample.latency_s is not None]
        if len(well) >= self.rules.min_workflows:
            since_s = min(since_s, well[-self.rules.min_workflows])
        elif self._samples:
            since_s = min(since_s, self._samples[0].ended_s)
        return self._window(since_s, now_s)

    def tuned(self, window: Window) -> None:
        """A tune has used this window: later ones are held against it."""
        self.reference = Window(window.number, window.span_s, window.latencies_s, ())

    def _open(self, now_s: float) -> None:
        self._opened_s = now_s
        self.due_s = now_s + self.rules.window_s

    def _window(self, since_s: float, now_s: float) -> Window:
        inside = [sample for sample in self._samples if sample.ended_s >= since_s]
        latencies = (sample.latency_s for sample in inside)
        return Window(
            number=self._number + 1,
            span_s=now_s - since_s,
            latencies_s=tuple(latency for latency in latencies if latency is not None),
            trace=latest([s.trace for s in inside if s.trace is not None], self.rules.max_calls),
        )
