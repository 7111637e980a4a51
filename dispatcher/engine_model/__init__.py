"""How a continuous-batching engine behaves, in virtual time and without I/O.

`EngineModel.step(now_s)` plays one iteration of a vLLM V1 engine: who runs, who waits, who is
preempted, which prompt tokens the prefix cache spares, and how long the iteration takes.
"""

from dispatcher.engine_model.config import EngineConfig, SchedulingPolicy
from dispatcher.engine_model.engine import EngineModel, StepResult
from dispatcher.engine_model.requests import EngineRequest, RequestState
from dispatcher.engine_model.runs import AlikeRun
from dispatcher.engine_model.timing import Linear, Measured, Roofline, Timing

__all__ = [
    "AlikeRun",
    "EngineConfig",
    "EngineModel",
    "EngineRequest",
    "Linear",
    "Measured",
    "RequestState",
    "Roofline",
    "SchedulingPolicy",
    "StepResult",
    "Timing",
]
