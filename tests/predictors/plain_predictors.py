"""What the fast predictors compute, written as plainly as possible, to compare them with.

Sums run term by term, as in the predictors, so that equal means equal to the last bit.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence

from dispatcher.core.gpu_profiles import CostProfile
from dispatcher.core.ports import AttemptTiming
from dispatcher.core.types import CallSpec, LengthEstimate
from predictors._nonnegative_ridge import NonNegativeRidge
from predictors.linear_cost import LinearCostSettings
from predictors.rolling_quantiles import PROBABILITIES, RollingQuantilesSettings


def clamp(value: float, low: float, high: float) -> float:
    return float(min(high, max(low, value)))


def total(values: Sequence[float]) -> float:
    result = 0.0
    for value in values:
        result += value
    return result


class PlainFactor:
    def __init__(self, memory_samples: float, trust_samples: float) -> None:
        self.keep = 1.0 - 1.0 / memory_samples
        self.log = 0.0
        self.weight = trust_samples

    def add(self, log_ratio: float, weight: float) -> None:
        self.weight = self.weight * self.keep + weight
        self.log = clamp(self.log + weight / self.weight * (log_ratio - self.log), -40.0, 40.0)


class PlainFit:
    """One instance's five coefficients, with loops over lists."""

    PHASES = ((0, 1), (2, 3, 4))

    def __init__(self, start: Sequence[float], trust_samples: float) -> None:
        """`start`: the five coefficients as the fit keeps them, already floored."""
        settings = LinearCostSettings()
        self.start = start
        self.ridge = NonNegativeRidge(
            5, memory_samples=settings.memory_samples, ridge=settings.ridge_samples
        )
        self.factors = [PlainFactor(settings.memory_samples, trust_samples) for _ in self.PHASES]
        self.samples = 0
        self.error = 0.3
        self.bias = 0.0

    def learn(self, timing: AttemptTiming) -> None:
        uncached = clamp(timing.prompt_tokens - timing.cached_tokens, 0.0, 1e10)
        decoded = clamp(timing.output_tokens - 1, 0.0, 1e10)
        running = clamp(timing.mean_running, 1.0, 1e6)
        resident = clamp(timing.mean_resident_tokens, 0.0, 1e10)
        prefill_row = [uncached, 1.0, 0.0, 0.0, 0.0]
        decode_row = [0.0, 0.0, decoded, decoded * running, decoded * resident]
        equations: list[tuple[list[float], float]] = []
        if timing.ttft_s is None:
            both = [a + b for a, b in zip(prefill_row, decode_row, strict=True)]
            equations.append((both, timing.total_s))
        else:
            equations.append((prefill_row, timing.ttft_s))
            if decoded and timing.decode_s is not None:
                equations.append((decode_row, timing.decode_s))
        usable = [(row, seconds) for row, seconds in equations if 0 < seconds < math.inf]
        for row, seconds in usable:
            self.add(row, clamp(seconds, 1e-7, 1e5))
        self.samples += bool(usable)

    def add(self, row: Sequence[float], observed_s: float) -> None:
        now = self.ridge.coefficients
        parts = [x * s for x, s in zip(row, self.start, strict=True)]
        predicted_s = total([part * c for part, c in zip(parts, now, strict=True)])
        log_error = self.cut(math.log(observed_s / predicted_s))
        observed_s = predicted_s * math.exp(log_error)
        prefill_share = total([parts[j] * now[j] for j in self.PHASES[0]]) / predicted_s
        shares = (prefill_share, 1.0 - prefill_share)
        for factor, phase, share in zip(self.factors, self.PHASES, shares, strict=True):
            of_start = total([parts[j] for j in phase])
            of_now = total([parts[j] * now[j] for j in phase])
            if share > 0 and of_start > 0:
                factor.add(math.log(of_now / of_start) + log_error, share)
        unit_s = observed_s if log_error > math.log(2) else predicted_s
        prefill, decode = (math.exp(factor.log) for factor in self.factors)
        self.ridge.add(
            [part / unit_s for part in parts],
            observed_s / unit_s,
            1.0,
            centre=[prefill, prefill, decode, decode, decode],
        )

    def cut(self, log_error: float) -> float:
        log_error = clamp(log_error, -20.0, 20.0)
        limit_up, limit_down = max(0.25, 2.5 * self.error), max(0.5, 4.0 * self.error)
        self.error += 0.05 * (min(abs(log_error), 3.0) - self.error)
        if self.samples < 10:
            return log_error
        cut = clamp(log_error, -limit_down, limit_up)
        self.bias += 0.2 * (cut - self.bias)
        if abs(self.bias) > math.log(1.6):
            self.ridge.discount(0.5)
            for factor in self.factors:
                factor.weight *= 0.5
        return cut

    @property
    def profile(self) -> CostProfile:
        values = [s * c for s, c in zip(self.start, self.ridge.coefficients, strict=True)]
        return CostProfile(*(clamp(value, 1e-18, 1e9) for value in values))

    def prefill_s(self, uncached: float) -> float:
        return clamp(self.profile.prefill_s(clamp(uncached, 0.0, 1e10)), 1e-7, 1e5)

    def tpot_s(self, running: float, resident: float) -> float:
        running, resident = clamp(running, 0.0, 1e6), clamp(resident, 0.0, 1e10)
        return clamp(self.profile.tpot_s(running, resident), 1e-7, 1e5)

    def dump(self) -> dict[str, object]:
        return {
            "start": list(self.start),
            "samples": self.samples,
            "error": self.error,
            "bias": self.bias,
            "factors": [[factor.log, factor.weight] for factor in self.factors],
            "ridge": self.ridge.dump(),
        }


