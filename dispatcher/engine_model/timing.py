"""How long one iteration takes.

`Roofline`, from the hardware's figures: matrix products read all weights once and compute over
every token of the batch; attention reads the KV of every context and computes scores. Each takes
the longer of its two bounds (Williams et al., "Roofline", CACM 2009), one after the other. Of
another form than the linear cost profile that a router fits to it: the router never sees this.

`Linear`, from a cost profile: for an engine of which only what a router has fitted is known.

`Measured`, for an engine whose iterations were measured: decoding as in a cost profile, and what
prompts add that share an iteration with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dispatcher.core.gpu_profiles import (
    HOST_S_PER_SEQUENCE,
    ITERATION_OVERHEAD_S,
    CostProfile,
    GpuProfile,
    ModelProfile,
    all_reduce_s,
)


class Timing(Protocol):
    """Prices one iteration."""

    def iteration_s(
        self,
        sequences: int,
        tokens: int,
        context_tokens: float,
        score_pairs: float,
        prompts: int = 0,
    ) -> float:
        """Return the time of one iteration, seconds, above 0.

        Where every request decodes (no `prompts`, `tokens` equal `sequences`, `score_pairs` equal
        `context_tokens`) it must be affine in `context_tokens`: a run of such iterations is priced
        at its mean context.

        Args:
            sequences: Requests in the batch.
            tokens: Tokens computed, prompt and output together.
            context_tokens: KV tokens read, summed over the requests.
            score_pairs: Query-key pairs, summed over the requests.
            prompts: Requests of the batch whose prompt is computed, whole or in part; the others
                decode one token each.
        """


class Linear:
    """Iteration time after a cost profile: `c + d n + e K`, and `a` for each prompt token.

    A prompt's fixed cost `b` beyond one iteration's is not in it: it belongs to the way there
    (HTTP, tokenizing), which whoever plays the engine adds.

    Example:
        >>> Linear(CostProfile(1e-4, 0.03, 0.02, 1e-3, 1e-6)).iteration_s(2, 2, 1000, 1000)
        0.023
    """

    __slots__ = ("_profile",)

    def __init__(self, profile: CostProfile) -> None:
        self._profile = profile

    def iteration_s(
        self,
        sequences: int,
        tokens: int,
        context_tokens: float,
        score_pairs: float,
        prompts: int = 0,
    ) -> float:
        """Return the time of one iteration, seconds; see `Timing`."""
        own = self._profile
        prompt_tokens = tokens - sequences
        return prompt_tokens * own.prefill_s_per_token + own.tpot_s(sequences, context_tokens)


@dataclass(frozen=True, slots=True)
class Measured:
    """Iteration time `c + d n + e K`, and with prompts in it `f` each `+ p u + q (pairs - K)`.

    `n` requests keep `K` tokens of KV, and `u` prompt tokens are computed. What a prompt takes
    outside of the iterations (HTTP, tokenizing) is not in it: whoever plays the engine adds it.

    All are seconds, at least 0; not all of `base_s`, `per_running_s`, `per_kv_token_s` may be 0.

    Example:
        >>> timing = Measured(0.02, 1e-3, 1e-6, per_prompt_token_s=1e-4, per_prompt_s=0.005)
        >>> timing.iteration_s(2, 2, 1000, 1000)
        0.023
        >>> round(timing.iteration_s(3, 502, 1500, 0, prompts=1), 6)
        0.0795
    """

    base_s: float
    per_running_s: float = 0.0
    per_kv_token_s: float = 0.0
    per_prompt_token_s: float = 0.0
    per_prompt_s: float = 0.0
    per_score_pair_s: float = 0.0
    """Of prompts alone: a decoding request's pairs are its KV tokens. A later chunk of a prompt
    counts without its own context once, which is little beside its pairs."""

    def iteration_s(
        self,
        sequences: int,
        tokens: int,
        context_tokens: float,
        score_pairs: float,
        prompts: int = 0,
    ) -> float:
        """Return the time of one iteration, seconds; see `Timing`."""
        decoding_s = (
            self.base_s + self.per_running_s * sequences + self.per_kv_token_s * context_tokens
        )
        if not prompts:
            return decoding_s
        prompt_tokens = tokens - (sequences - prompts)
        # a request that decodes has as many pairs as it has tokens of context
        pairs = max(0.0, score_pairs - context_tokens)
        return (
            decoding_s
            + self.per_prompt_s * prompts
            + self.per_prompt_token_s * prompt_tokens
            + self.per_score_pair_s * pairs
        )


class Roofline:
    """Iteration time of one model on `tp` GPUs of one type.

    Example:
        >>> from dispatcher.core.gpu_profiles import A100_80G, LLAMA_8B
        >>> timing = Roofline(A100_80G, LLAMA_8B)
        >>> round(timing.iteration_s(1, 1, 500, 500) * 1000, 1)  # one decoding request, ms
        10.5
    """

    __slots__ = (
        "_comm_fixed_s",
        "_comm_s_per_token",
        "_compute_s_per_token",
        "_kv_read_s_per_token",
        "_score_s_per_pair",
        "_weights_read_s",
    )

    def __init__(self, gpu: GpuProfile, model: ModelProfile, tp: int = 1) -> None:
        flops_per_s = gpu.flops_per_s * tp
        bytes_per_s = gpu.bytes_per_s * tp
        self._compute_s_per_token = model.flops_per_token / flops_per_s
        self._weights_read_s = model.weight_bytes / bytes_per_s
        # Scores and weighted values: two products of 2 * head_dim per head, query and key.
        width = model.attention_heads * model.head_dim
        self._score_s_per_pair = 4.0 * model.layers * width / flops_per_s
        self._kv_read_s_per_token = model.kv_bytes_per_token / bytes_per_s
        self._comm_fixed_s = all_reduce_s(gpu, model, tp, 0)
        self._comm_s_per_token = all_reduce_s(gpu, model, tp, 1) - self._comm_fixed_s

    def iteration_s(
        self,
        sequences: int,
        tokens: int,
        context_tokens: float,
        score_pairs: float,
        prompts: int = 0,
    ) -> float:
        """Return the time of one iteration, seconds; see `Timing`."""
        linear_s = max(tokens * self._compute_s_per_token, self._weights_read_s)
        attention_s = max(
            score_pairs * self._score_s_per_pair, context_tokens * self._kv_read_s_per_token
        )
        comm_s = self._comm_fixed_s + tokens * self._comm_s_per_token
        host_s = ITERATION_OVERHEAD_S + sequences * HOST_S_PER_SEQUENCE
        return linear_s + attention_s + comm_s + host_s
