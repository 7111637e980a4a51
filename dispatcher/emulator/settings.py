"""What an emulated engine is launched with."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dispatcher.core.errors import ConfigurationError
from dispatcher.core.gpu_profiles import gpu_profile, model_profile
from dispatcher.engine_model import EngineConfig


class EmulatorSettings(BaseModel):
    """Settings of one emulated engine; what is also a vLLM flag has the flag's name.

    An unknown key or a value out of range is a `pydantic.ValidationError` that names it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    gpu: str = Field("A100-80G", description="GPU type whose speed and memory are played")
    tp: int = Field(1, ge=1, description="GPUs that share the model")
    size: str = Field("8b", description="model shape: 8b, 13b or 70b")
    model: str | None = Field(
        None, description="served model name; default: as the size's model, llama-3.1-8b"
    )
    aliases: tuple[str, ...] = Field((), description="further served model names")
    time_scale: float = Field(1.0, gt=0, description="how many times faster than real time")
    max_num_seqs: int = Field(256, ge=1, description="seats")
    max_num_batched_tokens: int | None = Field(None, ge=1, description="tokens per iteration")
    kv_blocks: int | None = Field(None, ge=1, description="KV cache blocks; default: what fits")
    offload_blocks: int = Field(
        0, ge=0, description="KV blocks in host memory; vLLM's kv_offloading_size in blocks"
    )
    block_size: int = Field(16, ge=1, description="tokens per KV block")
    max_model_len: int | None = Field(None, ge=2, description="context length, tokens")
    scheduling_policy: Literal["fcfs", "priority"] = "priority"
    enable_prefix_caching: bool = True
    enable_prompt_tokens_details: bool = True
    enable_request_id_headers: bool = True
    enable_server_load_tracking: bool = False
    enable_responses_store: bool = True
    stream_interval: int = Field(1, ge=1, description="tokens per streamed event")
    replies: Path | None = Field(None, description="file that scripts texts by pattern")
    seed: int = Field(0, description="seed of lengths and texts")
    output_median_tokens: float = Field(
        128.0, ge=1, description="median of drawn output lengths (lognormal)"
    )
    output_sigma: float = Field(0.7, ge=0, description="shape of drawn output lengths (lognormal)")
    api_key: str | None = Field(None, description="bearer key that /v1 asks for")
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535, description="0 picks a free one")

    @model_validator(mode="after")
    def _check_hardware(self) -> EmulatorSettings:
        try:
            self.engine_config()
        except ConfigurationError as error:
            raise ValueError(str(error)) from error
        return self

    @property
    def served_names(self) -> tuple[str, ...]:
        """Names that requests may ask for, the answering one first."""
        return (self.model or model_profile(self.size).title.lower(), *self.aliases)

    def engine_config(self) -> EngineConfig:
        """Return the engine model's launch parameters.

        Raises:
            LookupError: Unknown GPU or model size.
            ValueError: The model does not fit, or a limit is out of range.
        """
        return EngineConfig.sized(
            gpu_profile(self.gpu),
            model_profile(self.size),
            tp=self.tp,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            num_blocks=self.kv_blocks,
            block_size=self.block_size,
            max_model_len=self.max_model_len,
            scheduling_policy=self.scheduling_policy,
            enable_prefix_caching=self.enable_prefix_caching,
            offload_blocks=self.offload_blocks,
        )
