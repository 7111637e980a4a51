"""A call as the gateway holds it: its client, its body, and what has been sent so far."""

from __future__ import annotations

import asyncio
import string
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from dispatcher.core.types import CallId, CallSpec, LengthEstimate
from dispatcher.core.workflow_types import CallRecord
from dispatcher.gateway.errors import ApiError, Send
from dispatcher.gateway.parsing.body import BodyFacts
from dispatcher.gateway.relay import ClientWatch, Dialect, RelayOutcome, error_event
from dispatcher.gateway.relay.headers import RawHeaders
from dispatcher.gateway.relay.pump import StreamPump
from dispatcher.gateway.relay.timeline import Timeline

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

KEEP_ALIVE = b": waiting\n\n"

ID_KEPT = 200
"""Characters of an id that stay when it is made unique."""

#: what stands in a header as it is, in an id that cannot
_HEADER_SAFE = string.punctuation.replace("%", "") + " "


def new_id(prefix: str) -> str:
    """A random id."""
    return f"{prefix}-{uuid.uuid4().hex}"


def header_value(text: str) -> bytes:
    """An id as a header's value: as it is, or percent-encoded where it is not ASCII.

    Example:
        >>> header_value("job 17"), header_value("Müller 17%")
        (b'job 17', b'M%C3%BCller 17%25')
    """
    if text.isascii():
        return text.encode("ascii")
    return quote(text, safe=_HEADER_SAFE).encode("ascii")


class LiveCall:
    """One scheduled call between its arrival and the end of its response."""

    __slots__ = (
        "arrived_s",
        "complete",
        "dialect",
        "dispatched_s",
        "done",
        "error",
        "facts",
        "failed_at",
        "failure",
        "headers",
        "length",
        "path",
        "pump",
        "raw",
        "record",
        "request_id",
        "scope",
        "send",
        "sent",
        "single",
        "spec",
        "started",
        "target",
        "timeline",
        "watch",
    )

    def __init__(
        self,
        *,
        spec: CallSpec,
        scope: str,
        path: str,
        target: bytes,
        dialect: Dialect,
        facts: BodyFacts,
        raw: bytes,
        headers: RawHeaders,
        request_id: str,
        send: Send,
        watch: ClientWatch,
        arrived_s: float,
        single: bool = False,
    ) -> None:
        self.spec = spec
        #: its client spoke of no workflow: what the scheduler has as one was promised nothing
        self.single = single
        #: of its tenant: what its workflow's id starts with inside
        self.scope = scope
        self.path = path
        self.target = target
        self.dialect = dialect
        self.facts = facts
        self.raw = raw
        self.headers = headers
        self.request_id = request_id
        self.send = send
        self.watch = watch
        self.arrived_s = arrived_s
        #: when it was first given to an engine
        self.dispatched_s: float | None = None
        #: the response's head has been sent (early headers, or a relay that has begun)
        self.started = False
        #: relays a stream to the client now: nobody else may send
        self.pump: StreamPump | None = None
        #: of its tokens, where a pace was promised
        self.timeline: Timeline | None = None
        #: some of the body has been sent
        self.sent = False
        #: the response has been ended
        self.complete = False
        #: the best answer where no further attempt succeeds
        self.failure: ApiError | None = None
        #: attempts that failed, by instance
        self.failed_at: dict[str, int] = {}
        #: what to answer in the end; `None`: the response stands as it is
        self.error: ApiError | None = None
        #: the latest estimate that was made without its tokens
        self.length: LengthEstimate | None = None
        self.record: CallRecord | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def workflow_id(self) -> str:
        """Its workflow as its client knows it."""
        return self.spec.workflow_id[len(self.scope) :]

    def rename(self) -> None:
        """Go by another call id: a call of this one is live."""
        self.spec = replace(self.spec, call_id=CallId(new_id(self.spec.call_id[:ID_KEPT])))

    @property
    def streaming(self) -> bool:
        """Whether the client asked for a stream."""
        return self.facts.stream

    @property
    def visible(self) -> bool:
        """Whether the client has seen some of an engine's answer, or is about to."""
        return self.sent or (self.pump is not None and self.pump.outcome.first_byte_sent)

    @property
    def answered(self) -> bool:
        """Whether the response has been ended."""
        return self.complete or (self.pump is not None and self.pump.outcome.response_complete)

    def relayed(self, outcome: RelayOutcome) -> None:
        """A stream's relay is over, however it ended."""
        self.pump = None
        self.sent = self.sent or outcome.first_byte_sent
        self.started = self.started or outcome.first_byte_sent
        self.complete = outcome.response_complete

    def own_headers(self, instance_id: str | None, now_s: float) -> RawHeaders:
        """The headers that every answer carries; one never given to an engine waits until now."""
        waited_s = (now_s if self.dispatched_s is None else self.dispatched_s) - self.arrived_s
        headers = [
            (b"x-request-id", self.request_id.encode("latin-1")),
            (b"x-headway-workflow-id", header_value(self.workflow_id)),
            (b"x-headway-queue-ms", b"%d" % max(0, round(1000 * waited_s))),
        ]
        if instance_id is not None:
            headers.append((b"x-headway-instance", instance_id.encode("ascii")))
        return headers

    async def start_early(self) -> None:
        """Send the head of a stream before any engine has answered."""
        self.started = True
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            *self.own_headers(None, self.arrived_s),
        ]
        await self.send({"type": "http.response.start", "status": 200, "headers": headers})

    async def keep_alive(self) -> None:
        """Send an SSE comment, unless an engine's answer is on its way."""
        if self.pump is None and not self.complete:
            await self.send({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})

    async def end_with_error(self, message: str, status: int) -> None:
        """End a response whose head is out: an error event in a stream, a cut otherwise."""
        if self.complete:
            return
        self.complete = True
        if self.streaming:
            body = error_event(self.dialect, message, code=status)
            await self.send({"type": "http.response.body", "body": body, "more_body": False})

    def conclude(self, record: CallRecord | None) -> None:
        """The scheduler is done with it."""
        self.record = record
        if not self.done.done():
            self.done.set_result(None)
