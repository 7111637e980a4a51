"""Time on an instance: linear prefill and linear TPOT, fitted online per instance.

`t_pre = a u + b` for `u` uncached prompt tokens and `TPOT = c + d n + e K` for `n` running calls
that keep `K` tokens resident, as in HexGen-Flow's Eq. 2 with batching made explicit. All five
coefficients are fitted together by recursive least squares with forgetting on relative errors:
a streamed attempt gives one equation for its TTFT and one for its decode; one that was not
streamed gives a single equation for its total, `t_pre + TPOT * tokens`.

Fitted is each coefficient's factor on the profile that the instance started from. What the data
does not determine follows the common factor of its phase, so one attempt is enough to correct a
profile that is ten times wrong, and collinear inputs do no harm.

A TTFT measured at a gateway contains waiting inside the engine, so far too long ones are cut
sooner than far too short ones. When the signed error stays large, the instance itself has
changed (another process on its GPU), and old evidence is discounted.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from dispatcher.core.errors import UnknownInstanceError
from dispatcher.core.gpu_profiles import CostProfile
from dispatcher.core.ports import AttemptTiming
from dispatcher.core.types import InstanceId, InstanceSpec
from predictors._nonnegative_ridge import NonNegativeRidge
from predictors._numbers import count, number

GENERIC_PROFILE = CostProfile(
    prefill_s_per_token=1e-4,
    prefill_fixed_s=0.03,
    tpot_base_s=0.02,
    tpot_per_running_s=1e-4,
    tpot_per_kv_token_s=2e-8,
)
"""For an instance of which nothing is known: between an A100 and an A6000 with an 8B model."""

_REFERENCE_UNCACHED, _REFERENCE_RUNNING, _REFERENCE_RESIDENT = 1_000.0, 16.0, 16_000.0
_LEAST_SHARE = 0.02
"""At the reference load every coefficient starts with at least this share of its phase's time,
or a zero in a profile could never be fitted."""

_PREFILL = range(2)
_DECODE = range(2, 5)
_FREE_SAMPLES = 10
"""Before so many attempts nothing is cut: the start may be far off."""
_ERROR_RATE = 0.05
_BIAS_RATE = 0.2
_BIAS_LIMIT = math.log(1.6)
_CUT_UP, _CUT_DOWN = 2.5, 4.0
"""Cut at so many times the usual error of log time."""
_LOG_LIMIT = 20.0

_SECONDS = (1e-7, 1e5)
"""What an attempt may teach and what is predicted: no prefill takes longer than a day."""
_MOST_TOKENS, _MOST_RUNNING = 1e10, 1e6
_COEFFICIENTS = (1e-18, 1e9)
_LOG_FACTORS = (-40.0, 40.0)

_Five = tuple[float, float, float, float, float]
"""a, b, c, d, e."""


@dataclass(frozen=True, slots=True)
class LinearCostSettings:
    """How fast is forgotten and how much is kept."""

    memory_samples: float = 300.0
    """Attempts after which evidence has lost two thirds of its weight; above 1."""
    ridge_samples: float = 0.02
    """Attempts that the start's proportions between coefficients are worth: the usual relative
    error (about 0.1) squared, by how wrong the proportions may be (about 1) squared."""
    profile_samples: float = 1.0
    """Attempts that a given profile's common factor is worth."""
    generic_samples: float = 0.05
    """The same for `GENERIC_PROFILE`."""
    max_departed: int = 1_000
    """Instances remembered that are not in the fleet; the one that left longest ago goes first.
    Those in the fleet are all kept."""


