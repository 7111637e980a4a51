"""What is tuned, as the tuner sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dispatcher.core.coordinator import Coordinator
from dispatcher.core.events import Event, ModelSwapped
from dispatcher.core.ports import CostModel, Policy
from dispatcher.tuning import ReplayInstance, fitted_profile


class Subject:
    """The running policy and the fleet, as plain data where they leave the process."""

    def __init__(
        self, coordinator: Coordinator, costs: CostModel, post: Callable[[Event], None]
    ) -> None:
        self._coordinator = coordinator
        self._costs = costs
        self._post = post

    @property
    def policy(self) -> Policy:
        """The one that decides now."""
        return self._coordinator.policy

    @property
    def alpha(self) -> float | None:
        """Its alpha; `None` where it has none."""
        alpha = self.policy.alpha
        return None if alpha is None else alpha()

    @property
    def tunable(self) -> bool:
        """Whether its alpha may be set while it runs."""
        return self.policy.tunable is not None and self.policy.alpha is not None

    def fleet(self) -> tuple[ReplayInstance, ...]:
        """The engines that are up."""
        return tuple(self._instances())

    def _instances(self) -> Iterator[ReplayInstance]:
        for instance in self._coordinator.fleet:
            if instance.available:
                yield ReplayInstance(
                    spec=instance.spec,
                    profile=fitted_profile(self._costs, instance.instance_id),
                    seats=instance.seats,
                    cached_share=instance.cached_share,
                )

    def adopt(self, alpha: float) -> None:
        """Decide by this alpha from now on."""
        self._post(ModelSwapped("alpha", alpha))
