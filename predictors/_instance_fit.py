"""The five coefficients of one instance's linear cost, fitted attempt by attempt.

The fit runs for every call that ends: what would be short loops over five numbers is written out.
"""

from __future__ import annotations

import math
from dataclasses import asdict

from dispatcher.core.gpu_profiles import CostProfile
from dispatcher.core.ports import AttemptTiming
from predictors._numbers import count, number, within
from predictors._phase_ridge import Five, PhaseRidge

LEAST_S, MOST_S = 1e-7, 1e5
"""What an attempt may teach and what is predicted: no prefill takes longer than a day."""
MOST_TOKENS = 1e10
MOST_RUNNING = 1_000_000

_REFERENCE_UNCACHED, _REFERENCE_RUNNING, _REFERENCE_RESIDENT = 1_000.0, 16.0, 16_000.0
_LEAST_SHARE = 0.02
"""At the reference load every coefficient starts with at least this share of its phase's time,
or a zero in a profile could never be fitted."""

_FREE_SAMPLES = 10
"""Before so many attempts nothing is cut: the start may be far off."""
_ERROR_RATE = 0.05
_BIAS_RATE = 0.2
_BIAS_LIMIT = math.log(1.6)
_CUT_UP, _CUT_DOWN = 2.5, 4.0
"""Cut at so many times the usual error of log time."""
_LOG_LIMIT = 20.0
_FAR_TOO_SMALL = math.log(2)

_COEFFICIENTS = (1e-18, 1e9)
_LOG_FACTORS = (-40.0, 40.0)


class InstanceFit:
    """What is known of one instance; the coefficients are those of `CostProfile`.

    The first two coefficients, prefill, are one phase, the last three, decode, the other.
    """

    __slots__ = (
        "_bias",
        "_decode",
        "_error",
        "_prefill",
        "_ridge",
        "_start",
        "prefill_fixed_s",
        "prefill_s_per_token",
        "samples",
        "tpot_base_s",
        "tpot_per_kv_token_s",
        "tpot_per_running_s",
    )

    prefill_s_per_token: float
    prefill_fixed_s: float
    tpot_base_s: float
    tpot_per_running_s: float
    tpot_per_kv_token_s: float

    def __init__(
        self,
        start: CostProfile,
        *,
        memory_samples: float,
        ridge_samples: float,
        trust_samples: float,
    ) -> None:
        self._start = _floored(start)
        self._ridge = PhaseRidge(memory_samples=memory_samples, ridge=ridge_samples)
        self._prefill = _Factor(memory_samples, trust_samples)
        self._decode = _Factor(memory_samples, trust_samples)
        #: attempts that taught something
        self.samples = 0
        self._error = 0.3
        self._bias = 0.0
        self._take_coefficients()

    @property
    def profile(self) -> CostProfile:
        """The coefficients as they are now."""
        return CostProfile(
            self.prefill_s_per_token,
            self.prefill_fixed_s,
            self.tpot_base_s,
            self.tpot_per_running_s,
            self.tpot_per_kv_token_s,
        )

    def learn(self, timing: AttemptTiming) -> None:
        """One attempt has ended well; times that are not positive numbers teach nothing."""
        uncached = within(timing.prompt_tokens - timing.cached_tokens, 0.0, MOST_TOKENS)
        # The first token comes with the prefill, so the decode makes one fewer.
        decoded = within(timing.output_tokens - 1, 0.0, MOST_TOKENS)
        running = within(timing.mean_running, 1.0, MOST_RUNNING)
        resident = within(timing.mean_resident_tokens, 0.0, MOST_TOKENS)
        a, b, c, d, e = self._start
        p0 = uncached * a
        p2, p3, p4 = decoded * c, decoded * running * d, decoded * resident * e
        if timing.ttft_s is None:
            taught = self._add((p0, b, p2, p3, p4), timing.total_s)
        else:
            taught = self._add((p0, b, 0.0, 0.0, 0.0), timing.ttft_s)
            if decoded and timing.decode_s is not None:
                taught = self._add((0.0, 0.0, p2, p3, p4), timing.decode_s) or taught
        if taught:
            self.samples += 1
            self._take_coefficients()

    def _add(self, parts: Five, observed_s: float) -> bool:
        """One equation: the parts of the time at the start's coefficients, and the time seen."""
        if not 0 < observed_s < math.inf:
            return False
        observed_s = within(observed_s, LEAST_S, MOST_S)
        p0, p1, p2, p3, p4 = parts
        c0, c1, c2, c3, c4 = self._ridge.coefficients
        prefill_s = p0 * c0 + p1 * c1
        predicted_s = prefill_s + p2 * c2 + p3 * c3 + p4 * c4
        log_error = self._cut(math.log(observed_s / predicted_s))
        observed_s = predicted_s * math.exp(log_error)

        # A joint equation's error is shared in proportion to the predicted parts.
        prefill_share = prefill_s / predicted_s
        start_s = p0 + p1
        if prefill_share > 0 and start_s > 0:
            self._prefill.add(math.log(prefill_s / start_s) + log_error, prefill_share)
        start_s = p2 + p3 + p4
        if prefill_share < 1 and start_s > 0:
            decode_s = p2 * c2 + p3 * c3 + p4 * c4
            self._decode.add(math.log(decode_s / start_s) + log_error, 1.0 - prefill_share)

        # Errors are relative, to what was observed where the prediction is far too small: else
        # the very first samples of a wrong profile would outweigh all that follow.
        unit_s = observed_s if log_error > _FAR_TOO_SMALL else predicted_s
        self._ridge.add(
            (p0 / unit_s, p1 / unit_s, p2 / unit_s, p3 / unit_s, p4 / unit_s),
            observed_s / unit_s,
            centres=(self._prefill.value, self._decode.value),
        )
        return True

    def _cut(self, log_error: float) -> float:
        log_error = within(log_error, -_LOG_LIMIT, _LOG_LIMIT)
        error = self._error
        self._error += _ERROR_RATE * (min(abs(log_error), 3.0) - error)
        if self.samples < _FREE_SAMPLES:
            return log_error
        cut = within(log_error, -max(0.5, _CUT_DOWN * error), max(0.25, _CUT_UP * error))
        self._bias += _BIAS_RATE * (cut - self._bias)
        if abs(self._bias) > _BIAS_LIMIT:
            self._ridge.discount(0.5)
            self._prefill.weight *= 0.5
            self._decode.weight *= 0.5
        return cut

    def _take_coefficients(self) -> None:
        a, b, c, d, e = self._start
        c0, c1, c2, c3, c4 = self._ridge.coefficients
        self.prefill_s_per_token = within(a * c0, *_COEFFICIENTS)
        self.prefill_fixed_s = within(b * c1, *_COEFFICIENTS)
        self.tpot_base_s = within(c * c2, *_COEFFICIENTS)
        self.tpot_per_running_s = within(d * c3, *_COEFFICIENTS)
        self.tpot_per_kv_token_s = within(e * c4, *_COEFFICIENTS)

    def stats(self) -> dict[str, object]:
        """Attempts seen, usual relative error, coefficients by name; JSON-ready."""
        return {
            "samples": self.samples,
            "relative_error": self._error,
            "coefficients": asdict(self.profile),
        }

    def dump(self) -> dict[str, object]:
        """What was learned, as plain JSON values."""
        return {
            "start": list(self._start),
            "samples": self.samples,
            "error": self._error,
            "bias": self._bias,
            "factors": [[f.log, f.weight] for f in (self._prefill, self._decode)],
            "ridge": self._ridge.dump(),
        }

    def load(self, state: dict[str, object]) -> None:
        """Take over what `dump` gave; where that raises, the fit is of no further use.

        Raises:
            KeyError, ValueError: The state does not have the shape that `dump` gives.
        """
        ridge, factors = state["ridge"], state["factors"]
        if not isinstance(ridge, dict) or not isinstance(factors, list):
            raise ValueError("ridge: expected an object; factors: expected a list")
        # Already floored: flooring again would raise the small ones a little more.
        self._start = _five(state["start"])
        self._ridge.load(ridge)
        for factor, entry in zip((self._prefill, self._decode), factors, strict=True):
            if not isinstance(entry, list) or len(entry) != 2:
                raise ValueError("factors: expected two pairs of numbers")
            factor.load(*entry)
        self.samples = count(state["samples"], "samples")
        self._error = number(state["error"], "error", 0.0, _LOG_LIMIT)
        self._bias = number(state["bias"], "bias", -_LOG_LIMIT, _LOG_LIMIT)
        self._take_coefficients()


