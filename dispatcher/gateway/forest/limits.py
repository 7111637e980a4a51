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
