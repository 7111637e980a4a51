"""How a continuous-batching engine behaves, in virtual time and without I/O.

`EngineModel.step(now_s)` plays one iteration of a vLLM V1 engine: who runs, who waits, who is
preempted, which prompt tokens the prefix cache spares, and how long the iteration takes.

| part | launched with (`EngineConfig`) | used by |
|---|---|---|
| what is kept of a prompt, where in eviction order | `enable_prefix_caching` | `residency` |
| tokens per iteration | `max_num_batched_tokens` | `set_token_limit`, `token_limit` |
| offload tier in host memory | `offload_blocks`, `swap_s_per_token` | `offload`, `discard` |
| cost of preemption | `preemption`, `swap_s_per_token` | `recomputed_tokens`, `swapped_in_tokens` |
| blocks kept for paused sessions | `enable_preserve` | `preserve`, `release`, `expire` |

The last is not vLLM's. Hold on to an engine that is played (`dispatcher.simulator.engines`) by the
methods of the same names there, which also cut short what is being played.
"""

from dispatcher.engine_model.blocks import Residency
from dispatcher.engine_model.config import (
    PCIE_S_PER_GB,
    EngineConfig,
    Preemption,
    SchedulingPolicy,
)
from dispatcher.engine_model.engine import EngineModel
from dispatcher.engine_model.requests import EngineRequest, RequestState
from dispatcher.engine_model.runs import AlikeRun
from dispatcher.engine_model.steps import StepResult
from dispatcher.engine_model.timing import Linear, Measured, Roofline, Timing

__all__ = [
    "PCIE_S_PER_GB",
    "AlikeRun",
    "EngineConfig",
    "EngineModel",
    "EngineRequest",
    "Linear",
    "Measured",
    "Preemption",
    "RequestState",
    "Residency",
    "Roofline",
    "SchedulingPolicy",
    "StepResult",
    "Timing",
]
