"""What GPUs and models can do on paper, and the cost profile that predictors start from.

Hardware figures are the vendor's published ones, dense (no sparsity), bfloat16 with float32
accumulation. What no datasheet states, the share of them that a serving engine reaches, is an
assumption and named as such (`compute_efficiency`, `memory_efficiency`).

Sources: NVIDIA H100 Tensor Core GPU Datasheet (SXM5); NVIDIA A100 Tensor Core GPU Datasheet (80 GB
SXM); NVIDIA Ampere GA102 GPU Architecture whitepaper, RTX A6000 table; NVIDIA L40 Product Brief;
NVIDIA L40S Datasheet; NVIDIA Ada GPU Architecture whitepaper, GeForce RTX 4090 table. Model shapes:
the published `config.json` of EleutherAI/gpt-j-6b, meta-llama/Llama-3.1-8B,
meta-llama/Llama-2-13b-hf and meta-llama/Llama-3.1-70B.
"""

from __future__ import annotations

from dataclasses import dataclass

from dispatcher.core.errors import ConfigurationError, UnknownNameError

BYTES_PER_PARAM_BF16 = 2
"""Weights and KV cache are kept in bfloat16."""

ITERATION_OVERHEAD_S = 0.6e-3
"""Host work per engine iteration that the GPU waits for [assumption: V1 with async scheduling]."""

HOST_S_PER_SEQUENCE = 12e-6
"""Host and sampling time that each running sequence adds to an iteration [assumption]."""

ACTIVATION_RESERVE_GB = 2.0
"""Memory per GPU that activations and CUDA graphs take from the KV cache [assumption]."""


class UnknownProfileError(UnknownNameError):
    """A GPU or model name that no profile answers to; the message lists what does."""


class ModelDoesNotFitError(ConfigurationError):
    """The weights leave no room for a KV cache on this many GPUs."""


@dataclass(frozen=True, slots=True)
class GpuProfile:
    """One GPU type.

    Attributes:
        name: Canonical name.
        bf16_dense_tflops: Peak dense bfloat16 rate, 10^12 operations per second.
        hbm_gb: Device memory, 10^9 bytes.
        hbm_tb_per_s: Device memory bandwidth, 10^12 bytes per second.
        link_gb_per_s: Bandwidth to its peers, one direction, 10^9 bytes per second.
        link_latency_s: Fixed time of one all-reduce among peers [assumption].
        compute_efficiency: Share of the peak rate that large matrix products reach, in (0, 1].
        memory_efficiency: Share of the peak bandwidth that weight streaming reaches, in (0, 1].
        source: Where the published figures come from.
    """

    name: str
    bf16_dense_tflops: float
    hbm_gb: float
    hbm_tb_per_s: float
    link_gb_per_s: float
    link_latency_s: float
    source: str
    compute_efficiency: float = 0.6
    memory_efficiency: float = 0.8

    @property
    def flops_per_s(self) -> float:
        """Floating-point operations per second that one GPU sustains."""
        return self.bf16_dense_tflops * 1e12 * self.compute_efficiency

    @property
    def bytes_per_s(self) -> float:
        """Bytes per second that one GPU reads from its memory, sustained."""
        return self.hbm_tb_per_s * 1e12 * self.memory_efficiency

    @property
    def capability(self) -> Capability:
        """Its published figures alone."""
        return Capability(self.bf16_dense_tflops, self.hbm_gb, self.hbm_tb_per_s)


@dataclass(frozen=True, slots=True)
class Capability:
    """What one engine's hardware can do at most: the (F, M, B) of HeteroServe, section 3.1.

    Attributes:
        tflops: F, peak dense bfloat16 rate of all its GPUs, 10^12 operations per second, above 0.
        hbm_gb: M, device memory of all its GPUs, 10^9 bytes, above 0.
        tb_per_s: B, memory bandwidth of all its GPUs, 10^12 bytes per second, above 0.

    Raises:
        ValueError: A figure is not above 0.
    """

    tflops: float
    hbm_gb: float
    tb_per_s: float

    def __post_init__(self) -> None:
        if not (self.tflops > 0 and self.hbm_gb > 0 and self.tb_per_s > 0):
            raise ValueError(f"every figure of a capability must be above 0: {self}")

    def times(self, gpus: int, speed: float = 1.0) -> Capability:
        """Return what so many GPUs of this kind can do together, `speed` times as fast as told.

        Example:
            >>> Capability(312.0, 80.0, 2.0).times(4)
            Capability(tflops=1248.0, hbm_gb=320.0, tb_per_s=8.0)
        """
        return Capability(
            self.tflops * gpus * speed, self.hbm_gb * gpus, self.tb_per_s * gpus * speed
        )


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """One dense decoder-only model.

    Attributes:
        name: Canonical short name, by size.
        title: The published model that the shape is taken from.
        parameters: Number of weights.
        layers: Number of transformer blocks.
        hidden_size: Width of the residual stream.
        attention_heads: Query heads.
        kv_heads: Key and value heads; equal to `attention_heads` under multi-head attention.
        head_dim: Width of one head.
        max_model_len: Longest context, tokens.
        bytes_per_param: Bytes per weight.
    """

    name: str
    title: str
    parameters: int
    layers: int
    hidden_size: int
    attention_heads: int
    kv_heads: int
    head_dim: int
    max_model_len: int
    bytes_per_param: int = BYTES_PER_PARAM_BF16

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        return self.parameters * self.bytes_per_param

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values that one token keeps in the cache, over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * BYTES_PER_PARAM_BF16

    @property
    def flops_per_token(self) -> float:
        """Operations of one token's matrix products, attention scores aside."""
        return 2.0 * self.parameters


