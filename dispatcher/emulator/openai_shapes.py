"""Chat completions and completions, rendered as vLLM 0.32 renders them.

A stream's events are cut from text prepared once a call: a token costs one concatenation.
"""

from __future__ import annotations

from collections.abc import Sequence as AbstractSequence
from dataclasses import dataclass
from typing import Any

import orjson

from dispatcher.emulator.driver import Call, Sequence
from dispatcher.emulator.scripting import OutputPlan, escape_json

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Head:
    """What all events and bodies of one call begin with, and what they report.

    Attributes:
        response_id: Id of the answer.
        created: Unix time, seconds.
        model: Name that the engine answers under.
        fingerprint: The engine's system fingerprint.
        prompt_ids: Token ids of each prompt.
        block_size: Tokens per KV block, for what the cache was given.
        details: Whether usage says how many prompt tokens were cached.
        include_usage: Whether the stream ends with usage.
        continuous_usage: Whether every event has it.
        token_ids: Whether token ids are returned.
    """

    response_id: str
    created: int
    model: str
    fingerprint: str
    prompt_ids: AbstractSequence[list[int]]
    block_size: int
    details: bool
    include_usage: bool = False
    continuous_usage: bool = False
    token_ids: bool = False

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(map(len, self.prompt_ids))

    def cached_tokens(self, call: Call) -> int:
        """Prompt tokens that the prefix cache spared, each prompt counted once."""
        each = len(call.sequences) // len(self.prompt_ids)
        return sum(max(0, seq.cached_tokens) for seq in call.sequences[::each])

    def created_cache_tokens(self, call: Call) -> int:
        """Prompt tokens that were added to the prefix cache."""
        full = sum(len(ids) // self.block_size * self.block_size for ids in self.prompt_ids)
        return max(0, full - self.cached_tokens(call))


def usage_counts(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    """Return the three counts in vLLM's order."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }


class _Shape:
    """What the two shapes share."""

    object_name: str
    chunk_name: str

    def __init__(self, head: Head, call: Call) -> None:
        self._head = head
        self._call = call
        self._opened = False
        self._stem = (
            b'{"id":'
            + orjson.dumps(head.response_id)
            + b',"object":"'
            + self.chunk_name.encode()
            + b'","created":'
            + str(head.created).encode()
            + b',"model":'
            + orjson.dumps(head.model)
            + b',"choices":['
        )
        self._prefixes = [self._prefix(seq.index) for seq in call.sequences]
        self._plain = not (head.continuous_usage or head.token_ids)

    def _prefix(self, index: int) -> bytes:
        raise NotImplementedError

    def _suffix(self, seq: Sequence, start: int, *, done: bool) -> bytes:
        raise NotImplementedError

    def _first(self) -> bytes:
        raise NotImplementedError

    def opening(self) -> bytes:
        """Nothing is sent before the first token."""
        return b""

    def events(self) -> bytes:
        """Return the events for all tokens the client does not have yet."""
        sequences = self._call.sequences
        if self._opened and len(sequences) == 1:
            return self._event(sequences[0])
        out = []
        if not self._opened:
            self._opened = True
            out.append(self._first())
        out += [self._event(seq) for seq in sequences if seq.available > seq.sent]
        return b"".join(out)

    def _event(self, seq: Sequence) -> bytes:
        start, end = seq.sent, seq.available
        seq.sent = end
        text = seq.plan.escaped_text(start, end)
        return self._prefixes[seq.index] + text + self._suffix(seq, start, done=seq.done)

    def _chunk_usage(self, seq: Sequence) -> dict[str, Any]:
        each = len(self._call.sequences) // len(self._head.prompt_ids)
        prompt_tokens = len(self._head.prompt_ids[seq.index // each])
        return usage_counts(prompt_tokens, seq.sent)

    def _tail(self, seq: Sequence, usage: dict[str, Any] | None, *, done: bool) -> bytes:
        """Return what follows the choices of an event."""
        out = b"]"
        if usage is not None:
            out += b',"usage":' + orjson.dumps(usage)
        if done and not self._head.include_usage:
            out += b',"system_fingerprint":"' + self._head.fingerprint.encode() + b'"'
        return out + b"}\n\n"

    def closing(self) -> bytes:
        """Return the usage event where it was asked for, and the end mark."""
        if not self._head.include_usage:
            return DONE
        completion_tokens = sum(seq.generated for seq in self._call.sequences)
        usage = usage_counts(self._head.prompt_tokens, completion_tokens)
        if self._head.details:
            usage["prompt_tokens_details"] = self._stream_details()
        event = {"usage": usage, "system_fingerprint": self._head.fingerprint}
        return b"data: " + self._stem + b"]," + orjson.dumps(event)[1:] + b"\n\n" + DONE

    def _stream_details(self) -> dict[str, Any]:
        raise NotImplementedError

    def _usage(self, created_cache_tokens: int | None) -> dict[str, Any]:
        completion_tokens = sum(seq.generated for seq in self._call.sequences)
        usage = usage_counts(self._head.prompt_tokens, completion_tokens)
        usage["prompt_tokens_details"] = (
            {
                "cached_tokens": self._head.cached_tokens(self._call),
                "created_cache_tokens": created_cache_tokens,
                "multimodal_tokens": None,
            }
            if self._head.details
            else None
        )
        usage["completion_tokens_details"] = None
        return usage

    def _body(self, choices: list[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": self._head.response_id,
            "object": self.object_name,
            "created": self._head.created,
            "model": self._head.model,
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": self._head.fingerprint,
            "usage": usage,
        }


class ChatShape(_Shape):
    """/v1/chat/completions."""

    object_name = "chat.completion"
    chunk_name = "chat.completion.chunk"

    def _prefix(self, index: int) -> bytes:
        choice = b'{"index":%d,"delta":{"content":"' % index
        return b"data: " + self._stem + choice

    def _event(self, seq: Sequence) -> bytes:
        tool = seq.plan.tool
        if tool is None or seq.available <= tool.start:
            return super()._event(seq)
        start, end = seq.sent, seq.available
        seq.sent = end
        content, arguments = seq.plan.escaped_parts(start, end)
        begun = start > tool.start
        out = b"data: " + self._stem + b'{"index":%d,"delta":{' % seq.index
        if content:
            out += b'"content":"' + content + b'",'
        out += b'"tool_calls":[{'
        if not begun:
            out += b'"id":"' + tool.call_id.encode() + b'","type":"function",'
        out += b'"index":0,"function":{'
        if not begun:
            out += b'"name":' + orjson.dumps(tool.asked.name) + b","
        out += b'"arguments":"' + arguments + b'"}}]'
        # the rest of an event begins by closing a content's text
        return out + self._suffix(seq, start, done=seq.done)[1:]

    def _suffix(self, seq: Sequence, start: int, *, done: bool) -> bytes:
        if self._plain and not done:
            return b'"},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
        out = b'"},"logprobs":null,"finish_reason":'
        if done:
            out += b'"' + seq.plan.told_reason.encode() + b'","stop_reason":null'
        else:
            out += b"null"
        ids = orjson.dumps(seq.plan.ids[start : seq.sent]) if self._head.token_ids else b"null"
        out += b',"token_ids":' + ids + b"}"
        usage = None
        if self._head.continuous_usage:
            usage = {**self._chunk_usage(seq), "completion_tokens_details": None}
        return out + self._tail(seq, usage, done=done)

    def _first(self) -> bytes:
        """Return the event that names the role, one per choice."""
        head = self._head
        usage = b""
        if head.continuous_usage:
            counts = {**usage_counts(head.prompt_tokens, 0), "completion_tokens_details": None}
            usage = b',"usage":' + orjson.dumps(counts)
        ids = orjson.dumps(head.prompt_ids[0]) if head.token_ids else b"null"
        return b"".join(
            b"data: "
            + self._stem
            + b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,' % seq.index
            + b'"finish_reason":null}]'
            + usage
            + b',"prompt_token_ids":'
            + ids
            + b',"prompt_text":null}\n\n'
            for seq in self._call.sequences
        )

    def _stream_details(self) -> dict[str, Any]:
        return {
            "cached_tokens": self._head.cached_tokens(self._call),
            "created_cache_tokens": self._head.created_cache_tokens(self._call),
        }

    def body(self) -> bytes:
        """Return the whole answer."""
        head = self._head
        choices = [
            {
                "index": seq.index,
                "message": _chat_message(seq.plan),
                "logprobs": None,
                "finish_reason": seq.plan.told_reason,
                "stop_reason": None,
                "token_ids": seq.plan.ids if head.token_ids else None,
                "routed_experts": None,
            }
            for seq in self._call.sequences
        ]
        body = self._body(choices, self._usage(head.created_cache_tokens(self._call)))
        body["prompt_logprobs"] = None
        body["prompt_token_ids"] = head.prompt_ids[0] if head.token_ids else None
        body["prompt_text"] = None
        body |= {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}
        return orjson.dumps(body)


def _chat_message(plan: OutputPlan) -> dict[str, Any]:
    """A choice's message; one that only asks for a tool, and need not have, has no content."""
    tool = plan.tool
    calls = {}
    nothing: str | None = ""
    if tool is not None:
        nothing = "" if tool.asked.forced else None
        function = {"name": tool.asked.name, "arguments": plan.arguments()}
        calls["tool_calls"] = [{"id": tool.call_id, "type": "function", "function": function}]
    return {
        "role": "assistant",
        "content": plan.text() or nothing,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        **calls,
        "reasoning": None,
    }


class CompletionShape(_Shape):
    """/v1/completions; `echo` holds each choice's prompt text where it is to be repeated."""

    object_name = "text_completion"
    chunk_name = "text_completion"

    def __init__(self, head: Head, call: Call, echo: AbstractSequence[str] | None = None) -> None:
        super().__init__(head, call)
        self._echo = echo

    def _prefix(self, index: int) -> bytes:
        return b"data: " + self._stem + b'{"index":%d,"text":"' % index

    def _first(self) -> bytes:
        return b""

    def _event(self, seq: Sequence) -> bytes:
        if self._echo is None or seq.sent:
            return super()._event(seq)
        event = super()._event(seq)
        prefix = self._prefixes[seq.index]
        return prefix + escape_json(self._echo[seq.index]) + event[len(prefix) :]

    def _suffix(self, seq: Sequence, start: int, *, done: bool) -> bytes:
        if self._plain and not done:
            return (
                b'","logprobs":null,"finish_reason":null,"stop_reason":null,'
                b'"prompt_token_ids":null,"token_ids":null}]}\n\n'
            )
        reason = b'"' + seq.plan.finish_reason.encode() + b'"' if done else b"null"
        prompt_ids = ids = b"null"
        if self._head.token_ids:
            ids = orjson.dumps(seq.plan.ids[start : seq.sent])
            if start == 0:
                prompt_ids = orjson.dumps(self._prompt_of(seq))
        out = b'","logprobs":null,"finish_reason":' + reason + b',"stop_reason":null'
        out += b',"prompt_token_ids":' + prompt_ids + b',"token_ids":' + ids + b"}"
        usage = self._chunk_usage(seq) if self._head.continuous_usage else None
        return out + self._tail(seq, usage, done=done)

    def _prompt_of(self, seq: Sequence) -> list[int]:
        each = len(self._call.sequences) // len(self._head.prompt_ids)
        return self._head.prompt_ids[seq.index // each]

    def _stream_details(self) -> dict[str, Any]:
        return {"cached_tokens": self._head.cached_tokens(self._call)}

    def body(self) -> bytes:
        """Return the whole answer."""
        token_ids = self._head.token_ids
        choices = [
            {
                "index": seq.index,
                "text": (self._echo[seq.index] if self._echo else "") + seq.plan.text(),
                "logprobs": None,
                "finish_reason": seq.plan.finish_reason,
                "stop_reason": None,
                "token_ids": seq.plan.ids if token_ids else None,
                "prompt_logprobs": None,
                "prompt_token_ids": self._prompt_of(seq) if token_ids else None,
                "routed_experts": None,
            }
            for seq in self._call.sequences
        ]
        body = self._body(choices, self._usage(None))
        body |= {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}
        return orjson.dumps(body)
