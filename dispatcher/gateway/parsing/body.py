"""What a request body says that scheduling cares about: model, size, seats, limits, features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from dispatcher.gateway.errors import bad_request
from dispatcher.gateway.parsing.asking import asking_message, asking_prompt
from dispatcher.gateway.parsing.fields import body_count, body_flag, body_list, body_text
from predictors.text_features import text_features

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
SCHEDULED = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)

SEATS_MAX = 4096
PRIORITY_MAX = 1000
"""A client's `priority` counts up to this, either way; it only breaks ties."""
NESTING_MAX = 254
"""Levels of a body; as many as orjson writes, which is less than it reads."""
_PART_DEPTH = 6
_MODALITIES = {
    "image_url": "image",
    "image": "image",
    "input_image": "image",
    "input_audio": "audio",
    "audio_url": "audio",
    "video_url": "video",
}


@dataclass(frozen=True, slots=True)
class BodyFacts:
    """One parsed body. Counts are at least 0."""

    parsed: dict[str, Any]
    model: str
    stream: bool
    seats: int
    prompts: int
    max_tokens: int | None
    client_priority: int
    prompt_bytes: int
    """UTF-8 bytes of text in all prompts."""
    prompt_token_ids: int
    """Tokens that came as ids, of all prompts: known exactly."""
    modalities: frozenset[str]
    previous_response_id: str | None = None
    features: Mapping[str, float] = field(default_factory=dict)


