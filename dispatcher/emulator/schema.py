"""Request bodies, as far as an emulated engine looks into them; unknown fields are accepted.

Types and bounds follow vLLM 0.32's own models, whose errors are pydantic's, so that a bad body is
refused in the same words.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

_INT64_MAX = 2**63 - 1
Priority = Annotated[int, Field(ge=-_INT64_MAX - 1, le=_INT64_MAX)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="allow", protected_namespaces=())


class StreamOptions(_Body):
    """What a stream reports about usage."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class Message(_Body):
    """One turn: text, parts, or nothing beside tool calls."""

    role: str
    content: str | list[Any] | None = None
    tool_calls: list[Any] | None = None


class _Sampling(_Body):
    """Fields that all generating routes share."""

    model: str | None = None
    stream: bool | None = False
    temperature: float | None = None
    top_p: float | None = None
    min_tokens: int = 0
    ignore_eos: bool = False


class ChatRequest(_Sampling):
    """Body of /v1/chat/completions."""

    messages: list[Message]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = 1
    stream_options: StreamOptions | None = None
    priority: Priority = 0
    tools: list[Any] | None = None
    tool_choice: Any = None
    return_token_ids: bool | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False


class CompletionRequest(_Sampling):
    """Body of /v1/completions."""

    prompt: list[int] | list[list[int]] | str | list[str] | None = None
    max_tokens: int | None = 16
    n: int = 1
    echo: bool | None = False
    stream_options: StreamOptions | None = None
    priority: Priority = 0
    return_token_ids: bool | None = None


class ResponsesRequest(_Sampling):
    """Body of /v1/responses."""

    input: str | list[Any]
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, Any] | None = None
    previous_response_id: str | None = None
    store: bool | None = True
    background: bool | None = False
    tools: list[Any] = Field(default_factory=list)
    tool_choice: Any = "auto"
    parallel_tool_calls: bool | None = True
    user: str | None = None
    priority: Priority = 0


class MessagesRequest(_Body):
    """Body of /v1/messages; `priority` is no field of it and not looked at."""

    model: str
    messages: list[Message]
    max_tokens: int
    system: str | list[Any] | None = None
    stream: bool | None = False
    temperature: float | None = None
    top_p: float | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None


class CountTokensRequest(_Body):
    """Body of /v1/messages/count_tokens."""

    model: str
    messages: list[Message]
    system: str | list[Any] | None = None
    tools: list[Any] | None = None


class TokenizeRequest(_Body):
    """Body of /tokenize: a prompt, or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_generation_prompt: bool = True
    return_token_strs: bool | None = False


class DetokenizeRequest(_Body):
    """Body of /detokenize."""

    model: str | None = None
    tokens: list[int]
