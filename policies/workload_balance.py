"""Workload-balanced dispatching: weigh how long a call would queue against how fast it would run.

HexGen-Flow, section 4.1. t_comp is Eq. 2 (`FleetView.compute_s`), t_queue stands for Eq. 3, the
score is Eq. 4; the instance with the highest score wins, and alpha in [0, 1] shifts the weight from
balance (0) to speed (1).

Three modes:

`settled` (default), with T the usual t_comp of calls, a running mean:
    Score = (1 - alpha) / (1 + t_queue / T) - alpha * t_comp / T
`paper`, Eq. 4 as printed:
    Score = (1 - alpha) * beta / t_queue - alpha * t_comp
`repo`, what the authors' simulator computes:
    Score = alpha * t_base / t_comp - (1 - alpha) * k * W / W_base

Deviations, and why:

1. t_queue is the backlog W (queued and running work over the seats), in all modes but `repo`.
   Eq. 3 sums queued work only: it forgets what runs, and that an engine serves many calls at once.
2. `settled` replaces beta, whose unit is s^2 and whose value the paper does not give, by T: both
   terms become pure numbers, alpha means the same on every fleet, and empty queues are finite. T is
   that of calls in general, not of the call at hand: a long call must weigh speed more than a short
   one, or the stages are spread over the engines alike, Table 2 is not what comes out, and alpha
   has nothing to gain (docs/decisions/0006). T is the mean over the latest calls, each averaged
   over its candidates.
3. Ties: the lower t_comp, then the instance id. `paper` needs them: beta / 0 makes every idle
   instance tie at infinity, so alpha does nothing there at low load.
4. `repo` keeps that code's habits: work is only ever added up, never taken off; the first candidate
   is the base, and takes the call while it has been given nothing; k = 0.5 for A6000 and L40S.
   Its table of stage means is replaced by t_comp. For comparison only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from dispatcher.core.errors import BadParameterError
from dispatcher.core.types import InstanceId
from dispatcher.core.views import CallView, FleetView, InstanceView

ScoreMode = Literal["settled", "paper", "repo"]

_SHORTEST_MEAN_S = 1e-9
"""Keeps a cost model that underflows from dividing by zero."""
_USUAL_OVER_CALLS = 50
"""Calls over which the usual t_comp is averaged."""
_REPO_DISCOUNT = 0.5
_REPO_DISCOUNTED_GPUS = ("A6000", "L40S")


class WorkloadBalance:
    """Eq. 4 over the candidates; O(N) per call. Binds early.

    Args:
        alpha: Weight of speed against balance, in [0, 1].
        mode: Which form of the score.
        beta: Weight of the queue in mode `paper`, s^2, above 0.

    Raises:
        BadParameterError: alpha or beta out of range.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> fast = Fake(spec=Fake(instance_id="fast"), compute_s=2.0, backlog_s=6.0)
        >>> slow = Fake(spec=Fake(instance_id="slow"), compute_s=6.0, backlog_s=0.0)
        >>> fleet = Fake(compute_s=lambda _, i: i.compute_s, backlog_s=lambda i: i.backlog_s)
        >>> WorkloadBalance(alpha=0.0).route(Fake(), [fast, slow], fleet, 0.0)
        'slow'
        >>> WorkloadBalance(alpha=1.0).route(Fake(), [fast, slow], fleet, 0.0)
        'fast'
    """

    late_binding = False

    def __init__(
        self, *, alpha: float = 0.0, mode: ScoreMode = "settled", beta: float = 1.0
    ) -> None:
        self.alpha = _checked_alpha(alpha)
        self.mode = mode
        if not (beta > 0.0 and math.isfinite(beta)):
            raise BadParameterError(f"beta must be above 0 and finite, got {beta!r}")
        self.beta = beta
        #: mode `settled`: calls routed, and their usual t_comp
        self._calls = 0
        self._usual_s = 0.0
        #: mode `repo`: work ever given to an instance, seconds
        self._given_s: dict[InstanceId, float] = {}

    def tune(self, name: str, value: float) -> bool:
        """Take a new alpha. Raises `BadParameterError` outside [0, 1]."""
        if name != "alpha":
            return False
        self.alpha = _checked_alpha(value)
        return True

    def route(
        self, call: CallView, candidates: Sequence[InstanceView], fleet: FleetView, now_s: float
    ) -> InstanceId | None:
        """The candidate with the highest score; ties: lower t_comp, then instance id."""
        compute_s = [fleet.compute_s(call, instance) for instance in candidates]
        if self.mode == "repo":
            return self._route_repo(candidates, compute_s, fleet)
        usual_s = self._usual(sum(compute_s) / len(compute_s))
        best: tuple[float, float, InstanceId] | None = None
        for instance, own_s in zip(candidates, compute_s, strict=True):
            score = self._score(fleet.backlog_s(instance), own_s, usual_s)
            rank = (-score, own_s, instance.spec.instance_id)
            if best is None or rank < best:
                best = rank
        return None if best is None else best[2]

    def _usual(self, mean_s: float) -> float:
        """T, with one more call in it."""
        self._calls = min(self._calls + 1, _USUAL_OVER_CALLS)
        self._usual_s += (mean_s - self._usual_s) / self._calls
        return max(self._usual_s, _SHORTEST_MEAN_S)

    def _score(self, queue_s: float, compute_s: float, usual_s: float) -> float:
        alpha = self.alpha
        if self.mode == "settled":
            return (1.0 - alpha) / (1.0 + queue_s / usual_s) - alpha * compute_s / usual_s
        if alpha == 1.0:
            return -compute_s
        if queue_s <= 0.0:
            return math.inf
        return (1.0 - alpha) * self.beta / queue_s - alpha * compute_s

    def _route_repo(
        self, candidates: Sequence[InstanceView], compute_s: Sequence[float], fleet: FleetView
    ) -> InstanceId:
        given_s = self._given_s
        base_given_s = given_s.get(candidates[0].spec.instance_id, 0.0)
        base_s = max(compute_s[0], _SHORTEST_MEAN_S)
        chosen, chosen_s = candidates[0].spec, base_s
        best = -math.inf
        for instance, predicted_s in zip(candidates, compute_s, strict=True):
            if base_given_s <= 0.0:
                break
            spec = instance.spec
            own_s = max(predicted_s, _SHORTEST_MEAN_S)
            discount = _repo_discount(spec.gpu)
            share = discount * given_s.get(spec.instance_id, 0.0) / base_given_s
            score = self.alpha * base_s / own_s - (1.0 - self.alpha) * share
            if score > best:
                best, chosen, chosen_s = score, spec, own_s
        given_s[chosen.instance_id] = given_s.get(chosen.instance_id, 0.0) + chosen_s
        if len(given_s) > len(fleet.instances):
            self._given_s = {i: s for i, s in given_s.items() if i in fleet.instances}
        return chosen.instance_id


def _checked_alpha(alpha: float) -> float:
    if not 0.0 <= alpha <= 1.0:
        raise BadParameterError(f"alpha must lie in [0, 1], got {alpha!r}")
    return alpha


def _repo_discount(gpu: str | None) -> float:
    named = (gpu or "").upper()
    return _REPO_DISCOUNT if any(name in named for name in _REPO_DISCOUNTED_GPUS) else 1.0