class LinearCost:
    """Cost model: `dispatcher.core.ports.CostModel`.

    Example:
        >>> cost = LinearCost()
        >>> spec = InstanceSpec(InstanceId("a"), frozenset({"m"}))
        >>> cost.add_instance(spec)
        >>> cost.learn(AttemptTiming(InstanceId("a"), 500, 0, 101, 0.8, 6.0, 6.8, 1.0, 550.0))
        >>> round(cost.tpot_s(InstanceId("a"), 1.0, 550.0), 2)
        0.06
    """

    def __init__(self, settings: LinearCostSettings | None = None) -> None:
        self._settings = settings or LinearCostSettings()
        #: in the fleet
        self._fits: dict[InstanceId, _InstanceFit] = {}
        #: learned of instances that are not in the fleet; left longest ago first
        self._departed: OrderedDict[InstanceId, _InstanceFit] = OrderedDict()

    def add_instance(self, spec: InstanceSpec) -> None:
        """Start from its profile, or a generic one; what was learned under the id is kept."""
        known = self._departed.pop(spec.instance_id, None) or self._fits.get(spec.instance_id)
        if known is not None and known.samples:
            self._fits[spec.instance_id] = known
            return
        trust = self._settings.profile_samples
        profile = spec.profile
        if profile is None:
            trust, profile = self._settings.generic_samples, GENERIC_PROFILE
        self._fits[spec.instance_id] = _InstanceFit(self._settings, profile, trust)

    def remove_instance(self, instance_id: InstanceId) -> None:
        """It has left the fleet; what was learned is kept for its return, within a bound.

        Raises:
            UnknownInstanceError: The instance is not in the fleet.
        """
        fit = self._fit(instance_id)
        del self._fits[instance_id]
        if fit.samples:
            self._departed[instance_id] = fit
            self._forget()

    def prefill_s(self, instance_id: InstanceId, uncached_tokens: float) -> float:
        """Time to first token without queueing; seconds, in [1e-7, 1e5].

        Raises:
            UnknownInstanceError: The instance is not in the fleet.
        """
        uncached = _within(uncached_tokens, 0.0, _MOST_TOKENS)
        return _within(self._fit(instance_id).profile.prefill_s(uncached), *_SECONDS)

    def tpot_s(self, instance_id: InstanceId, running: float, resident_tokens: float) -> float:
        """Time per output token; seconds, in [1e-7, 1e5].

        Raises:
            UnknownInstanceError: The instance is not in the fleet.
        """
        running = _within(running, 0.0, _MOST_RUNNING)
        resident = _within(resident_tokens, 0.0, _MOST_TOKENS)
        return _within(self._fit(instance_id).profile.tpot_s(running, resident), *_SECONDS)

    def learn(self, timing: AttemptTiming) -> None:
        """One attempt has ended well; times that are not positive numbers teach nothing.

        Raises:
            UnknownInstanceError: The instance is not in the fleet.
        """
        self._fit(timing.instance_id).learn(timing)

    def profile(self, instance_id: InstanceId) -> CostProfile:
        """The coefficients as they are now.

        Raises:
            UnknownInstanceError: The instance is not in the fleet.
        """
        return self._fit(instance_id).profile

    def stats(self) -> dict[str, object]:
        """Per instance of the fleet: attempts seen, usual relative error, coefficients by name.

        JSON-ready; the name of each coefficient carries its unit.
        """
        return {instance_id: fit.stats() for instance_id, fit in self._fits.items()}

    def dump(self) -> dict[str, object]:
        """What was learned, as plain JSON values."""
        # Those in the fleet last: where too many are read back, they are the ones that stay.
        fits = {**self._departed, **self._fits}
        return {instance_id: fit.dump() for instance_id, fit in fits.items() if fit.samples}

    def load(self, state: Mapping[str, object]) -> None:
        """Take over what `dump` gave; instances it does not name are left as they are.

        Raises:
            KeyError, ValueError: The state does not have the shape that `dump` gives; nothing has
                changed then.
        """
        loaded: dict[InstanceId, _InstanceFit] = {}
        for name, entry in state.items():
            if not isinstance(entry, dict):
                raise ValueError(f"{name}: expected an object")
            fit = _InstanceFit(self._settings, GENERIC_PROFILE, self._settings.profile_samples)
            fit.load(entry)
            loaded[InstanceId(name)] = fit
        for instance_id, fit in loaded.items():
            if instance_id in self._fits:
                self._fits[instance_id] = fit
            else:
                self._departed[instance_id] = fit
                self._departed.move_to_end(instance_id)
        self._forget()

    @property
    def departed(self) -> int:
        """Instances remembered that are not in the fleet."""
        return len(self._departed)

    def _forget(self) -> None:
        while len(self._departed) > self._settings.max_departed:
            self._departed.popitem(last=False)

    def _fit(self, instance_id: InstanceId) -> _InstanceFit:
        try:
            return self._fits[instance_id]
        except KeyError:
            raise UnknownInstanceError(f"instance {instance_id!r} is not in the fleet") from None


