"""Length bins: which engines take prompts of which length.

HeteroServe, sections 3.3 and 4.1: K = 4 bins at 256, 512 and 2,048 prompt tokens; an engine admits
a bin where the 90th percentile of what its calls keep in the KV cache fits beside the weights,

    KV_p90(bin) + W_model <= (1 - delta) M                                              (Eq. 4)

which is the same as p90 tokens <= B_tok, the batch limit of Eq. 6 (`policies.batch_limits`).

Settled:

1. The percentile is that of calls that ended lately (`policies.context_footprints`), by the bins
   of the policy at hand. As long as a bin has seen few, it is the call's own prompt with the 0.9
   quantile of its predicted answer.
2. Eq. 4 hardly ever bites on the paper's own fleet: the longest bin of a 13B model keeps 3.8 GB,
   an L40S has room for 17. What an engine takes *in time* is another test, of latency; it is
   routing's (`policies.heteroserve`).
3. Where no engine admits a bin, all do: a call is never refused for its bin.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import inf

from dispatcher.core.errors import BadParameterError
from dispatcher.core.views import CallView
from policies.context_footprints import ContextFootprints

PERCENTILE = 0.9
_REFRESH_CALLS = 128
"""Ended calls after which the percentiles are worked out anew."""
_LEAST_CALLS = 8
"""From so many on in a bin its percentile is told."""


class LengthBins:
    """Bins by prompt length, and how large the calls of each are; O(log K) per call.

    Args:
        edges: Longest prompt of each bin but the last, tokens, ascending; empty: a single bin.
        footprints: What calls were found to keep.

    Raises:
        BadParameterError: The edges are not above 0 and ascending.

    Example:
        >>> bins = LengthBins([256, 512, 2048], ContextFootprints())
        >>> [bins.of(tokens) for tokens in (256, 257, 2048, 9000)]
        [0, 1, 2, 3]
    """

    def __init__(self, edges: Sequence[int], footprints: ContextFootprints) -> None:
        if any(edge < 1 for edge in edges) or list(edges) != sorted(set(edges)):
            raise BadParameterError(f"bins must be above 0 and ascending, not {list(edges)}")
        self._edges = tuple(edges)
        self._footprints = footprints
        bins = len(self._edges) + 1
        #: by bin: how many calls had ended when it was looked at last
        self._refreshed_at = [0] * bins
        #: by bin: 90th percentiles of (prompt, prompt + answer), tokens; `None`: too few calls
        self._p90: list[tuple[int, int] | None] = [None] * bins

    def of(self, prompt_tokens: int) -> int:
        """Number of the bin, from 0."""
        return bisect_left(self._edges, prompt_tokens)

    def p90_tokens(self, call: CallView) -> tuple[float, float]:
        """90th percentile of the prompts in the call's bin, and of what its calls keep; tokens."""
        number = self.of(call.spec.prompt_tokens)
        if self._footprints.ended >= self._refreshed_at[number] + _REFRESH_CALLS:
            self._refresh(number)
        known = self._p90[number]
        if known is not None:
            return known
        prompt = float(call.spec.prompt_tokens)
        return prompt, prompt + call.length.quantile_tokens(PERCENTILE)

    def _refresh(self, number: int) -> None:
        """One bin alone, so that no single call pays for all."""
        self._refreshed_at[number] = self._footprints.ended
        above = self._edges[number - 1] if number else -1
        most = self._edges[number] if number < len(self._edges) else inf
        self._p90[number] = _percentiles(
            [one for one in self._footprints.latest if above < one[0] <= most]
        )


def _percentiles(calls: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    if len(calls) < _LEAST_CALLS:
        return None
    at = int(PERCENTILE * (len(calls) - 1))
    prompts = sorted(prompt for prompt, _ in calls)
    contexts = sorted(context for _, context in calls)
    return prompts[at], contexts[at]
