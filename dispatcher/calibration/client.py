"""One engine over HTTP: what it is, and calls streamed from it with the times of their tokens."""

from __future__ import annotations

import asyncio
import json
import random
import re
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Self

import httpx

from dispatcher.calibration.samples import StreamTrace
from dispatcher.core.errors import HeadwayError
from dispatcher.gateway.fleet.looks import LookFailed, read_models
from dispatcher.gateway.fleet.scrape import parse_scrape

_SHORT_S = 5.0
"""For pages that an engine answers at once."""
_LOOK_S = 0.1
_PAGE_BYTES_MAX = 4 * 1024 * 1024
_REFUSAL_CHARACTERS = 300
_TOKENS = re.compile(rb'"completion_tokens": ?(\d+)')
_PROMPT = re.compile(rb'"prompt_tokens": ?(\d+)')
_CACHED = re.compile(rb'"cached_tokens": ?(\d+)')
_TEXT = (
    "select name from orders join customers where total above average group by region then sort"
    " the rows and return a short table with one column for each month of the last year"
)
_WORDS = tuple(_TEXT.split())


class CalibrationError(HeadwayError):
    """An engine could not be measured; says which and why."""


@dataclass(frozen=True, slots=True)
class Description:
    """What an engine says of itself; None where it says nothing."""

    model: str
    max_model_len: int
    vllm_version: str | None
    kv_capacity_tokens: int | None
    busy_calls: int


@dataclass(slots=True)
class Load:
    """The most calls that an engine's gauges showed while they were watched."""

    running: int = 0
    waiting: int = 0
    says_nothing: bool = True


class EngineClient:
    """Calls one engine. Leaving the context closes all connections, which ends its calls there."""

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        silence_s: float = 30.0,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            url: Base URL, without `/v1`.
            model: Which of its models to ask; none: the first that it lists.
            api_key: Key that it asks for.
            silence_s: How long it may send nothing before it is given up.
            clock: Seconds, monotonic.
        """
        self.url = url
        self._model = model
        self._silence_s = silence_s
        self._clock = clock
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(silence_s, connect=_SHORT_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            trust_env=False,
        )
        self._random = random.Random(0)  # noqa: S311 - picks words
        #: learned from what the engine counts
        self._tokens_per_word = 1.5

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def describe(self) -> Description:
        """Ask what it serves.

        Raises:
            CalibrationError: It does not answer, serves no model, or not the one that is wanted.
        """
        try:
            served = read_models(await self._page("/v1/models"))
        except LookFailed as error:
            raise CalibrationError(f"{self.url}: {error}") from error
        if self._model is None:
            self._model = served.models[0]
        if self._model not in served.models:
            raise CalibrationError(
                f"{self.url}: serves no model {self._model!r}, only {', '.join(served.models)}"
            )
        kv_capacity, busy = None, 0
        metrics = await self._page("/metrics", optional=True)
        if metrics:
            scrape = parse_scrape(metrics)
            kv_capacity = scrape.kv_capacity_tokens
            busy = scrape.gauges.running + scrape.gauges.waiting
        version = re.search(rb'"version": ?"([^"]{1,64})"', await self._page("/version", True))
        return Description(
            model=self._model,
            max_model_len=served.max_model_len,
            vllm_version=version[1].decode("ascii", "replace") if version else None,
            kv_capacity_tokens=kv_capacity,
            busy_calls=busy,
        )

    def prompt(self, tokens: int) -> str:
        """A text of about so many tokens that no prefix cache has seen."""
        nonce = uuid.uuid4().hex[:8]
        words = max(1, round((tokens - 6) / self._tokens_per_word))
        return " ".join([nonce, *self._random.choices(_WORDS, k=words)])

    async def call(
        self,
        tokens: int,
        max_tokens: int,
        *,
        watch: Callable[[float, int], None] | None = None,
    ) -> StreamTrace:
        """Stream one answer of exactly `max_tokens` tokens to a prompt of about `tokens`.

        Args:
            tokens: Prompt length to aim at.
            max_tokens: Answer length.
            watch: Hears (time, output tokens so far) whenever some arrive.

        Raises:
            CalibrationError: The engine refused, failed, fell silent, or cut the answer short.
        """
        prompt = self.prompt(tokens)
        stream = _Stream(watch)
        sent_s = self._clock()
        try:
            async with self._opened(prompt, max_tokens) as pieces:
                async for piece in pieces:
                    stream.take(piece, self._clock())
        except httpx.TimeoutException as error:
            raise CalibrationError(f"{self.url}: sent nothing for {self._silence_s:g} s") from error
        except httpx.HTTPError as error:
            raise CalibrationError(
                f"{self.url}: the call failed: {type(error).__name__}: {error}"
            ) from error
        if stream.failure:
            raise CalibrationError(f"{self.url}: the answer ended with an error: {stream.failure}")
        if not stream.done or not stream.points:
            raise CalibrationError(f"{self.url}: closed the connection before the answer's end")
        prompt_tokens = stream.prompt_tokens or tokens
        if prompt_tokens > 32:
            self._tokens_per_word = max(0.05, (prompt_tokens - 6) / prompt.count(" "))
        return StreamTrace(sent_s, prompt_tokens, stream.cached_tokens, tuple(stream.points))

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[Load]:
        """Watch the engine's gauges while the context lasts; many engines have none."""
        load = Load()

        async def watch() -> None:
            while page := await self._page("/metrics", optional=True):
                if b"vllm:num_requests_waiting" not in page:
                    return
                gauges = parse_scrape(page).gauges
                load.says_nothing = False
                load.running = max(load.running, gauges.running)
                load.waiting = max(load.waiting, gauges.waiting)
                await asyncio.sleep(_LOOK_S)

        watching = asyncio.create_task(watch())
        try:
            yield load
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    @asynccontextmanager
    async def _opened(self, prompt: str, max_tokens: int) -> AsyncIterator[AsyncIterator[bytes]]:
        body = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        async with self._http.stream("POST", f"{self.url}/v1/completions", json=body) as answer:
            if answer.status_code != 200:
                text = (await answer.aread()).decode("utf-8", "replace")
                raise CalibrationError(
                    f"{self.url}: refused a call of {max_tokens} tokens with status"
                    f" {answer.status_code}: {text[:_REFUSAL_CHARACTERS]}"
                )
            yield answer.aiter_raw()

    async def _page(self, path: str, optional: bool = False) -> bytes:
        """A small page; empty where it is optional and not there."""
        try:
            async with asyncio.timeout(_SHORT_S):
                answer = await self._http.get(f"{self.url}{path}")
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            if optional:
                return b""
            why = "no answer" if isinstance(error, TimeoutError) else f"{error}"
            raise CalibrationError(
                f"{self.url}{path}: {why or type(error).__name__}; does an engine run there?"
            ) from error
        if answer.status_code == 200:
            return answer.content[:_PAGE_BYTES_MAX]
        if optional:
            return b""
        raise CalibrationError(f"{self.url}{path}: status {answer.status_code}")