@dataclass(frozen=True, slots=True)
class CostProfile:
    """Linear cost of a call at one instance, seconds.

    `prefill_s(u) = prefill_s_per_token * u + prefill_fixed_s` for `u` uncached prompt tokens;
    `tpot_s(n, K) = tpot_base_s + tpot_per_running_s * n + tpot_per_kv_token_s * K` for `n` running
    calls that keep `K` tokens in the KV cache.

    Example:
        >>> cost = CostProfile(0.0001, 0.01, 0.02, 0.0001, 1e-8)
        >>> round(cost.prefill_s(1000), 6), round(cost.tpot_s(10, 100_000), 6)
        (0.11, 0.022)
    """

    prefill_s_per_token: float
    prefill_fixed_s: float
    tpot_base_s: float
    tpot_per_running_s: float
    tpot_per_kv_token_s: float

    def prefill_s(self, uncached_tokens: float) -> float:
        """Time to the first token once the call runs; seconds."""
        return self.prefill_s_per_token * uncached_tokens + self.prefill_fixed_s

    def tpot_s(self, running: float, kv_tokens: float) -> float:
        """Time per output token with `running` calls and `kv_tokens` resident; seconds."""
        return (
            self.tpot_base_s
            + self.tpot_per_running_s * running
            + self.tpot_per_kv_token_s * kv_tokens
        )

    def time_scale(self, factor: float) -> CostProfile:
        """Return the profile of an engine that runs `factor` times as fast.

        Raises:
            ValueError: `factor` is not above zero.
        """
        if not factor > 0:
            raise ValueError(f"time scale must be above 0, not {factor}")
        return CostProfile(
            self.prefill_s_per_token / factor,
            self.prefill_fixed_s / factor,
            self.tpot_base_s / factor,
            self.tpot_per_running_s / factor,
            self.tpot_per_kv_token_s / factor,
        )


_NVLINK4_GB_PER_S = 450.0
_NVLINK3_GB_PER_S = 300.0
_PCIE4_X16_GB_PER_S = 32.0

H100 = GpuProfile(
    "H100", 989.4, 80.0, 3.35, _NVLINK4_GB_PER_S, 10e-6, "NVIDIA H100 datasheet, SXM5"
)
A100_80G = GpuProfile(
    "A100-80G", 312.0, 80.0, 2.039, _NVLINK3_GB_PER_S, 12e-6, "NVIDIA A100 datasheet, 80 GB SXM"
)
A6000 = GpuProfile(
    "A6000", 154.8, 48.0, 0.768, _PCIE4_X16_GB_PER_S, 25e-6, "NVIDIA GA102 whitepaper, RTX A6000"
)
L40 = GpuProfile("L40", 181.05, 48.0, 0.864, _PCIE4_X16_GB_PER_S, 25e-6, "NVIDIA L40 product brief")
L40S = GpuProfile("L40S", 362.05, 48.0, 0.864, _PCIE4_X16_GB_PER_S, 25e-6, "NVIDIA L40S datasheet")
RTX4090 = GpuProfile(
    "RTX4090", 165.2, 24.0, 1.008, _PCIE4_X16_GB_PER_S, 25e-6, "NVIDIA Ada whitepaper, RTX 4090"
)

GPT_J_6B = ModelProfile("gpt-j-6b", "GPT-J-6B", 6_053_381_344, 28, 4096, 16, 16, 256, 2_048)
LLAMA_8B = ModelProfile("8b", "Llama-3.1-8B", 8_030_261_248, 32, 4096, 32, 8, 128, 131_072)
LLAMA_13B = ModelProfile("13b", "Llama-2-13B", 13_015_864_320, 40, 5120, 40, 40, 128, 4_096)
LLAMA_70B = ModelProfile("70b", "Llama-3.1-70B", 70_553_706_496, 80, 8192, 64, 8, 128, 131_072)

GPUS: dict[str, GpuProfile] = {gpu.name: gpu for gpu in (H100, A100_80G, A6000, L40, L40S, RTX4090)}
"""Every GPU profile under its canonical name."""

MODELS: dict[str, ModelProfile] = {model.name: model for model in (LLAMA_8B, LLAMA_13B, LLAMA_70B)}
"""Every model profile under its canonical name, but for those that nothing of today is like."""

OLD_MODELS: dict[str, ModelProfile] = {GPT_J_6B.name: GPT_J_6B}
"""Found by name alone: a model whose name tells only its size is not taken for one of these."""

