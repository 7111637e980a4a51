"""The engines of a simulation, as the scheduler sees them and as they are played."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dispatcher.core.gpu_profiles import gpu_profile, model_profile, roofline_cost
from dispatcher.core.types import InstanceId, InstanceSpec
from dispatcher.engine_model import EngineConfig, SchedulingPolicy
from dispatcher.simulator.engines import EngineControl, EnginePlayer

BLOCK_TOKENS = 64
"""KV block of a simulated engine. vLLM's is 16: a prompt finds up to 48 tokens more in its cache
there, and every prompt costs four times the work here."""


@dataclass(frozen=True, slots=True)
class SimulatedEngine:
    """One engine: what the scheduler is told, and the truth that plays it."""

    spec: InstanceSpec
    config: EngineConfig
    overhead_s: float = 0.0
    """On the way there: HTTP, tokenizing; added before each call reaches the engine."""
    cached_share: float = 0.0
    """Of every prompt, found in its prefix cache; for traces that do not tell what is shared."""
    control: Callable[[EnginePlayer], EngineControl] | None = None
    """Of an engine made for tools; `None`: it schedules as vLLM does."""

    @property
    def instance_id(self) -> InstanceId:
        """Short for `spec.instance_id`."""
        return self.spec.instance_id


class FaultKind(StrEnum):
    """What may happen to an engine."""

    DOWN = "down"
    """It dies; what runs there fails."""
    UP = "up"
    """It is back, empty."""
    SLOW = "slow"
    """Its iterations take `factor` times as long from now on."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something happens to an engine, at a moment of the simulation."""

    at_s: float
    instance_id: str
    kind: FaultKind
    factor: float = 1.0
    """Of `SLOW`: above 0; 1 is as fast as ever."""


def simulated_engine(
    instance_id: str,
    gpu: str,
    *,
    size: str = "8b",
    tp: int = 1,
    seats: int | None = 8,
    model: str = "model",
    scheduling_policy: SchedulingPolicy = "priority",
    **launch: Any,
) -> SimulatedEngine:
    """An engine by GPU type and model size, as published figures have it.

    Args:
        instance_id: Its name in the fleet.
        gpu: GPU type, as `gpu_profile` knows it.
        size: Model size, as `model_profile` knows it.
        tp: GPUs that share the model.
        seats: Calls in flight that the scheduler allows it, and its `max_num_seqs`; `None`: found
            by the scheduler, below vLLM's own default.
        model: The name it serves.
        scheduling_policy: What orders its own waiting requests.
        **launch: Further parameters of `EngineConfig.sized`; KV blocks have 64 tokens.

    Raises:
        UnknownProfileError: No such GPU or model.
        ModelDoesNotFitError: The model does not fit there.

    Example:
        >>> simulated_engine("a", "A100", size="70b", tp=4).config.max_num_seqs
        8
    """
    hardware, shape = gpu_profile(gpu), model_profile(size)
    if seats is not None:
        launch.setdefault("max_num_seqs", seats)
    launch.setdefault("block_size", BLOCK_TOKENS)
    config = EngineConfig.sized(
        hardware, shape, tp=tp, scheduling_policy=scheduling_policy, **launch
    )
    spec = InstanceSpec(
        instance_id=InstanceId(instance_id),
        models=frozenset({model}),
        max_model_len=config.max_model_len,
        gpu=hardware.name,
        seats=seats,
        profile=roofline_cost(hardware, shape, tp),
        kv_capacity_tokens=config.kv_capacity_tokens,
        offload_tokens=config.offload_blocks * config.block_size or None,
        capability=hardware.capability.times(tp),
        weight_bytes=shape.weight_bytes,
        kv_bytes_per_token=shape.kv_bytes_per_token,
    )
    return SimulatedEngine(spec, config)
