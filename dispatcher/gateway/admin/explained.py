"""Explanations as people read them."""

from __future__ import annotations

from collections.abc import Mapping

_MOMENTS = frozenset(
    {
        "arrived_s",
        "dispatched_s",
        "first_token_s",
        "ended_s",
        "workflow_started_s",
        "granted_s",
        "deadline_s",
    }
)
"""Fields that are points on the gateway's own clock, wherever they stand."""


def since_arrival(explained: Mapping[str, object], now_s: float) -> dict[str, object]:
    """One call's explanation with its moments as seconds from its arrival.

    Args:
        explained: As `reports.explain_call` gives it, of a live call or of one that has ended.
        now_s: The same clock now.

    Example:
        >>> ended = {"arrived_s": 100.0, "ended_s": 103.0, "placement": {"deadline_s": 160.0}}
        >>> since_arrival(ended, 999.0)
        {'arrived_s': 0.0, 'ended_s': 3.0, 'placement': {'deadline_s': 60.0}}
    """
    arrived_s, waited_s = explained.get("arrived_s"), explained.get("waited_s")
    if isinstance(arrived_s, float):
        return _shifted(explained, arrived_s)
    # a live call tells how long ago it arrived
    return _shifted(explained, now_s - waited_s if isinstance(waited_s, float) else now_s)


def _shifted(part: Mapping[str, object], origin_s: float) -> dict[str, object]:
    shifted: dict[str, object] = {}
    for key, value in part.items():
        if isinstance(value, Mapping):
            shifted[key] = _shifted(value, origin_s)
        elif key in _MOMENTS and isinstance(value, float):
            shifted[key] = value - origin_s
        else:
            shifted[key] = value
    return shifted
