"""How long tools take: the time between a workflow's last ended call and its next one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from workflows.bounds import MAX_S, stored
from workflows.templates import Mean

UNNAMED = "unnamed"
"""Gaps of which the client does not say what filled them."""


class ToolGaps:
    """Mean gap per tool, with forgetting; bounded, the tool seen least recently goes first.

    Example:
        >>> gaps = ToolGaps(max_tools=10)
        >>> gaps.learn("sql", 0.2)
        >>> gaps.learn("sql", 0.4)
        >>> round(gaps.mean_s("sql"), 3), gaps.mean_s("python")
        (0.3, None)
    """

    def __init__(self, max_tools: int) -> None:
        self._max_tools = max_tools
        self._gaps: OrderedDict[str, Mean] = OrderedDict()

    def learn(self, tool: str | None, gap_s: float) -> None:
        """A tool ran for so long; `None`: nobody said which. Only finite times from 0 teach."""
        if not 0 <= gap_s <= MAX_S:
            return
        name = UNNAMED if tool is None else tool
        mean = self._gaps.setdefault(name, Mean())
        self._gaps.move_to_end(name)
        mean.add(gap_s)
        if len(self._gaps) > self._max_tools:
            self._gaps.popitem(last=False)

    def mean_s(self, tool: str) -> float | None:
        """Seconds it usually takes; `None`: never seen."""
        mean = self._gaps.get(tool)
        return None if mean is None else mean.value

    def __len__(self) -> int:
        return len(self._gaps)

    def dump(self) -> dict[str, object]:
        """What was learned, as plain JSON values."""
        return {name: [mean.value, mean.samples] for name, mean in self._gaps.items()}

    def load(self, state: Mapping[str, object]) -> None:
        """Replace what was learned by what `dump` gave.

        Raises:
            ValueError: The state does not have the shape that `dump` gives; nothing has changed
                then.
        """
        gaps: OrderedDict[str, Mean] = OrderedDict()
        for name, entry in list(state.items())[-self._max_tools :]:
            if not isinstance(entry, list) or len(entry) != 2:
                raise ValueError(f"tool {name}: expected mean and samples")
            value, samples = entry
            mean_s = stored(value, f"tool {name}", 0.0, MAX_S)
            gaps[name] = Mean(mean_s, int(stored(samples, f"tool {name}", 0, 2**53)))
        self._gaps = gaps
