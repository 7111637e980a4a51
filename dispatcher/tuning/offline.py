"""Tuning on a trace that was recorded: what `headway tune --trace FILE` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dispatcher.traces.types import TraceWorkflow
from dispatcher.tuning.choice import Choice, choose
from dispatcher.tuning.replay import (
    ALPHAS,
    Replay,
    ReplayInstance,
    ReplayRequest,
    from_zero,
    latest,
)
from dispatcher.tuning.rules import TuningRules


def tune_trace(
    trace: Sequence[TraceWorkflow],
    fleet: Sequence[ReplayInstance],
    replay: Replay,
    *,
    policy: str,
    params: Mapping[str, object],
    alpha: float = 0.0,
    rules: TuningRules | None = None,
    seed: int = 0,
) -> Choice:
    """One tune, as the gateway would do it with this trace as its window; here and now.

    Args:
        trace: As `read_trace` gives it; where it has more than `rules.max_calls` calls, its last
            workflows.
        fleet: The engines to play it on.
        replay: What plays it.
        policy: A name from the catalog, with an alpha.
        params: Its parameters.
        alpha: The one in use, which the best is compared with; in [0, 1].
        rules: `max_calls` and `min_gain` count here.
        seed: Of the replay.

    Raises:
        ValueError: There is nothing to replay, or nothing to replay it on.
        ReplayError: The replay's answer cannot be used.
    """
    if not trace or not fleet:
        raise ValueError("expected at least one workflow and one engine")
    rules = rules or TuningRules()
    request = ReplayRequest(
        trace=from_zero(latest(trace, rules.max_calls)),
        fleet=tuple(fleet),
        policy=policy,
        params=params,
        alphas=with_present(alpha),
        seed=seed,
    )
    return choose(replay(request), alpha, rules.min_gain)


def with_present(alpha: float) -> tuple[float, ...]:
    """The alphas to try, the present one among them.

    Example:
        >>> with_present(0.25)[2:5]
        (0.2, 0.25, 0.3)
    """
    return tuple(sorted({*ALPHAS, alpha}))
