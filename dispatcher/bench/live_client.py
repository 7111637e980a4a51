"""The client of a live run: one HTTP call of a trace, timed."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from time import monotonic
from typing import Any

import httpx
import orjson

from dispatcher.bench.live_text import Measure, Texts
from dispatcher.core.errors import HeadwayError

CONNECT_LIMIT_S = 10.0
KEEP_ALIVE_S = 2.0
"""Below what servers allow idle connections, so that none is reused while it is being closed."""
_SHORT_WORDS, _LONG_WORDS = 16, 256


class LiveError(HeadwayError):
    """A target that cannot be measured; says which and why."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back of one call. Moments are of `time.monotonic`: uvloop's clock is coarse."""

    ended_at_s: float
    problem: str | None = None
    """`None`: it went well."""
    first_token_at_s: float | None = None
    prompt_tokens: int | None = None
    """As the endpoint counted; `None`: not told."""
    output_tokens: int | None = None
    cached_tokens: int = 0
    instance: str | None = None
    """As Headway tells."""
    queue_s: float | None = None
    """Real seconds, as Headway tells."""


class LiveClient:
    """Sends chat completions to one endpoint. Close it when done."""

    def __init__(
        self, target: str, *, api_key: str | None, concurrency_limit: int, limit_s: float
    ) -> None:
        self.base_url = target.rstrip("/").removesuffix("/v1")
        self.model = ""
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        try:
            self._http = httpx.AsyncClient(
                base_url=self.base_url,
                headers=headers,
                timeout=httpx.Timeout(limit_s, connect=CONNECT_LIMIT_S, pool=None),
                limits=httpx.Limits(
                    max_connections=concurrency_limit,
                    max_keepalive_connections=concurrency_limit,
                    keepalive_expiry=KEEP_ALIVE_S,
                ),
                trust_env=False,
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise LiveError(f"{target}: {error}") from error

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def open(self, model: str | None) -> None:
        """Find the target and the model that is asked for.

        Raises:
            LiveError: Nobody answers there, or no model can be named.
        """
        try:
            answer = await self._http.get("/v1/models", timeout=CONNECT_LIMIT_S)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise LiveError(f"{self.base_url} does not answer: {_said(error)}") from error
        if model is not None:
            self.model = model
            return
        served = _first_model(answer)
        if served is None:
            raise LiveError(
                f"{self.base_url}/v1/models answered {answer.status_code} and names no model:"
                " give --model"
            )
        self.model = served

    async def measure(self, texts: Texts) -> Measure:
        """How many tokens a prompt of so many words has there.

        Raises:
            LiveError: It tells no number of tokens, or nonsense.
        """
        counted: list[tuple[int, int]] = []
        for words in (_SHORT_WORDS, _LONG_WORDS):
            messages = [{"role": "user", "content": texts.of_length(words, f"measure/{words}")}]
            tokens = await self._tokenized(messages)
            if tokens is None:
                tokens = await self._tokens_used(messages)
            counted.append((words, tokens))
        try:
            return Measure.between(*counted)
        except ValueError as error:
            raise LiveError(f"{self.base_url}: cannot tell lengths in tokens: {error}") from error

    async def _tokenized(self, messages: list[dict[str, str]]) -> int | None:
        """Tokens of a conversation by `/tokenize`; `None` where there is none."""
        body = {"model": self.model, "messages": messages}
        try:
            answer = await self._http.post("/tokenize", json=body, timeout=CONNECT_LIMIT_S)
            count = answer.json().get("count") if answer.status_code == 200 else None
        except (httpx.HTTPError, ValueError, AttributeError):
            return None
        return count if isinstance(count, int) else None

    async def _tokens_used(self, messages: list[dict[str, str]]) -> int:
        answer = await self.chat(messages[0]["content"], output_tokens=1, stream=False, headers={})
        if answer.problem is not None or answer.prompt_tokens is None:
            problem = answer.problem or "no usage in its answer"
            raise LiveError(f"{self.base_url}: cannot tell lengths in tokens: {problem}")
        return answer.prompt_tokens

    async def chat(
        self, prompt: str, *, output_tokens: int, stream: bool, headers: dict[str, str]
    ) -> Answer:
        """One chat completion of exactly so many tokens; never raises for what goes wrong there."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": output_tokens,
            "ignore_eos": True,
            "temperature": 0,
        }
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        request = self._http.build_request(
            "POST",
            "/v1/chat/completions",
            content=orjson.dumps(body),
            headers={"content-type": "application/json", **headers},
        )
        try:
            response = await self._http.send(request, stream=True)
            try:
                if response.status_code != 200:
                    return _refused(response.status_code, await response.aread())
                read = _streamed if stream else _whole
                return await read(response)
            finally:
                await response.aclose()
        except httpx.HTTPError as error:
            return Answer(monotonic(), problem=_said(error))


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _refused(status: int, body: bytes) -> Answer:
    return Answer(monotonic(), problem=f"HTTP {status}: {body[:200].decode(errors='replace')}")


def _first_model(answer: httpx.Response) -> str | None:
    try:
        return str(answer.json()["data"][0]["id"])
    except (ValueError, LookupError, TypeError):
        return None


async def _whole(response: httpx.Response) -> Answer:
    body = await response.aread()
    ended_at_s = monotonic()
    try:
        usage = orjson.loads(body).get("usage")
    except (ValueError, AttributeError):
        return Answer(ended_at_s, problem="an answer that is no JSON object")
    return _answer(response, usage, ended_at_s, None)


async def _streamed(response: httpx.Response) -> Answer:
    first_s: float | None = None
    usage, events, done = None, 0, False
    async for data in _events(response):
        if data == b"[DONE]":
            done = True
            continue
        try:
            event = orjson.loads(data)
        except ValueError:
            return Answer(monotonic(), problem="an event that is no JSON")
        if not isinstance(event, dict) or "error" in event:
            return Answer(monotonic(), problem=f"an error event: {data[:200]!r}")
        if any(_has_text(choice) for choice in event.get("choices") or ()):
            events += 1
            if first_s is None:
                first_s = monotonic()
        usage = event.get("usage") or usage
    if not done:
        return Answer(monotonic(), problem="a stream that ended before its end mark")
    if usage is None:
        usage = {"completion_tokens": events}
    return _answer(response, usage, monotonic(), first_s)


def _has_text(choice: Any) -> bool:
    delta = choice.get("delta") if isinstance(choice, dict) else None
    if not isinstance(delta, dict):
        return False
    return bool(delta.get("content") or delta.get("reasoning_content"))


async def _events(response: httpx.Response) -> AsyncIterator[bytes]:
    """The data of server-sent events, one at a time."""
    rest = b""
    async for piece in response.aiter_raw():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()
    if rest.startswith(b"data:"):
        yield rest[5:].strip()


def _answer(
    response: httpx.Response, usage: Any, ended_at_s: float, first_s: float | None
) -> Answer:
    usage = usage if isinstance(usage, dict) else {}
    details = usage.get("prompt_tokens_details") or {}
    queue_ms = response.headers.get("x-headway-queue-ms")
    return Answer(
        ended_at_s,
        first_token_at_s=first_s,
        prompt_tokens=usage.get("prompt_tokens"),
        output_tokens=usage.get("completion_tokens"),
        cached_tokens=details.get("cached_tokens") or 0,
        instance=response.headers.get("x-headway-instance"),
        queue_s=float(queue_ms) / 1000.0 if queue_ms else None,
    )


class Problems:
    """What went wrong, counted; the first so many kinds of it, the rest together."""

    MOST_KINDS = 100

    def __init__(self) -> None:
        self._counted: Counter[str] = Counter()

    def note(self, problem: str) -> None:
        """One more call has failed of it."""
        if problem not in self._counted and len(self._counted) >= self.MOST_KINDS:
            problem = "other problems"
        self._counted[problem] += 1

    def most(self, at_most: int = 5) -> list[str]:
        """The most frequent ones."""
        return [f"{count} x {problem}" for problem, count in self._counted.most_common(at_most)]
