"""/v1/messages, rendered as vLLM 0.32 renders it: a chat stream in Anthropic's events."""

from __future__ import annotations

from typing import Any

import orjson

from dispatcher.emulator.driver import Call
from dispatcher.emulator.openai_shapes import Head

_DELTA_PREFIX = (
    b"event: content_block_delta\n"
    b'data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"'
)
_DELTA_SUFFIX = b'"},"index":0}\n\n'
_BLOCK_START = (
    b"event: content_block_start\n"
    b'data: {"type":"content_block_start","content_block":{"type":"text","text":""},"index":0}\n\n'
)
_BLOCK_STOP = b'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n'
_MESSAGE_STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}


class MessagesShape:
    """One answer of /v1/messages."""

    def __init__(self, head: Head, call: Call) -> None:
        self._head = head
        self._seq = call.sequences[0]
        self._call = call
        self._opened = False
        self._block_open = False

    def opening(self) -> bytes:
        """Nothing is sent before the first token."""
        return b""

    def events(self) -> bytes:
        """Return the events for all tokens the client does not have yet."""
        out = b""
        seq = self._seq
        if not self._opened:
            self._opened = True
            out = self._message_start()
        start, end = seq.sent, seq.available
        seq.sent = end
        text = seq.plan.escaped_text(start, end)
        if not text:
            return out
        if not self._block_open:
            self._block_open = True
            out += _BLOCK_START
        return out + _DELTA_PREFIX + text + _DELTA_SUFFIX

    def _message_start(self) -> bytes:
        message: dict[str, Any] = {
            "id": self._head.response_id,
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": self._head.model,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": self._head.prompt_tokens, "output_tokens": 0},
        }
        event = {"type": "message_start", "message": message}
        return b"event: message_start\ndata: " + orjson.dumps(event) + b"\n\n"

    def closing(self) -> bytes:
        """Return the last events."""
        delta = {
            "type": "message_delta",
            "delta": {"stop_reason": self._stop_reason(), "stop_sequence": None},
            "usage": self._usage(),
        }
        stop = _BLOCK_STOP if self._block_open else b""
        return (
            stop + b"event: message_delta\ndata: " + orjson.dumps(delta) + b"\n\n" + _MESSAGE_STOP
        )

    def _stop_reason(self) -> str:
        return _STOP_REASONS[self._seq.plan.finish_reason]

    def _usage(self) -> dict[str, Any]:
        head = self._head
        if not head.details:
            return {"input_tokens": head.prompt_tokens, "output_tokens": self._seq.generated}
        cached = head.cached_tokens(self._call)
        created = head.created_cache_tokens(self._call)
        return {
            "input_tokens": head.prompt_tokens - cached - created,
            "output_tokens": self._seq.generated,
            "cache_creation_input_tokens": created,
            "cache_read_input_tokens": cached,
        }

    def body(self) -> bytes:
        """Return the whole answer."""
        return orjson.dumps(
            {
                "id": self._head.response_id,
                "type": "message",
                "role": "assistant",
                "content": [{"type": "text", "text": self._seq.plan.text()}],
                "model": self._head.model,
                "stop_reason": self._stop_reason(),
                "usage": self._usage(),
            }
        )
