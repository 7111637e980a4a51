"""A small OpenAI endpoint that answers from a replies file by the emulator's rule."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

REPLIES_PATH = Path(__file__).parents[2] / "dispatcher" / "emulator" / "replies" / "text2sql.json"
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


class ScriptedEndpoint:
    """Answers chat completions and remembers each call's headers and body."""

    def __init__(self) -> None:
        document = json.loads(REPLIES_PATH.read_text(encoding="utf-8"))
        self._entries = [
            (re.compile(entry["pattern"], re.S), entry["texts"]) for entry in document["replies"]
        ]
        self.headers: list[dict[str, str]] = []
        self.bodies: list[dict[str, Any]] = []
        self.unmatched: list[str] = []
        #: replaces the answer to a call, given its headers; None answers as usual
        self.instead: Callable[[dict[str, str]], Response | None] = lambda _: None
        self.base_url = ""

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[ScriptedEndpoint]:
        """Listen on a free port while the context lasts."""
        routes = [
            Route("/v1/models", self._models),
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
        ]
        listener = socket.create_server(("127.0.0.1", 0))
        self.base_url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        app = Starlette(routes=routes)
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield self
        finally:
            server.should_exit = True
            await task
            listener.close()

    def reply(self, body: dict[str, Any]) -> str:
        """The scripted text for a body."""
        prompt = "\n".join(message["content"] for message in body["messages"])
        digest = int(hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest(), 16)
        for pattern, texts in self._entries:
            match = pattern.search(prompt)
            if match is not None:
                text: str = texts[digest % len(texts)]
                for name, value in match.groupdict().items():
                    text = text.replace("{" + name + "}", value)
                return text
        self.unmatched.append(prompt)
        return "no reply"

    async def _models(self, _: Request) -> Response:
        models = [{"id": name, "object": "model"} for name in ("scripted", "other")]
        return JSONResponse({"object": "list", "data": models})

    async def _chat(self, request: Request) -> Response:
        headers = dict(request.headers)
        body = await request.json()
        other = self.instead(headers)
        if other is not None:
            return other
        self.headers.append(headers)
        self.bodies.append(body)
        said = {"x-headway-queue-ms": "250", "x-headway-instance": "scripted-0"}
        relevant = {k: v for k, v in body.items() if k not in ("stream", "stream_options")}
        text = self.reply(relevant)
        if body.get("stream"):
            return StreamingResponse(self._events(text), 200, said, "text/event-stream")
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        whole = {"id": "1", "object": "chat.completion", "created": 1, "model": "scripted"}
        return JSONResponse({**whole, "choices": [choice], "usage": USAGE}, headers=said)

    async def _events(self, text: str) -> AsyncIterator[bytes]:
        half = len(text) // 2
        deltas: list[tuple[str, str | None]] = [(text[:half], None), (text[half:], "stop")]
        head = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "scripted"}
        for piece, reason in deltas:
            choice = {"index": 0, "delta": {"content": piece}, "finish_reason": reason}
            yield f"data: {json.dumps({**head, 'choices': [choice]})}\n\n".encode()
        yield f"data: {json.dumps({**head, 'choices': [], 'usage': USAGE})}\n\n".encode()
        yield b"data: [DONE]\n\n"
