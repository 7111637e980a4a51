"""Output length from rolling quantiles, by (model, application, stage).

Calls of one stage of one agent application are alike, so the lengths of the latest ones predict
the next (HexGen-Flow, section 4.2, uses stage means; quantiles are what deadlines need). With too
few of them the prediction falls back in steps: (model, application), model, everything, and at
last a prior: exponential, the least committal law of a positive length whose mean is known.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right, insort
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from dispatcher.core.types import CallSpec, LengthEstimate
from predictors._numbers import count

PROBABILITIES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
"""Quantiles that every estimate carries."""

_MAX_TOKENS = 2**31 - 1

_LengthKey = tuple[str, ...]
"""(model, application, stage), or its first one or two parts."""

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
        self._global = _Window(self._settings.window)
        #: least recently taught first
        self._windows: OrderedDict[_LengthKey, _Window] = OrderedDict()
        self._quality = _Quality(self._settings.error_memory)

    def predict(self, spec: CallSpec) -> LengthEstimate:
        """Quantiles of the first step that knows enough, within the call's own limits."""
        exact = _exact_tokens(spec)
        if exact is not None:
            return LengthEstimate(float(exact), ((0.5, float(exact)),), "exact")
        # In this order what is no number becomes 0.
        floor = min(_MAX_TOKENS, max(0.0, spec.features.get("min_tokens", 0.0)))
        cap = float(_MAX_TOKENS if spec.max_tokens is None else _limited(spec.max_tokens))
        for key in _keys(spec):
            window = self._windows.get(key) if key else self._global
            if window is not None and len(window) >= self._settings.min_samples:
                return window.estimate(floor, cap, f"rolling:{_STEPS[len(key)]}")
        return self._prior(floor, cap)

    def learn(self, spec: CallSpec, output_tokens: int) -> None:
        """Take the length of a call that ended well; nothing is learned from 0 tokens or less.

        Args:
            spec: The call.
            output_tokens: Per sequence.
        """
        if not 0 < output_tokens < math.inf or _exact_tokens(spec) is not None:
            return
        tokens = _limited(output_tokens)
        self._quality.learn(self.predict(spec), tokens)
        for key in _keys(spec):
            self._window(key).add(tokens)

    def stats(self) -> dict[str, object]:
        """Sample counts, coverage of the quantiles, mean absolute error; JSON-ready."""
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
        everything = self._filled(state.get("global"))
        filled: OrderedDict[_LengthKey, _Window] = OrderedDict()
        for entry in windows[-self._settings.max_keys :]:
            if not isinstance(entry, list) or len(entry) != 2:
                raise ValueError("windows: expected a list of keys with their samples")
            key, samples = entry
            if not isinstance(key, list) or not 1 <= len(key) < len(_STEPS):
                raise ValueError("windows: expected keys of one to three parts")
            filled[tuple(str(part) for part in key)] = self._filled(samples)
        self._global, self._windows = everything, filled

    def _filled(self, samples: object) -> _Window:
        if not isinstance(samples, list):
            raise ValueError("samples: expected a list of token counts")
        window = _Window(self._settings.window)
        for tokens in samples[-self._settings.window :]:
            window.add(count(tokens, "tokens", 1, _MAX_TOKENS))
        return window

    def _window(self, key: _LengthKey) -> _Window:
        if not key:
            return self._global
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = _Window(self._settings.window)
            if len(self._windows) > self._settings.max_keys:
                self._windows.popitem(last=False)
        else:
            self._windows.move_to_end(key)
        return window

    def _prior(self, floor: float, cap: float) -> LengthEstimate:
        mean = self._settings.prior_tokens
        expected = mean * -math.expm1(-cap / mean)
        quantiles = tuple((p, _between(-mean * math.log1p(-p), floor, cap)) for p in PROBABILITIES)
        return LengthEstimate(_between(expected, floor, cap), quantiles, "prior")


