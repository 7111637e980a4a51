"""/v1/messages, rendered as vLLM 0.32 renders it: a chat stream in Anthropic's events."""

from __future__ import annotations

from typing import Any

import orjson

from dispatcher.emulator.driver import Call
from dispatcher.emulator.openai_shapes import Head
from dispatcher.emulator.scripting import SpokenTool

_DELTA_PREFIX = (
    b"event: content_block_delta\n"
    b'data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"'
)
_DELTA_SUFFIX = b'"},"index":0}\n\n'
_INPUT_PREFIX = (
    b"event: content_block_delta\n"
    b'data: {"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"'
)
_BLOCK_START = (
    b"event: content_block_start\n"
    b'data: {"type":"content_block_start","content_block":{"type":"text","text":""},"index":0}\n\n'
)
_BLOCK_STOP = b'event: content_block_stop\ndata: {"type":"content_block_stop","index":%d}\n\n'
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
        #: place of the block that is open, or opens next
        self._index = 0
        self._calling = False

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
        text, arguments = seq.plan.escaped_parts(start, end)
        if text:
            if not self._block_open:
                self._block_open = True
                out += _BLOCK_START
            out += _DELTA_PREFIX + text + _DELTA_SUFFIX
        tool = seq.plan.tool
        if tool is not None and end > tool.start:
            if not self._calling:
                out += self._tool_start(tool)
            if arguments:
                out += _INPUT_PREFIX + arguments + b'"},"index":%d}\n\n' % self._index
        return out

    def _tool_start(self, tool: SpokenTool) -> bytes:
        """A text that came before ends, and the call's block begins."""
        self._calling = True
        out = b""
        if self._block_open:
            out = _BLOCK_STOP % self._index
            self._index += 1
        self._block_open = True
        block = {"type": "tool_use", "id": tool.call_id, "name": tool.asked.name, "input": {}}
        event = {"type": "content_block_start", "content_block": block, "index": self._index}
        return out + b"event: content_block_start\ndata: " + orjson.dumps(event) + b"\n\n"

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
        stop = _BLOCK_STOP % self._index if self._block_open else b""
        return (
            stop + b"event: message_delta\ndata: " + orjson.dumps(delta) + b"\n\n" + _MESSAGE_STOP
        )

    def _stop_reason(self) -> str:
        plan = self._seq.plan
        if plan.tool is not None and plan.finish_reason == "stop":
            return "tool_use"
        return _STOP_REASONS[plan.finish_reason]

    def _content(self) -> list[dict[str, Any]]:
        """All blocks; a call that was cut short has no input to tell."""
        plan = self._seq.plan
        text, tool = plan.text(), plan.tool
        blocks: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
        if tool is not None and plan.finish_reason == "stop":
            given = orjson.loads(tool.asked.arguments)
            name = tool.asked.name
            blocks.append({"type": "tool_use", "id": tool.call_id, "name": name, "input": given})
        return blocks or [{"type": "text", "text": ""}]

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
                "content": self._content(),
                "model": self._head.model,
                "stop_reason": self._stop_reason(),
                "usage": self._usage(),
            }
        )
