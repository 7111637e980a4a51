"""One emulated engine: what its routes share."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence as AbstractSequence
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from dispatcher.core.gpu_profiles import model_profile
from dispatcher.emulator import errors, tokens
from dispatcher.emulator.driver import Call, EngineDriver, Sequence
from dispatcher.emulator.metrics import EngineMetrics
from dispatcher.emulator.schema import Message
from dispatcher.emulator.scripting import OutputPlanner, ReplyScript, body_digest
from dispatcher.emulator.settings import EmulatorSettings
from dispatcher.emulator.tool_calls import Offer, rendered
from dispatcher.engine_model import EngineModel

VERSION = "0.32.0"
"""The vLLM version whose API is spoken."""

_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: token ids, and the text that reply patterns search."""

    ids: list[int]
    text: str


@dataclass(frozen=True, slots=True)
class Limits:
    """How long an answer may or must be; `max_tokens` as asked for, None for no limit."""

    max_tokens: int | None
    min_tokens: int = 0
    ignore_eos: bool = False


class Engine:
    """Settings, engine model, driver and counters of one emulated engine."""

    def __init__(self, settings: EmulatorSettings) -> None:
        config = settings.engine_config()
        self.settings = settings
        self.config = config
        self.names = settings.served_names
        self.model = EngineModel(config)
        kv_bytes = model_profile(settings.size).kv_bytes_per_token
        self.metrics = EngineMetrics(self.model, self.names[0], settings.time_scale, kv_bytes)
        self.driver = EngineDriver(
            self.model,
            self.metrics,
            time_scale=settings.time_scale,
            stream_interval=settings.stream_interval,
        )
        script = ReplyScript.load(settings.replies) if settings.replies else None
        self.planner = OutputPlanner(script, settings.output_median_tokens, settings.output_sigma)
        self.started_at = int(time.time())
        self.load = 0
        identity = f"{settings.gpu}:{settings.tp}:{settings.size}:{settings.seed}"
        self._ids = random.Random(identity)  # noqa: S311 - ids need to be unique, not secret
        self.fingerprint = f"vllm-{VERSION}-{body_digest({}, 0) & 0xFFFFFFFF:08x}"
        self._sequence = 0

    def fresh_id(self) -> str:
        """Return 16 hexadecimal digits."""
        return f"{self._ids.getrandbits(64):016x}"

    def parse(self, body: bytes, model: type[_Model]) -> tuple[dict[str, Any], _Model]:
        """Read a body; return it raw and typed.

        Raises:
            EngineApiError: Not JSON, of wrong types, or for another model.
        """
        if not body:
            raise errors.missing_body()
        try:
            raw = orjson.loads(body)
        except orjson.JSONDecodeError:
            raise errors.bad_json(body) from None
        try:
            parsed = model.model_validate(raw, from_attributes=True)
        except ValidationError as error:
            raise errors.validation(error) from None
        name = getattr(parsed, "model", None)
        if name is not None and name not in self.names:
            raise errors.model_not_found(name, self.names)
        return raw, parsed

    def chat_prompt(
        self,
        messages: list[Message],
        *,
        tools: list[Any] | None = None,
        system: str | list[Any] | None = None,
        before: AbstractSequence[int] = (),
        ask: bool = True,
        open_ended: bool = False,
    ) -> Prompt:
        """Render a conversation as a chat template would.

        Args:
            messages: The turns.
            tools: Tool definitions, shown to the model first.
            system: A system prompt that is no message.
            before: Token ids of an earlier conversation to go on from.
            ask: Whether to end with the assistant's header.
            open_ended: Whether the last turn is to be continued.

        Raises:
            EngineApiError: No message, or surely too long.
        """
        if not messages and not before:
            raise errors.invalid(
                "Cannot apply chat template to an empty conversation. Provide at least one message."
            )
        turns = [(message.role, message_text(message)) for message in messages]
        if system:
            turns.insert(0, ("system", content_text(system)))
        shown_tools = orjson.dumps(tools).decode() if tools else ""
        self.check_chars(sum(len(text) for _, text in turns) + len(shown_tools))
        ids = list(before) if before else [tokens.BEGIN_ID]
        if shown_tools:
            ids += tokens.turn_ids("system", shown_tools)
        for role, text in turns:
            ids += tokens.turn_ids(role, text)
        if open_ended and ids[-1] == tokens.END_OF_TURN_ID:
            ids.pop()
        elif ask:
            ids += tokens.generation_header_ids()
        return Prompt(ids, "\n".join(text for _, text in turns))

    def check_chars(self, chars: int) -> None:
        """Refuse a text that is too long however it is cut, before cutting it."""
        if chars > self.config.max_model_len * tokens.MAX_PIECE_CHARS:
            raise self._too_long(self.config.max_model_len + 1, at_least=True)

    def build_call(
        self,
        raw: dict[str, Any],
        prompts: AbstractSequence[Prompt],
        limits: Limits,
        *,
        n: int = 1,
        priority: int = 0,
        exact: bool = False,
        offer: Offer | None = None,
    ) -> Call:
        """Plan every answer of a call; the driver has not seen it yet.

        Args:
            raw: The body, which texts and lengths follow from.
            prompts: One or more prompts; each gets `n` answers.
            limits: How long they may be.
            n: Answers for each prompt.
            priority: Engine priority, lower first.
            exact: Whether prompts came as token ids, so that errors count exactly.
            offer: Tools that answers may, or have to, ask for.

        Raises:
            EngineApiError: A number is out of range, or a prompt too long.
        """
        if n < 1:
            raise errors.invalid(f"n must be at least 1, got {n}.")
        check_sampling(raw)
        call = Call()
        block_size = self.config.block_size
        for place, prompt in enumerate(prompts):
            limit = self._limit(len(prompt.ids), limits, exact)
            for choice in range(n):
                index = place * n + choice
                plan = self.planner.plan(
                    body_digest(raw, self.settings.seed, index),
                    prompt.text,
                    limit=limit,
                    min_tokens=limits.min_tokens,
                    ignore_eos=limits.ignore_eos,
                    offer=offer,
                )
                hashes = (
                    tokens.block_hashes([*prompt.ids, *plan.ids], block_size)
                    if self.config.enable_prefix_caching
                    else []
                )
                self._sequence += 1
                call.sequences.append(
                    Sequence(
                        str(self._sequence),
                        call,
                        index,
                        plan,
                        prompt_tokens=len(prompt.ids),
                        priority=priority,
                        block_hashes=hashes,
                    )
                )
        return call

    def _limit(self, prompt_tokens: int, limits: Limits, exact: bool) -> int:
        """Return the most tokens an answer to this prompt may have."""
        longest = self.config.max_model_len
        asked = limits.max_tokens
        if asked is not None and asked > longest:
            raise errors.invalid(
                f"max_tokens={asked} cannot be greater than max_model_len={longest}. Please"
                " request fewer output tokens.",
                "max_tokens",
                asked,
            )
        room = longest - prompt_tokens
        if room < 0:
            raise self._too_long(prompt_tokens if exact else longest + 1, at_least=not exact)
        limit = room if asked is None else min(asked, room)
        if limit < 1:
            raise errors.invalid(
                f"max_tokens must be at least 1, got {limit}.", "max_tokens", limit
            )
        if limits.min_tokens > limit:
            raise errors.invalid(
                f"min_tokens must be less than or equal to max_tokens={limit},"
                f" got {limits.min_tokens}."
            )
        return limit

    def _too_long(self, prompt_tokens: int, *, at_least: bool) -> errors.EngineApiError:
        qualifier = "at least " if at_least else ""
        return errors.invalid(
            f"This model's maximum context length is {self.config.max_model_len} tokens. However,"
            f" your prompt contains {qualifier}{prompt_tokens} input tokens, which exceeds this"
            " limit even without any output tokens. Please reduce the length of the input prompt.",
            "input_tokens",
            prompt_tokens,
        )