_GPU_ALIASES = {
    "A100": "A100-80G",
    "A100-80GB": "A100-80G",
    "A100-SXM4-80GB": "A100-80G",
    "H100-80G": "H100",
    "H100-80GB": "H100",
    "H100-SXM5": "H100",
    "RTX-4090": "RTX4090",
    "GEFORCE-RTX-4090": "RTX4090",
    "RTX-A6000": "A6000",
    "RTXA6000": "A6000",
}


def gpu_profile(name: str) -> GpuProfile:
    """Look a GPU up by name or alias, ignoring case, blanks and underscores.

    Raises:
        UnknownProfileError: No such GPU; the message lists the known ones.
    """
    key = name.strip().upper().replace(" ", "-").replace("_", "-").removeprefix("NVIDIA-")
    key = _GPU_ALIASES.get(key, key)
    if key not in GPUS:
        known = ", ".join([*GPUS, "A100 (an alias of A100-80G)"])
        raise UnknownProfileError(f"unknown GPU {name!r}: expected one of {known}")
    return GPUS[key]


def model_profile(name: str) -> ModelProfile:
    """Look a model shape up by size ("8b") or published title ("Llama-3.1-8B"), ignoring case.

    Raises:
        UnknownProfileError: No such model; the message lists the known ones.
    """
    key = name.strip().lower()
    for model in (*MODELS.values(), *OLD_MODELS.values()):
        if key in (model.name, model.title.lower()):
            return model
    if key == "7b":  # a 7B model's rates are within a few percent of the 8B one's
        return LLAMA_8B
    known = ", ".join(f"{m.name} ({m.title})" for m in (*MODELS.values(), *OLD_MODELS.values()))
    raise UnknownProfileError(f"unknown model size {name!r}: expected one of {known}")


def all_reduce_s(gpu: GpuProfile, model: ModelProfile, tp: int, tokens: float) -> float:
    """Time that tensor parallelism adds to one iteration over `tokens` tokens; seconds.

    Two ring all-reduces a layer, each moving `2 (tp - 1) / tp` times the activations over the
    slowest link (Shoeybi et al., "Megatron-LM", 2019, section 3).
    """
    if tp == 1:
        return 0.0
    activation_bytes = tokens * model.hidden_size * BYTES_PER_PARAM_BF16
    wire_s = 2.0 * (tp - 1) / tp * activation_bytes / (gpu.link_gb_per_s * 1e9)
    return 2 * model.layers * (wire_s + gpu.link_latency_s)


def kv_capacity_tokens(
    gpu: GpuProfile, model: ModelProfile, tp: int = 1, memory_utilisation: float = 0.9
) -> int:
    """Return how many tokens of KV cache `tp` GPUs hold beside the weights.

    Args:
        gpu: GPU type.
        model: Model shape.
        tp: GPUs that share the model, at least 1.
        memory_utilisation: Share of device memory the engine may take, in (0, 1].

    Raises:
        ValueError: `tp` or `memory_utilisation` is out of range.
        ModelDoesNotFitError: Nothing is left beside the weights.
    """
    _check_tp(tp)
    if not 0 < memory_utilisation <= 1:
        raise ValueError(f"memory utilisation must be in (0, 1], not {memory_utilisation}")
    usable = tp * (gpu.hbm_gb * memory_utilisation - ACTIVATION_RESERVE_GB) * 1e9
    tokens = int((usable - model.weight_bytes) // model.kv_bytes_per_token)
    if tokens <= 0:
        raise ModelDoesNotFitError(
            f"{model.title} needs {model.weight_bytes / 1e9:.0f} GB of weights; {tp} x {gpu.name}"
            f" offer {usable / 1e9:.0f} GB: use more GPUs (tp)"
        )
    return tokens


def roofline_cost(gpu: GpuProfile, model: ModelProfile, tp: int = 1) -> CostProfile:
    """Return the linear cost that published figures promise, to start a fit from.

    Prefill is bound by compute, decode by reading the weights and the resident KV once an
    iteration (Williams et al., "Roofline", CACM 2009); `tp` GPUs share both.

    Raises:
        ValueError: `tp` is below 1.
    """
    _check_tp(tp)
    flops_per_s = gpu.flops_per_s * tp
    bytes_per_s = gpu.bytes_per_s * tp
    comm_fixed_s = all_reduce_s(gpu, model, tp, 0)
    comm_per_token_s = all_reduce_s(gpu, model, tp, 1) - comm_fixed_s
    token_s = model.flops_per_token / flops_per_s + comm_per_token_s
    base_s = model.weight_bytes / bytes_per_s + comm_fixed_s + ITERATION_OVERHEAD_S
    return CostProfile(
        prefill_s_per_token=token_s,
        prefill_fixed_s=base_s,
        tpot_base_s=base_s,
        tpot_per_running_s=comm_per_token_s + HOST_S_PER_SEQUENCE,
        tpot_per_kv_token_s=model.kv_bytes_per_token / bytes_per_s,
    )


def _check_tp(tp: int) -> None:
    if tp < 1:
        raise ValueError(f"tp must be at least 1, not {tp}")
