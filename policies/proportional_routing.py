"""Baselines of HeteroServe that draw engines at random, by what hardware they have.

HeteroServe, section 4.1:

- `Capacity-proportional`: the chance of an engine is proportional to its memory.
- `Oracle`, length-aware: short calls go in proportion to memory bandwidth, long ones to the peak
  rate, with true lengths and no word of queues. The text of section 4.2 sends calls above 2,048
  tokens to H100s only, which is neither that nor 15 % of the paper's lengths; implemented as drawn.
  It is no upper bound, in spite of its name: it is blind to queues.

Settled: a call is long from 512 prompt tokens on (the paper's median). Engines of unknown hardware
count as the mean of those that are known. Exact at a gateway.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from dispatcher.core.gpu_profiles import Capability
from dispatcher.core.types import InstanceId
from dispatcher.core.views import CallView, FleetView, InstanceView

Figure = Callable[[Capability], float]


def memory(capability: Capability) -> float:
    """HBM, GB."""
    return capability.hbm_gb


def bandwidth(capability: Capability) -> float:
    """Of memory, TB/s."""
    return capability.tb_per_s


def peak_rate(capability: Capability) -> float:
    """TFLOPS."""
    return capability.tflops


class ProportionalRouting:
    """At random, in proportion to a figure of the hardware; O(N) per call. Binds early.

    Args:
        rng: Where chance comes from; seeded by the driver.
        figure: Of an engine.
        long_figure: The same for long calls; `None`: as for short ones.
        long_from_tokens: Prompts of more tokens are long.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> from dispatcher.core.gpu_profiles import H100, L40S
        >>> def engine(gpu):
        ...     return Fake(spec=Fake(instance_id=gpu.name, capability=gpu.capability))
        >>> routing = ProportionalRouting(random.Random(0), bandwidth)
        >>> call, engines = Fake(spec=Fake(prompt_tokens=100)), [engine(H100), engine(L40S)]
        >>> drawn = [routing.route(call, engines, Fake(), 0.0) for _ in range(1000)]
        >>> 750 < drawn.count("H100") < 840  # 3.35 of 4.214
        True
    """

    late_binding = False

    def __init__(
        self,
        rng: random.Random,
        figure: Figure,
        long_figure: Figure | None = None,
        *,
        long_from_tokens: int = 512,
    ) -> None:
        self._random = rng
        self._figure = figure
        self._long_figure = long_figure or figure
        self._long_from_tokens = long_from_tokens

    def route(
        self, call: CallView, candidates: Sequence[InstanceView], fleet: FleetView, now_s: float
    ) -> InstanceId | None:
        """A draw."""
        long = call.spec.prompt_tokens > self._long_from_tokens
        figure = self._long_figure if long else self._figure
        found = [
            None if one.spec.capability is None else figure(one.spec.capability)
            for one in candidates
        ]
        known = [weight for weight in found if weight is not None]
        mean = sum(known) / len(known) if known else 1.0
        weights = [mean if weight is None else weight for weight in found]
        return self._random.choices([one.spec.instance_id for one in candidates], weights)[0]