def parse_json(raw: bytes) -> dict[str, Any]:
    """The body as an object.

    Raises:
        ApiError: 400 where it is not JSON, not an object, or too deep to be written again.
    """
    try:
        parsed = orjson.loads(raw.removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError as error:
        raise bad_request(f"The body is not JSON: {error}.", code="invalid_json") from None
    if not isinstance(parsed, dict):
        raise bad_request("The body must be a JSON object.", code="invalid_json")
    if raw.count(b"{") + raw.count(b"[") > NESTING_MAX:
        # perhaps: asking whether it can be written is the fastest way to find out
        try:
            orjson.dumps(parsed)
        except orjson.JSONEncodeError as error:
            raise bad_request(
                f"The body is nested too deep; at most {NESTING_MAX} levels.", code="invalid_json"
            ) from error
    return parsed


def read_model(parsed: Mapping[str, Any]) -> str | None:
    """The model asked for; `None` where the body names none."""
    return body_text(parsed, "model", "model")


def read_body(
    path: str, parsed: dict[str, Any], default_model: str | None, *, with_text: bool = True
) -> BodyFacts:
    """Read a scheduled call's body.

    Args:
        path: One of `SCHEDULED`.
        parsed: The body; not changed.
        default_model: Where the body names none and only one is served.
        with_text: Whether to count what the text asks for, among the features.

    Raises:
        ApiError: 400, naming the field that is missing or of the wrong type.
    """
    model = read_model(parsed) or default_model
    if model is None:
        raise bad_request("model: expected the name of a model.", param="model")
    size = _Size()
    tools = body_list(parsed, "tools")
    if path == COMPLETIONS:
        messages, prompts = None, _read_prompt(parsed, size)
    else:
        messages, prompts = _read_conversation(path, parsed, size), 1
    if tools:
        size.text_bytes += len(orjson.dumps(tools))
    choices = body_count(parsed, "n", most=SEATS_MAX) or 1
    seats = prompts if path in (RESPONSES, MESSAGES) else prompts * choices
    if seats > SEATS_MAX:
        raise bad_request(f"n: {seats} sequences in one call; at most {SEATS_MAX}.", param="n")
    return BodyFacts(
        parsed=parsed,
        model=model,
        stream=body_flag(parsed, "stream"),
        seats=seats,
        prompts=prompts,
        max_tokens=_max_tokens(parsed),
        client_priority=_priority(parsed),
        prompt_bytes=size.text_bytes,
        prompt_token_ids=size.token_ids,
        modalities=frozenset(size.modalities),
        previous_response_id=(
            body_text(parsed, "previous_response_id", "previous_response_id")
            if path == RESPONSES
            else None
        ),
        features=_features(parsed, messages, len(tools or ()), with_text=with_text),
    )


def _max_tokens(parsed: Mapping[str, Any]) -> int | None:
    """The newer name wins, as in engines."""
    for key in ("max_completion_tokens", "max_output_tokens", "max_tokens"):
        # 0 and below are the engine's to refuse
        value = body_count(parsed, key, least=-(1 << 31))
        if value is not None and value > 0:
            return value
    return None


def _priority(parsed: Mapping[str, Any]) -> int:
    value = body_count(parsed, "priority", least=-(1 << 63), most=(1 << 63) - 1) or 0
    return max(-PRIORITY_MAX, min(PRIORITY_MAX, value))


def _features(
    parsed: Mapping[str, Any], messages: list[Any] | None, tools: int, *, with_text: bool
) -> dict[str, float]:
    """Numbers for length predictors; never text, always the same few names."""
    features = {"messages": float(len(messages or ())), "tools": float(tools)}
    for key in ("temperature", "top_p", "min_tokens"):
        value = parsed.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9:
            features[key] = float(value)
    features["ignore_eos"] = float(parsed.get("ignore_eos") is True)
    features["structured"] = float(
        any(parsed.get(key) for key in ("response_format", "structured_outputs", "text"))
    )
    asking = asking_message(messages) if messages else asking_prompt(parsed.get("prompt"))
    features["last_role"] = asking.role
    if with_text and asking.text:
        features.update(text_features(asking.text))
    return features


# --- prompts ------------------------------------------------------------------------------------


class _Size:
    __slots__ = ("modalities", "text_bytes", "token_ids")

    def __init__(self) -> None:
        self.text_bytes = 0
        self.token_ids = 0
        self.modalities: set[str] = set()

    def add(self, value: object, depth: int = _PART_DEPTH) -> None:
        """Count the text of a message's content, whatever its shape."""
        if isinstance(value, str):
            self.text_bytes += (
                len(value) if value.isascii() else len(value.encode("utf-8", "replace"))
            )
        elif isinstance(value, list) and depth:
            for item in value:
                self.add(item, depth - 1)
        elif isinstance(value, dict) and depth:
            modality = _MODALITIES.get(str(value.get("type")))
            if modality is not None:
                self.modalities.add(modality)
                return
            for key, item in value.items():
                if key != "type":
                    self.add(item, depth - 1)


def _read_conversation(path: str, parsed: Mapping[str, Any], size: _Size) -> list[Any]:
    key = "input" if path == RESPONSES else "messages"
    conversation = parsed.get(key)
    if path == RESPONSES and isinstance(conversation, str):
        conversation = [conversation]
    if not isinstance(conversation, list):
        expected = "a string or a list" if path == RESPONSES else "a list of messages"
        raise bad_request(f"{key}: expected {expected}.", param=key)
    for index, message in enumerate(conversation):
        if not isinstance(message, dict | str) or (path != RESPONSES and isinstance(message, str)):
            raise bad_request(f"{key}[{index}]: expected an object.", param=key)
    size.add(conversation)
    for also in ("system", "instructions"):
        size.add(parsed.get(also))
    return conversation


def _read_prompt(parsed: Mapping[str, Any], size: _Size) -> int:
    """Count the prompts: a text, a list of token ids, or a list of either."""
    prompt = parsed.get("prompt")
    if prompt is None and parsed.get("prompt_embeds") is not None:
        return 1
    if isinstance(prompt, str):
        size.add(prompt)
        return 1
    if isinstance(prompt, list) and prompt:
        if all(isinstance(item, str) for item in prompt):
            size.add(prompt)
            return len(prompt)
        if all(type(item) is int for item in prompt):
            size.token_ids += len(prompt)
            return 1
        if all(isinstance(item, list) for item in prompt):
            size.token_ids += sum(len(item) for item in prompt)
            return len(prompt)
    raise bad_request(
        "prompt: expected a string, a list of token ids, or a list of either.", param="prompt"
    )
