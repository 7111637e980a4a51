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

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from dispatcher.core.errors import UnknownInstanceError
from dispatcher.core.gpu_profiles import CostProfile
from dispatcher.core.ports import AttemptTiming
from dispatcher.core.types import InstanceId, InstanceSpec
from predictors._instance_fit import LEAST_S, MOST_RUNNING, MOST_S, MOST_TOKENS, InstanceFit
from predictors._numbers import within

GENERIC_PROFILE = CostProfile(
    prefill_s_per_token=1e-4,
    prefill_fixed_s=0.03,
    tpot_base_s=0.02,
    tpot_per_running_s=1e-4,
    tpot_per_kv_token_s=2e-8,
)
"""For an instance of which nothing is known: between an A100 and an A6000 with an 8B model."""


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
        self._fits: dict[InstanceId, InstanceFit] = {}
        #: learned of instances that are not in the fleet; left longest ago first
        self._departed: OrderedDict[InstanceId, InstanceFit] = OrderedDict()

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
        self._fits[spec.instance_id] = self._new_fit(profile, trust)

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
        # Asked for every candidate of every decision: no call inside as long as all is in range.
        fit = self._fits.get(instance_id) or self._fit(instance_id)
        if not 0.0 <= uncached_tokens <= MOST_TOKENS:
            uncached_tokens = within(uncached_tokens, 0.0, MOST_TOKENS)
        seconds = fit.prefill_s_per_token * uncached_tokens + fit.prefill_fixed_s
        return seconds if LEAST_S <= seconds <= MOST_S else within(seconds, LEAST_S, MOST_S)

    def tpot_s(self, instance_id: InstanceId, running: float, resident_tokens: float) -> float:
        """Time per output token; seconds, in [1e-7, 1e5].

        Raises:
            UnknownInstanceError: The instance is not in the fleet.
        """
        fit = self._fits.get(instance_id) or self._fit(instance_id)
        if not 0.0 <= running <= MOST_RUNNING:
            running = within(running, 0.0, MOST_RUNNING)
        if not 0.0 <= resident_tokens <= MOST_TOKENS:
            resident_tokens = within(resident_tokens, 0.0, MOST_TOKENS)
        seconds = (
            fit.tpot_base_s
            + fit.tpot_per_running_s * running
            + fit.tpot_per_kv_token_s * resident_tokens
        )
        return seconds if LEAST_S <= seconds <= MOST_S else within(seconds, LEAST_S, MOST_S)

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
        loaded: dict[InstanceId, InstanceFit] = {}
        for name, entry in state.items():
            if not isinstance(entry, dict):
                raise ValueError(f"{name}: expected an object")
            fit = self._new_fit(GENERIC_PROFILE, self._settings.profile_samples)
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

    def _new_fit(self, start: CostProfile, trust_samples: float) -> InstanceFit:
        settings = self._settings
        return InstanceFit(
            start,
            memory_samples=settings.memory_samples,
            ridge_samples=settings.ridge_samples,
            trust_samples=trust_samples,
        )

    def _forget(self) -> None:
        while len(self._departed) > self._settings.max_departed:
            self._departed.popitem(last=False)

    def _fit(self, instance_id: InstanceId) -> InstanceFit:
        try:
            return self._fits[instance_id]
        except KeyError:
            raise UnknownInstanceError(f"instance {instance_id!r} is not in the fleet") from None