def check_sampling(raw: dict[str, Any]) -> None:
    """Refuse sampling parameters out of range.

    Raises:
        EngineApiError: One is.
    """
    temperature = raw.get("temperature")
    if isinstance(temperature, int | float) and temperature < 0:
        value = float(temperature)
        raise errors.invalid(
            f"temperature must be non-negative, got {value}.", "temperature", value
        )
    top_p = raw.get("top_p")
    if isinstance(top_p, int | float) and not 0 < top_p <= 1:
        value = float(top_p)
        raise errors.invalid(f"top_p must be in (0, 1], got {value}.", "top_p", value)
    min_tokens = raw.get("min_tokens")
    if isinstance(min_tokens, int) and min_tokens < 0:
        raise errors.invalid(f"min_tokens must be greater than or equal to 0, got {min_tokens}.")


def content_text(content: str | list[Any] | None) -> str:
    """Return the text of a message's content; parts that are no text count for nothing."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict):
            inner = part.get("text", part.get("content"))
            if isinstance(inner, str):
                texts.append(inner)
            elif isinstance(inner, list):
                texts.append(content_text(inner))
    return "\n".join(texts)


def message_text(message: Message) -> str:
    """Return what a turn says, tool calls included."""
    text = content_text(message.content)
    parts = message.content if isinstance(message.content, list) else ()
    uses = [
        {"function": {"name": part.get("name"), "arguments": part.get("input")}}
        for part in parts
        if isinstance(part, dict) and part.get("type") == "tool_use"
    ]
    return text + "".join(map(rendered, [*(message.tool_calls or ()), *uses]))
