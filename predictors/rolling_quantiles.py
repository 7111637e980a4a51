"""Output length from rolling quantiles, by (model, application, stage).

Calls of one stage of one agent application are alike, so the lengths of the latest ones predict
the next (HexGen-Flow, section 4.2, uses stage means; quantiles are what deadlines need). With too
few of them the prediction falls back in steps: (model, application), model, everything, and at
last a prior: exponential, the least committal law of a positive length whose mean is known.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter

from dispatcher.core.types import CallSpec, LengthEstimate
from predictors._numbers import count

PROBABILITIES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
"""Quantiles that every estimate carries."""

_MAX_TOKENS = 2**31 - 1
_NO_CAP = float(_MAX_TOKENS)

_LengthKey = tuple[str, ...]
"""(model, application, stage), or its first one or two parts."""

_Seven = tuple[float, float, float, float, float, float, float]
"""One number per quantile."""

_STEPS = ("global", "model", "application", "stage")
"""Name of each step, by how many parts its key has."""


@dataclass(frozen=True, slots=True)
class RollingQuantilesSettings:
    """How much is remembered, and what is believed before anything is."""

    window: int = 128
    """Latest lengths kept per key; at least 1."""
    max_keys: int = 4_000
    """Keys kept; the one that learned least recently goes first."""
    min_samples: int = 5
    """A key with fewer does not speak; at least 1."""
    prior_tokens: float = 256.0
    """Mean of the prior."""
    error_memory: float = 500.0
    """Calls over which coverage and error are averaged."""


class RollingQuantiles:
    """Length predictor: `dispatcher.core.ports.LengthPredictor`.

    Lengths are per sequence, of calls with several choices too; each is in [1, 2^31 - 1].
    Calls with `ignore_eos` and `max_tokens` are known exactly and teach nothing.

    Example:
        >>> from dispatcher.core.types import CallId, WorkflowId
        >>> spec = CallSpec(CallId("c"), WorkflowId("w"), "m", prompt_tokens=10, stage="revise")
        >>> lengths = RollingQuantiles()
        >>> lengths.predict(spec).source
        'prior'
        >>> for tokens in (90, 100, 110, 100, 100):
        ...     lengths.learn(spec, tokens)
        >>> lengths.predict(spec).expected_tokens, lengths.predict(spec).source
        (100.0, 'rolling:stage')
    """

    def __init__(self, settings: RollingQuantilesSettings | None = None) -> None:
        self._settings = settings or RollingQuantilesSettings()
        if self._settings.window < 1 or self._settings.min_samples < 1:
            raise ValueError("window and min_samples must be at least 1")
        if not 1 <= self._settings.prior_tokens <= _MAX_TOKENS:
            raise ValueError("prior_tokens must be at least 1 and below 2^31")
        self._global = _Window(self._settings.window, _STEPS[0])
        #: least recently taught first
        self._windows: OrderedDict[_LengthKey, _Window] = OrderedDict()
        self._quality = _Quality(self._settings.error_memory)
        mean = self._settings.prior_tokens
        self._prior_tokens = tuple(-mean * math.log1p(-p) for p in PROBABILITIES)

    def predict(self, spec: CallSpec) -> LengthEstimate:
        """Quantiles of the first step that knows enough, within the call's own limits."""
        exact = _exact_tokens(spec)
        if exact is not None:
            return LengthEstimate(float(exact), ((0.5, float(exact)),), "exact")
        return self._estimate(spec, _keys(spec))

    def learn(self, spec: CallSpec, output_tokens: int) -> None:
        """Take the length of a call that ended well; nothing is learned from 0 tokens or less.

        Args:
            spec: The call.
            output_tokens: Per sequence.
        """
        if not 0 < output_tokens < math.inf or _exact_tokens(spec) is not None:
            return
        tokens = float(_limited(output_tokens))
        keys = _keys(spec)
        self._quality.learn(self._estimate(spec, keys), tokens)
        windows = self._windows
        for key in keys:
            window = windows.get(key)
            if window is None:
                window = windows[key] = _Window(self._settings.window, _STEPS[len(key)])
                if len(windows) > self._settings.max_keys:
                    windows.popitem(last=False)
            else:
                windows.move_to_end(key)
            window.add(tokens)
        self._global.add(tokens)

    def stats(self) -> dict[str, object]:
        """Sample counts, coverage of the quantiles, mean absolute error; JSON-ready.

        Coverage and error are of calls learned from since the start, which `samples` counts, and
        `None` before the first: what was learned earlier comes back, how good it was does not.
        """
        return {"keys": len(self._windows), **self._quality.stats()}

    def dump(self) -> dict[str, object]:
        """What was learned, as plain JSON values."""
        return {
            "global": self._global.samples(),
            "windows": [[list(key), window.samples()] for key, window in self._windows.items()],
        }

    def load(self, state: Mapping[str, object]) -> None:
        """Replace what was learned by what `dump` gave.

        Raises:
            ValueError: The state does not have the shape that `dump` gives; nothing has changed
                then.
        """
        windows = state.get("windows")
        if not isinstance(windows, list):
            raise ValueError("windows: expected a list")
        everything = self._filled(state.get("global"), _STEPS[0])
        filled: OrderedDict[_LengthKey, _Window] = OrderedDict()
        for entry in windows[-self._settings.max_keys :]:
            if not isinstance(entry, list) or len(entry) != 2:
                raise ValueError("windows: expected a list of keys with their samples")
            key, samples = entry
            if not isinstance(key, list) or not 1 <= len(key) < len(_STEPS):
                raise ValueError("windows: expected keys of one to three parts")
            filled[tuple(str(part) for part in key)] = self._filled(samples, _STEPS[len(key)])
        self._global, self._windows = everything, filled

    def _filled(self, samples: object, step: str) -> _Window:
        if not isinstance(samples, list):
            raise ValueError("samples: expected a list of token counts")
        window = _Window(self._settings.window, step)
        for tokens in samples[-self._settings.window :]:
            window.add(float(count(tokens, "tokens", 1, _MAX_TOKENS)))
        return window

    def _estimate(self, spec: CallSpec, keys: Iterable[_LengthKey]) -> LengthEstimate:
        """That of the first step that knows enough."""
        floor, cap = 0.0, _NO_CAP
        if spec.features:
            # In this order what is no number becomes 0.
            floor = float(min(_MAX_TOKENS, max(0.0, spec.features.get("min_tokens", 0.0))))
        if spec.max_tokens is not None:
            cap = float(_limited(spec.max_tokens))
        least = self._settings.min_samples
        for key in keys:
            window = self._windows.get(key)
            if window is not None and len(window.arrivals) >= least:
                return window.estimate(floor, cap)
        if len(self._global.arrivals) >= least:
            return self._global.estimate(floor, cap)
        return self._prior(floor, cap)

    def _prior(self, floor: float, cap: float) -> LengthEstimate:
        mean = self._settings.prior_tokens
        expected = mean * -math.expm1(-cap / mean)
        values = [_between(tokens, floor, cap) for tokens in self._prior_tokens]
        return LengthEstimate(_between(expected, floor, cap), _paired(values), "prior")


