"""The generating routes: body in, call to the engine, tokens out."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Protocol

from starlette.datastructures import Headers
from starlette.types import Message as AsgiMessage
from starlette.types import Receive, Scope, Send

from dispatcher.emulator import errors, tokens
from dispatcher.emulator.driver import Call
from dispatcher.emulator.engine import Engine, Limits, Prompt
from dispatcher.emulator.messages_shape import MessagesShape
from dispatcher.emulator.openai_shapes import ChatShape, CompletionShape, Head
from dispatcher.emulator.schema import (
    ChatRequest,
    CompletionRequest,
    MessagesRequest,
    StreamOptions,
)
from dispatcher.emulator.tool_calls import messages_offer, read_offer

MAX_BODY_BYTES = 256 * 2**20

ADDED_HEADERS = "dispatcher.emulator.added_headers"
"""Scope key of the headers that every answer carries."""

_JSON = (b"content-type", b"application/json")
_SSE = (b"content-type", b"text/event-stream; charset=utf-8")


class Shape(Protocol):
    """Renders one call's answer."""

    def opening(self) -> bytes:
        """Return what a stream says before the first token."""

    def events(self) -> bytes:
        """Return the stream's events for all tokens the client does not have yet."""

    def closing(self) -> bytes:
        """Return how a stream ends."""

    def body(self) -> bytes:
        """Return the answer in one piece."""


class ClientGoneError(Exception):
    """The client hung up before its body was complete."""


async def read_body(receive: Receive) -> bytes:
    """Read a request body.

    Raises:
        ClientGoneError: It will never be complete.
        EngineApiError: It is larger than `MAX_BODY_BYTES`.
    """
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        part = message.get("body", b"")
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise errors.EngineApiError(413, "Request body too large.", "Request Entity Too Large")
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


