"""A call's own limits on its length."""

from __future__ import annotations

from dataclasses import replace

from dispatcher.core.types import CallSpec, LengthEstimate


def known_exactly(spec: CallSpec) -> bool:
    """Whether its length follows from what it asks for: nothing can be predicted or learned."""
    return spec.max_tokens is not None and spec.features.get("ignore_eos") == 1.0


def within_limits(estimate: LengthEstimate, spec: CallSpec) -> LengthEstimate:
    """The estimate, moved to where the call may end; the most it may have wins over the least."""
    least = spec.features.get("min_tokens", 0.0)
    if least > 1.0:
        quantiles = tuple((p, max(tokens, least)) for p, tokens in estimate.quantiles)
        expected = max(estimate.expected_tokens, least)
        estimate = replace(estimate, expected_tokens=expected, quantiles=quantiles)
    return estimate if spec.max_tokens is None else estimate.capped(float(spec.max_tokens))


def limits_decide(estimate: LengthEstimate, spec: CallSpec) -> bool:
    """Whether the call's own limits may well end it, or keep it going: more than one in twenty.

    Its length says little of the estimate then: one that ends at `max_tokens` is no longer than
    any quantile that was cut there, right or wrong.
    """
    if spec.max_tokens is not None and estimate.quantile_tokens(0.95) >= spec.max_tokens:
        return True
    least = spec.features.get("min_tokens", 0.0)
    return least > 1.0 and estimate.quantile_tokens(0.05) <= least