class _Window:
    """The latest lengths of one key, in order of arrival and sorted.

    Whole numbers, kept as floats since that is what estimates are made of. Each estimate is kept
    until the next length comes. Where a more particular window always speaks, nobody asks this
    one: after as many lengths as it holds it stops sorting, until it is asked again.
    """

    __slots__ = (
        "_limited",
        "_limits",
        "_size",
        "_sorted",
        "_source",
        "_total",
        "_unasked",
        "_unlimited",
        "arrivals",
    )

    def __init__(self, size: int, step: str) -> None:
        self._size = size
        self._source = f"rolling:{step}"
        #: oldest first
        self.arrivals: deque[float] = deque(maxlen=size)
        #: the same in ascending order; `None`: not kept for now
        self._sorted: list[float] | None = []
        #: theirs, while they are sorted; no rounding in sums of whole numbers
        self._total = 0.0
        #: lengths added since it was last asked
        self._unasked = 0
        self._unlimited: LengthEstimate | None = None
        #: the latest estimate that limits changed, and those limits
        self._limited: LengthEstimate | None = None
        self._limits = (0.0, 0.0)

    def add(self, tokens: float) -> None:
        arrivals, ordered = self.arrivals, self._sorted
        if ordered is not None:
            self._unlimited = self._limited = None
            self._unasked += 1
            if self._unasked > self._size:
                self._sorted = None
            else:
                if len(arrivals) == self._size:
                    oldest = arrivals[0]
                    del ordered[bisect_left(ordered, oldest)]
                    self._total -= oldest
                insort(ordered, tokens)
                self._total += tokens
        arrivals.append(tokens)

    def samples(self) -> list[int]:
        """Oldest first."""
        return [int(tokens) for tokens in self.arrivals]

    def estimate(self, floor: float, cap: float) -> LengthEstimate:
        """What the lengths say, moved into [floor, cap]; there must be some."""
        ordered = self._sorted
        if ordered is None:
            ordered = self._sorted = sorted(self.arrivals)
            self._total = sum(ordered)
        self._unasked = 0
        if floor <= ordered[0] and cap >= ordered[-1]:
            if self._unlimited is None:
                # No length is below 1, hence nor is their mean.
                mean = self._total / len(ordered)
                values = _ranked(len(ordered))(ordered)
                self._unlimited = LengthEstimate(mean, _paired(values), self._source)
            return self._unlimited
        if self._limited is None or self._limits != (floor, cap):
            values = [
                value if floor <= value <= cap else _between(value, floor, cap)
                for value in _ranked(len(ordered))(ordered)
            ]
            mean = _limited_mean(ordered, floor, cap)
            self._limited = LengthEstimate(mean, _paired(values), self._source)
            self._limits = (floor, cap)
        return self._limited


