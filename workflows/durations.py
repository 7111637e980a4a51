"""How long applications' workflows take from end to end: what SJF of whole jobs goes by."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from workflows.bounds import MAX_S, cut, stored
from workflows.templates import Mean


class Durations:
    """Mean durations per application, with forgetting; the one that learned longest ago goes first.

    Example:
        >>> durations = Durations()
        >>> durations.learn("sql", 4.0), durations.learn("sql", 6.0)
        (None, None)
        >>> durations.mean_s("sql")
        5.0
    """

    def __init__(self, max_applications: int = 1_000) -> None:
        self._max_applications = max_applications
        self._means: OrderedDict[str, Mean] = OrderedDict()

    def learn(self, application: str, duration_s: float) -> None:
        """One workflow has finished well, first call's arrival to last call's end."""
        mean = self._means.setdefault(application, Mean())
        mean.add(cut(duration_s, 0.0, MAX_S))
        self._means.move_to_end(application)
        if len(self._means) > self._max_applications:
            self._means.popitem(last=False)

    def mean_s(self, application: str) -> float | None:
        """`None`: none has finished well."""
        mean = self._means.get(application)
        return None if mean is None else mean.value

    def dump(self) -> dict[str, list[float]]:
        """What was learned, as plain JSON values."""
        return {name: [mean.value, mean.samples] for name, mean in self._means.items()}

    def load(self, state: Mapping[str, object]) -> None:
        """Replace what was learned by what `dump` gave.

        Raises:
            ValueError: The state does not have the shape that `dump` gives; nothing has changed
                then.
        """
        means: OrderedDict[str, Mean] = OrderedDict()
        for name, entry in list(state.items())[-self._max_applications :]:
            if not isinstance(entry, list) or len(entry) != 2:
                raise ValueError("durations: expected a mean and a number of samples")
            value = stored(entry[0], "duration", 0.0, MAX_S)
            means[name] = Mean(value, int(stored(entry[1], "samples", 0, 2**53)))
        self._means = means
