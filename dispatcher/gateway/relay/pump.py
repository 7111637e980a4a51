"""The token path: from an engine's socket to the client's, event for event.

A piece of the stream is forwarded inside the engine socket's callback, so that no task wakes up per
token: past ASGI's `send` where the server is known (`chunk_writer`), else through it. `send` is a
coroutine, and while the client keeps up it never suspends, so the pump steps it by hand. Where it
does suspend (the client's buffer is full), the pump stops reading from this engine connection and
the request's task takes the suspended coroutine over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import CoroutineType
from typing import Any

from dispatcher.gateway.relay.asgi import ChunkWriter, OneWrite, Resumed, Send, chunk_writer
from dispatcher.gateway.relay.dialects import Dialect, EventKind, event_payload
from dispatcher.gateway.relay.error_event import read_error
from dispatcher.gateway.relay.headers import RawHeaders
from dispatcher.gateway.relay.observer import StreamObserver
from dispatcher.gateway.relay.outcome import Finish, RelayOutcome
from dispatcher.gateway.relay.pattern import NO_PREFIX, NOTHING_LEARNED, learn_pattern
from dispatcher.gateway.relay.sse import EventSplitter
from dispatcher.gateway.relay.timeline import Timeline
from dispatcher.gateway.upstream import EngineResponse, UpstreamError

#: The largest gap between two progress reports, in events and in seconds.
PROGRESS_EVENTS = 50
PROGRESS_S = 1.0
#: Opening events that are held back; an engine that sends more is not waited for.
_OPENING_EVENTS = 8


class StreamPump:
    """One stream on its way; `relay_stream` says what it does.

    Used directly: hand `client_gone` to the watch. Of `outcome`, `first_byte_sent` is always
    current, the counts are once `run` has ended, however it did.
    """

    __slots__ = (
        "__weakref__",
        "_busy",
        "_clock",
        "_dialect",
        "_direct",
        "_done",
        "_end",
        "_end_response",
        "_events",
        "_failure",
        "_forwarded",
        "_hazard",
        "_headers",
        "_last_event_s",
        "_last_token_s",
        "_latest",
        "_learned",
        "_lines",
        "_message",
        "_observer",
        "_opening",
        "_over",
        "_pattern",
        "_pending",
        "_prefix",
        "_report_at",
        "_report_s",
        "_response",
        "_send",
        "_splitter",
        "_stall_timeout_s",
        "_started",
        "_strip_usage",
        "_suspended",
        "_timeline",
        "_timer",
        "_tokens",
        "_waiter",
        "_woken",
        "_write_chunk",
        "outcome",
    )

    def __init__(
        self,
        response: EngineResponse,
        send: Send,
        dialect: Dialect,
        *,
        headers: RawHeaders,
        clock: Callable[[], float],
        strip_usage: bool,
        observer: StreamObserver,
        started: bool,
        stall_timeout_s: float | None,
        timeline: Timeline | None = None,
    ) -> None:
        self.outcome = RelayOutcome(status=response.status)
        self._response = response
        self._send: Any = send
        self._dialect = dialect
        self._headers = headers
        self._clock = clock
        self._strip_usage = strip_usage and dialect.usage_on_request
        self._observer = observer
        self._stall_timeout_s = stall_timeout_s
        self._timeline = timeline
        # Towards the client.
        self._started = started
        self._busy = True  # The task sends; the socket's callback only queues.
        self._direct = True
        self._write_chunk: ChunkWriter | None = None
        self._message = {"type": "http.response.body", "body": b"", "more_body": True}
        self._pending: list[bytes] = []
        self._suspended: Resumed | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._woken = False
        # From the engine.
        self._splitter = EventSplitter()
        #: How a read of token events starts; `NO_PREFIX` while an event is incomplete.
        self._prefix = NO_PREFIX
        #: The pattern's parts have places of their own: each is asked for on every token.
        self._pattern = NOTHING_LEARNED
        self._learned, self._end, _, self._lines, self._hazard = self._pattern
        self._latest = b""
        self._events = self._tokens = 0
        self._last_token_s = 0.0
        self._last_event_s: float | None = None
        self._report_at = PROGRESS_EVENTS
        self._report_s = 0.0
        self._opening: list[bytes] = []
        self._forwarded = self._done = self._over = self._end_response = False
        self._failure: Exception | None = None
        self._timer: asyncio.TimerHandle | None = None

    # The engine socket's side.

    def on_data(self, data: bytes, last: bool) -> None:
        """Forward what one read brought; the common case is one whole token event."""
        tokens = 0
        if (
            data.startswith(self._prefix)
            and data.endswith(self._end)
            and not last
            and self._hazard not in data
        ):
            tokens = 1 if data.count(b"\n") == self._lines else self._pattern.count(data)
        if tokens:
            self._events += tokens
            self._tokens += tokens
            self._latest = data
            now_s = self._last_token_s = self._clock()
            if self._timeline is not None:
                self._timeline.saw(now_s, tokens)
            if now_s >= self._report_s or self._tokens >= self._report_at:
                self._report(now_s)
        else:
            if self._over:
                return
            data = self._examine(data, last)
            if self._over:
                self._queue(data)
                return
            if not data:
                return
        if self._busy:
            self._queue(data)
            return
        try:
            if self._write_chunk is None or not self._write_chunk(data):
                self._step_send(data)
        except OSError:
            self.client_gone()
        except Exception as exc:  # noqa: BLE001 - raised again by `run`
            self._failure = exc
            self.client_gone()

    def on_error(self, error: UpstreamError) -> None:
        """End the stream; an incomplete event is dropped, so that what follows it is readable."""
        self._conclude(str(error))

    def client_gone(self) -> None:
        """Stop the engine's work now."""
        if self.outcome.response_complete:
            return
        self._over, self._end_response = True, False
        self.outcome.finish = Finish.CLIENT_GONE
        self._pending.clear()
        self._response.abort()
        self._wake()

    def _step_send(self, data: bytes) -> None:
        """Send without a task, for as long as the server takes it at once."""
        self._message["body"] = data
        coroutine = self._send(self._message)
        try:
            yielded = coroutine.send(None)
        except StopIteration:
            return
        self._busy = True
        self._suspended = Resumed(coroutine, yielded)
        self._response.pause_reading()
        self._wake()

    def _queue(self, data: bytes) -> None:
        if self._pending:
            self._response.pause_reading()
        if data:
            self._pending.append(data)
        self._wake()

    def _wake(self) -> None:
        self._woken = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # What the bytes say.

    def _examine(self, data: bytes, last: bool) -> bytes:
        """Take a read apart into events; return those that the client gets."""
        events = self._splitter.feed(data)
        if last and self._splitter.tail:
            events.append(self._splitter.flush())
        kept: list[bytes] = []
        now_s = self._clock()
        for event in events:
            self._events += 1
            if event.startswith(self._learned) and self._hazard not in event:
                kind = EventKind.TOKEN
            else:
                kind = self._dialect.classify(event)
            if kind is EventKind.TOKEN:
                self._token_event(event, now_s)
            elif kind is EventKind.ERROR:
                self.outcome.finish, self.outcome.error = read_error(event)
                if self.outcome.finish is Finish.ENGINE_ERROR and not (self._forwarded or kept):
                    self._over = True
                    self._response.abort()
                    return b""
            elif kind is EventKind.OPENING and not kept and self._hold(event):
                continue
            elif kind is not EventKind.OTHER:
                self._done = self._done or kind is EventKind.DONE
                self._read_usage(event)
                if self._strip_usage and kind is EventKind.USAGE:
                    continue
            kept.append(event)
        if kept:
            kept[:0] = self._opening
            self._opening.clear()
            self._forwarded = True
            self._last_event_s = now_s
        self._prefix = NO_PREFIX if self._splitter.tail else self._learned
        if last:
            self._conclude("the stream ended without its end mark")
        return b"".join(kept)

    def _hold(self, event: bytes) -> bool:
        """Keep an opening event back, so that the call can still go elsewhere."""
        if self._forwarded or len(self._opening) >= _OPENING_EVENTS:
            return False
        self._opening.append(event)
        return True

    def _token_event(self, event: bytes, now_s: float) -> None:
        self._latest = event
        self._last_token_s = now_s
        self._tokens += 1
        if self._tokens == 1:
            self.outcome.first_token_s = now_s
            self._report_s = now_s + PROGRESS_S
            self._observer.first_token(now_s)
        elif now_s >= self._report_s or self._tokens >= self._report_at:
            self._report(now_s)
        if self._timeline is not None:
            self._timeline.saw(now_s, 1)
        if not event.startswith(self._learned):
            pattern = learn_pattern(self._dialect, event, self._learned)
            self._pattern = pattern
            self._learned, self._end, _, self._lines, self._hazard = pattern

    def _report(self, now_s: float) -> None:
        self._report_at = self._tokens + PROGRESS_EVENTS
        self._report_s = now_s + PROGRESS_S
        self._observer.progress(now_s, self._tokens)

    def _read_usage(self, event: bytes) -> None:
        if b'"usage"' in event:
            self.outcome.learn_usage(self._dialect.usage(event_payload(event) or {}))

    def _conclude(self, why: str) -> None:
        """The engine says no more."""
        if self._over:
            return
        self._over = True
        if self._done or self.outcome.finish is not Finish.COMPLETE:
            self._end_response = True
        else:
            self.outcome.finish = Finish.CUT_SHORT
            self.outcome.error = why
        self._wake()

    def _check_stall(self) -> None:
        """End a stream that has fallen silent after its first event; a slow client is not that."""
        limit_s = self._stall_timeout_s
        if limit_s is None or self._over:
            return
        wait_s = limit_s
        if self._last_event_s is not None and not self._busy:
            silent_s = self._clock() - max(self._last_event_s, self._last_token_s)
            if silent_s >= limit_s:
                self._over = True
                self.outcome.finish = Finish.STALLED
                self.outcome.error = f"the engine sent nothing for {limit_s} s"
                self._response.abort()
                self._wake()
                return
            wait_s = limit_s - silent_s
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._check_stall)

    # The request's side.

    async def run(self) -> RelayOutcome:
        """Relay to the end, whichever it is."""
        self._check_stall()
        self._response.attach(self)
        try:
            while True:
                self._woken = False
                await self._drain()
                if self._over and not self._pending:
                    break
                if not self._woken:
                    await self._wait()
        except OSError:
            self.client_gone()
        finally:
            self._over = True
            self._response.abort()
            if self._suspended is not None:
                self._suspended.close()
            if self._timer is not None:
                self._timer.cancel()
            self._account()
        if self._failure is not None:
            raise self._failure
        return self.outcome

    async def _drain(self) -> None:
        if self._suspended is not None:
            suspended, self._suspended = self._suspended, None
            await suspended
        while self._pending or (self._end_response and not self.outcome.response_complete):
            body = b"".join(self._pending)
            self._pending.clear()
            final = self._end_response
            self.outcome.first_byte_sent = True
            message = {"type": "http.response.body", "body": body, "more_body": not final}
            if self._started:
                await self._send(message)
            else:
                with OneWrite(self._send):
                    await self._send_start()
                    await self._send(message)
            self.outcome.response_complete = final
        if self._over:
            return
        if self._started and self._direct:
            self._write_chunk = chunk_writer(self._send)
            self._busy = False
        self._response.resume_reading()

    async def _send_start(self) -> None:
        self._started = True
        status = self._response.status
        sending = self._send(
            {"type": "http.response.start", "status": status, "headers": self._headers}
        )
        self._direct = isinstance(sending, CoroutineType | Coroutine)
        await sending

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _account(self) -> None:
        outcome = self.outcome
        if outcome.usage is None and b'"usage"' in self._latest:
            # a read of several events is kept whole: the last of them is meant
            self._read_usage(self._latest[max(0, self._latest.rfind(self._pattern.joint)) :])
        outcome.events, outcome.output_tokens = self._events, self._tokens
        outcome.last_tokens = self._latest
        if self._tokens:
            outcome.last_token_s = self._last_token_s