class _Stream:
    """Counts the tokens of a stream of server-sent events without taking each apart.

    An engine may put several tokens into one event; with `continuous_usage_stats` each event says
    how many there are by now. Where it does not, every event counts as one.
    """

    def __init__(self, watch: Callable[[float, int], None] | None) -> None:
        self.points: list[tuple[float, int]] = []
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.done = False
        self.failure = ""
        self._rest = b""
        self._watch = watch

    def take(self, piece: bytes, now_s: float) -> None:
        whole, mark, self._rest = (self._rest + piece).rpartition(b"\n\n")
        if not mark:
            return
        before = self.points[-1][1] if self.points else 0
        counted = _TOKENS.findall(whole)
        if counted:
            tokens = int(counted[-1])
            # the chunk of the whole usage brings no token of its own
            if prompt := _PROMPT.findall(whole):
                self.prompt_tokens = int(prompt[-1])
            if cached := _CACHED.findall(whole):
                self.cached_tokens = int(cached[-1])
        else:
            tokens = before + whole.count(b'"finish_reason"')
        if b"data: [DONE]" in whole:
            self.done = True
        if b'data: {"error"' in whole:
            self.failure = _message(whole)
        if tokens > before:
            self.points.append((now_s, tokens))
            if self._watch is not None:
                self._watch(now_s, tokens)


def _message(events: bytes) -> str:
    """What an error event says."""
    line = next(line for line in events.split(b"\n") if line.startswith(b'data: {"error"'))
    try:
        return str(json.loads(line[6:])["error"]["message"])[:_REFUSAL_CHARACTERS]
    except (ValueError, KeyError, TypeError):
        return "(unreadable)"
