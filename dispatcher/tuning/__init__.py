"""HexGen-Flow's alpha tuning (section 4.3) without clocks, processes or simulators.

Windows of finished workflows come in; whether their latency has grown worse since the last tune,
and which alpha a replay of them would have served best, comes out. What replays is a port:
the command line gives it to the gateway.
"""

from dispatcher.tuning.choice import Choice, ReplayError, choose
from dispatcher.tuning.offline import tune_trace, with_present
from dispatcher.tuning.replay import (
    ALPHAS,
    AlphaScore,
    Replay,
    ReplayInstance,
    ReplayRequest,
    ReplayResult,
    fitted_profile,
    from_zero,
    latest,
    replay_from_zero,
)
from dispatcher.tuning.rules import TestName, TuningRules
from dispatcher.tuning.statistics import RegressionTest, percentile, regression_p
from dispatcher.tuning.windows import Monitor, Window

__all__ = [
    "ALPHAS",
    "AlphaScore",
    "Choice",
    "Monitor",
    "RegressionTest",
    "Replay",
    "ReplayError",
    "ReplayInstance",
    "ReplayRequest",
    "ReplayResult",
    "TestName",
    "TuningRules",
    "Window",
    "choose",
    "fitted_profile",
    "from_zero",
    "latest",
    "percentile",
    "regression_p",
    "replay_from_zero",
    "tune_trace",
    "with_present",
]
