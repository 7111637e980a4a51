"""GMAX: among the densest calls, a batch of similar length (JITServe, the later name of Tempo).

JITServe (NSDI '26) groups what it serves next: of the k B densest calls, B being the batch size,
sorted by length, the B neighbours with the largest sum of densities are the batch. Calls of like
length end together and keep the batch's context even. The authors' code (UIUC-MLSys/JITServe,
`slo_scheduler.py`, "sliding window") sorts by prompt and output so far, as is done here.

Settled: nothing in flight is touched, so B calls are not swapped in at once; each time a seat
frees, the densest call of the best window goes. The code's later steps (adding siblings to the
window, adapting the batch size) concern running batches and are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate


def best_window(lengths: Sequence[float], densities: Sequence[float], width: int) -> frozenset[int]:
    """The calls of the best window, as positions; all of them where there are no more than `width`.

    O(n log n). Ties: the window of shorter calls.

    Args:
        lengths: Tokens of each call, prompt and output so far.
        densities: Of each call.
        width: B, at least 1.

    Example:
        >>> sorted(best_window([100, 4000, 120, 110], [5.0, 6.0, 4.0, 6.0], width=2))
        [0, 3]
        >>> sorted(best_window([100, 4000, 120, 110], [5.0, 9.0, 8.0, 6.0], width=2))
        [1, 2]
    """
    count = len(lengths)
    if count <= width:
        return frozenset(range(count))
    by_length = sorted(range(count), key=lambda position: (lengths[position], position))
    sums = [0.0, *accumulate(densities[position] for position in by_length)]
    first = max(
        range(count - width + 1), key=lambda start: (sums[start + width] - sums[start], -start)
    )
    return frozenset(by_length[first : first + width])
