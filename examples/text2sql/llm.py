"""One call of a workflow: the official client, plus the headers by which Headway knows it."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import time

import openai
from openai.types.chat import ChatCompletion
from prompts import Messages

APPLICATION = "text2sql"
MAX_TOKENS = 800


def _transport_errors() -> tuple[type[Exception], ...]:
    """What the client's HTTP library raises in the middle of a stream.

    There the client does not wrap it; which library that is depends on the client's version.
    """
    found: list[type[Exception]] = []
    for name in ("httpx2", "httpx"):
        try:
            found.append(importlib.import_module(name).HTTPError)
        except ModuleNotFoundError:
            continue
    return tuple(found)


#: How a call can fail for reasons that lie at the other end; anything else is a bug in
#: here. A body that is no JSON is a ValueError.
CALL_ERRORS = (openai.OpenAIError, ValueError, *_transport_errors())


class CallFailedError(Exception):
    """A call failed for good, after the client's own retries; the text says how."""


@dataclasses.dataclass(frozen=True)
class Stage:
    """What the headers of a call say about its place in the workflow."""

    name: str
    width: int = 1  # calls of the stage that run side by side
    tool: str | None = None  # what ran between the stage before and this one
    final: bool = False


@dataclasses.dataclass(frozen=True)
class CallRecord:
    """What one call took. Times are seconds since the workflow began."""

    stage: str
    start_s: float
    end_s: float
    prompt_tokens: int | None  # as the endpoint reports them, None if it does not
    completion_tokens: int | None
    queue_ms: float | None  # time in the gateway's queue, None where there is no gateway
    instance: str | None  # engine that served it, None where there is no gateway


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """Where the calls go and how."""

    client: openai.AsyncOpenAI
    model: str
    stream: bool
    temperature: float


class WorkflowClient:
    """Makes the calls of one workflow and keeps a record of each."""

    def __init__(self, endpoint: Endpoint, workflow_id: str, slo_s: float, seed: int) -> None:
        self.workflow_id = workflow_id
        self.calls: list[CallRecord] = []
        self._endpoint = endpoint
        self._slo_s = slo_s
        self._seed = seed
        self._start_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the workflow began."""
        return time.monotonic() - self._start_s

    def headers(self, stage: Stage) -> dict[str, str]:
        """Headway's headers; any other endpoint ignores them."""
        headers = {
            "x-headway-workflow-id": self.workflow_id,
            "x-headway-workflow": APPLICATION,
            "x-headway-stage": stage.name,
            "x-headway-stage-width": str(stage.width),
            "x-headway-slo-ms": str(round(self._slo_s * 1000)),
        }
        if stage.tool is not None:
            headers["x-headway-tool"] = stage.tool
        if stage.final:
            headers["x-headway-final"] = "1"
        return headers

    async def ask(self, stage: Stage, messages: Messages, part: int = 0) -> str:
        """One chat completion.

        Args:
            stage: where in the workflow the call stands.
            messages: the prompt.
            part: which of the parallel calls of the stage it is; part of its sampling seed.

        Returns:
            The text of the answer, '' if it has none.

        Raises:
            CallFailedError: the endpoint answered with an error or broke off, retries included.
        """
        start_s = self.elapsed_s
        ask = self._streamed if self._endpoint.stream else self._whole
        try:
            text, usage, served = await ask(stage, messages, self._sampling_seed(stage, part))
        except CALL_ERRORS as error:
            raise CallFailedError(f"{stage.name}: {type(error).__name__}: {error}") from error
        queue_ms = served.get("x-headway-queue-ms")
        self.calls.append(
            CallRecord(
                stage=stage.name,
                start_s=start_s,
                end_s=self.elapsed_s,
                prompt_tokens=usage[0] if usage else None,
                completion_tokens=usage[1] if usage else None,
                queue_ms=float(queue_ms) if queue_ms else None,
                instance=served.get("x-headway-instance"),
            )
        )
        return text

    def _sampling_seed(self, stage: Stage, part: int) -> int:
        name = f"{self._seed} {stage.name} {part}".encode()
        return int.from_bytes(hashlib.sha256(name).digest()[:4], "big") >> 1

    async def _whole(
        self, stage: Stage, messages: Messages, seed: int
    ) -> tuple[str, tuple[int, int] | None, dict[str, str]]:
        raw = await self._endpoint.client.chat.completions.with_raw_response.create(
            model=self._endpoint.model,
            messages=messages,
            max_tokens=MAX_TOKENS,
            temperature=self._endpoint.temperature,
            seed=seed,
            extra_headers=self.headers(stage),
        )
        completion = raw.parse()
        if not isinstance(completion, ChatCompletion) or not completion.choices:
            raise openai.OpenAIError("the answer is not a chat completion")
        usage = completion.usage
        counted = (usage.prompt_tokens, usage.completion_tokens) if usage else None
        return completion.choices[0].message.content or "", counted, dict(raw.headers)

    async def _streamed(
        self, stage: Stage, messages: Messages, seed: int
    ) -> tuple[str, tuple[int, int] | None, dict[str, str]]:
        raw = await self._endpoint.client.chat.completions.with_raw_response.create(
            model=self._endpoint.model,
            messages=messages,
            max_tokens=MAX_TOKENS,
            temperature=self._endpoint.temperature,
            seed=seed,
            stream=True,
            stream_options={"include_usage": True},
            extra_headers=self.headers(stage),
        )
        pieces: list[str] = []
        counted = None
        finished = False
        async for chunk in raw.parse():
            if chunk.usage:
                counted = (chunk.usage.prompt_tokens, chunk.usage.completion_tokens)
            for choice in chunk.choices:
                pieces.append(choice.delta.content or "")
                finished = finished or choice.finish_reason is not None
        if not finished:
            raise openai.OpenAIError("the stream ended before its answer did")
        return "".join(pieces), counted, dict(raw.headers)