async def send_json(scope: Scope, send: Send, status: int, body: bytes) -> None:
    """Send a JSON answer."""
    length = (b"content-length", str(len(body)).encode())
    headers = [length, _JSON, *scope.get(ADDED_HEADERS, ())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Generation:
    """An ASGI application for one generating route."""

    anthropic = False

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        engine = self.engine
        tracked = engine.settings.enable_server_load_tracking
        engine.load += tracked
        try:
            raw = await read_body(receive)
            call, shape, stream = self.prepare(raw, Headers(scope=scope))
            if stream is None:
                await send_json(scope, send, 200, shape.body())
            else:
                await self._serve(call, shape, scope, receive, send, stream=stream)
        except ClientGoneError:
            return
        except errors.EngineApiError as error:
            body = error.anthropic_body() if self.anthropic else error.openai_body()
            await send_json(scope, send, error.status, body)
        finally:
            engine.load -= tracked

    def prepare(self, body: bytes, headers: Headers) -> tuple[Call, Shape, bool | None]:
        """Hand a body's call to the engine.

        Returns:
            The call, its shape, and whether it is streamed; None answers at once.

        Raises:
            EngineApiError: The body asks for what cannot be.
        """
        raise NotImplementedError

    def submit(self, call: Call) -> None:
        """Hand a call to the engine; a refusal is the client's error."""
        try:
            self.engine.driver.submit(call)
        except ValueError as error:
            raise errors.invalid(str(error)) from error

    def head(
        self,
        prefix: str,
        headers: Headers,
        prompts: list[Prompt],
        *,
        model: str | None,
        options: StreamOptions | None = None,
        token_ids: bool | None = None,
    ) -> Head:
        """Return what the answer begins with; the client's request id becomes its id."""
        engine = self.engine
        include_usage = bool(options and options.include_usage)
        return Head(
            response_id=prefix + (headers.get("x-request-id") or engine.fresh_id()),
            created=int(time.time()),
            model=model or engine.names[0],
            fingerprint=engine.fingerprint,
            prompt_ids=[prompt.ids for prompt in prompts],
            block_size=engine.config.block_size,
            details=engine.settings.enable_prompt_tokens_details,
            include_usage=include_usage,
            continuous_usage=include_usage and bool(options and options.continuous_usage_stats),
            token_ids=bool(token_ids),
        )

    async def _serve(
        self,
        call: Call,
        shape: Shape,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        stream: bool,
    ) -> None:
        watcher = asyncio.create_task(_watch(receive, lambda: self.engine.driver.abort(call)))
        try:
            if stream:
                await _stream(call, shape, scope, send)
            else:
                await call.wait_finished()
                if not call.closed:
                    await send_json(scope, send, 200, shape.body())
        finally:
            watcher.cancel()
            if not call.finished:
                self.engine.driver.abort(call)


async def _watch(receive: Receive, on_gone: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    on_gone()


async def _stream(call: Call, shape: Shape, scope: Scope, send: Send) -> None:
    headers = [_SSE, *scope.get(ADDED_HEADERS, ())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    opening = shape.opening()
    if opening:
        await send({"type": "http.response.body", "body": opening, "more_body": True})
    message: AsgiMessage
    while True:
        await call.wait()
        if call.closed:
            # Whoever cancelled it elsewhere gets the stream cut, as an abort does.
            await send({"type": "http.response.body", "body": b""})
            return
        finished = call.finished
        data = shape.events()
        if finished:
            data += shape.closing()
        if data:
            message = {"type": "http.response.body", "body": data, "more_body": not finished}
            await send(message)
        if finished:
            return


class Chat(Generation):
    """/v1/chat/completions."""

    def prepare(self, body: bytes, headers: Headers) -> tuple[Call, Shape, bool | None]:
        """Hand a chat to the engine."""
        raw, request = self.engine.parse(body, ChatRequest)
        check_stream_options(request)
        offer = read_offer(request.tools, request.tool_choice)
        prompt = self.engine.chat_prompt(
            request.messages,
            tools=request.tools,
            ask=request.add_generation_prompt,
            open_ended=request.continue_final_message,
        )
        asked = request.max_completion_tokens
        limits = Limits(
            request.max_tokens if asked is None else asked, request.min_tokens, request.ignore_eos
        )
        n = 1 if request.n is None else request.n
        priority = priority_of(headers, request.priority)
        call = self.engine.build_call(raw, [prompt], limits, n=n, priority=priority, offer=offer)
        head = self.head(
            "chatcmpl-",
            headers,
            [prompt],
            model=request.model,
            options=request.stream_options,
            token_ids=request.return_token_ids,
        )
        self.submit(call)
        return call, ChatShape(head, call), bool(request.stream)


class Completion(Generation):
    """/v1/completions."""

    def prepare(self, body: bytes, headers: Headers) -> tuple[Call, Shape, bool | None]:
        """Hand one or more prompts to the engine."""
        raw, request = self.engine.parse(body, CompletionRequest)
        check_stream_options(request)
        prompts, exact = self._prompts(request)
        limits = Limits(request.max_tokens, request.min_tokens, request.ignore_eos)
        priority = priority_of(headers, request.priority)
        call = self.engine.build_call(
            raw, prompts, limits, n=request.n, priority=priority, exact=exact
        )
        head = self.head(
            "cmpl-",
            headers,
            prompts,
            model=request.model,
            options=request.stream_options,
            token_ids=request.return_token_ids,
        )
        echo = None
        if request.echo:
            echo = [prompts[seq.index // request.n].text for seq in call.sequences]
        self.submit(call)
        return call, CompletionShape(head, call, echo), bool(request.stream)

    def _prompts(self, request: CompletionRequest) -> tuple[list[Prompt], bool]:
        """Return the prompts, and whether they came as token ids."""
        given = request.prompt
        if not given:
            raise errors.invalid(
                "Either prompt or prompt_embeds must be provided and non-empty.", "prompt"
            )
        items: list[Any] = [given] if isinstance(given, str) else list(given)
        if isinstance(items[0], int):
            items = [items]
        if isinstance(items[0], str):
            self.engine.check_chars(max(map(len, items)))
            return [Prompt([tokens.BEGIN_ID, *tokens.encode(text)], text) for text in items], False
        if not all(items):
            raise errors.invalid("The prompt cannot be empty.", "prompt")
        return [Prompt(ids, tokens.decode(ids)) for ids in items], True


class Messages(Generation):
    """/v1/messages."""

    anthropic = True

    def prepare(self, body: bytes, headers: Headers) -> tuple[Call, Shape, bool | None]:
        """Hand an Anthropic conversation to the engine."""
        raw, request = self.engine.parse(body, MessagesRequest)
        prompt = self.engine.chat_prompt(
            request.messages, tools=request.tools, system=request.system
        )
        priority = priority_of(headers, 0)
        offer = messages_offer(request.tools, request.tool_choice)
        limits = Limits(request.max_tokens)
        call = self.engine.build_call(raw, [prompt], limits, priority=priority, offer=offer)
        head = self.head("chatcmpl-", headers, [prompt], model=request.model)
        self.submit(call)
        return call, MessagesShape(head, call), bool(request.stream)


def priority_of(headers: Headers, in_body: int) -> int:
    """Return a request's priority: that of vLLM's header if it can be read, else the body's."""
    try:
        return int(headers["x-vllm-priority"])
    except (KeyError, ValueError):
        return in_body


def check_stream_options(request: ChatRequest | CompletionRequest) -> None:
    """Refuse stream options without a stream.

    Raises:
        EngineApiError: They were given.
    """
    if request.stream_options is not None and not request.stream:
        raise errors.invalid(
            "Stream options can only be defined when `stream=True`.", "stream_options"
        )
