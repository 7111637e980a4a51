"""One of several by weight: the largest, at random, or in smooth turns.

HeteroServe does not say which of these its dispatcher is: "highest-weight device" (section 3.3) is
an argmax, "capability-proportional allocation" (section 3.4) a share. Settled: argmax; the others
are there to compare. With weights that fall as queues grow, each of them balances.

`wrr` is the smooth weighted round robin of nginx: each candidate gains its weight, the one that has
most is taken and pays the sum of all; in the long run each has its share, without bunching.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Literal

from dispatcher.core.types import InstanceId

ChoiceMode = Literal["argmax", "sample", "wrr"]

_KEPT = 4096
"""Candidates whose turns are remembered."""


class WeightedChoice:
    """Picks by the logarithms of weights; O(N).

    Args:
        mode: `argmax`, ties: the first; `sample`: at random in proportion; `wrr`: in turns.
        rng: Where chance comes from; seeded by the driver.

    Example:
        >>> turns = WeightedChoice("wrr", random.Random(0))
        >>> weights = [math.log(3.0), math.log(1.0)]
        >>> [turns.pick(["fast", "slow"], weights) for _ in range(4)]
        ['fast', 'fast', 'slow', 'fast']
    """

    def __init__(self, mode: ChoiceMode, rng: random.Random) -> None:
        self._mode = mode
        self._random = rng
        #: what each candidate has gained and not spent, in shares of a turn
        self._gained: dict[InstanceId, float] = {}

    def pick(self, ids: Sequence[InstanceId], log_weights: Sequence[float]) -> InstanceId:
        """One of `ids`, which is not empty; the weights are finite."""
        heaviest = max(log_weights)
        if self._mode == "argmax":
            return ids[log_weights.index(heaviest)]
        weights = [math.exp(log - heaviest) for log in log_weights]
        if self._mode == "sample":
            return self._random.choices(ids, weights)[0]
        return self._next(ids, weights)

    def _next(self, ids: Sequence[InstanceId], weights: Sequence[float]) -> InstanceId:
        gained, total = self._gained, sum(weights)
        if len(gained) > max(_KEPT, len(ids)):
            gained.clear()
        for instance_id, weight in zip(ids, weights, strict=True):
            gained[instance_id] = gained.get(instance_id, 0.0) + weight / total
        chosen = max(ids, key=gained.__getitem__)
        gained[chosen] -= 1.0
        return chosen