class _Factor:
    """How much slower than its profile one phase is: a mean with forgetting, in log time."""

    __slots__ = ("_keep", "log", "weight")

    def __init__(self, memory_samples: float, trust_samples: float) -> None:
        self._keep = 1.0 - 1.0 / memory_samples
        self.log = 0.0
        self.weight = trust_samples

    @property
    def value(self) -> float:
        return math.exp(self.log)

    def add(self, log_ratio: float, weight: float) -> None:
        self.weight = self.weight * self._keep + weight
        self.log += weight / self.weight * (log_ratio - self.log)
        self.log = _within(self.log, *_LOG_FACTORS)


class _InstanceFit:
    """Five coefficients of one instance."""

    def __init__(
        self, settings: LinearCostSettings, start: CostProfile, trust_samples: float
    ) -> None:
        self._start = _floored(start)
        self._ridge = NonNegativeRidge(
            5, memory_samples=settings.memory_samples, ridge=settings.ridge_samples
        )
        self._prefill = _Factor(settings.memory_samples, trust_samples)
        self._decode = _Factor(settings.memory_samples, trust_samples)
        self.samples = 0
        self._error = 0.3
        self._bias = 0.0
        self.profile = self._fitted()

    def learn(self, timing: AttemptTiming) -> None:
        uncached = _within(timing.prompt_tokens - timing.cached_tokens, 0.0, _MOST_TOKENS)
        # The first token comes with the prefill, so the decode makes one fewer.
        decoded = _within(timing.output_tokens - 1, 0.0, _MOST_TOKENS)
        running = _within(timing.mean_running, 1.0, _MOST_RUNNING)
        resident = _within(timing.mean_resident_tokens, 0.0, _MOST_TOKENS)
        load = (1.0, running, resident)
        prefill_row = (uncached, 1.0, 0.0, 0.0, 0.0)
        decode_row = (0.0, 0.0, *(decoded * x for x in load))
        rows: list[tuple[Sequence[float], float]]
        if timing.ttft_s is not None:
            rows = [(prefill_row, timing.ttft_s)]
            if decoded and timing.decode_s is not None:
                rows.append((decode_row, timing.decode_s))
        else:
            both = [a + b for a, b in zip(prefill_row, decode_row, strict=True)]
            rows = [(both, timing.total_s)]
        usable = [
            (row, _within(seconds, *_SECONDS)) for row, seconds in rows if 0 < seconds < math.inf
        ]
        for row, seconds in usable:
            self._add(row, seconds)
        if usable:
            self.samples += 1
            self.profile = self._fitted()

    def _add(self, row: Sequence[float], observed_s: float) -> None:
        now = self._ridge.coefficients
        parts = [x * s for x, s in zip(row, self._start, strict=True)]
        predicted_s = sum(part * c for part, c in zip(parts, now, strict=True))
        log_error = self._cut(math.log(observed_s / predicted_s))
        observed_s = predicted_s * math.exp(log_error)

        prefill_share = sum(parts[j] * now[j] for j in _PREFILL) / predicted_s
        for factor, phase, weight in (
            (self._prefill, _PREFILL, prefill_share),
            (self._decode, _DECODE, 1.0 - prefill_share),
        ):
            of_start = sum(parts[j] for j in phase)
            if weight > 0 and of_start > 0:
                of_now = sum(parts[j] * now[j] for j in phase)
                # A joint equation's error is shared in proportion to the predicted parts.
                factor.add(math.log(of_now / of_start) + log_error, weight)

        # Errors are relative, to what was observed where the prediction is far too small: else
        # the very first samples of a wrong profile would outweigh all that follow.
        unit_s = observed_s if log_error > math.log(2) else predicted_s
        centre = [self._prefill.value] * 2 + [self._decode.value] * 3
        self._ridge.add([part / unit_s for part in parts], observed_s / unit_s, 1.0, centre=centre)

    def _cut(self, log_error: float) -> float:
        log_error = max(-_LOG_LIMIT, min(_LOG_LIMIT, log_error))
        limit_up = max(0.25, _CUT_UP * self._error)
        limit_down = max(0.5, _CUT_DOWN * self._error)
        self._error += _ERROR_RATE * (min(abs(log_error), 3.0) - self._error)
        if self.samples < _FREE_SAMPLES:
            return log_error
        cut = max(-limit_down, min(limit_up, log_error))
        self._bias += _BIAS_RATE * (cut - self._bias)
        if abs(self._bias) > _BIAS_LIMIT:
            self._ridge.discount(0.5)
            self._prefill.weight *= 0.5
            self._decode.weight *= 0.5
        return cut

    def _fitted(self) -> CostProfile:
        values = [s * c for s, c in zip(self._start, self._ridge.coefficients, strict=True)]
        return CostProfile(*(_within(value, *_COEFFICIENTS) for value in values))

    def stats(self) -> dict[str, object]:
        return {
            "samples": self.samples,
            "relative_error": self._error,
            "coefficients": asdict(self.profile),
        }

    def dump(self) -> dict[str, object]:
        return {
            "start": list(self._start),
            "samples": self.samples,
            "error": self._error,
            "bias": self._bias,
            "factors": [[f.log, f.weight] for f in (self._prefill, self._decode)],
            "ridge": self._ridge.dump(),
        }

    def load(self, state: dict[str, object]) -> None:
        ridge, factors = state["ridge"], state["factors"]
        if not isinstance(ridge, dict) or not isinstance(factors, list):
            raise ValueError("ridge: expected an object; factors: expected a list")
        # Already floored: flooring again would raise the small ones a little more.
        self._start = _five(state["start"])
        self._ridge.load(ridge)
        for factor, entry in zip((self._prefill, self._decode), factors, strict=True):
            if not isinstance(entry, list) or len(entry) != 2:
                raise ValueError("factors: expected two pairs of numbers")
            log, weight = entry
            factor.log = number(log, "factor", *_LOG_FACTORS)
            factor.weight = number(weight, "weight", 0.0, 1e9)
        self.samples = count(state["samples"], "samples")
        self._error = number(state["error"], "error", 0.0, _LOG_LIMIT)
        self._bias = number(state["bias"], "bias", -_LOG_LIMIT, _LOG_LIMIT)
        self.profile = self._fitted()


def _five(value: object) -> _Five:
    if not isinstance(value, list) or len(value) != 5:
        raise ValueError("start: expected five numbers")
    a, b, c, d, e = (number(item, "start", *_COEFFICIENTS) for item in value)
    return a, b, c, d, e


def _within(value: float, low: float, high: float) -> float:
    """The nearest that is in [low, high]; `low` for what is no number."""
    # `value` comes second: a comparison with NaN is false, and the other one stays.
    return float(min(high, max(low, value)))


def _values(profile: CostProfile) -> _Five:
    return (
        profile.prefill_s_per_token,
        profile.prefill_fixed_s,
        profile.tpot_base_s,
        profile.tpot_per_running_s,
        profile.tpot_per_kv_token_s,
    )


def _floored(profile: CostProfile) -> _Five:
    """The profile's coefficients, none of them too small to be fitted."""
    a, b, c, d, e = (_within(value, 0.0, 1e3) for value in _values(profile))
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