class _Quality:
    """How good the predictions were that were made just before each length became known."""

    def __init__(self, memory: float) -> None:
        self._memory = memory
        self._samples = 0
        #: by PROBABILITIES
        self._coverage: _Seven = (0.0,) * 7
        self._error_tokens = 0.0
        self._sources: dict[str, int] = {}

    def learn(self, estimate: LengthEstimate, tokens: float) -> None:
        self._samples += 1
        rate = 1.0 / min(self._samples, self._memory)
        self._sources[estimate.source] = self._sources.get(estimate.source, 0) + 1
        self._error_tokens += rate * (abs(estimate.expected_tokens - tokens) - self._error_tokens)
        # Written out: a loop over the seven takes four times as long.
        (_, t), (_, u), (_, v), (_, w), (_, x), (_, y), (_, z) = estimate.quantiles
        a, b, c, d, e, f, g = self._coverage
        self._coverage = (
            a + rate * (1.0 - a) if tokens <= t else a - rate * a,
            b + rate * (1.0 - b) if tokens <= u else b - rate * b,
            c + rate * (1.0 - c) if tokens <= v else c - rate * c,
            d + rate * (1.0 - d) if tokens <= w else d - rate * d,
            e + rate * (1.0 - e) if tokens <= x else e - rate * e,
            f + rate * (1.0 - f) if tokens <= y else f - rate * f,
            g + rate * (1.0 - g) if tokens <= z else g - rate * g,
        )

    def stats(self) -> dict[str, object]:
        known = self._samples > 0
        return {
            "samples": self._samples,
            "coverage": {
                str(p): share if known else None
                for p, share in zip(PROBABILITIES, self._coverage, strict=True)
            },
            "mean_abs_error_tokens": self._error_tokens if known else None,
            "sources": dict(self._sources),
        }


def _keys(spec: CallSpec) -> tuple[_LengthKey, ...]:
    """Most particular first, without that of everything."""
    model, application, stage = spec.model, spec.application, spec.stage
    if stage is None:
        return (model, application), (model,)
    return (model, application, stage), (model, application), (model,)


@lru_cache(maxsize=1024)
def _ranked(size: int) -> itemgetter[tuple[float, ...]]:
    """Picks the quantiles out of so many sorted samples."""
    # The next sample is as likely in each of the n + 1 gaps, hence p (n + 1) - 1.
    return itemgetter(*(min(size, max(1, math.ceil(p * (size + 1)))) - 1 for p in PROBABILITIES))


def _paired(values: Sequence[float]) -> tuple[tuple[float, float], ...]:
    p, q, r, s, t, u, v = PROBABILITIES
    a, b, c, d, e, f, g = values
    return (p, a), (q, b), (r, c), (s, d), (t, e), (u, f), (v, g)


def _limited_mean(ordered: Sequence[float], floor: float, cap: float) -> float:
    """Mean of what the lengths become within the limits; a cap wins over a floor."""
    low = bisect_right(ordered, floor)
    high = max(low, bisect_left(ordered, cap))
    total = sum(ordered[low:high]) + low * min(floor, cap)
    if high < len(ordered):
        total += (len(ordered) - high) * cap
    return _between(total / len(ordered), floor, cap)


def _exact_tokens(spec: CallSpec) -> int | None:
    if spec.max_tokens is not None and spec.features.get("ignore_eos") == 1.0:
        return _limited(spec.max_tokens)
    return None


def _limited(tokens: float) -> int:
    if isinstance(tokens, int) and 1 <= tokens <= _MAX_TOKENS:
        return tokens
    return round(min(max(1, tokens), _MAX_TOKENS))


def _between(value: float, floor: float, cap: float) -> float:
    return min(max(value, floor, 1.0), cap)
