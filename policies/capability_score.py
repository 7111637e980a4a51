"""Capability score: what an engine's hardware is worth to the prompts that come now.

HeteroServe, section 3.2. With F, M and B an engine's peak rate, memory and memory bandwidth,

    kappa = F^alpha M^beta B^gamma                    (Eq. 2)      share = kappa / sum of kappa

(the units cancel in the share), and exponents that depend on the median prompt of the last 128
calls:

    median <= 192: (.55, .15, .30)    193-768: (.40, .30, .30)    > 768: (.20, .50, .30)

Settled:

1. The thresholds on the median count; the paper's "deciles" of the same quantity contradict them.
2. The median is taken over windows of 128 calls that follow each other, and the regime changes
   after two windows in a row that say the same: one odd window changes nothing. Before that it is
   `medium`.
3. A window in which a quarter of the prompts is below 128 tokens and a quarter above 2,048 has a
   median that flips between the two from window to window, as chance has it; so has traffic that
   comes in phases. Such windows are `bimodal`: each call is then weighed by the regime of its own
   length.
4. An engine whose hardware nobody has named counts as the mean of those that are known, so that it
   neither draws nor repels; where none is known, all are alike.

Exact at a gateway. The window is an observer: it runs under every policy, so that a switch finds
the regime that traffic has.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Literal

from dispatcher.core.events import CallArrived, Dispatched, Event
from dispatcher.core.gpu_profiles import Capability
from dispatcher.core.types import InstanceId, Task
from dispatcher.core.views import FleetView, InstanceView

Regime = Literal["short", "medium", "long", "bimodal"]
RegimeChoice = Literal["auto", "short", "medium", "long"]
Exponents = tuple[float, float, float]

WINDOW_CALLS = 128
"""Calls whose median prompt decides."""
EXPONENTS: Mapping[Regime, Exponents] = {
    "short": (0.55, 0.15, 0.30),
    "medium": (0.40, 0.30, 0.30),
    "long": (0.20, 0.50, 0.30),
}
"""(alpha, beta, gamma) of compute, memory and bandwidth, by regime."""

_SHORT_TOKENS, _MEDIUM_TOKENS = 192, 768
_LOW_TOKENS, _HIGH_TOKENS = 128, 2048
_FLIP_WINDOWS = 4
"""Windows among which the median may flip."""
_KEPT = 1024
"""Engines whose scores are remembered, in each regime."""


def regime_of(prompt_tokens: float) -> Regime:
    """The regime of a median, or of one call, tokens.

    Example:
        >>> [regime_of(tokens) for tokens in (192, 193, 768, 769)]
        ['short', 'medium', 'medium', 'long']
    """
    if prompt_tokens <= _SHORT_TOKENS:
        return "short"
    return "medium" if prompt_tokens <= _MEDIUM_TOKENS else "long"


def kappa(capability: Capability, exponents: Exponents) -> float:
    """Eq. 2; above 0, in no unit that means anything."""
    alpha, beta, gamma = exponents
    return float(capability.tflops**alpha * capability.hbm_gb**beta * capability.tb_per_s**gamma)


def shares(capabilities: Sequence[Capability | None], exponents: Exponents) -> list[float]:
    """Each kappa over the sum of all; they add up to 1. Unknown hardware counts as the mean.

    Example:
        >>> fleet = [Capability(989.4, 80.0, 3.35)] * 2 + [Capability(312.0, 80.0, 2.039)] * 4
        >>> fleet += [Capability(362.05, 48.0, 0.864)] * 2
        >>> found = shares(fleet, EXPONENTS["medium"])
        >>> [round(found[i], 2) for i in (0, 2, 6)]
        [0.2, 0.11, 0.08]
    """
    known = [None if one is None else kappa(one, exponents) for one in capabilities]
    told = [value for value in known if value is not None]
    mean = sum(told) / len(told) if told else 1.0
    values = [mean if value is None else value for value in known]
    total = sum(values)
    return [value / total for value in values]


class PromptWindow:
    """The regime of the prompts that come: an `Observer`; O(1) but for a sort every 128 calls.

    Example:
        >>> window = PromptWindow()
        >>> window.regime
        'medium'
        >>> for _ in range(2 * WINDOW_CALLS):
        ...     window.add(64)
        >>> window.regime
        'short'
    """

    def __init__(self) -> None:
        self.regime: Regime = "medium"
        #: prompts of the window that is being filled
        self._filling: list[int] = []
        #: of the latest full windows
        self._medians: deque[float] = deque(maxlen=_FLIP_WINDOWS)
        #: what the window before said
        self._before: Regime = "medium"

    def observe(self, event: Event | Dispatched, fleet: FleetView, now_s: float) -> None:
        """Count each call that generates, once, when it comes."""
        if isinstance(event, CallArrived) and event.spec.task is Task.GENERATE:
            self.add(event.spec.prompt_tokens)

    def add(self, prompt_tokens: int) -> None:
        """One more call."""
        self._filling.append(prompt_tokens)
        if len(self._filling) < WINDOW_CALLS:
            return
        says = self._judge(sorted(self._filling))
        self._filling.clear()
        if says == self._before:
            self.regime = says
        self._before = says

    def _judge(self, prompts: Sequence[int]) -> Regime:
        """What one full window says; `prompts` ascending."""
        middle = len(prompts) // 2
        median = (prompts[middle - 1] + prompts[middle]) / 2.0
        self._medians.append(median)
        quarter = len(prompts) // 4
        apart = prompts[quarter] < _LOW_TOKENS and prompts[-1 - quarter] > _HIGH_TOKENS
        flips = min(self._medians) < _LOW_TOKENS and max(self._medians) > _HIGH_TOKENS
        return "bimodal" if apart or flips else regime_of(median)


class CapabilityScore:
    """ln kappa of engines in the present regime; O(N), with the logarithms kept.

    Args:
        window: Tells the regime.
        regime: One to stay in, or `auto`.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> def engine(name, capability):
        ...     return Fake(spec=Fake(instance_id=name, capability=capability))
        >>> h100, unknown = engine("a", Capability(989.4, 80.0, 3.35)), engine("b", None)
        >>> known, mean = CapabilityScore(PromptWindow()).log_kappas([h100, unknown], 400)
        >>> known == mean, round(known, 2)
        (True, 4.44)
    """

    def __init__(self, window: PromptWindow, regime: RegimeChoice = "auto") -> None:
        self.window = window
        self._regime = regime
        #: by regime: of an engine as it was last seen
        self._logs: dict[Regime, dict[InstanceId, tuple[Capability, float]]] = {}

    def regime_for(self, prompt_tokens: int) -> Regime:
        """Whose exponents weigh a call with such a prompt; never `bimodal`."""
        regime = self.window.regime if self._regime == "auto" else self._regime
        return regime_of(prompt_tokens) if regime == "bimodal" else regime

    def log_kappas(self, instances: Sequence[InstanceView], prompt_tokens: int) -> list[float]:
        """Logarithms of kappa; those of unknown hardware are ln of the mean of the others."""
        regime = self.regime_for(prompt_tokens)
        logs = self._logs.setdefault(regime, {})
        found: list[float | None] = []
        unknown = 0
        for instance in instances:
            capability = instance.spec.capability
            if capability is None:
                unknown += 1
                found.append(None)
            else:
                # by identity: to compare and to hash three numbers is dearer than all else here
                known = logs.get(instance.spec.instance_id)
                if known is None or known[0] is not capability:
                    known = self._learn(instance.spec.instance_id, capability, regime)
                found.append(known[1])
        if not unknown:
            return [log for log in found if log is not None]
        told = [math.exp(log) for log in found if log is not None]
        mean = math.log(sum(told) / len(told)) if told else 0.0
        return [mean if log is None else log for log in found]

    def _learn(
        self, instance_id: InstanceId, capability: Capability, regime: Regime
    ) -> tuple[Capability, float]:
        logs = self._logs[regime]
        if len(logs) >= _KEPT:
            logs.clear()
        known = logs[instance_id] = (capability, math.log(kappa(capability, EXPONENTS[regime])))
        return known