class PlainQuantiles:
    """Lists of the latest lengths; everything else is worked out anew whenever it is asked."""

    def __init__(self, settings: RollingQuantilesSettings) -> None:
        self.settings = settings
        self.everything: list[int] = []
        self.windows: OrderedDict[tuple[str, ...], list[int]] = OrderedDict()
        self.coverage = dict.fromkeys(PROBABILITIES, 0.0)
        self.samples = 0
        self.error_tokens = 0.0
        self.sources: dict[str, int] = {}

    def keys(self, spec: CallSpec) -> list[tuple[str, ...]]:
        parts = (spec.model, spec.application, *([] if spec.stage is None else [spec.stage]))
        return [parts[:size] for size in range(len(parts), 0, -1)]

    def predict(self, spec: CallSpec) -> LengthEstimate:
        floor = spec.features.get("min_tokens", 0.0)
        cap = float(2**31 - 1 if spec.max_tokens is None else spec.max_tokens)
        for key in (*self.keys(spec), ()):
            lengths = self.windows.get(key, []) if key else self.everything
            if len(lengths) >= self.settings.min_samples:
                step = ("global", "model", "application", "stage")[len(key)]
                return self.estimate(sorted(lengths), floor, cap, f"rolling:{step}")
        mean = self.settings.prior_tokens
        quantiles = tuple((p, limit(-mean * math.log1p(-p), floor, cap)) for p in PROBABILITIES)
        return LengthEstimate(
            limit(mean * -math.expm1(-cap / mean), floor, cap), quantiles, "prior"
        )

    def estimate(self, lengths: list[int], floor: float, cap: float, source: str) -> LengthEstimate:
        # The next sample is as likely in each of the n + 1 gaps between those seen.
        ranks = [math.ceil(p * (len(lengths) + 1)) - 1 for p in PROBABILITIES]
        quantiles = tuple(
            (p, limit(lengths[min(len(lengths) - 1, max(0, rank))], floor, cap))
            for p, rank in zip(PROBABILITIES, ranks, strict=True)
        )
        mean = total([limit(tokens, floor, cap) for tokens in lengths]) / len(lengths)
        return LengthEstimate(limit(mean, floor, cap), quantiles, source)

    def learn(self, spec: CallSpec, tokens: int) -> None:
        estimate = self.predict(spec)
        self.samples += 1
        rate = max(1.0 / self.samples, 1.0 / self.settings.error_memory)
        self.sources[estimate.source] = self.sources.get(estimate.source, 0) + 1
        self.error_tokens += rate * (abs(estimate.expected_tokens - tokens) - self.error_tokens)
        for p, value in estimate.quantiles:
            self.coverage[p] += rate * ((1.0 if tokens <= value else 0.0) - self.coverage[p])
        for key in self.keys(spec):
            lengths = self.windows.setdefault(key, [])
            self.windows.move_to_end(key)
            if len(self.windows) > self.settings.max_keys:
                self.windows.popitem(last=False)
            self.keep(lengths, tokens)
        self.keep(self.everything, tokens)

    def keep(self, lengths: list[int], tokens: int) -> None:
        lengths.append(tokens)
        del lengths[: -self.settings.window]

    def stats(self) -> dict[str, object]:
        return {
            "keys": len(self.windows),
            "samples": self.samples,
            "coverage": {
                str(p): share if self.samples else None for p, share in self.coverage.items()
            },
            "mean_abs_error_tokens": self.error_tokens if self.samples else None,
            "sources": self.sources,
        }

    def dump(self) -> dict[str, object]:
        return {
            "global": self.everything,
            "windows": [[list(key), lengths] for key, lengths in self.windows.items()],
        }


def limit(value: float, floor: float, cap: float) -> float:
    return min(max(value, floor, 1.0), cap)
