"""How long tools take: the time between a workflow's last ended call and its next one."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence

from workflows.bounds import MAX_S, stored
from workflows.templates import Mean

UNNAMED = "unnamed"
"""Gaps of which the client does not say what filled them."""
WINDOW = 128
"""Latest gaps of a tool from which quantiles are taken."""
WINDOW_OF_ALL = 512
"""Latest gaps of all tools, for those of which too little is known."""
ENOUGH = 8
"""Gaps that a tool's own quantiles need."""
_SHOWN_QUANTILES = (0.5, 0.9, 0.95)


class _Window:
    """The latest gaps, in the order of their coming and in ascending order."""

    __slots__ = ("_most", "ascending", "latest")

    def __init__(self, most: int, gaps: Iterable[float] = ()) -> None:
        self._most = most
        self.latest: deque[float] = deque(gaps, maxlen=most)
        self.ascending = sorted(self.latest)

    def add(self, gap_s: float) -> None:
        """One more; the oldest goes where there are too many."""
        if len(self.latest) == self._most:
            del self.ascending[bisect_left(self.ascending, self.latest[0])]
        self.latest.append(gap_s)
        insort(self.ascending, gap_s)

    def __len__(self) -> int:
        return len(self.latest)


_EMPTY = _Window(0)


class ToolGaps:
    """Mean with forgetting and a window of gaps per tool; the tool seen least recently goes first.

    Example:
        >>> gaps = ToolGaps(max_tools=10)
        >>> for tenths in range(11):
        ...     gaps.learn("sql", tenths / 10)
        >>> round(gaps.mean_s("sql"), 3), gaps.mean_s("python")
        (0.5, None)
        >>> gaps.quantile_s("sql", 0.5), gaps.quantile_s("sql", 0.95)
        (0.5, 0.95)
    """

    def __init__(self, max_tools: int) -> None:
        self._max_tools = max_tools
        self._gaps: OrderedDict[str, Mean] = OrderedDict()
        #: the same tools, those loaded from before windows were kept excepted
        self._windows: dict[str, _Window] = {}
        self._all = _Window(WINDOW_OF_ALL)

    def learn(self, tool: str | None, gap_s: float) -> None:
        """A tool ran for so long; `None`: nobody said which. Only finite times from 0 teach."""
        if not 0 <= gap_s <= MAX_S:
            return
        name = UNNAMED if tool is None else tool
        mean = self._gaps.setdefault(name, Mean())
        self._gaps.move_to_end(name)
        mean.add(gap_s)
        window = self._windows.get(name)
        if window is None:
            window = self._windows[name] = _Window(WINDOW)
        window.add(gap_s)
        self._all.add(gap_s)
        if len(self._gaps) > self._max_tools:
            oldest, _ = self._gaps.popitem(last=False)
            self._windows.pop(oldest, None)

    def mean_s(self, tool: str) -> float | None:
        """Seconds it usually takes; `None`: never seen."""
        mean = self._gaps.get(tool)
        return None if mean is None else mean.value

    def quantile_s(self, tool: str | None, p: float) -> float | None:
        """Seconds that the tool stays within with probability `p`, from its latest gaps.

        With fewer than `ENOUGH` of them, from all tools' latest gaps; where those are as few, from
        what there is of its own. O(1).

        Args:
            tool: Its name; `None`: nobody says which one runs.
            p: In [0, 1].

        Returns:
            `None`: nothing is known of any tool.

        Raises:
            ValueError: `p` is no probability.
        """
        if not 0 <= p <= 1:
            raise ValueError(f"p: expected a probability, not {p}")
        own = self._windows.get(UNNAMED if tool is None else tool, _EMPTY)
        enough = len(own) >= ENOUGH or len(self._all) < ENOUGH
        window = own if own and enough else self._all
        return _quantile(window.ascending, p) if window else None

    def stats(self, limit: int = 100) -> list[dict[str, object]]:
        """At most `limit` tools, seen last first: samples, mean and quantiles; JSON-ready."""
        return [
            self._row(name) for name, _ in zip(reversed(self._gaps), range(limit), strict=False)
        ]

    def _row(self, name: str) -> dict[str, object]:
        window = self._windows.get(name, _EMPTY).ascending
        shown: dict[str, object] = {
            f"p{100 * p:.0f}_s": _quantile(window, p) if window else None for p in _SHOWN_QUANTILES
        }
        mean = self._gaps[name]
        return {
            "tool": name,
            "samples": mean.samples,
            "mean_s": mean.value,
            **shown,
            "own_quantiles": len(window) >= ENOUGH,
        }

    def __len__(self) -> int:
        return len(self._gaps)

    def dump(self) -> dict[str, object]:
        """Means, as plain JSON values."""
        return {name: [mean.value, mean.samples] for name, mean in self._gaps.items()}

    def dump_windows(self) -> dict[str, object]:
        """Latest gaps per tool, and of all, oldest first; plain JSON values."""
        windows = {name: list(window.latest) for name, window in self._windows.items()}
        return {"tools": windows, "all": list(self._all.latest)}

    def load(self, state: Mapping[str, object], windows: Mapping[str, object]) -> None:
        """Replace what was learned by what `dump` and `dump_windows` gave.

        Args:
            state: Means.
            windows: Latest gaps; empty: quantiles are learned anew.

        Raises:
            ValueError: A state does not have the shape that these give; nothing has changed then.
        """
        gaps: OrderedDict[str, Mean] = OrderedDict()
        for name, entry in list(state.items())[-self._max_tools :]:
            if not isinstance(entry, list) or len(entry) != 2:
                raise ValueError(f"tool {name}: expected mean and samples")
            value, samples = entry
            mean_s = stored(value, f"tool {name}", 0.0, MAX_S)
            gaps[name] = Mean(mean_s, int(stored(samples, f"tool {name}", 0, 2**53)))
        by_tool = windows.get("tools", {})
        if not isinstance(by_tool, dict):
            raise ValueError("tool windows: expected an object")
        own = {
            name: _Window(WINDOW, _gaps(window, f"tool {name}"))
            for name, window in by_tool.items()
            if name in gaps
        }
        of_all = _Window(WINDOW_OF_ALL, _gaps(windows.get("all", []), "all tools"))
        self._gaps, self._windows, self._all = gaps, own, of_all


def _gaps(state: object, what: str) -> Iterable[float]:
    if not isinstance(state, list):
        raise ValueError(f"{what}: expected a list of gaps")
    return [stored(gap_s, what, 0.0, MAX_S) for gap_s in state]


def _quantile(ascending: Sequence[float], p: float) -> float:
    """Between the two nearest, linearly; there is at least one."""
    place = p * (len(ascending) - 1)
    below = int(place)
    above = min(below + 1, len(ascending) - 1)
    return ascending[below] + (place - below) * (ascending[above] - ascending[below])
