"""What an engine was launched with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from dispatcher.core.gpu_profiles import GpuProfile, ModelProfile, kv_capacity_tokens
from dispatcher.engine_model.timing import Roofline, Timing

SchedulingPolicy = Literal["fcfs", "priority"]
Preemption = Literal["recompute", "swap"]

PCIE_S_PER_GB = 1.0 / 32.0
"""Seconds that 10^9 bytes take to or from host memory: PCIe 4.0 with 16 lanes, one direction, at
its nominal 32 GB/s [assumption: nothing else is on the bus]."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Launch parameters of one engine, named as vLLM names them.

    Attributes:
        timing: How long its iterations take.
        num_blocks: KV cache blocks.
        max_model_len: Longest prompt plus output, tokens; must fit into the KV cache.
        max_num_seqs: Seats: requests that may run at once, at least 1.
        max_num_batched_tokens: Tokens one iteration may compute, at least `max_num_seqs`.
        block_size: Tokens per KV block.
        scheduling_policy: What orders the waiting requests.
        enable_prefix_caching: Whether full blocks are shared by content.
        preemption: What becomes of a victim's KV: computed again, as in vLLM V1, or copied to host
            memory and back, of which there is enough for all victims.
        swap_s_per_token: Time to copy one token's KV to or from host memory, seconds. It is added
            to the iteration's: copying beside computing is not played. Above 0 with
            `offload_blocks` or `preemption="swap"`.
        offload_blocks: KV blocks in host memory that evicted content falls into and comes back
            from; 0: no such tier. vLLM's `--kv-offloading-size` in blocks.
        enable_preserve: Whether blocks of paused sessions can be kept from eviction
            (`EngineModel.preserve`). No vLLM has it; engines made for tools do (InferCept).
    """

    timing: Timing
    num_blocks: int
    max_model_len: int
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    block_size: int = 16
    scheduling_policy: SchedulingPolicy = "fcfs"
    enable_prefix_caching: bool = True
    preemption: Preemption = "recompute"
    swap_s_per_token: float = 0.0
    offload_blocks: int = 0
    enable_preserve: bool = False

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "block_size", "num_blocks", "max_model_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least"
                f" max_num_seqs ({self.max_num_seqs})"
            )
        if self.scheduling_policy not in ("fcfs", "priority"):
            raise ValueError(
                f"scheduling_policy must be fcfs or priority, not {self.scheduling_policy!r}"
            )
        if self.kv_capacity_tokens < self.max_model_len:
            raise ValueError(
                f"max_model_len ({self.max_model_len}) does not fit into the KV cache of"
                f" {self.num_blocks} blocks of {self.block_size} tokens"
            )
        self._check_host_memory()

    def _check_host_memory(self) -> None:
        if self.preemption not in ("recompute", "swap"):
            raise ValueError(f"preemption must be recompute or swap, not {self.preemption!r}")
        if self.offload_blocks < 0:
            raise ValueError(f"offload_blocks must be at least 0, not {self.offload_blocks}")
        if not 0.0 <= self.swap_s_per_token < math.inf:
            raise ValueError(f"swap_s_per_token must be at least 0, not {self.swap_s_per_token}")
        if not self.swap_s_per_token and (self.offload_blocks or self.preemption == "swap"):
            raise ValueError("swap_s_per_token must be above 0 where KV goes to host memory")
        if not self.enable_prefix_caching and (self.offload_blocks or self.enable_preserve):
            raise ValueError("offload_blocks and enable_preserve need enable_prefix_caching")

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens that the KV cache holds."""
        return self.num_blocks * self.block_size

    @classmethod
    def sized(
        cls,
        gpu: GpuProfile,
        model: ModelProfile,
        *,
        tp: int = 1,
        max_num_seqs: int = 256,
        max_num_batched_tokens: int | None = None,
        num_blocks: int | None = None,
        block_size: int = 16,
        max_model_len: int | None = None,
        scheduling_policy: SchedulingPolicy = "fcfs",
        enable_prefix_caching: bool = True,
        preemption: Preemption = "recompute",
        swap_s_per_gb: float = PCIE_S_PER_GB,
        offload_blocks: int = 0,
        enable_preserve: bool = False,
    ) -> EngineConfig:
        """Fill in what was left out from the hardware, as an engine does at launch.

        `num_blocks` defaults to what fits beside the weights, `max_model_len` to the model's own
        or what the KV cache holds, `max_num_batched_tokens` to vLLM's defaults for its API server
        (8192 from 70 GB on, A100 excepted; else 2048). `swap_s_per_gb` is of each GPU's own link to
        host memory, over which its share of a token's KV goes.

        Raises:
            ValueError: A parameter is out of range, or the model does not fit.
        """
        if num_blocks is None:
            num_blocks = kv_capacity_tokens(gpu, model, tp) // block_size
        if max_model_len is None:
            max_model_len = min(model.max_model_len, num_blocks * block_size)
        if max_num_batched_tokens is None:
            large = gpu.hbm_gb >= 70 and not gpu.name.startswith("A100")
            max_num_batched_tokens = max(8192 if large else 2048, max_num_seqs)
        return cls(
            timing=Roofline(gpu, model, tp),
            num_blocks=num_blocks,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            block_size=block_size,
            scheduling_policy=scheduling_policy,
            enable_prefix_caching=enable_prefix_caching,
            preemption=preemption,
            swap_s_per_token=swap_s_per_gb * model.kv_bytes_per_token / (1e9 * tp),
            offload_blocks=offload_blocks,
            enable_preserve=enable_preserve,
        )
