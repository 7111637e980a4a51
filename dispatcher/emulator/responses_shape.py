"""/v1/responses, rendered as vLLM 0.32 renders it, and the store of what was answered."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import orjson

from dispatcher.emulator.driver import Call
from dispatcher.emulator.openai_shapes import Head
from dispatcher.emulator.schema import ResponsesRequest
from dispatcher.emulator.scripting import SpokenTool

_STORED = 512


class ResponsesShape:
    """One answer of /v1/responses."""

    def __init__(
        self, head: Head, call: Call, request: ResponsesRequest, item_id: str, limit: int
    ) -> None:
        self._head = head
        self._call = call
        self._seq = call.sequences[0]
        self._request = request
        self._item_id = item_id
        self._limit = limit
        self._number = 0
        self._item_open = False
        tool = self._seq.plan.tool
        #: a call is an item of its own, after the message if there is one
        self._says = tool is None or bool(self._seq.plan.text())
        self._call_index = int(self._says)
        self._call_open = False
        self._delta_stem = (
            b'","item_id":"' + item_id.encode() + b'","logprobs":[],"output_index":0,'
            b'"sequence_number":'
        )

    def response(self, status: str) -> dict[str, Any]:
        """Return the response object; output and usage only in a final status."""
        request = self._request
        final = status in ("completed", "incomplete")
        incomplete = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self._head.response_id,
            "created_at": self._head.created,
            "incomplete_details": incomplete,
            "instructions": request.instructions,
            "metadata": request.metadata,
            "model": self._head.model,
            "object": "response",
            "output": self._output() if final else [],
            "parallel_tool_calls": request.parallel_tool_calls,
            "temperature": 1.0 if request.temperature is None else request.temperature,
            "tool_choice": request.tool_choice if request.tools else "none",
            "tools": request.tools,
            "top_p": 1.0 if request.top_p is None else request.top_p,
            "background": request.background,
            "max_output_tokens": self._limit,
            "max_tool_calls": None,
            "previous_response_id": request.previous_response_id,
            "prompt": None,
            "reasoning": None,
            "service_tier": "auto",
            "status": status,
            "text": None,
            "top_logprobs": None,
            "truncation": "disabled",
            "usage": self._usage() if final else None,
            "user": request.user,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "input_messages": None,
            "output_messages": None,
        }

    def final_status(self) -> str:
        """Return how the answer ended."""
        return "incomplete" if self._seq.plan.finish_reason == "length" else "completed"

    def _output(self) -> list[dict[str, Any]]:
        message = [self._item("completed")] if self._says else []
        tool = self._seq.plan.tool
        return message if tool is None else [*message, self._call_item(tool, self._ended())]

    def _ended(self) -> str:
        """How a call ended: what was cut short must not run."""
        return "incomplete" if self._seq.plan.finish_reason == "length" else "completed"

    def _call_item(self, tool: SpokenTool, status: str) -> dict[str, Any]:
        return {
            "arguments": "" if status == "in_progress" else self._seq.plan.arguments(),
            "call_id": tool.call_id,
            "name": tool.asked.name,
            "type": "function_call",
            "id": self._call_item_id,
            "namespace": None,
            "status": status,
        }

    @property
    def _call_item_id(self) -> str:
        return self._item_id.replace("msg_", "fc_", 1)

    def _item(self, status: str) -> dict[str, Any]:
        content = [self._part(None)] if status == "completed" else []
        return {
            "id": self._item_id,
            "content": content,
            "role": "assistant",
            "status": status,
            "type": "message",
            "phase": None,
        }

    def _part(self, logprobs: list[Any] | None) -> dict[str, Any]:
        text = "" if logprobs is not None else self._seq.plan.text()
        return {"annotations": [], "text": text, "type": "output_text", "logprobs": logprobs}

    def _usage(self) -> dict[str, Any]:
        head = self._head
        prompt_tokens, output_tokens = head.prompt_tokens, self._seq.generated
        return {
            "input_tokens": prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": head.cached_tokens(self._call) if head.details else 0,
                "cache_write_tokens": head.created_cache_tokens(self._call) if head.details else 0,
                "input_tokens_per_turn": [],
                "cached_tokens_per_turn": [],
            },
            "output_tokens": output_tokens,
            "output_tokens_details": {
                "reasoning_tokens": 0,
                "tool_output_tokens": 0,
                "output_tokens_per_turn": [],
                "tool_output_tokens_per_turn": [],
            },
            "total_tokens": prompt_tokens + output_tokens,
        }

    # -- streaming -------------------------------------------------------------------------

    def _event(self, kind: str, fields: dict[str, Any]) -> bytes:
        data = {**fields, "sequence_number": self._number, "type": kind}
        # vLLM sorts an event's own fields by name, where `text` follows `sequence_number`.
        ordered = orjson.dumps({key: data[key] for key in sorted(data)})
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + ordered + b"\n\n"

    def opening(self) -> bytes:
        """Return the events that come before the first token."""
        response = self.response("in_progress")
        return self._event("response.created", {"response": response}) + self._event(
            "response.in_progress", {"response": response}
        )

    def events(self) -> bytes:
        """Return the events for all tokens the client does not have yet."""
        seq = self._seq
        start, end = seq.sent, seq.available
        seq.sent = end
        text, arguments = seq.plan.escaped_parts(start, end)
        out = self._said(text) if text else b""
        tool = seq.plan.tool
        if tool is not None and end > tool.start:
            if not self._call_open:
                out += self._call_start(tool)
            if arguments:
                delta = {**self._call_place(), "delta": orjson.loads(b'"' + arguments + b'"')}
                out += self._event("response.function_call_arguments.delta", delta)
        return out

    def _said(self, text: bytes) -> bytes:
        out = b"" if self._item_open else self._item_start()
        number = str(self._number).encode()
        self._number += 1
        return (
            out
            + b'event: response.output_text.delta\ndata: {"content_index":0,"delta":"'
            + text
            + self._delta_stem
            + number
            + b',"type":"response.output_text.delta"}\n\n'
        )

    def _item_start(self) -> bytes:
        self._item_open = True
        item = {"item": self._item("in_progress"), "output_index": 0}
        return self._event("response.output_item.added", item) + self._event(
            "response.content_part.added", {**self._place(), "part": self._part([])}
        )

    def _call_start(self, tool: SpokenTool) -> bytes:
        """A message that came before ends, and the call begins."""
        self._call_open = True
        item = {"item": self._call_item(tool, "in_progress"), "output_index": self._call_index}
        done = self._item_done() if self._item_open else b""
        return done + self._event("response.output_item.added", item)

    def _call_done(self, tool: SpokenTool) -> bytes:
        told = {"arguments": self._seq.plan.arguments(), "name": tool.asked.name}
        item = {"item": self._call_item(tool, self._ended()), "output_index": self._call_index}
        return self._event(
            "response.function_call_arguments.done", {**self._call_place(), **told}
        ) + self._event("response.output_item.done", item)

    def _call_place(self) -> dict[str, Any]:
        return {"item_id": self._call_item_id, "output_index": self._call_index}

    def _item_done(self) -> bytes:
        text = {**self._place(), "logprobs": [], "text": self._seq.plan.text()}
        return (
            self._event("response.output_text.done", text)
            + self._event("response.content_part.done", {**self._place(), "part": self._part(None)})
            + self._event(
                "response.output_item.done", {"item": self._item("completed"), "output_index": 0}
            )
        )

    def _place(self) -> dict[str, Any]:
        return {"content_index": 0, "item_id": self._item_id, "output_index": 0}

    def closing(self) -> bytes:
        """Return the last events; there is no `[DONE]`."""
        tool = self._seq.plan.tool
        if tool is not None:
            out = self._call_done(tool)
        else:
            out = b"" if self._item_open else self._item_start()
            out += self._item_done()
        done = {"response": self.response(self.final_status())}
        return out + self._event("response.completed", done)

    def body(self) -> bytes:
        """Return the whole answer."""
        return orjson.dumps(self.response(self.final_status()))


@dataclass(slots=True)
class StoredResponse:
    """A response that can be fetched, cancelled or gone on from.

    Attributes:
        shape: What renders it.
        call: Its call.
        status: Its status: queued, in_progress, completed, incomplete or cancelled.
        context_ids: Token ids of the conversation up to and with the answer.
        text: The conversation's text, for reply patterns.
    """

    shape: ResponsesShape
    call: Call
    status: str
    context_ids: list[int] = field(default_factory=list)
    text: str = ""

    def body(self) -> bytes:
        """Return it as it stands."""
        return orjson.dumps(self.shape.response(self.status))


class ResponseStore:
    """The newest responses by id; the oldest make room."""

    def __init__(self, capacity: int = _STORED) -> None:
        self._capacity = capacity
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()

    def __len__(self) -> int:
        return len(self._responses)

    def get(self, response_id: str) -> StoredResponse | None:
        """Return a response, or None."""
        return self._responses.get(response_id)

    def put(self, response_id: str, stored: StoredResponse) -> None:
        """Keep a response."""
        self._responses[response_id] = stored
        if len(self._responses) > self._capacity:
            self._responses.popitem(last=False)