class _Window:
    """The latest lengths of one key, in order of arrival and sorted."""

    __slots__ = ("_arrivals", "_cached", "_next", "_size", "_sorted", "_total")

    def __init__(self, size: int) -> None:
        self._size = size
        self._arrivals = array("i")
        self._sorted = array("i")
        self._next = 0
        self._total = 0
        self._cached: LengthEstimate | None = None

    def __len__(self) -> int:
        return len(self._arrivals)

    def add(self, tokens: int) -> None:
        if len(self._arrivals) < self._size:
            self._arrivals.append(tokens)
        else:
            oldest = self._arrivals[self._next]
            self._sorted.pop(bisect_left(self._sorted, oldest))
            self._total -= oldest
            self._arrivals[self._next] = tokens
            self._next = (self._next + 1) % self._size
        insort(self._sorted, tokens)
        self._total += tokens
        self._cached = None

    def samples(self) -> list[int]:
        """Oldest first."""
        return [*self._arrivals[self._next :], *self._arrivals[: self._next]]

    def estimate(self, floor: float, cap: float, source: str) -> LengthEstimate:
        if floor <= self._sorted[0] and cap >= self._sorted[-1]:
            # A window always speaks for the same step, so its unlimited estimate can be kept.
            if self._cached is None:
                self._cached = LengthEstimate(
                    max(1.0, self._total / len(self._sorted)), self._quantiles(), source
                )
            return self._cached
        quantiles = tuple((p, _between(value, floor, cap)) for p, value in self._quantiles())
        return LengthEstimate(self._limited_mean(floor, cap), quantiles, source)

    def _quantiles(self) -> tuple[tuple[float, float], ...]:
        last = len(self._sorted) - 1
        # The next sample is as likely in each of the n + 1 gaps, hence p (n + 1) - 1.
        ranks = (min(last, max(0, math.ceil(p * (last + 2)) - 1)) for p in PROBABILITIES)
        return tuple(
            (p, float(self._sorted[rank])) for p, rank in zip(PROBABILITIES, ranks, strict=True)
        )

    def _limited_mean(self, floor: float, cap: float) -> float:
        """Mean of what the lengths become within the limits; a cap wins over a floor."""
        low = bisect_right(self._sorted, floor)
        high = max(low, bisect_left(self._sorted, cap))
        count = len(self._sorted)
        total = sum(self._sorted[low:high]) + low * min(floor, cap)
        if high < count:
            total += (count - high) * cap
        return _between(total / count, floor, cap)


class _Quality:
    """How good the predictions were that were made just before each length became known."""

    def __init__(self, memory: float) -> None:
        self._memory = memory
        self._samples = 0
        self._coverage = dict.fromkeys(PROBABILITIES, 0.0)
        self._error_tokens = 0.0
        self._sources: Counter[str] = Counter()

    def learn(self, estimate: LengthEstimate, tokens: int) -> None:
        self._samples += 1
        rate = max(1.0 / self._samples, 1.0 / self._memory)
        self._sources[estimate.source] += 1
        self._error_tokens += rate * (abs(estimate.expected_tokens - tokens) - self._error_tokens)
        for p, value in estimate.quantiles:
            covered = 1.0 if tokens <= value else 0.0
            self._coverage[p] += rate * (covered - self._coverage[p])

    def stats(self) -> dict[str, object]:
        return {
            "samples": self._samples,
            "coverage": {str(p): share for p, share in self._coverage.items()},
            "mean_abs_error_tokens": self._error_tokens,
            "sources": dict(self._sources),
        }


def _keys(spec: CallSpec) -> list[_LengthKey]:
    """Most particular first; the empty key is everything."""
    keys: list[_LengthKey] = [(spec.model, spec.application), (spec.model,), ()]
    if spec.stage is not None:
        keys.insert(0, (spec.model, spec.application, spec.stage))
    return keys


def _exact_tokens(spec: CallSpec) -> int | None:
    if spec.max_tokens is not None and spec.features.get("ignore_eos") == 1.0:
        return _limited(spec.max_tokens)
    return None


def _limited(tokens: int) -> int:
    return round(min(max(1, tokens), _MAX_TOKENS))


def _between(value: float, floor: float, cap: float) -> float:
    return min(max(value, floor, 1.0), cap)
