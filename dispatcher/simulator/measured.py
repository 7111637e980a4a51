"""Engines of a simulation that play as real ones were measured."""

from __future__ import annotations

from dispatcher.config.profiles import EngineProfile
from dispatcher.core.errors import ConfigurationError
from dispatcher.core.types import InstanceId, InstanceSpec
from dispatcher.engine_model import EngineConfig, Linear, Measured, SchedulingPolicy, Timing
from dispatcher.simulator.fleet import SimulatedEngine

DEFAULT_SEATS = 256
"""Of an engine whose seats were neither measured nor said: vLLM's own default."""
_KV_TOKENS = 1 << 20
"""Where an engine does not say how much it holds."""
_BATCH_TOKENS = 2048


def measured_engine(
    instance_id: str,
    profile: EngineProfile,
    *,
    seats: int | None = None,
    model: str | None = None,
    block_size: int = 16,
    max_num_batched_tokens: int = _BATCH_TOKENS,
    scheduling_policy: SchedulingPolicy = "priority",
    enable_prefix_caching: bool = True,
) -> SimulatedEngine:
    """An engine that takes as long as `headway calibrate` measured.

    With an `admission` section, prompts take in an iteration what was measured of prompts among
    running calls, and `request_s` outside of it. Without one, what a call alone was seen to take:
    a token's share of the prefill in the iteration, the rest of the fixed time outside.

    Args:
        instance_id: Its name in the fleet.
        profile: What was measured.
        seats: Calls that the scheduler allows it at once, and its `max_num_seqs`; `None`: as
            measured, else found by the scheduler, below vLLM's own default.
        model: The name it serves; `None`: the one that was measured.
        block_size: Tokens per KV block.
        max_num_batched_tokens: Tokens one iteration may compute.
        scheduling_policy: What orders its own waiting requests.
        enable_prefix_caching: Whether full blocks are shared by content.

    Raises:
        ConfigurationError: The profile does not say how long the engine's context is, or what it
            says does not fit together.

    Example:
        >>> from dispatcher.config.profiles import DecodeProfile, PrefillProfile
        >>> profile = EngineProfile(
        ...     prefill=PrefillProfile(per_token_s=1e-4, fixed_s=0.05),
        ...     decode=DecodeProfile(base_s=0.01, per_running_s=1e-3, per_kv_token_s=0.0),
        ...     max_model_len=2048,
        ...     seats=4,
        ... )
        >>> engine = measured_engine("a", profile)
        >>> engine.config.max_num_seqs, round(engine.overhead_s, 3)
        (4, 0.039)
    """
    if profile.max_model_len is None:
        raise ConfigurationError(f"{instance_id}: its profile has no max_model_len")
    seats = seats or profile.seats
    timing, overhead_s = _times(profile)
    try:
        config = EngineConfig(
            timing=timing,
            num_blocks=(profile.kv_capacity_tokens or _KV_TOKENS) // block_size,
            max_model_len=profile.max_model_len,
            max_num_seqs=seats or DEFAULT_SEATS,
            max_num_batched_tokens=max(max_num_batched_tokens, seats or DEFAULT_SEATS),
            block_size=block_size,
            scheduling_policy=scheduling_policy,
            enable_prefix_caching=enable_prefix_caching,
        )
    except ValueError as error:
        raise ConfigurationError(f"{instance_id}: {error}") from error
    spec = InstanceSpec(
        instance_id=InstanceId(instance_id),
        models=frozenset({model or profile.model or "model"}),
        max_model_len=profile.max_model_len,
        seats=seats,
        profile=profile.cost,
        kv_capacity_tokens=profile.kv_capacity_tokens,
    )
    return SimulatedEngine(spec, config, overhead_s=overhead_s)


def _times(profile: EngineProfile) -> tuple[Timing, float]:
    """Of iterations, and of a call outside of them."""
    decode, admission = profile.decode, profile.admission
    if admission is None:
        one_s = profile.cost.tpot_s(1, 0)
        return Linear(profile.cost), max(0.0, profile.prefill.fixed_s - one_s)
    timing = Measured(
        base_s=decode.base_s,
        per_running_s=decode.per_running_s,
        per_kv_token_s=decode.per_kv_token_s,
        per_prompt_token_s=admission.per_prompt_token_s,
        per_prompt_s=admission.fixed_s,
    )
    return timing, admission.request_s