class _Factor:
    """How much slower than its profile one phase is: a mean with forgetting, in log time."""

    __slots__ = ("_keep", "log", "value", "weight")

    def __init__(self, memory_samples: float, trust_samples: float) -> None:
        self._keep = 1.0 - 1.0 / memory_samples
        self.log = 0.0
        #: the factor itself, e^log
        self.value = 1.0
        self.weight = trust_samples

    def add(self, log_ratio: float, weight: float) -> None:
        self.weight = self.weight * self._keep + weight
        self.log = within(self.log + weight / self.weight * (log_ratio - self.log), *_LOG_FACTORS)
        self.value = math.exp(self.log)

    def load(self, log: object, weight: object) -> None:
        self.log = number(log, "factor", *_LOG_FACTORS)
        self.value = math.exp(self.log)
        self.weight = number(weight, "weight", 0.0, 1e9)


def _five(value: object) -> Five:
    if not isinstance(value, list) or len(value) != 5:
        raise ValueError("start: expected five numbers")
    a, b, c, d, e = (number(item, "start", *_COEFFICIENTS) for item in value)
    return a, b, c, d, e


def _floored(start: CostProfile) -> Five:
    """The profile's coefficients, none of them too small to be fitted."""
    a = within(start.prefill_s_per_token, 0.0, 1e3)
    b = within(start.prefill_fixed_s, 0.0, 1e3)
    c = within(start.tpot_base_s, 0.0, 1e3)
    d = within(start.tpot_per_running_s, 0.0, 1e3)
    e = within(start.tpot_per_kv_token_s, 0.0, 1e3)
    profile = CostProfile(a, b, c, d, e)
    prefill_s = max(profile.prefill_s(_REFERENCE_UNCACHED), 1e-6) * _LEAST_SHARE
    decode_s = max(profile.tpot_s(_REFERENCE_RUNNING, _REFERENCE_RESIDENT), 1e-7) * _LEAST_SHARE
    return (
        max(a, prefill_s / _REFERENCE_UNCACHED),
        max(b, prefill_s),
        max(c, decode_s),
        max(d, decode_s / _REFERENCE_RUNNING),
        max(e, decode_s / _REFERENCE_RESIDENT),
    )
